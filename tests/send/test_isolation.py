"""The sender runs on a node that has Python and nothing else."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.send.conftest import ROOT

PACKAGE = ROOT / "logdoctor" / "send"
MODULES = sorted(PACKAGE.glob("*.py"))
BARE = [sys.executable, "-I", "-S"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_only_the_standard_library_is_imported(path: Path) -> None:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    outside = {name for name in names if name.split(".")[0] not in sys.stdlib_module_names}
    assert all(name == "logdoctor.errors" or name.startswith("logdoctor.send") for name in outside), outside


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_only_one_module_reads_the_environment(path: Path) -> None:
    readers = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv")
    ]
    assert bool(readers) == (path.name == "environment.py")


def test_it_works_without_site_packages(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import logdoctor.send.run, logdoctor.send.ship, logdoctor.send.resume, logdoctor.send.__main__ as m\n"
        "from logdoctor.send.body import ENCODINGS\n"
        "assert ENCODINGS == ('gzip', 'identity'), ENCODINGS\n"
        "sys.exit(m.main(['run', '--job', 'j', '--drain-seconds', '0.1', '--', 'echo', 'it works']))\n"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "LOGDOCTOR_SPOOL_DIR": str(tmp_path),
        "LOGDOCTOR_URL": "http://127.0.0.1:9",
    }
    done = subprocess.run([*BARE, "-c", code], env=environment, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"it works\n"), done.stderr


def test_slow_modules_are_not_imported_before_the_command_starts(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import logdoctor.send.run, logdoctor.send.__main__\n"
        "slow = ('ssl', 'http.client', 'subprocess', 'inspect', 'zstandard')\n"
        "print([name for name in slow if name in sys.modules])\n"
    )
    assert subprocess.run([*BARE, "-c", code], capture_output=True, timeout=60).stdout == b"[]\n"
