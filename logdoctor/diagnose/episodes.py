"""Episodes: all that one writer prints about one failure; equal reports by many ranks are one.

They are what a person would look at: whole tracebacks, lines that rules know, and suspicious lines that nothing
explains. Past cases, the model and learned rules see a failure as its episodes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from logdoctor import taxonomy
from logdoctor.diagnose.examine import examine
from logdoctor.diagnose.findings import LogFinding, StreamReading
from logdoctor.diagnose.fingerprint import normalised, with_codes
from logdoctor.diagnose.verdict import Examined
from logdoctor.rules.load import RuleBook
from logdoctor.text import LineOrigin
from logdoctor.types import Line, Record

_MOST = 1000  # most episodes of an attempt, the most suspicious first
_LINES = 80  # last lines of an episode that are kept
_FRAMES = 3
_SUSPICION = {"cause": 0, "proximate": 1, "cascade": 3, "teardown": 4, "note": 5}
_STRONG, _WEAK = 1, 2  # suspicion of unexplained lines


FOLLOWING = ("cascade", "teardown", "note")
"""Roles of errors that only follow from a failure."""


class Episode(NamedTuple):
    """The lines of one failure by one writer, and how often the same failure was reported.

    `stream` is the index of the record; `line` names the failure (of a traceback the exception that counts); `lines`
    and `texts` are all raw lines of the first report. `title` is the message of the naming line without rank, host and
    time, `normal` the same without numbers, addresses and paths; `digest` (16 hex digits) is equal for equal failures,
    whoever reports them. `ranks` reported it, `reports` times in all; `survived` when steps were made after it.
    `source` is the rule that knows it, `structure/KeyError`, or "" when nothing explains it; `role` is that of the
    source, "strong" for the skeleton of a report, and "" for words of trouble.
    """

    stream: int
    line: int
    lines: tuple[int, ...]
    texts: tuple[str, ...]
    title: str
    normal: str
    digest: str
    ranks: tuple[int, ...]
    reports: int
    survived: bool
    time: float | None
    source: str
    role: str

    @property
    def suspicion(self) -> tuple[bool, int]:
        """Sort key, lower is more suspicious: lasting episodes before survived ones, then by role."""
        return self.survived, _SUSPICION.get(self.role, _STRONG if self.role == "strong" else _WEAK)


def episodes(records: Sequence[Record], book: RuleBook) -> list[Episode]:
    """Return the episodes of an attempt, the most suspicious first, then in order of appearance."""
    return of_examined(examine(records, book))


def of_examined(case: Examined) -> list[Episode]:
    """Return the episodes of an examined attempt."""
    by_key: dict[tuple[str, bool], Episode] = {}
    for episode in (*_claimed(case), *_unexplained(case)):
        key = episode.digest, episode.survived
        first = by_key.get(key)
        by_key[key] = episode if first is None else _again(first, episode)
    return sorted(by_key.values(), key=lambda episode: episode.suspicion)[:_MOST]


def summary(found: Sequence[Episode], most: int = 4000) -> str:
    """Return the normalised titles, one per line, at most `most` characters: the text to embed. Notes and teardown are
    left out."""
    kept: list[str] = []
    room = most
    for episode in found:
        if episode.role not in ("note", "teardown") and len(episode.normal) < room:
            kept.append(episode.normal)
            room -= len(episode.normal) + 1
    return "\n".join(kept)


def digest_of(message: str, frames: tuple[str, ...] = ()) -> str:
    """Return 16 hex digits over a failure's message and its 3 innermost frames. Error codes count, other numbers do
    not."""
    return sha256("\n".join((with_codes(message), *frames[-_FRAMES:])).encode("utf-8", "replace")).hexdigest()[:16]


def _again(first: Episode, other: Episode) -> Episode:
    """Return the first report with the ranks and count of another added."""
    ranks = tuple(sorted({*first.ranks, *other.ranks}))
    return first._replace(ranks=ranks, reports=first.reports + other.reports)


def _claimed(case: Examined) -> Iterator[Episode]:
    """Yield the episodes of rules and tracebacks, in order."""
    for finding in case.found:
        if finding.outcome:
            continue
        reading = case.readings[finding.stream]
        lines = _lines_of(reading, finding)
        yield _episode(case, finding.stream, finding.line, lines, finding.origin, finding.frames, finding)


def _lines_of(reading: StreamReading, finding: LogFinding) -> tuple[Line, ...]:
    """Return the lines of a finding's traceback by its writer, or its single line."""
    chain = reading.chain_at(finding.line)
    first, last = (chain.first, chain.last) if chain else (finding.line, finding.line)
    lines = reading.by_channel.get(finding.origin.channel, [])
    begin = bisect_left(lines, first, key=lambda line: line.number)
    end = bisect_right(lines, last, key=lambda line: line.number)
    return tuple(lines[max(begin, end - _LINES) : end])


def _unexplained(case: Examined) -> Iterator[Episode]:
    """Yield suspicious lines that no rule or traceback explains, each as its own episode. Neighbours may belong to
    something else."""
    known = {(finding.stream, finding.line) for finding in case.found}
    for stream, reading in enumerate(case.readings):
        for line, where in reading.lines:
            is_known = (stream, line.number) in known or line.number in reading.in_chains
            if not is_known and _is_odd(line, case.book):
                strong = line.strong or bool(line.rules)
                yield _episode(case, stream, line.number, (line,), where, (), None, strong)


def _is_odd(line: Line, book: RuleBook) -> bool:
    """Return whether no rule explains a suspicious line; one with an error-code lookup does not."""
    if line.rules:
        return any(book.diagnoses[number].verdict.lookup for number in line.rules)
    return line.strong or line.weak or line.noticed


def _episode(
    case: Examined,
    stream: int,
    number: int,
    lines: tuple[Line, ...],
    where: LineOrigin,
    frames: tuple[str, ...],
    finding: LogFinding | None,
    strong: bool = False,
) -> Episode:
    reading = case.readings[stream]
    rank = finding.rank if finding else where.rank
    role = finding.role if finding else "strong" if strong else ""
    assert role in (*taxonomy.ROLES, "strong", "")
    return Episode(
        stream,
        number,
        tuple(line.number for line in lines),
        tuple(line.text for line in lines),
        where.message.strip(),
        normalised(where.message),
        digest_of(where.message, frames),
        () if rank is None else (rank,),
        1,
        case.courses[stream].renewed_after(number),
        reading.times.get(number),
        finding.source if finding else "",
        role,
    )
