"""Comparable time stamps: in the year of the log, and rising with a stream's lines."""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

_YEARLESS = 2000  # the year that `seconds_of` gives a stamp without one
_BEGIN, _END = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (_YEARLESS, _YEARLESS + 1))


def dated(time: float, latest: float) -> float:
    """Return a stamp without a year in the year that brings it closest to `latest`."""
    if not _BEGIN <= time < _END or _BEGIN <= latest < _END:
        return time
    read, year = datetime.fromtimestamp(time, UTC), datetime.fromtimestamp(latest, UTC).year
    near: list[float] = []
    for other in (year - 1, year, year + 1):
        with suppress(ValueError):  # 29 February
            near.append(time + (read.replace(year=other) - read).total_seconds())
    return min(near, key=lambda one: abs(one - latest), default=time)


def rising(times: Sequence[float]) -> list[float]:
    """Return the times of lines in their order, none before that of an earlier line.

    As few as possible are changed, each to the one before it. A stamp that contradicts most others comes from another
    clock or from something that the line mentions, and must move neither its line nor those after it.
    """
    ends: list[float] = []  # the least end of a rising row of each length
    places: list[int] = []
    before: list[int] = []
    for at, time in enumerate(times):
        length = bisect_right(ends, time)
        before.append(places[length - 1] if length else -1)
        ends[length : length + 1] = [time]
        places[length : length + 1] = [at]
    kept: set[int] = set()
    at = places[-1] if places else -1
    while at >= 0:
        kept.add(at)
        at = before[at]
    now = times[min(kept)] if kept else 0.0
    found: list[float] = []
    for at, time in enumerate(times):
        now = time if at in kept else now
        found.append(now)
    return found
