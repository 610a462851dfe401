"""The cause and the first error of each rank, whatever its role, in order."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from logdoctor.diagnose import suspects
from logdoctor.diagnose.findings import LogFinding, StreamReading
from logdoctor.diagnose.stamps import dated, rising
from logdoctor.text import seconds_of
from logdoctor.types import RankError

_MOST = 64
_OWN = (8, 4, 2, 1)
"""How many equal errors are listed one by one: the first number that leaves room for all."""


class _PlacedError(NamedTuple):
    """An error with its position among all errors, and whether it is the cause."""

    at: tuple[float, int, int]
    error: RankError
    is_cause: bool


def first_errors(
    readings: list[StreamReading], found: Sequence[LogFinding], cause: LogFinding | None
) -> tuple[RankError, ...]:
    """Return the cause and the first finding of each rank, at most 64 entries.

    They are ordered by line within a stream, and between streams by time as far as lines carry stamps. Only a rank's
    own lines decide. Findings without a rank count for their node, or else for their stream.
    """
    writers = _Writers(readings)
    first: dict[object, LogFinding] = {}
    for finding in sorted(found, key=lambda finding: finding.order):
        first.setdefault(writers.of(finding), finding)
    chosen = list(first.values())
    if cause is not None and all(finding is not cause for finding in chosen):
        chosen.append(cause)
    return _folded(_ordered([(writers.error(finding), finding is cause) for finding in chosen], readings))


class _Writers:
    """Names the writer of each finding; reads the placements of all streams once."""

    def __init__(self, readings: list[StreamReading]) -> None:
        self._readings = readings
        self._labelled = [suspects.tasks_are_ranks(reading) for reading in readings]
        self._places = suspects.Places(readings)
        self._alone = [_is_alone(reading) for reading in readings]
        self._latest = max((time for reading in readings for time in reading.times.values()), default=None)

    def of(self, finding: LogFinding) -> object:
        """Return the rank of a finding, else its node, else its stream."""
        rank = self._rank(finding)
        return rank if rank is not None else self._node(finding, rank) or finding.stream

    def error(self, finding: LogFinding) -> RankError:
        """Return a finding as the error of its rank."""
        rank = self._rank(finding)
        stream = self._readings[finding.stream].record.stream
        node, time = self._node(finding, rank), self._time(finding)
        return RankError(rank, node, stream, finding.line, time, finding.reason, finding.role)

    def _rank(self, finding: LogFinding) -> int | None:
        return suspects.rank_of(finding, self._readings, self._labelled)

    def _node(self, finding: LogFinding, rank: int | None) -> str | None:
        """Return the node where a finding was printed, from the line or its rank's placement."""
        named = finding.origin.node or suspects.own_host(finding)
        if named is None and rank is not None:
            named = self._places.nodes.get(rank)
        elif named is None:
            named = finding.captures.get("node")
        return self._places.aliases.get(named, named)[: suspects.LONGEST_NAME].rstrip(".:,") or None if named else None

    def _time(self, finding: LogFinding) -> float | None:
        """Return a line's stamp; in a stream with one writer, also the last one before it."""
        time = seconds_of(finding.text)
        if time is None and self._alone[finding.stream]:
            time = finding.time
        return time if time is None or self._latest is None else dated(time, self._latest)


def _is_alone(reading: StreamReading) -> bool:
    """Return whether a stream has a single writer, so that its stamps date all lines."""
    return len({where.channel for _, where in reading.lines}) < 2


def _ordered(errors: list[tuple[RankError, bool]], readings: list[StreamReading]) -> list[_PlacedError]:
    """Return the errors in order: by line within a stream, by time between streams. One without a stamp follows the
    error before it; streams without stamps come last, by position."""
    numbers = {reading.record.stream: number for number, reading in enumerate(readings)}
    placed: list[_PlacedError] = []
    for stream, some in groupby(sorted(errors, key=lambda one: numbers[one[0].stream]), lambda one: one[0].stream):
        by_line = sorted(some, key=lambda one: one[0].line)
        now = next((error.time for error, _ in by_line if error.time is not None), math.inf)
        times = rising([now := now if error.time is None else error.time for error, _ in by_line])
        for time, (error, is_cause) in zip(times, by_line, strict=True):
            placed.append(_PlacedError((time, numbers[stream], error.line), error, is_cause))
    return sorted(placed, key=lambda one: one.at)


def _folded(placed: list[_PlacedError]) -> tuple[RankError, ...]:
    """Return the errors; equal ones of many ranks become one with a count."""
    if len(placed) <= _OWN[0]:
        return tuple(one.error for one in placed)
    folded: list[_PlacedError] = []
    for own in _OWN:
        folded = _fold(placed, own)
        if len(folded) <= _MOST:
            break
    kept = [one for one in folded if one.is_cause] + [one for one in folded if not one.is_cause]
    return tuple(one.error for one in sorted(kept[:_MOST], key=lambda one: one.at))


def _fold(placed: list[_PlacedError], own: int) -> list[_PlacedError]:
    """Return the cause, the first `own` errors per reason and role, and one for the rest."""
    seen: dict[tuple[str, str], list[_PlacedError]] = {}
    kept: list[_PlacedError] = [one for one in placed if one.is_cause]
    for one in placed:
        if not one.is_cause:
            seen.setdefault((one.error.reason, one.error.role), []).append(one)
    for some in seen.values():
        kept += some[:own]
        if more := some[own:]:
            kept.append(more[0]._replace(error=_standing_for(more)))
    return sorted(kept, key=lambda one: one.at)


def _standing_for(some: list[_PlacedError]) -> RankError:
    return msgspec.structs.replace(some[0].error, count=len(some))
