"""Request bodies, compressed in pieces so that the interpreter lock is never held for long."""

import importlib
import zlib
from typing import Any

_PIECE = 128 << 10
_SMALL = 256

try:
    _zstandard: Any = importlib.import_module("zstandard")
except ImportError:
    _zstandard = None

ENCODINGS: tuple[str, ...] = ("zstd", "gzip", "identity") if _zstandard else ("gzip", "identity")
"""In order of preference; when the service refuses one, the next is used."""


def encoded(data: bytes, encoding: str) -> tuple[bytes, str]:
    """Return the bytes to send and their encoding; a small body is not compressed."""
    if encoding == "identity" or len(data) < _SMALL:
        return data, "identity"
    if encoding == "zstd":
        compressor = _zstandard.ZstdCompressor(level=1).compressobj(size=len(data))
    else:
        compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
    pieces = [compressor.compress(data[at : at + _PIECE]) for at in range(0, len(data), _PIECE)]
    return b"".join((*pieces, compressor.flush())), encoding
