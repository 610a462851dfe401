"""Zstandard frames that say what they hold: what journals and archives are made of.

Each is preceded by a skippable frame (RFC 8878, 3.1.2) with its sizes, a checksum and a few bytes for its
owner, so `zstdcat` reads the files, and we find our way in them without unpacking.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import zstandard

from logdoctor.errors import StoreError

MAX_RAW = 64 << 20
"""Bytes that a frame may hold; more in a header means that it is damaged."""
_MAGIC = 0x184D2A5D
_PREFIX = struct.Struct("<II")  # magic number and size of the skippable frame
_HEADER = struct.Struct("<4sIII")  # tag, bytes inside, bytes of the frame, checksum of what follows
_TAG = b"LDF1"
_MAX_NOTE = 16 << 20


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
        """A header with the owner's note, and the frame."""
        packed = self._compressor.compress(data)
        checksum = zlib.crc32(packed, zlib.crc32(note))
        header = _HEADER.pack(_TAG, len(data), len(packed), checksum)
        return b"".join((_PREFIX.pack(_MAGIC, len(header) + len(note)), header, note, packed))


def walk(descriptor: int, begin: int = 0) -> Iterator[Frame]:
    """The frames of an open file from `begin` on, by their headers; ends at the first that is not whole."""
    size = os.fstat(descriptor).st_size
    fixed = _PREFIX.size + _HEADER.size
    while begin + fixed <= size:
        head = os.pread(descriptor, 4096, begin)
        magic, length = _PREFIX.unpack_from(head)
        tag, raw, packed, checksum = _HEADER.unpack_from(head, _PREFIX.size)
        room = length - _HEADER.size
        if magic != _MAGIC or tag != _TAG or not 0 <= room <= _MAX_NOTE or raw > MAX_RAW:
            return
        data = begin + fixed + room
        if data + packed > size:
            return
        note = head[fixed : fixed + room] if fixed + room <= len(head) else os.pread(descriptor, room, begin + fixed)
        yield Frame(begin, data, data + packed, raw, note, checksum)
        begin = data + packed


def unpack(descriptor: int, frame: Frame, name: str) -> bytes:
    """The bytes that a frame holds; `StoreError` when they are damaged."""
    packed = os.pread(descriptor, frame.end - frame.data, frame.data)
    try:
        if zlib.crc32(packed, zlib.crc32(frame.note)) != frame.checksum:
            raise zstandard.ZstdError("wrong checksum")
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=frame.raw)
    except zstandard.ZstdError as error:
        cause = f"the frame at byte {frame.begin} is damaged ({error})"
        raise StoreError(name, cause, "Restore the file, or delete it to give the stream up.") from error
