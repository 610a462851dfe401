"""The whole pipeline on one page: bytes -> segments -> residuals -> records -> verdict."""

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from logdoctor.compress.cut import cut, cut_range, is_packed, unpack
from logdoctor.compress.excerpt import Recorder, SegmentExcerpt, excerpt
from logdoctor.compress.filter import compress
from logdoctor.diagnose.decide import diagnose as judge
from logdoctor.diagnose.ending import NOTHING, ReportedEnd
from logdoctor.diagnose.taught import Taught
from logdoctor.errors import InputError
from logdoctor.rules.overrides import Overriding
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Record, Segment, Verdict

_ALONE_BYTES = 12 << 20
"""Below this size one process reads a file faster than several."""


_FEW, _SOME = 200, 50  # streams up to which one process reads all, and streams per task beyond that
Part = TypeVar("Part")
Given = TypeVar("Given")

NOTHING_OVERRULED = Overriding()
"""For an attempt of an unknown job."""


class ReadLimits(NamedTuple):
    """How much is read at a time, by how many processes, and how far compressed logs may expand."""

    block: int
    workers: int
    unpacked: int
    expansion: int


class LogFile(NamedTuple):
    """One log file of an attempt. `label` is its name in the verdict, if not its path."""

    name: str
    path: Path
    label: str = ""


def diagnose(
    streams: Sequence[LogFile],
    scanner: Scanner,
    limits: ReadLimits,
    reported: ReportedEnd = NOTHING,
    taught: Taught = Taught(()),  # noqa: B008 - immutable
    done: "Done" = lambda count: None,
    overriding: Overriding = NOTHING_OVERRULED,
    look: "Look" = lambda: None,
) -> Verdict:
    """Return the verdict on one attempt, given its streams and its `reported` end; `InputError` when a stream cannot be
    read. It uses the rules of the scanner and the `taught` ones, with `overriding` applied. `done` gets the number of
    streams read; `look` is called repeatedly, and ends the reading by raising."""
    begin = time.perf_counter()
    book = scanner.book.for_job(overriding.job, overriding.kind, overriding.overrides)
    read, book = taught.applied(records(streams, scanner, limits, done, look), book)
    verdict = judge(read, book, reported=reported)
    return msgspec.structs.replace(verdict, seconds=round(time.perf_counter() - begin, 3))


def records(
    streams: Sequence[LogFile],
    scanner: Scanner,
    limits: ReadLimits,
    done: "Done" = lambda count: None,
    look: "Look" = lambda: None,
) -> list[Record]:
    """Return what diagnosis needs to know about each stream; `InputError` when one cannot be read. `done` gets the
    number of streams read; `look` is called before each part of a stream, or of many streams."""
    found: list[Record] = []
    has_large = any(_is_large(stream.path) for stream in streams)
    with _processes(has_large or len(streams) > _FEW, scanner, limits) as submit:
        for some in _read(streams, scanner, limits, submit, look, has_large or len(streams) <= _FEW):
            found += some
            done(len(found))
    return found


def _read(
    streams: Sequence[LogFile], scanner: Scanner, limits: ReadLimits, submit: "Submit", look: "Look", alone: bool
) -> Iterator[list[Record]]:
    """Yield the records of streams in order. With `alone` all processes read one stream together; else each reads a
    batch of small ones."""
    if alone:
        yield from ([_record(stream, scanner, limits, submit, look)] for stream in streams)
    else:
        parts = ((streams[at : at + _SOME], limits) for at in range(0, len(streams), _SOME))
        yield from submit(_read_some, _looking(parts, look))


def _looking(parts: Iterable[Given], look: "Look") -> Iterator[Given]:
    for part in parts:
        look()
        yield part


def _record(
    stream: LogFile, scanner: Scanner, limits: ReadLimits, submit: "Submit", look: "Look" = lambda: None
) -> Record:
    recorder = Recorder(stream.name, stream.label or str(stream.path), scanner)
    try:
        if is_packed(stream.path):
            _follow_bytes(stream, recorder, limits, submit, look)
        else:
            _follow_file(stream, recorder, limits, submit, look)
    except OSError as error:
        raise InputError(
            str(stream.path), f"cannot be read ({error.strerror})", "Check the path and its permissions."
        ) from error
    return recorder.record()


def _follow_file(stream: LogFile, recorder: Recorder, limits: ReadLimits, submit: "Submit", look: "Look") -> None:
    """Read a plain file by ranges, each in any free process."""
    size = stream.path.stat().st_size
    ranges = ((stream, begin, min(begin + limits.block, size), size) for begin in range(0, size, limits.block))
    for parts in submit(_examine_range, _looking(ranges, look)):
        shift = recorder.line - 1
        for part in parts:
            recorder.add(part, shift)


def _follow_bytes(stream: LogFile, recorder: Recorder, limits: ReadLimits, submit: "Submit", look: "Look") -> None:
    """Read a compressed file or standard input; examine its segments in any free process."""
    with sys.stdin.buffer if str(stream.path) == "-" else stream.path.open("rb") as file:
        chunks = unpack(
            str(stream.path), file, limits.block, limits.unpacked, limits.expansion, recorder.problems.append
        )
        segments = cut(stream.name, _looking(chunks, look), limits.block)
        for parts in submit(_examine_segment, ((segment,) for segment in segments)):
            for part in parts:
                recorder.add(part, 0)


def chunks(stream: LogFile, limits: ReadLimits) -> Iterator[bytes]:
    """Yield the bytes of a stream, decompressed."""
    name = stream.label or str(stream.path)
    with stream.path.open("rb") as file:
        yield from unpack(name, file, limits.block, limits.unpacked, limits.expansion, lambda problem: None)


def kept_lines(path: Path, scanner: Scanner) -> set[int]:
    """Return the numbers of the lines of a plain log that no filter rule takes."""
    with path.open("rb") as file:
        segments = cut("main", iter(lambda: file.read(1 << 20), b""), 1 << 20)
        return {int(place) + segment.line for segment in segments for place in compress(segment, scanner).kept}


def citable_lines(path: Path, scanner: Scanner, limits: ReadLimits) -> set[int]:
    """Return the numbers of a log's metric lines that its progress record can quote."""
    record = records([LogFile("main", path)], scanner, limits)[0]
    return {int(line) for part in record.texts for line in part.lines}


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


class Submit(Protocol):
    """Calls a function with each of many arguments, here or in other processes; results come in order."""

    def __call__(
        self, function: Callable[..., list[Part]], arguments: Iterable[tuple[object, ...]]
    ) -> Iterator[list[Part]]:
        """Yield the function's results."""
        ...


Done = Callable[[int], None]
"""Called with the number of streams read so far."""
Look = Callable[[], None]
"""Ends the reading by raising."""

_scanner: Scanner | None = None  # of this process; set before forking others


def _here(function: Callable[..., list[Part]], arguments: Iterable[tuple[object, ...]]) -> Iterator[list[Part]]:
    return (function(*given) for given in arguments)


def _read_some(streams: Sequence[LogFile], limits: ReadLimits) -> list[Record]:
    assert _scanner is not None
    return [_record(stream, _scanner, limits, _here) for stream in streams]


def _examine_segment(segment: Segment) -> list[SegmentExcerpt]:
    assert _scanner is not None
    return [excerpt(compress(segment, _scanner), _scanner)]


def _examine_range(stream: LogFile, begin: int, end: int, size: int) -> list[SegmentExcerpt]:
    with stream.path.open("rb", buffering=0) as file:
        return [
            part for segment in cut_range(stream.name, file, begin, end, size) for part in _examine_segment(segment)
        ]


@contextmanager
def _processes(is_much: bool, scanner: Scanner, limits: ReadLimits) -> Iterator[Submit]:
    """Yield a way to call functions: in this process or, for much data, in forked ones that share the rules."""
    global _scanner
    _scanner = scanner
    workers = limits.workers or cores()
    if workers == 1 or not is_much:
        yield _here
        return
    ignoring = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for this process, which ends them
    pool = ProcessPoolExecutor(workers, get_context("fork"), signal.signal, ignoring)
    try:
        yield lambda function, arguments: _in_order(pool, function, arguments, 2 * workers)
    finally:
        pool.shutdown(cancel_futures=True)


def _is_large(path: Path) -> bool:
    try:
        return not path.is_file() or path.stat().st_size > (1 << 20 if is_packed(path) else _ALONE_BYTES)
    except OSError as error:
        raise InputError(
            str(path), f"cannot be read ({error.strerror})", "Check the path and its permissions."
        ) from error


def _in_order(
    pool: ProcessPoolExecutor,
    function: Callable[..., list[Part]],
    arguments: Iterable[tuple[object, ...]],
    ahead: int,
) -> Iterator[list[Part]]:
    """Yield results in the order of arguments, with at most `ahead` pending calls to bound memory. The first call is
    made here, before forking, so that all processes know the lines that it has matched."""
    waiting: deque[Future[list[Part]]] = deque()
    every = iter(arguments)
    for given in islice(every, 1):
        yield function(*given)
    for given in every:
        waiting.append(pool.submit(function, *given))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
