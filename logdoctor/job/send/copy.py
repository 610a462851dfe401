"""A bounded local copy of an output: its newest part, in two files."""

import os
from collections.abc import Iterator
from contextlib import suppress

from logdoctor.job.send.witnesses import remove_kept
from logdoctor.safe.lasting_files import Folder

NEWEST, BEFORE = "log", "log.before"


class OutputCopy:
    """The newest bytes of an output, between half the limit and all of it. One thread at a time appends."""

    def __init__(self, folder: str, limit: int) -> None:
        """Replace a former copy; `OSError` when the folder cannot be written."""
        self._folder, self._half = Folder(folder, private=True), max(limit // 2, 1)
        remove_copy(folder)
        self._descriptor, self._size = self._open(), 0

    def append(self, data: bytes) -> None:
        """Append bytes; `OSError` when they cannot be written."""
        rest = memoryview(data)
        while rest:
            if self._size >= self._half:
                os.close(self._descriptor)
                self._folder.move(NEWEST, BEFORE)
                self._descriptor, self._size = self._open(), 0
            written = os.write(self._descriptor, rest[: self._half - self._size])
            self._size += written
            rest = rest[written:]

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)

    def _open(self) -> int:
        return self._folder.open(NEWEST, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)


def read_copy(folder: str, size: int = 1 << 20) -> Iterator[bytes]:
    """Yield the bytes of a copy in order; nothing without one."""
    for name in (BEFORE, NEWEST):
        try:
            with os.fdopen(Folder(folder, private=True).open(name), "rb") as file:
                while data := file.read(size):
                    yield data
        except OSError:
            continue


def remove_copy(folder: str) -> None:
    """Remove a copy if it exists, and what was kept beside it; `OSError` when that fails."""
    remove_kept(folder)
    for name in (NEWEST, BEFORE):
        Folder(folder, private=True).remove(name)


class FollowedCopy:
    """Reads a copy while it is written. Files replaced twice between two reads are missed."""

    def __init__(self, folder: str) -> None:
        self._folder = Folder(folder, private=True)
        self._descriptor: int | None = None

    def read(self, size: int = 1 << 20) -> Iterator[bytes]:
        """Yield the bytes added since the last read; `OSError` when they cannot be read."""
        while True:
            if self._descriptor is None and not self._open():
                return
            assert self._descriptor is not None
            while data := os.read(self._descriptor, size):
                yield data
            if not self._is_replaced():
                return
            while data := os.read(self._descriptor, size):  # the rest from before the replacement
                yield data
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> bool:
        with suppress(FileNotFoundError):
            self._descriptor = self._folder.open(NEWEST)
        return self._descriptor is not None

    def _is_replaced(self) -> bool:
        """Return whether the open file was renamed; its inode cannot be reused while it is open."""
        assert self._descriptor is not None
        try:
            return not os.path.samestat(os.lstat(self._folder.path_of(NEWEST)), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False
