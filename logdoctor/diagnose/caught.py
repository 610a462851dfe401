"""Exceptions that a program reported and survived: only its last error can have ended it."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from logdoctor.diagnose.findings import LogFinding, StreamReading

_ORDINARY = 3
"""The fewest ordinary lines by the same writer between two tracebacks that show that it went on."""


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
        reading = readings[stream]
        ordinary = _ordinary(reading, channel)
        for before, after in pairwise(some):
            if _apart(before, after) and _between(reading, ordinary, before.line, after.line) >= _ORDINARY:
                found.append(before)
    return found


def _apart(before: LogFinding, after: LogFinding) -> bool:
    """Return whether two claims are different failures, the first a traceback that no rule knows."""
    return before.key != after.key and before.rule is None and bool(before.frames)


def _between(reading: StreamReading, ordinary: list[int], first: int, last: int) -> int:
    """Count a writer's ordinary lines between two claims, outside their tracebacks."""
    begin, end = reading.chain_at(first), reading.chain_at(last)
    first, last = begin.last if begin else first, end.first if end else last
    return max(bisect_left(ordinary, last) - bisect_right(ordinary, first), 0)


def _ordinary(reading: StreamReading, channel: str) -> list[int]:
    """Return the lines of a writer that belong to no report."""
    return [
        line.number
        for line in reading.by_channel.get(channel, ())
        if not (line.strong or line.weak or line.rules)
        and bool((said := reading.origins[line.number].message).strip())
        and not said[0].isspace()
    ]
