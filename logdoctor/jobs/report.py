"""What failures cost, by reason and week: Table 3 of the paper for this cluster.

*Characterization of Large Language Model Development in the Datacenter* (NSDI '24, Hu et al.), Table 3: for each reason
how often it occurred, the GPUs it took, the time until it occurred, the GPU time spent until then, and the time until
the job ran again. docs/report.md defines each number.
"""

import csv
import datetime
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from logdoctor import taxonomy
from logdoctor.types import Failures, ReportedFailure

Floats = npt.NDArray[np.float64]

DECIDED = ("rule", "learned", "structure", "case", "agent", "person", "nobody")
"""Who decided a verdict, the surest first; "person" confirmed or corrected it."""

_WEEK = 7 * 86_400
_MONDAY = 4 * 86_400  # the first Monday of the epoch
_HOUR = 3600
_UNSAFE = ("=", "+", "-", "@", "\t", "\r")  # what spreadsheets read as a formula


class Spread(msgspec.Struct, frozen=True):
    """A quantity over some failures: the number of known values, their mean and median, or None."""

    known: int
    mean: float | None
    median: float | None


class Costs(msgspec.Struct, frozen=True):
    """The cost of the failures of a reason, of a category, or of all.

    `name` is the reason or category, "" for all. Times are in seconds. `gpu_hours` sums over the `gpus.known` failures
    whose GPUs are known; `share` is its fraction of that of all failures, None when that is 0.
    """

    name: str
    category: str
    count: int
    gpus: Spread
    to_failure: Spread
    gpu_hours: float
    share: float | None
    to_restart: Spread


class Week(msgspec.Struct, frozen=True):
    """A week from its Monday (UTC, ISO date): failures and GPU hours lost, by category."""

    monday: str
    count: int
    counts: dict[str, int]
    gpu_hours: dict[str, float]


class Report(msgspec.Struct, frozen=True):
    """The failures of a period, `since` <= time < `until`, in seconds since the epoch. None means open.

    `reasons` are ordered by category and GPU time, `categories` as in the taxonomy, `weeks` by time; weeks without
    failures and failures without a time are left out. `decided` counts who decided, `cut` means that only the newest
    were counted. `nodes` are the five that cost most GPU hours, by the failures that suspect them.
    """

    since: float | None
    until: float | None
    total: Costs
    categories: tuple[Costs, ...]
    reasons: tuple[Costs, ...]
    weeks: tuple[Week, ...]
    decided: dict[str, int]
    cut: bool
    nodes: tuple[Costs, ...] = ()


class _FailureCosts(NamedTuple):
    """The cost of each failure: GPUs, seconds to failure, GPU hours, seconds to restart. Unknown values are NaN."""

    gpus: Floats
    to_failure: Floats
    gpu_hours: Floats
    to_restart: Floats


def reckon(failures: Failures, since: float | None = None, until: float | None = None) -> Report:
    """Return the report on the failures of a period."""
    items = failures.items
    taken = _taken(items)
    whole = float(np.nansum(taken.gpu_hours))
    by_reason: dict[tuple[str, str], list[int]] = {}
    by_category: dict[str, list[int]] = {}
    by_node: dict[str, list[int]] = {}
    for at, failure in enumerate(items):
        by_reason.setdefault((failure.category, failure.reason), []).append(at)
        by_category.setdefault(failure.category, []).append(at)
        for node in failure.nodes:
            by_node.setdefault(node, []).append(at)
    nodes = (_costs(node, "", taken, some, whole) for node, some in by_node.items())
    reasons = [_costs(reason, category, taken, some, whole) for (category, reason), some in by_reason.items()]
    decided = Counter(_decider(failure) for failure in items)
    return Report(
        since,
        until,
        _costs("", "", taken, list(range(len(items))), whole),
        tuple(_costs(name, name, taken, by_category[name], whole) for name in sorted(by_category, key=_place)),
        tuple(sorted(reasons, key=lambda row: (_place(row.category), -row.gpu_hours, -row.count, row.name))),
        _weeks(items, taken, by_category),
        {name: decided.pop(name, 0) for name in DECIDED} | dict(sorted(decided.items())),
        failures.cut,
        tuple(sorted(nodes, key=lambda row: (-row.gpu_hours, -row.count, row.name))[:5]),
    )


def _decider(failure: ReportedFailure) -> str:
    """Return who decided; nobody where all that is known is that it failed."""
    return "nobody" if failure.reason == "Unknown" and failure.decided != "person" else failure.decided


def as_csv(report: Report) -> str:
    """Return a row for each reason, with a header (RFC 4180). Text that looks like a formula is quoted.

    There is no row of sums: whoever adds up the column would count everything twice.
    """
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(_COLUMNS)
    for row in report.reasons:
        writer.writerow([inert(row.category), inert(row.name), *_numbers(row)])
    return out.getvalue()


def _numbers(row: Costs) -> list[float | None]:
    """Return the numbers of a row: times to the millisecond, the share to nine digits."""
    spreads = [value for of in (row.gpus, row.to_failure, row.to_restart) for value in (of.known, of.mean, of.median)]
    rounded = [None if value is None else round(value, 3) for value in (*spreads, row.gpu_hours)]
    return [row.count, *rounded, None if row.share is None else round(row.share, 9)]


def length(seconds: float) -> str:
    """Format a time span in its largest unit."""
    for unit, size in (("d", 86_400), ("h", _HOUR), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}" if seconds < 100 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def second(day: str) -> float:
    """Return the start of a day (ISO date, UTC) in seconds since the epoch. `ValueError` for anything else."""
    return datetime.datetime.combine(datetime.date.fromisoformat(day), datetime.time(), datetime.UTC).timestamp()


_COLUMNS = (
    "category",
    "reason",
    "failures",
    "gpus_known",
    "gpus_mean",
    "gpus_median",
    "seconds_to_failure_known",
    "seconds_to_failure_mean",
    "seconds_to_failure_median",
    "seconds_to_restart_known",
    "seconds_to_restart_mean",
    "seconds_to_restart_median",
    "gpu_hours",
    "gpu_hours_share",
)


def _taken(items: Sequence[ReportedFailure]) -> _FailureCosts:
    """Return the costs of failures. A next attempt that began before this one failed is a restart at once."""
    gpus = _floats(failure.gpus for failure in items)
    failed = _floats(failure.failed for failure in items)
    lasted = np.maximum(failed - _floats(failure.started for failure in items), 0.0)
    restart = np.maximum(_floats(failure.next for failure in items) - failed, 0.0)
    return _FailureCosts(gpus, lasted, gpus * lasted / _HOUR, restart)


def _floats(values: Iterable[float | None]) -> Floats:
    return np.fromiter((math.nan if value is None else value for value in values), np.float64)


def _costs(name: str, category: str, taken: _FailureCosts, some: Sequence[int], whole: float) -> Costs:
    of = np.array(some, np.int64)
    hours = float(np.nansum(taken.gpu_hours[of]))
    return Costs(
        name,
        category,
        len(some),
        _spread(taken.gpus[of]),
        _spread(taken.to_failure[of]),
        hours,
        hours / whole if whole > 0 else None,
        _spread(taken.to_restart[of]),
    )


def _spread(values: Floats) -> Spread:
    known = values[~np.isnan(values)]
    if not len(known):
        return Spread(0, None, None)
    return Spread(len(known), float(np.mean(known)), float(np.median(known)))


def _place(category: str) -> int:
    known = taxonomy.CATEGORIES
    return known.index(category) if category in known else len(known)


def _weeks(
    items: Sequence[ReportedFailure], taken: _FailureCosts, by_category: Mapping[str, Sequence[int]]
) -> tuple[Week, ...]:
    of = np.floor((_floats(failure.failed for failure in items) - _MONDAY) / _WEEK)
    dated = ~np.isnan(of)
    counts: dict[float, dict[str, int]] = {week: {} for week in sorted(set(of[dated].tolist()))}
    hours: dict[float, dict[str, float]] = {week: {} for week in counts}
    for category in sorted(by_category, key=_place):
        mine = np.array(by_category[category], np.int64)
        mine = mine[dated[mine]]
        weeks, place, number = np.unique(of[mine], return_inverse=True, return_counts=True)
        lost = np.bincount(place, np.nan_to_num(taken.gpu_hours[mine]))
        for week, many, much in zip(weeks.tolist(), number.tolist(), lost.tolist(), strict=True):
            counts[week][category], hours[week][category] = many, much
    return tuple(
        Week(_day(week * _WEEK + _MONDAY), sum(counts[week].values()), counts[week], hours[week]) for week in counts
    )


def _day(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).date().isoformat()


def inert(text: str) -> str:
    """Return text that no spreadsheet evaluates. One that looks like a formula, or like one quoted so, gets a quote
    mark before it."""
    return f"'{text}" if text.lstrip("'").startswith(_UNSAFE) else text
