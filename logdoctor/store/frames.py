"""Zstandard frames that say what they hold: what the log and its archive are made of.

Each is preceded by a skippable frame (RFC 8878, 3.1.2) with its sizes, a checksum and a few bytes for its
owner, so `zstdcat` reads the files, and we find our way in them without unpacking.
"""

import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import zstandard

from logdoctor.errors import StoreDamaged

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

    def pack(self, note: bytes, data: bytes) -> bytes:
        """Return a header with the owner's note, and the frame; at most `MAX_RAW` bytes of data."""
        return framed(note, self.packed(data))

    def packed(self, data: bytes) -> "Packed":
        """Compress what a frame will hold, before its note is known."""
        if len(data) > MAX_RAW:
            raise ValueError(f"a frame cannot hold {len(data)} bytes")
        return Packed(len(data), self._compressor.compress(data))


class Packed(NamedTuple):
    """Compressed bytes, and how many they were."""

    raw: int
    data: bytes


def framed(note: bytes, packed: Packed) -> bytes:
    """Make a frame of compressed bytes and a note."""
    if len(note) > _MAX_NOTE:
        raise ValueError(f"a frame cannot hold a note of {len(note)} bytes")
    sizes = (packed.raw, len(packed.data), zlib.crc32(packed.data))
    header = _HEADER.pack(_TAG, *sizes, _guard(note, *sizes))
    return b"".join((_PREFIX.pack(_MAGIC, len(header) + len(note)), header, note, packed.data))


def unframed(frame: bytes, name: str) -> tuple[bytes, bytes]:
    """Return the note and the bytes of a frame that is all of a buffer; `StoreError` when it is damaged."""
    fixed = _PREFIX.size + _HEADER.size
    if len(frame) >= fixed:
        magic, length = _PREFIX.unpack_from(frame)
        tag, raw, packed, checksum, guard = _HEADER.unpack_from(frame, _PREFIX.size)
        data = _PREFIX.size + length
        note = frame[fixed:data]
        sizes = (raw, packed, checksum)
        if (magic, tag, data + packed) == (_MAGIC, _TAG, len(frame)) and _guard(note, *sizes) == guard:
            return note, _unpacked(frame[data:], raw, checksum, name)
    raise StoreDamaged(name, "it is damaged", "Run `logdoctor doctor`, which says what can be repaired.")


def _unpacked(packed: bytes, raw: int, checksum: int, name: str) -> bytes:
    try:
        if raw <= MAX_RAW and zlib.crc32(packed) == checksum:
            data = zstandard.ZstdDecompressor().decompress(packed, max_output_size=raw)
            if len(data) == raw:
                return data
    except zstandard.ZstdError:
        pass
    raise StoreDamaged(name, "its bytes are damaged", "Run `logdoctor doctor`, which says what can be repaired.")


def _guard(note: bytes, *sizes: int) -> bytes:
    """Return what proves a header."""
    return hashlib.blake2b(struct.pack("<III", *sizes) + note, digest_size=8).digest()


def walk(descriptor: int, begin: int = 0) -> Iterator[Frame]:
    """Yield the frames of an open file from `begin` on, by their headers; ends at the first that is not whole."""
    size = os.fstat(descriptor).st_size
    while frame := _frame(descriptor, begin, size):
        yield frame
        begin = frame.end


def _frame(descriptor: int, begin: int, size: int) -> Frame | None:
    """Return the frame that begins at a place of a file of so many bytes; None when its header is not whole or
    damaged."""
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
    if _guard(note, raw, packed, checksum) != guard or data + packed > size:
        return None
    return Frame(begin, data, data + packed, raw, note, checksum)


def find(descriptor: int, begin: int) -> int | None:
    """Return where the next whole frame begins, at `begin` or behind damaged bytes; None when there is none."""
    size = os.fstat(descriptor).st_size
    start = _START.pack(_MAGIC)
    while chunk := os.pread(descriptor, _SEARCHED, begin):
        at = chunk.find(start)
        while at >= 0:
            if _frame(descriptor, begin + at, size):
                return begin + at
            at = chunk.find(start, at + 1)
        if len(chunk) < _SEARCHED:
            return None
        begin += len(chunk) - len(start) + 1
    return None
