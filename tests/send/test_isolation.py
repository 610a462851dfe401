"""The sender runs on a node that has Python and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

from tests.send.conftest import ROOT

BARE = [sys.executable, "-I", "-S"]


def test_it_works_without_site_packages(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import logdoctor.job.send.run, logdoctor.job.send.ship, logdoctor.job.send.resume\n"
        "import logdoctor.job.send.__main__ as m\n"
        "from logdoctor.job.send.body import ENCODINGS\n"
        "assert ENCODINGS == ('gzip', 'identity'), ENCODINGS\n"
        "sys.exit(m.main(['run', '--job', 'j', '--drain-seconds', '0.1', '--', 'echo', 'it works']))\n"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "LOGDOCTOR_SPOOL_DIR": str(tmp_path),
        "LOGDOCTOR_URL": "http://127.0.0.1:9",
    }
    done = subprocess.run([*BARE, "-c", code], env=environment, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"it works\n"), done.stderr


def test_slow_modules_are_not_imported_before_the_command_starts(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import logdoctor.job.send.run, logdoctor.job.send.__main__\n"
        "slow = ('ssl', 'http.client', 'subprocess', 'inspect', 'zstandard')\n"
        "print([name for name in slow if name in sys.modules])\n"
    )
    assert subprocess.run([*BARE, "-c", code], capture_output=True).stdout == b"[]\n"
