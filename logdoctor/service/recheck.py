"""Checks whether learned rules took what a verdict needed: a sample of failures is diagnosed without them."""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import structlog

from logdoctor.compress.cut import Cutter
from logdoctor.compress.excerpt import Recorder, excerpt
from logdoctor.compress.filter import compress, without_learned
from logdoctor.compress.leftovers import Leftovers
from logdoctor.diagnose.decide import diagnose as judge
from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.learning.filters.life import quotes
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.service.streams import NoticedLine
from logdoctor.service.view import StreamView
from logdoctor.store.names import Key
from logdoctor.text import natural, shown
from logdoctor.types import Record, Segment, Verdict

log = structlog.get_logger()


def is_chosen(job: str, attempt: int, share: int) -> bool:
    """Return whether this attempt is in the fixed 1-in-`share` sample."""
    return share > 0 and zlib.crc32(f"{job}/{attempt}".encode()) % share == 0


def records(
    views: Mapping[str, StreamView],
    job: str,
    attempt: int,
    scanner: Scanner,
    noticed: Sequence[NoticedLine],
    wait: Callable[[], None],
) -> list[Record]:
    """Return the records of an attempt's streams without what learned rules take of them.

    `wait` is called before each chunk: it blocks until there is time, or raises to stop.
    """
    found = []
    for name in sorted(views, key=natural):
        recorder = Recorder(name, str(Key(job, attempt, name)), scanner)
        for segment in _segments(views[name], name, wait):
            recorder.add(excerpt(without_learned(compress(segment, scanner), scanner), scanner), 0)
        for one in noticed:
            if one.stream == name:
                recorder.notice(one.line, one.text)
        found.append(recorder.record())
    return found


def gather(views: Mapping[str, StreamView], scanner: Scanner, leftovers: Leftovers, wait: Callable[[], None]) -> None:
    """Add the unexplained lines of an attempt's streams to leftovers; `wait` as for `records`."""
    for name in sorted(views, key=natural):
        for segment in _segments(views[name], name, wait):
            leftovers.add(compress(segment, scanner))


def _segments(view: StreamView, name: str, wait: Callable[[], None]) -> Iterator[Segment]:
    cutter = Cutter(name)
    wait()
    for chunk in view.chunks():
        yield from cutter.push(chunk)
        wait()
    yield from cutter.finish()


def verdict(found: list[Record], book: RuleBook, reported: ReportedEnd) -> Verdict:
    """Return the verdict on records, given how the attempt ended."""
    return judge(found, book, None, reported)


def differs(one: Verdict, other: Verdict) -> bool:
    """Return whether two verdicts differ in what they ask for or which lines they cite."""
    return _essence(one) != _essence(other)


def _essence(made: Verdict) -> tuple[object, ...]:
    lines = tuple((evidence.stream, evidence.line) for evidence in made.evidence)
    return made.reason, made.outcome, made.recovery, made.fault, made.suspects, lines


def culprits(made: Verdict, found: Sequence[Record], scanner: Scanner) -> list[str]:
    """Return the learned rules that take a cited line, else any remarkable one."""
    remarkable = [line for record in found for line in record.lines if line.strong or line.weak or line.rules]
    return _takers(quotes(made.evidence), scanner) or _takers([shown(line.text) for line in remarkable], scanner)


def _takers(lines: Sequence[str], scanner: Scanner) -> list[str]:
    matching = set().union(*scanner.matching(lines))
    return [
        rule.id for rule in scanner.book.learned if rule.status == "active" and not matching.isdisjoint(rule.patterns)
    ]
