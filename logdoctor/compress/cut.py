"""Cuts bytes into segments of whole lines, without a Python object per line.

A line ends with `\\n`; `\\r` is part of it. Segment boundaries depend on how the bytes arrive, but no result may: all
later stages look at single lines, and a line longer than `MAX_LINE` is cut into pieces at fixed distances from its own
start.
"""

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from logdoctor.errors import InputError
from logdoctor.types import Segment

MAX_LINE = 1 << 20
"""Bytes; a longer line is matched piece by piece and never removed by a filter rule."""

_NEWLINE = 10
_STATE = 8192  # bytes at the end of an unfinished line that hold its last state
_FOREIGN = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
    b"\x04\x22\x4d\x18": "lz4",
    b"7z\xbc\xaf\x27\x1c": "7-zip",
    b"Rar!": "rar",
    b"\x1f\x9d": "compress (.Z)",
    b"LZIP": "lzip",
}
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SLICE = 1024  # bytes unpacked at a time
_MOST_EMPTY = 4096  # empty members in a row
_TOO_EMPTY = "{}: the {} data is damaged (thousands of members in a row hold nothing); what came before it was read"
_FREE_EXPANSION = 64 << 20  # bytes that a compressed log may always unpack to, whatever its ratio


def newlines_of(data: bytes) -> npt.NDArray[np.int64]:
    """Return the positions of `\\n` in a buffer."""
    return np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)


def cut(stream: str, chunks: Iterable[bytes], block: int, offset: int = 0) -> Iterator[Segment]:
    """Yield a stream's segments of about `block` bytes, from a line start at `offset`."""
    cutter = Cutter(stream, offset)
    pending: list[bytes] = []
    size = 0
    for chunk in chunks:
        pending.append(chunk)
        size += len(chunk)
        if size >= block:
            yield from cutter.push(b"".join(pending))
            pending, size = [], 0
    yield from cutter.finish(b"".join(pending))


class Cutter:
    """Cuts one stream that arrives in chunks of any size; begins at byte `offset` in line `line`.

    `piece` is not 0 inside a long line. What follows the last newline is held back until its line is complete or longer
    than `MAX_LINE`, or the stream ends.
    """

    def __init__(self, stream: str, offset: int = 0, line: int = 1, piece: int = 0) -> None:
        self.offset, self.line, self.piece = offset, line, piece
        """The start of the next segment: all bytes before it have been returned."""
        self._stream = stream
        self._rest: list[bytes] = []  # without a newline
        self._held = 0

    @property
    def reached(self) -> int:
        """Return the offset up to which bytes were pushed."""
        return self.offset + self._held

    def redrawn(self) -> bytes:
        """Return the last complete state of an unfinished line redrawn by carriage returns; b"" otherwise."""
        if not self._rest or self._held > MAX_LINE:
            return b""
        self._rest = [b"".join(self._rest)]
        states = self._rest[0][-_STATE:].split(b"\r")
        return states[-2] if len(states) > 2 else b""

    def push(self, data: bytes) -> Iterator[Segment]:
        """Yield the segments that `data` completes; its last line may be held back."""
        end = data.rfind(b"\n") + 1
        if end:
            yield from self._given(_whole(self._stream, self._joined(data[:end]), self.offset, self.line, self.piece))
            data = data[end:]
        if data:
            self._rest.append(data)
            self._held += len(data)
        if self._held > MAX_LINE:
            rest = self._joined(b"")
            yield from self._given(_unfinished(self._stream, rest, self.offset, self.line, self.piece))
            rest = rest[len(rest) - (len(rest) - 1) % MAX_LINE - 1 :]
            self._rest, self._held = [rest], len(rest)

    def finish(self, data: bytes = b"") -> Iterator[Segment]:
        """Yield the remaining segments when the stream ends with `data`, with or without a newline."""
        yield from self._given(_whole(self._stream, self._joined(data), self.offset, self.line, self.piece))

    def _joined(self, data: bytes) -> bytes:
        """Return the held-back bytes followed by `data`."""
        joined = b"".join((*self._rest, data)) if self._rest else data
        self._rest, self._held = [], 0
        return joined

    def _given(self, segments: Iterator[Segment]) -> Iterator[Segment]:
        for segment in segments:
            self.offset += len(segment.data)
            self.line, self.piece = _after(segment)
            yield segment


def _after(segment: Segment) -> tuple[int, int]:
    """Return the (line number, piece) at which the next segment begins."""
    if segment.piece is None:
        return segment.line + segment.lines, 0
    if segment.data.endswith(b"\n"):
        return segment.line + 1, 0
    return segment.line, segment.piece + 1


def _unfinished(stream: str, data: bytes, offset: int, line: int, piece: int) -> Iterator[Segment]:
    """Yield the full pieces of an unfinished line; at least one byte more is always held back."""
    while len(data) > MAX_LINE:
        yield Segment(stream, data[:MAX_LINE], offset, line, np.empty(0, np.int64), piece)
        data, offset, piece = data[MAX_LINE:], offset + MAX_LINE, piece + 1


def _whole(stream: str, data: bytes, offset: int, line: int, piece: int = 0) -> Iterator[Segment]:
    """Yield segments of a buffer that ends at a line's end, long lines separately.

    The end of the stream counts as well. `piece` is not 0 when the buffer begins inside a long line.
    """
    if not data:
        return
    newlines = newlines_of(data)
    bounds = np.concatenate(([-1], newlines, [len(data)] if not data.endswith(b"\n") else []))
    long_lines = np.flatnonzero(np.diff(bounds) > MAX_LINE + 1)
    if piece:
        long_lines = np.union1d([0], long_lines)
    done = 0
    for number in long_lines.astype(int):
        begin, end = int(bounds[number]) + 1, int(bounds[number + 1]) + 1
        if begin > int(bounds[done]) + 1:
            yield _plain(stream, data[int(bounds[done]) + 1 : begin], offset + int(bounds[done]) + 1, line + done)
        yield from _pieces(stream, data[begin:end], offset + begin, line + int(number), piece if number == 0 else 0)
        done = int(number) + 1
    if done < len(bounds) - 1:
        begin = int(bounds[done]) + 1
        if not begin:
            yield Segment(stream, data, offset, line, newlines)
        else:
            yield _plain(stream, data[begin:], offset + begin, line + done)


def _plain(stream: str, data: bytes, offset: int, line: int) -> Segment:
    return Segment(stream, data, offset, line, newlines_of(data))


def _pieces(stream: str, data: bytes, offset: int, line: int, piece: int) -> Iterator[Segment]:
    """Yield the pieces of one long line; the newline stays with the last one."""
    text = data.removesuffix(b"\n")
    starts = list(range(0, len(text), MAX_LINE)) or [0]
    for number, start in enumerate(starts):
        part = data[start : start + MAX_LINE] if start != starts[-1] else data[start:]
        yield Segment(stream, part, offset + start, line, newlines_of(part), piece + number)


def cut_range(stream: str, file: BinaryIO, begin: int, end: int, size: int) -> Iterator[Segment]:
    """Yield segments of the lines that begin in bytes [begin, end) of a file. The file is open, uncompressed and has
    `size` bytes. Line numbers count from 1 at `begin`; the caller adds the lines of earlier ranges."""
    descriptor = file.fileno()
    data = _read(descriptor, begin, end)
    if begin:
        skip = _first_start(descriptor, begin, data)
        if skip is None:
            return
        data = data[skip:]
        begin += skip
    yield from cut(stream, _to_line_end(descriptor, data, begin + len(data), size), max(len(data), 1), begin)


def _first_start(descriptor: int, begin: int, data: bytes) -> int | None:
    """Return where the first line begins in `data`, read at `begin`; None when none does."""
    if os.pread(descriptor, 1, begin - 1) == b"\n":
        return 0
    found = data.find(b"\n")
    return found + 1 if 0 <= found < len(data) - 1 else None


def _to_line_end(descriptor: int, data: bytes, at: int, size: int) -> Iterator[bytes]:
    """Yield `data` and what follows it up to the end of its last line; a long line comes in parts."""
    step = 1 << 16
    while at < size and not data.endswith(b"\n"):
        more = _read(descriptor, at, min(at + step, size))
        if not more:
            break
        at += len(more)
        more = more[: more.find(b"\n") + 1] or more
        if len(more) <= 1 << 16:
            data += more
        else:
            yield data
            data = more
        step = MAX_LINE
    yield data


def _read(descriptor: int, begin: int, end: int) -> bytes:
    parts = []
    while begin < end:
        part = os.pread(descriptor, end - begin, begin)
        if not part:
            break
        parts.append(part)
        begin += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def unpack(
    name: str, file: BinaryIO, block: int, limit: int, expansion: int, warn: Callable[[str], None]
) -> Iterator[bytes]:
    """Yield the bytes of a log, decompressed if it begins like gzip or Zstandard.

    A damaged or truncated archive yields what could be read and is reported to `warn`. `InputError` when it unpacks to
    more than `limit` bytes or (beyond 64 MiB) to more than `expansion` times its size, and for unsupported compression.
    """
    head = file.read(8)
    for magic, kind in _FOREIGN.items():
        if head.startswith(magic):
            raise InputError(
                name, f"is compressed with {kind}, which is not supported", "Unpack it, or use gzip or zstd."
            )
    raw = _chain(head, file, block)
    if head.startswith(_GZIP):
        chunks = _gunzip(name, raw, block, warn)
    elif head.startswith(_ZSTD):
        chunks = _unzstd(name, raw, block, warn)
    else:
        yield from (chunk for chunk, _ in raw)
        return
    out = 0
    for chunk, read in chunks:
        out += len(chunk)
        if out > limit:
            raise InputError(
                name,
                f"unpacks to more than {limit} bytes",
                "Raise LOGDOCTOR_MAX_DECOMPRESSED_BYTES if you trust it.",
            )
        if out > _FREE_EXPANSION and out > expansion * read:
            cause = f"unpacks to more than {expansion} times its size (a decompression bomb?)"
            raise InputError(name, cause, "Raise LOGDOCTOR_MAX_EXPANSION if you trust it.")
        yield chunk


def is_packed(path: Path) -> bool:
    """Return whether a file must go through `unpack`: it is compressed, or not a regular file."""
    if not path.is_file():
        return True
    with path.open("rb") as file:
        head = file.read(8)
    return head.startswith((_GZIP, _ZSTD, *_FOREIGN))


def _chain(head: bytes, file: BinaryIO, block: int) -> Iterator[tuple[bytes, int]]:
    """Yield (bytes, bytes read so far) of a file whose first bytes were already read."""
    read = len(head)
    if head:
        yield head, read
    reader = getattr(file, "read1", file.read)
    while chunk := reader(min(block, 1 << 20)):
        read += len(chunk)
        yield chunk, read


def _slices(raw: Iterator[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """Yield small slices, because an unpacker returns a copy of what follows each member."""
    for data, read in raw:
        for at in range(0, len(data), _SLICE):
            yield data[at : at + _SLICE], read


def _gunzip(
    name: str, raw: Iterator[tuple[bytes, int]], block: int, warn: Callable[[str], None]
) -> Iterator[tuple[bytes, int]]:
    """Yield (decompressed chunk of at most `block` bytes, bytes read so far), of all members."""
    unpacker = zlib.decompressobj(wbits=31)
    fresh, empty = True, 0
    for data, read in _slices(raw):
        while data:
            if fresh and not data.strip(b"\0"):
                break  # padding after the last member
            try:
                chunk = unpacker.decompress(data, block)
            except zlib.error as error:
                warn(f"{name}: the gzip data is damaged ({error}); what came before it was read")
                return
            fresh = False
            if chunk:
                empty = 0
                yield chunk, read
            data = unpacker.unconsumed_tail
            if unpacker.eof:
                empty += 1
                if empty > _MOST_EMPTY:
                    warn(_TOO_EMPTY.format(name, "gzip"))
                    return
                data = unpacker.unused_data
                unpacker, fresh = zlib.decompressobj(wbits=31), True
    if not fresh:
        if rest := unpacker.flush():
            yield rest, read
        warn(f"{name}: the gzip data ends in the middle; what came before it was read")


def _unzstd(
    name: str, raw: Iterator[tuple[bytes, int]], block: int, warn: Callable[[str], None]
) -> Iterator[tuple[bytes, int]]:
    """Do the same for Zstandard frames. Chunks may exceed `block`: 1 KiB of input unpacks to at most 32 MiB."""
    import zstandard

    context = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    unpacker = context.decompressobj()
    fresh, empty = True, 0
    for part, read in _slices(raw):
        while part:
            try:
                chunk = unpacker.decompress(part)
            except zstandard.ZstdError as error:
                warn(f"{name}: the Zstandard data is damaged ({error}); what came before it was read")
                return
            fresh = False
            if chunk:
                empty = 0
                yield chunk, read
            if not unpacker.eof:
                break
            empty += 1
            if empty > _MOST_EMPTY:
                warn(_TOO_EMPTY.format(name, "Zstandard"))
                return
            part = unpacker.unused_data
            unpacker, fresh = context.decompressobj(), True
    if not fresh:
        warn(f"{name}: the Zstandard data ends in the middle; what came before it was read")
