"""Request bodies as streams: decoded, bounded in size and time, never whole in memory."""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import zstandard
from fastapi import Request
from starlette.requests import ClientDisconnect

from logdoctor.errors import InputError, RequestRefused

CHUNK = 1 << 18
"""Approximate size of a chunk in bytes."""
STREAMED = 1 << 62
"""Lifts the framework's own limit for bodies that are streamed here."""
_STEP = 1 << 20  # bytes that a decoder yields at a time
_GZIP_STEP = 1024  # bytes of a gzip body unpacked at a time: zlib copies what follows a member
_ZSTD_STEP = 128  # bytes of a Zstandard body unpacked at a time: they give 4 MiB at most
_ZSTD_WINDOW = 1 << 23  # RFC 9659: the limit for a content coding
_MIN_RATE = 1024  # bytes per second of a body that takes longer than the time-out
_FREE_EXPANSION = 16 << 20  # bytes to which any body may unpack: logs may repeat themselves
_PLAIN = ("", "identity")
_UNPACKERS = ThreadPoolExecutor(2, "unpack")
"""Unpack bodies in turns, a piece of each, while the loop answers other requests."""


class Allowed(NamedTuple):
    """Limits of a body: bytes sent, bytes unpacked, seconds without a byte, factor of expansion."""

    sent: int
    unpacked: int
    seconds: float
    expansion: int = 2000


async def chunks(request: Request, allowed: Allowed, as_is: Container[str] = ()) -> AsyncIterator[bytes]:
    """Yield the decoded body in chunks of about `CHUNK` bytes; encodings `as_is` are left alone.

    `RequestRefused` when it is too large, too slow or of an unknown encoding, `InputError` when it is damaged.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    unpacked = _unpacked(request, allowed, "identity" if encoding in as_is else encoding)
    parts: list[bytes] = []
    size = 0
    async for part in unpacked:
        parts.append(part)
        size += len(part)
        if size >= CHUNK:
            data, parts, size = b"".join(parts), [], 0
            for at in range(0, len(data), 2 * CHUNK):
                yield data[at : at + 2 * CHUNK]
    if parts:
        yield b"".join(parts)


async def _unpacked(request: Request, allowed: Allowed, encoding: str) -> AsyncIterator[bytes]:
    """Yield the unpacked body as it arrives; `RequestRefused` before it exceeds its limits."""
    decode = _decoder(encoding)
    sent = total = 0
    async for raw in _received(request, allowed):
        sent += len(raw)
        pieces, ends = decode(raw), False
        while not ends:
            if encoding in _PLAIN:
                piece, ends = _piece(pieces)
            else:
                piece, ends = await asyncio.get_running_loop().run_in_executor(_UNPACKERS, _piece, pieces)
            total += len(piece)
            if total > allowed.unpacked:
                raise too_large(f"it unpacks to more than {allowed.unpacked} bytes")
            if total > max(allowed.expansion * sent, _FREE_EXPANSION):
                raise too_large(f"it unpacks to more than {allowed.expansion} times its size")
            if piece:
                yield piece
    for _ in decode(b""):
        pass


def _piece(pieces: Iterator[bytes]) -> tuple[bytes, bool]:
    """Return the next piece, about `CHUNK` bytes, and whether it is the last."""
    found: list[bytes] = []
    size = 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size >= CHUNK:
            return b"".join(found), False
    return b"".join(found), True


async def whole(request: Request, allowed: Allowed, as_is: Container[str] = ()) -> bytes:
    """Return the whole decoded body, see `chunks`."""
    return b"".join([chunk async for chunk in chunks(request, allowed, as_is)])


async def _received(request: Request, allowed: Allowed) -> AsyncIterator[bytes]:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > allowed.sent:
        raise too_large(f"it has {length} bytes, more than {allowed.sent}")
    begin, total = time.monotonic(), 0
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(allowed.seconds):
                part = await anext(stream)
        except StopAsyncIteration:
            return
        except ClientDisconnect as error:
            raise RequestRefused(
                400, "cut_off", "the body", "the connection broke in the middle", "Send the rest again."
            ) from error
        except TimeoutError as error:
            raise _too_slow() from error
        total += len(part)
        if total > allowed.sent:
            raise too_large(f"it has more than {allowed.sent} bytes")
        if time.monotonic() - begin > allowed.seconds + total / _MIN_RATE:
            raise _too_slow()
        yield part


def _too_slow() -> RequestRefused:
    return RequestRefused(408, "too_slow", "the body", "it arrived too slowly", "Send it again, in smaller parts.")


def too_large(cause: str) -> RequestRefused:
    """Return the refusal of a body because of its size."""
    return RequestRefused(413, "too_large", "the body", cause, "Send smaller bodies.")


def _decoder(encoding: str) -> Callable[[bytes], Iterator[bytes]]:
    """Return a function that unpacks the parts of a body, b"" at its end."""
    if encoding in _PLAIN:
        return lambda data: iter((data,) if data else ())
    if encoding in ("gzip", "x-gzip"):
        return _Gunzip().unpack
    if encoding == "zstd":
        return _Unzstd().unpack
    cause = f"its Content-Encoding {encoding[:40]!r} is not supported"
    raise RequestRefused(415, "unknown_encoding", "the body", cause, "Use identity, gzip or zstd.")


class _Gunzip:
    """Unpacks gzip members one after the other, a bounded step at a time."""

    def __init__(self) -> None:
        self._unpacker = zlib.decompressobj(31)
        self._fresh = True

    def unpack(self, data: bytes) -> Iterator[bytes]:
        if not data:
            if not self._fresh:
                raise _damaged("gzip", "it ends in the middle")
            return
        for at in range(0, len(data), _GZIP_STEP):
            part = data[at : at + _GZIP_STEP]
            while part:
                try:
                    unpacked = self._unpacker.decompress(part, _STEP)
                except zlib.error as error:
                    raise _damaged("gzip", str(error)) from error
                self._fresh = False
                if unpacked:
                    yield unpacked
                part = self._unpacker.unconsumed_tail
                if self._unpacker.eof:
                    part = self._unpacker.unused_data
                    self._unpacker, self._fresh = zlib.decompressobj(31), True


class _Unzstd:
    """Unpacks Zstandard frames one after the other, in small steps that bound their output."""

    def __init__(self) -> None:
        self._context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._unpacker = self._context.decompressobj()
        self._fresh = True

    def unpack(self, data: bytes) -> Iterator[bytes]:
        if not data and not self._fresh:
            raise _damaged("Zstandard", "it ends in the middle")
        for at in range(0, len(data), _ZSTD_STEP):
            part = data[at : at + _ZSTD_STEP]
            while part:
                try:
                    unpacked = self._unpacker.decompress(part)
                except zstandard.ZstdError as error:
                    raise _damaged("Zstandard", str(error)) from error
                self._fresh = False
                if unpacked:
                    yield unpacked
                if not self._unpacker.eof:
                    break
                part = self._unpacker.unused_data
                self._unpacker, self._fresh = self._context.decompressobj(), True


def _damaged(kind: str, cause: str) -> InputError:
    return InputError(
        "the body", f"its {kind} data is damaged ({cause})", "Ask for the offset and continue from there."
    )
