"""Hashes of files, while they are written or from the disk."""

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

_CHUNK = 8 << 20  # bytes written or read at a time
_BLOCK = 4096  # alignment that O_DIRECT needs for memory, offsets and lengths


class File(NamedTuple):
    """A file as listed in a manifest: its plain name, size, and XXH3 hash (128 bits, hex)."""

    name: str
    bytes: int
    xxh3_128: str


class Ending(Exception):
    """The process ends."""


_ending = threading.Event()


def end() -> None:
    """Abort all writing and hashing in this process: a thread inside torch at interpreter exit would abort the
    process."""
    _ending.set()


def _go_on() -> None:
    if _ending.is_set():
        raise Ending("the program ends before it is written")


class HashedFile:
    """A new file that hashes what is written to it and is durable once closed.

    The hash covers what the program handed over, so a differing file was changed on its way to the disk or there. It
    bypasses the kernel's cache where the file system allows it: that takes less than half the processor time, and
    leaves the cache to the data that training reads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._open = True
        self._buffer, self._filled = mmap.mmap(-1, _CHUNK), 0  # page-aligned
        self._hash = xxhash.xxh3_128()
        self._bytes = 0
        self.error: OSError | Ending | None = None
        """The first error, which torch reports differently."""

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
        """Return the bytes written so far."""
        return self._bytes

    def flush(self) -> None:
        """Do nothing: only whole blocks are written before closing."""

    def close(self) -> None:
        """Wait until the bytes are durable. Closing again does nothing."""
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
        """Return what was written."""
        return File(self._path.name, self._bytes, self._hash.hexdigest())

    def _keep(self, view: memoryview) -> None:
        """Buffer bytes, writing the buffer whenever it is full."""
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
    """Hash a file; `OSError` when it cannot be read. `from_disk` bypasses the kernel's cache, as far as the file system
    allows."""
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
    """Open a file bypassing the kernel's cache, if its file system allows that; a new one must not exist."""
    folder = Folder(path.parent)
    try:
        return folder.open(path.name, how | os.O_DIRECT, 0o666)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        if how & os.O_CREAT:  # some create it before they refuse
            folder.remove(path.name)
        return folder.open(path.name, how, 0o666)


def _around_cache_if_allowed(move: Callable[[int, Any], int], file: int, data: Any) -> int:
    """Read or write; fall back to the cache where a file system refuses direct I/O only now."""
    try:
        return move(file, data)
    except OSError as error:
        if error.errno != errno.EINVAL or not fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            raise
        _leave_direct(file)
        return move(file, data)


def _leave_direct(file: int) -> None:
    """Continue through the kernel's cache: the rest is not a whole block."""
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) & ~os.O_DIRECT)


def hash_chunks(name: str, chunks: Iterable[bytes]) -> File:
    """Hash a file's bytes given in chunks."""
    found, size = xxhash.xxh3_128(), 0
    for chunk in chunks:
        found.update(chunk)
        size += len(chunk)
    return File(name, size, found.hexdigest())
