"""Processes that are started of ourselves import nothing from the folder that somebody works in."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_MODULE = re.compile(r'"-m", "logdoctor')


def test_each_start_of_our_modules_leaves_the_working_folder_out() -> None:
    starts = [
        f"{path.name}: {line.strip()}"
        for path in (ROOT / "logdoctor").rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if _MODULE.search(line)
    ]
    assert len(starts) >= 4 and [line for line in starts if '"-P", "-m"' not in line] == []


@pytest.mark.parametrize("name", ["click", "msgspec", "json"])
def test_a_file_that_is_called_like_a_module_is_not_imported(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit(77)\n")
    command = [sys.executable, "-P", "-m", "logdoctor.cli", "--version"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True)
    assert made.returncode == 0 and made.stdout.startswith(b"logdoctor")
