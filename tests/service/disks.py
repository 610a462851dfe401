"""A disk so small that it can be filled, and a place for objects that is away at times."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from logdoctor.errors import StoreError
from logdoctor.store.log.objects import FolderObjects, ObjectFacts


class Away(FolderObjects):
    """A folder of objects that fails while `fails`, as a bucket does that cannot be reached; `calls` are the failed.

    When only its `answers` are lost, what it is told is done.
    """

    def __init__(self, folder: Path, answers: bool = True) -> None:
        super().__init__(folder)
        self.fails = False
        self.calls = 0
        self._answers = answers

    def _check(self) -> None:
        if self.fails:
            self.calls += 1
            raise StoreError("the bucket", "it does not answer", "Wait.")

    def put(self, name: str, data: bytes) -> None:
        """As it is, or not now."""
        if not self._answers:
            super().put(name, data)
        self._check()
        super().put(name, data)

    def get(self, name: str, begin: int, end: int) -> bytes:
        """As it is, or not now."""
        self._check()
        return super().get(name, begin, end)

    def size(self, name: str) -> int | None:
        """As it is, or not now."""
        self._check()
        return super().size(name)

    def delete(self, name: str) -> None:
        """As it is, or not now."""
        self._check()
        super().delete(name)

    def walk(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """As it is, or not now."""
        self._check()
        return super().walk(prefix)


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A file system of `size` bytes mounted at `folder`. Only root may do that: for others the test is skipped."""
    folder.mkdir(exist_ok=True)
    mount = shutil.which("mount")
    made = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, timeout=600
    )
    if not made or made.returncode:
        (pytest.fail if os.geteuid() == 0 else pytest.skip)("no file system can be mounted here: run the tests as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=600)


def fill(folder: Path, protect: int = 0) -> Path:
    """The file that takes all space of a small disk but about `protect` bytes, whoever else writes there meanwhile."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while (room := shutil.disk_usage(folder).free - protect) > 0:
            file.write(bytes(min(room, 1 << 20)))
    return ballast
