"""Hashes of files: of those being written, and of those that are there."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import xxhash

_CHUNK = 4 << 20  # bytes


class File(NamedTuple):
    """A file as a manifest lists it: its plain name, its size, the XXH3 hash of its bytes (128 bits, hex)."""

    name: str
    bytes: int
    xxh3_128: str


class HashedFile:
    """A new file that hashes what is written to it and is on the disk once it is closed.

    What is hashed is what the program handed over, so a file that differs was changed on its way to the disk or there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO = path.open("xb")
        self._hash = xxhash.xxh3_128()
        self._bytes = 0
        self.error: OSError | None = None
        """What the disk said first: torch says something else of it."""

    def write(self, data: bytes | memoryview) -> int:
        """Write all of it."""
        self._hash.update(data)
        try:
            self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise
        self._bytes += memoryview(data).nbytes
        return memoryview(data).nbytes

    def tell(self) -> int:
        """The bytes written so far."""
        return self._bytes

    def flush(self) -> None:
        """Hand over to the system what is buffered."""
        self._file.flush()

    def close(self) -> None:
        """Wait until the bytes are on the disk. Closing again does nothing."""
        if self._file.closed:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def as_file(self) -> File:
        """What was written."""
        return File(self._path.name, self._bytes, self._hash.hexdigest())


def hash_file(path: Path, *, from_disk: bool = False) -> File:
    """Hash a file; `from_disk` drops it from the kernel's cache first, so that the bytes come from where they are kept
    (as far as the file system does so). `OSError` when it cannot be read."""
    found, size, buffer = xxhash.xxh3_128(), 0, bytearray(_CHUNK)
    with path.open("rb", buffering=0) as file:
        if from_disk:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while length := file.readinto(buffer):
            found.update(memoryview(buffer)[:length])
            size += length
    return File(path.name, size, found.hexdigest())


def hash_chunks(name: str, chunks: Iterable[bytes]) -> File:
    """Hash the bytes of a file that come in parts."""
    found, size = xxhash.xxh3_128(), 0
    for chunk in chunks:
        found.update(chunk)
        size += len(chunk)
    return File(name, size, found.hexdigest())


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
