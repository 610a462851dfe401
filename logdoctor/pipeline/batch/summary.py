"""Summary of a batch: failures by reason (as Table 3 of the paper), day, framework and node, and unreadable files."""

import datetime
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from logdoctor.jobs.report import Report, reckon
from logdoctor.pipeline.batch.rows import Row
from logdoctor.types import LEARNED, Failures, ReportedFailure

BINS = 10
"""Intervals of confidence."""

_EXAMPLES = 100  # unreadable files that are named
_UNKNOWN = "unknown"


class Unread(msgspec.Struct, frozen=True):
    """An unreadable file, and why."""

    source: str
    error: str


class Summary(msgspec.Struct, frozen=True):
    """The summary of some rows.

    `report` has the failures by reason and category. `days` (ISO date, UTC), `frameworks` and `nodes` (suspects) count
    failures by category, days in order, the others by frequency; `confidence` has the failures in each tenth from 0 to
    1. `unread` names the first unreadable files, out of `errors`. `made_with` counts the rows by the version of
    logdoctor and the digest of the rule book. `earlier_runs` within logs are not `rows`, but their outcomes and
    failures count.
    """

    rows: int
    bytes: int
    lines: int
    outcomes: dict[str, int]
    report: Report
    days: dict[str, dict[str, int]]
    frameworks: dict[str, dict[str, int]]
    nodes: dict[str, dict[str, int]]
    confidence: tuple[int, ...]
    errors: int
    unread: tuple[Unread, ...]
    made_with: dict[str, int]
    earlier_runs: int = 0


def summarise(rows: Iterable[Row]) -> Summary:
    """Summarise rows; each is read once and not kept."""
    counts = _Counts()
    for row in rows:
        counts.add(row)
    return counts.summary()


class _Failure(msgspec.Struct, frozen=True):
    """What is kept of a failure until all rows were seen: its job tells when the next attempt began."""

    job: str | None
    of: ReportedFailure


class _Counts:
    """The counts so far."""

    def __init__(self) -> None:
        self._failures: list[_Failure] = []
        self._starts: defaultdict[str, list[float]] = defaultdict(list)
        self._outcomes: Counter[str] = Counter()
        self._made_with: Counter[str] = Counter()
        self._days = _by_category()
        self._frameworks = _by_category()
        self._nodes = _by_category()
        self._confidence = [0] * BINS
        self._unread: list[Unread] = []
        self._rows = self._runs = self._errors = self._bytes = self._lines = 0

    def add(self, row: Row) -> None:
        """Count a row."""
        self._rows += row.run is None
        self._runs += row.run is not None
        self._bytes += row.bytes
        self._lines += row.lines
        if row.error is not None or row.outcome is None:
            self._errors += 1
            if len(self._unread) < _EXAMPLES:
                self._unread.append(Unread(row.source, row.error or ""))
            return
        self._outcomes[row.outcome] += 1
        self._made_with[f"{row.logdoctor} {row.rulebook}".strip()] += 1
        if row.job is not None and row.started is not None:
            self._starts[row.job].append(row.started.timestamp())
        if row.outcome == "failed":
            self._add_failure(row)

    def _add_failure(self, row: Row) -> None:
        category, failed = row.category or "None", row.ended or row.onset
        known = row.started is not None and row.ended is not None  # a log's own clock gives days, not durations
        self._failures.append(
            _Failure(
                row.job if known else None,
                ReportedFailure(
                    row.reason or "Unknown",
                    category,
                    "learned" if (row.rule or "").startswith(LEARNED) else row.decided_by or "nobody",
                    row.started.timestamp() if row.started is not None and known else None,
                    failed.timestamp() if failed is not None else None,
                    None,
                    row.gpus,
                ),
            )
        )
        if failed is not None:
            self._days[failed.astimezone(datetime.UTC).date().isoformat()][category] += 1
        self._frameworks[row.framework or _UNKNOWN][category] += 1
        for node in row.suspects:
            self._nodes[node][category] += 1
        self._confidence[min(int((row.confidence or 0.0) * BINS), BINS - 1)] += 1

    def summary(self) -> Summary:
        """Return the summary."""
        starts = {job: sorted(times) for job, times in self._starts.items()}
        failures = [_with_next(one, starts) for one in self._failures]
        return Summary(
            self._rows,
            self._bytes,
            self._lines,
            dict(self._outcomes.most_common()),
            reckon(Failures(failures, False)),
            {day: dict(counts) for day, counts in sorted(self._days.items())},
            _ranked(self._frameworks),
            _ranked(self._nodes),
            tuple(self._confidence),
            self._errors,
            tuple(self._unread),
            dict(self._made_with.most_common()),
            self._runs,
        )


def _by_category() -> defaultdict[str, Counter[str]]:
    return defaultdict(Counter)


def _with_next(failure: _Failure, starts: Mapping[str, Sequence[float]]) -> ReportedFailure:
    """Return a failure with the start of its job's next attempt, if any."""
    of = failure.of
    if failure.job is None or of.started is None:
        return of
    times = starts[failure.job]
    place = bisect_right(times, of.started)
    return of._replace(next=times[place] if place < len(times) else None)


def _ranked(counts: Mapping[str, Counter[str]]) -> dict[str, dict[str, int]]:
    ranked: Iterator[tuple[str, Counter[str]]] = iter(
        sorted(counts.items(), key=lambda item: (-item[1].total(), item[0]))
    )
    return {name: dict(of) for name, of in ranked}
