"""Zstandard frames that say what they hold: what journals and archives are made of.

Each is preceded by a skippable frame (RFC 8878, 3.1.2) with its sizes, a checksum and a few bytes for its
owner, so `zstdcat` reads the files, and we find our way in them without unpacking.
"""

import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import zstandard

from logdoctor.errors import StoreError

MAX_RAW = 64 << 20
"""Bytes that a frame may hold; more in a header means that it is damaged."""
_MAGIC = 0x184D2A5D
_PREFIX = struct.Struct("<II")  # magic number and size of the skippable frame
_HEADER = struct.Struct("<4sIII8s")  # tag, bytes inside, bytes of the frame, their checksum, guard of the header
_TAG = b"LDF1"
_MAX_NOTE = 16 << 20
_START = struct.Struct("<I")
_SEARCHED = 1 << 20


class Frame(NamedTuple):
    """Where a frame stands in its file (header, data, end), how many bytes it holds, and its owner's note."""

    begin: int
    data: int
    end: int
    raw: int
    note: bytes
    checksum: int


class Packer:
    """Makes frames; for one thread."""

    def __init__(self, level: int = 1) -> None:
        self._compressor = zstandard.ZstdCompressor(level=level)

    def pack(self, note: bytes, data: bytes, secret: bytes = b"") -> bytes:
        """A header with the owner's note, and the frame; at most `MAX_RAW` bytes of data.

        With a secret nobody can send bytes that are taken for a frame where a file is damaged.
        """
        if len(data) > MAX_RAW or len(note) > _MAX_NOTE:
            raise ValueError(f"a frame cannot hold {len(data)} bytes with a note of {len(note)}")
        packed = self._compressor.compress(data)
        sizes = (len(data), len(packed), zlib.crc32(packed))
        header = _HEADER.pack(_TAG, *sizes, _guard(secret, note, *sizes))
        return b"".join((_PREFIX.pack(_MAGIC, len(header) + len(note)), header, note, packed))


def _guard(secret: bytes, note: bytes, *sizes: int) -> bytes:
    """What proves a header."""
    return hashlib.blake2b(struct.pack("<III", *sizes) + note, digest_size=8, key=secret).digest()


def walk(descriptor: int, begin: int = 0, secret: bytes = b"") -> Iterator[Frame]:
    """The frames of an open file from `begin` on, by their headers; ends at the first that is not whole."""
    size = os.fstat(descriptor).st_size
    while frame := _frame(descriptor, begin, size, secret):
        yield frame
        begin = frame.end


def _frame(descriptor: int, begin: int, size: int, secret: bytes) -> Frame | None:
    """The frame that begins at a place of a file of so many bytes; None when its header is not whole or damaged."""
    fixed = _PREFIX.size + _HEADER.size
    head = os.pread(descriptor, 4096, begin)
    if len(head) < fixed:
        return None
    magic, length = _PREFIX.unpack_from(head)
    tag, raw, packed, checksum, guard = _HEADER.unpack_from(head, _PREFIX.size)
    room = length - _HEADER.size
    if magic != _MAGIC or tag != _TAG or not 0 <= room <= _MAX_NOTE or raw > MAX_RAW:
        return None
    note = head[fixed : fixed + room] if fixed + room <= len(head) else os.pread(descriptor, room, begin + fixed)
    data = begin + fixed + room
    if _guard(secret, note, raw, packed, checksum) != guard or data + packed > size:
        return None
    return Frame(begin, data, data + packed, raw, note, checksum)


def find(descriptor: int, begin: int, secret: bytes = b"") -> int | None:
    """Where the next whole frame begins, at `begin` or behind damaged bytes; None when there is none."""
    size = os.fstat(descriptor).st_size
    start = _START.pack(_MAGIC)
    while chunk := os.pread(descriptor, _SEARCHED, begin):
        at = chunk.find(start)
        while at >= 0:
            if _frame(descriptor, begin + at, size, secret):
                return begin + at
            at = chunk.find(start, at + 1)
        if len(chunk) < _SEARCHED:
            return None
        begin += len(chunk) - len(start) + 1
    return None


def unpack(descriptor: int, frame: Frame, name: str) -> bytes:
    """The bytes that a frame holds; `StoreError` when they are damaged."""
    packed = os.pread(descriptor, frame.end - frame.data, frame.data)
    try:
        if zlib.crc32(packed) != frame.checksum:
            raise zstandard.ZstdError("wrong checksum")
        data = zstandard.ZstdDecompressor().decompress(packed, max_output_size=frame.raw)
        if len(data) != frame.raw:
            raise zstandard.ZstdError(f"{len(data)} bytes instead of {frame.raw}")
        return data
    except zstandard.ZstdError as error:
        cause = f"the frame at byte {frame.begin} is damaged ({error})"
        raise StoreError(name, cause, "Restore the file, or delete it to give up the stream.") from error


def sync_folder(folder: Path) -> None:
    """Make a new name durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
