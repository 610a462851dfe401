"""A snapshot of one stream: its lines from any place on, whatever its size.

Archive and log tail are blocks of about a MiB with known first lines and offsets. So the block with a line, or with the
end of a line that fills many blocks, is found without reading others.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from logdoctor.compress.cut import MAX_LINE, newlines_of
from logdoctor.store.log.archive import FRAME, ArchivedStream

HEAD, TAIL = 4096, 1024
"""Bytes kept of the beginning and the end of a longer line."""


class RawLine(NamedTuple):
    """A line: its number, the offset of its first byte in the stream, and its size without the newline.

    `head` is the whole of it, or its beginning when it is long; then `tail` is its end.
    """

    number: int
    offset: int
    size: int
    head: bytes
    tail: bytes = b""


class Run(NamedTuple):
    """Whole lines from number `line` on, beginning at byte `offset`; the last of a stream may lack its newline. A line
    longer than `MAX_LINE` comes alone as `long`, without `data`."""

    line: int
    offset: int
    data: bytes
    lines: int
    long: RawLine | None = None


class StreamView:
    """A stream of `bytes` bytes and `newlines` newlines, fixed even if more is sent.

    `archived` bytes are in the file, the rest is `tail`. Methods that read raise `StoreError` when the archive is
    damaged or was deleted meanwhile.
    """

    def __init__(self, file: ArchivedStream, archived: int, newlines: int, tail: Sequence[bytes]) -> None:
        self._file = file
        self._offsets, self._lines = file.places(archived)
        self._archived = len(self._offsets)  # blocks in the file
        self._tail: list[list[bytes]] = []
        self.bytes, self.newlines = archived, newlines
        line, room = newlines - sum(part.count(b"\n") for part in tail) + 1, 0
        for part in (whole[at : at + FRAME] for whole in tail for at in range(0, len(whole), FRAME)):
            if room < len(part):
                self._tail.append([])
                self._offsets.append(self.bytes)
                self._lines.append(line)
                room = FRAME
            self._tail[-1].append(part)
            room -= len(part)
            self.bytes += len(part)
            line += part.count(b"\n")

    def count(self) -> int:
        """Return the number of lines; the last may lack its newline."""
        if not self._offsets:
            return 0
        last = next(self._blocks(len(self._offsets) - 1))
        return self.newlines + (not last.endswith(b"\n"))

    def chunks(self) -> Iterator[bytes]:
        """Return all bytes, a block at a time."""
        return self._blocks(0)

    def between(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from offset `begin` to before `end`, a block at a time."""
        start = max(bisect_right(self._offsets, begin) - 1, 0)
        for offset, data in zip(self._offsets[start:], self._blocks(start), strict=False):
            if offset >= end:
                return
            yield data[max(begin - offset, 0) : end - offset]

    def first_before(self, line: int, most_lines: int, most_bytes: int) -> int:
        """Return the line to read from to see what precedes `line`: `most_lines` before it, fewer if these exceed about
        `most_bytes`, at least one."""
        block = here = self._block_of(line)
        while block and self._lines[block] > line - most_lines:
            if self._offsets[here] - self._offsets[block] >= most_bytes:
                break
            block -= 1
        first = self._lines[block] + 1 if block else 1  # it begins in the block; the one before may begin earlier
        return max(min(max(line - most_lines, first), line - 1), 1)

    def runs(self, first: int, last: int) -> Iterator[Run]:
        """Yield the lines from `first` to `last`, in runs of about a MiB."""
        number = first
        while number <= last:
            run = None
            for run in self._stretch(number, last):
                yield run
            if run is None or run.long is None:
                return
            number = run.line + 1

    def _stretch(self, number: int, last: int) -> Iterator[Run]:
        """Yield the lines from `number` to `last`, or to one that fills many blocks."""
        offset, rest, start = -1, b"", self._block_of(number)
        for block, data in enumerate(self._blocks(start), start):
            if offset < 0:
                begin = _start(data, number - self._lines[block])
                if begin is None:  # the line does not exist, or begins with the next block
                    continue
                offset, data = self._offsets[block] + begin, data[begin:]
            rest = rest + data if rest else data
            if (stop := rest.find(b"\n")) > MAX_LINE:  # only the first line may be longer than a block
                line = RawLine(number, offset, stop, rest[:HEAD], rest[stop - TAIL : stop])
                yield Run(number, offset, b"", 1, line)
                if number >= last:
                    return
                number, offset, rest = number + 1, offset + stop + 1, rest[stop + 1 :]
            end = rest.rfind(b"\n") + 1
            if end:
                run = _run(number, offset, rest[:end], last)
                yield run
                if run.line + run.lines > last:
                    return
                number, offset, rest = number + run.lines, offset + end, rest[end:]
            if len(rest) > MAX_LINE:
                yield Run(number, offset, b"", 1, self._long(number, offset, rest, block))
                return
        if rest:
            yield Run(number, offset, rest, 1)

    def _long(self, number: int, offset: int, begin: bytes, block: int) -> RawLine:
        """Return a line that fills the rest of a block and goes on after it; its middle is not read."""
        end = bisect_right(self._lines, number, block) - 1
        data = next(self._blocks(end))
        stop = data.find(b"\n") if end > block else -1
        stop = len(data) if stop < 0 else stop
        tail = data[max(stop - TAIL, 0) : stop]
        return RawLine(number, offset, self._offsets[end] + stop - offset, begin[:HEAD], tail)

    def _block_of(self, line: int) -> int:
        """Return the number of the block that `line`, or the newline before it, begins in."""
        return max(bisect_left(self._lines, line) - 1, 0)

    def _blocks(self, start: int) -> Iterator[bytes]:
        """Yield the blocks from number `start` on."""
        if start < self._archived:
            yield from self._file.frames(start, self._archived)
        for parts in self._tail[max(start - self._archived, 0) :]:
            yield b"".join(parts)


def _start(data: bytes, skipped: int) -> int | None:
    """Return where the line after `skipped` newlines begins in a block; None when it is not there."""
    if skipped <= 0:
        return 0
    newlines = newlines_of(data)
    begin = int(newlines[skipped - 1]) + 1 if len(newlines) >= skipped else len(data)
    return begin if begin < len(data) else None


def _run(number: int, offset: int, data: bytes, last: int) -> Run:
    """Return the lines of a buffer up to number `last`."""
    count = data.count(b"\n")
    if number + count - 1 > last:
        count = max(last - number + 1, 0)
        data = data[: int(newlines_of(data)[count - 1]) + 1] if count else b""
    return Run(number, offset, data, count)


def lines_of(run: Run) -> Iterator[RawLine]:
    """Yield the lines of a run."""
    if run.long is not None:
        yield run.long
        return
    offset = run.offset
    for number, text in enumerate(run.data.removesuffix(b"\n").split(b"\n"), run.line):
        yield RawLine(number, offset, len(text), *ends_of(text))
        offset += len(text) + 1


def ends_of(text: bytes) -> tuple[bytes, bytes]:
    return (text, b"") if len(text) <= HEAD else (text[:HEAD], text[-TAIL:])
