"""Exceptions that a program reported and survived: only its last error can have ended it."""

from collections.abc import Sequence
from itertools import pairwise

from logdoctor.diagnose.findings import LogFinding, StreamReading
from logdoctor.diagnose.tracebacks import Traceback

_ORDINARY = 3
"""The number of ordinary lines by the same writer, between one traceback and the next, which show that it went on."""


def caught(findings: Sequence[LogFinding], readings: Sequence[StreamReading]) -> list[LogFinding]:
    """Return the tracebacks after which their writer went on and then failed with something else.

    Only tracebacks that no rule knows are considered.
    """
    by_writer: dict[tuple[int, str], list[LogFinding]] = {}
    for finding in sorted(findings, key=lambda finding: finding.line):
        if finding.role in ("cause", "proximate") and not finding.outcome:
            by_writer.setdefault((finding.stream, finding.origin.channel), []).append(finding)
    found = []
    for (stream, channel), some in by_writer.items():
        for before, after in pairwise(some):
            if _apart(before, after) and _ordinary(readings[stream], channel, before.line, after.line) >= _ORDINARY:
                found.append(before)
    return found


def _apart(before: LogFinding, after: LogFinding) -> bool:
    """Return whether two claims are of different failures, the first a traceback that only its structure tells."""
    return before.key != after.key and before.rule is None and bool(before.frames)


def _ordinary(reading: StreamReading, channel: str, first: int, last: int) -> int:
    """Return how many lines of a writer between two others are no part of any report."""
    begin, end = _chain(reading, first), _chain(reading, last)
    first, last = begin.last if begin else first, end.first if end else last
    return sum(
        first < line.number < last
        and where.channel == channel
        and not (line.strong or line.weak or line.rules)
        and bool(where.message.strip())
        and not where.message[0].isspace()
        for line, where in reading.lines
    )


def _chain(reading: StreamReading, number: int) -> Traceback | None:
    return next((chain for chain in reading.chains if chain.first <= number <= chain.last), None)
