"""A disk so small that it can be filled."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A file system of `size` bytes mounted at `folder`. Only root may do that: for others the test is skipped."""
    folder.mkdir(exist_ok=True)
    mount = shutil.which("mount")
    made = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, timeout=90
    )
    if not made or made.returncode:
        (pytest.fail if os.geteuid() == 0 else pytest.skip)("no file system can be mounted here: run the tests as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=90)


def fill(folder: Path, protect: int = 0) -> Path:
    """The file that takes all space of a small disk but about `protect` bytes, whoever else writes there meanwhile."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while (room := shutil.disk_usage(folder).free - protect) > 0:
            file.write(bytes(min(room, 1 << 20)))
    return ballast
