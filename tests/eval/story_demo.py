"""The demonstration ends by itself where nobody watches, and names no page that is gone by then."""

import os
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "eval" / "demo.py"


def test_off_a_terminal_no_link_outlives_the_service(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOGDOCTOR_")}
    done = subprocess.run(
        [sys.executable, str(DEMO)],
        env=environment | {"LOGDOCTOR_SPOOL_DIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ECC Error" in done.stdout and "exit code 1" in done.stdout
    assert "/verdicts/" not in done.stdout and "--keep" in done.stdout
