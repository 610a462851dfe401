"""Self-describing Zstandard frames, the format of the log and its archive.

Each is preceded by a skippable frame (RFC 8878, 3.1.2) with its sizes, a checksum and a note, so `zstdcat` reads the
files, and we can navigate them without unpacking.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import zstandard

from logdoctor.errors import StoreDamaged

MAX_RAW = 64 << 20
"""Bytes that a frame may hold; more in a header means damage."""
_MAGIC = 0x184D2A5D
_PREFIX = struct.Struct("<II")  # magic number and size of the skippable frame
_HEADER = struct.Struct("<4sIII8s")  # tag, bytes inside, bytes of the frame, their checksum, guard of the header
_TAG = b"LDF1"
_MAX_NOTE = 16 << 20


class Frame(NamedTuple):
    """The place of a frame in its file, how many bytes it holds, and its note."""

    begin: int
    end: int
    raw: int
    note: bytes


class Packer:
    """Makes frames; for one thread."""

    def __init__(self, level: int = 1) -> None:
        self._compressor = zstandard.ZstdCompressor(level=level)

    def pack(self, note: bytes, data: bytes) -> bytes:
        """Return a header with the note, and the frame; at most `MAX_RAW` bytes of data."""
        return framed(note, self.packed(data))

    def packed(self, data: bytes) -> "Packed":
        """Compress the bytes of a frame before its note is known."""
        if len(data) > MAX_RAW:
            raise ValueError(f"a frame cannot hold {len(data)} bytes")
        return Packed(len(data), self._compressor.compress(data))


class Packed(NamedTuple):
    """Compressed bytes and their original size."""

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
    """Return the note and the bytes of a frame that fills a buffer; `StoreDamaged` when it is damaged."""
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
    """Return the checksum of a header."""
    return hashlib.blake2b(struct.pack("<III", *sizes) + note, digest_size=8).digest()


def walk(data: bytes) -> Iterator[Frame]:
    """Yield the frames of a file by their headers, up to the first incomplete one."""
    begin = 0
    while frame := _frame(data, begin):
        yield frame
        begin = frame.end


def _frame(data: bytes, begin: int) -> Frame | None:
    """Return the frame at a place of a file; None when its header is incomplete or damaged."""
    fixed = begin + _PREFIX.size + _HEADER.size
    if len(data) < fixed:
        return None
    magic, length = _PREFIX.unpack_from(data, begin)
    tag, raw, packed, checksum, guard = _HEADER.unpack_from(data, begin + _PREFIX.size)
    room = length - _HEADER.size
    if magic != _MAGIC or tag != _TAG or not 0 <= room <= _MAX_NOTE or raw > MAX_RAW:
        return None
    note, end = data[fixed : fixed + room], fixed + room + packed
    if _guard(note, raw, packed, checksum) != guard or end > len(data):
        return None
    return Frame(begin, end, raw, note)
