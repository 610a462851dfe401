"""Hashes of files: of those being written, and of those that are there."""

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from logdoctor.safe.lasting_files import Folder

_CHUNK = 8 << 20  # bytes that are written or read at a time
_BLOCK = 4096  # what O_DIRECT asks memory, places and lengths to be multiples of


class File(NamedTuple):
    """A file as a manifest lists it: its plain name, its size, the XXH3 hash of its bytes (128 bits, hex)."""

    name: str
    bytes: int
    xxh3_128: str


class Ending(Exception):
    """The process ends."""


_ending = threading.Event()


def end() -> None:
    """Let what is written and hashed in this process break off: a thread that is inside torch when the interpreter
    ends would abort the process."""
    _ending.set()


def _go_on() -> None:
    if _ending.is_set():
        raise Ending("the program ends before it is written")


class HashedFile:
    """A new file that hashes what is written to it and is on the disk once it is closed.

    What is hashed is what the program handed over, so a file that differs was changed on its way to the disk or there.
    It goes around the kernel's cache where the file system allows it: that costs less than half of the processor's
    time, and leaves the cache to the data that training reads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._open = True
        self._buffer, self._filled = mmap.mmap(-1, _CHUNK), 0  # begins at a page
        self._hash = xxhash.xxh3_128()
        self._bytes = 0
        self.error: OSError | Ending | None = None
        """What went wrong first: torch says something else of it."""

    def write(self, data: bytes | memoryview) -> int:
        """Write all of it."""
        view = memoryview(data).cast("B")
        self._hash.update(view)
        for begin in range(0, len(view), _CHUNK):
            try:
                _go_on()
            except Ending as error:
                self.error = error
                raise
            self._keep(view[begin : begin + _CHUNK])
        self._bytes += len(view)
        return len(view)

    def tell(self) -> int:
        """The bytes written so far."""
        return self._bytes

    def flush(self) -> None:
        """Nothing: what is not written yet is no whole block."""

    def close(self) -> None:
        """Wait until the bytes are on the disk. Closing again does nothing."""
        if not self._open:
            return
        self._open = False
        try:
            if self.error is None:
                whole = self._filled // _BLOCK * _BLOCK
                self._put(0, whole)
                _leave_direct(self._file)
                self._put(whole, self._filled)
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def as_file(self) -> File:
        """What was written."""
        return File(self._path.name, self._bytes, self._hash.hexdigest())

    def _keep(self, view: memoryview) -> None:
        """Put bytes into the buffer, and the buffer into the file whenever it is full."""
        fits = min(len(view), _CHUNK - self._filled)
        self._buffer[self._filled : self._filled + fits] = view[:fits]
        self._filled += fits
        if self._filled == _CHUNK:
            self._put(0, _CHUNK)
            self._filled = len(view) - fits
            self._buffer[: self._filled] = view[fits:]

    def _put(self, begin: int, end: int) -> None:
        """Write a part of the buffer."""
        try:
            with memoryview(self._buffer) as whole:
                while begin < end:
                    with whole[begin:end] as rest:
                        begin += _around_cache_if_allowed(os.write, self._file, rest)
                    if begin < end and begin % _BLOCK:
                        _leave_direct(self._file)
        except OSError as error:
            self.error = self.error or error
            raise


def hash_file(path: Path, *, from_disk: bool = False) -> File:
    """Hash a file; `from_disk` reads around the kernel's cache, so that the bytes come from where they are kept (as far
    as the file system does so). `OSError` when it cannot be read."""
    found, size, buffer = xxhash.xxh3_128(), 0, mmap.mmap(-1, _CHUNK)
    file = _opened(path, os.O_RDONLY) if from_disk else Folder(path.parent).open(path.name)
    try:
        if from_disk:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        with memoryview(buffer) as whole:
            while length := _around_cache_if_allowed(os.readv, file, [whole]):
                _go_on()
                with whole[:length] as part:
                    found.update(part)
                size += length
                if length % _BLOCK:
                    _leave_direct(file)
    finally:
        os.close(file)
    return File(path.name, size, found.hexdigest())


def _opened(path: Path, how: int) -> int:
    """Open a file around the kernel's cache, if its file system allows it; a new one was not there before."""
    folder = Folder(path.parent)
    try:
        return folder.open(path.name, how | os.O_DIRECT, 0o666)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        if how & os.O_CREAT:  # some make it before they refuse
            folder.remove(path.name)
        return folder.open(path.name, how, 0o666)


def _around_cache_if_allowed(move: Callable[[int, Any], int], file: int, data: Any) -> int:
    """Read or write; some file systems let a file be opened around the kernel's cache and refuse then."""
    try:
        return move(file, data)
    except OSError as error:
        if error.errno != errno.EINVAL or not fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            raise
        _leave_direct(file)
        return move(file, data)


def _leave_direct(file: int) -> None:
    """Go on through the kernel's cache: what is left is no whole block."""
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) & ~os.O_DIRECT)


def hash_chunks(name: str, chunks: Iterable[bytes]) -> File:
    """Hash the bytes of a file that come in parts."""
    found, size = xxhash.xxh3_128(), 0
    for chunk in chunks:
        found.update(chunk)
        size += len(chunk)
    return File(name, size, found.hexdigest())
