"""Enters the rows of a batch into a service as past attempts."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from logdoctor.pipeline.batch.places import job_of, key_of, number_of
from logdoctor.pipeline.batch.rows import Row
from logdoctor.store.jobs.past import EnteredAttempt, PastAttempt
from logdoctor.store.jobs.past_limits import misfit
from logdoctor.store.jobs.records import JobFacts
from logdoctor.types import Verdict

_AT_ONCE = 100  # attempts per transaction
_MOST_NODES, _LONGEST_LIST = 2000, 100_000  # nodes named in the facts of a job, and characters that a service accepts

_verdict = msgspec.json.Decoder(Verdict).decode


class Entry(Protocol):
    """Where past attempts are entered: the records of a data folder, or a service."""

    def enter_past(self, past: Sequence[PastAttempt], now: float) -> list[EnteredAttempt]:
        """Enter attempts, and return the result for each."""
        ...


class Posted(msgspec.Struct, frozen=True):
    """The numbers of rows by result. Entered ones are `entered`, `replaced`, `unchanged`, `confirmed` or `known`
    (`store.past.Entering`). Others are skipped: logs that could not be read (`unread`), jobs that were still running
    (`running`), rows with values that no job can have, such as an exit code of 2^40 (`unfit`), rows without a known end
    of the job, in a table or the log (`undated`), and further rows of the same attempt (`repeated`)."""

    entered: int = 0
    replaced: int = 0
    unchanged: int = 0
    confirmed: int = 0
    known: int = 0
    unread: int = 0
    running: int = 0
    unfit: int = 0
    undated: int = 0
    repeated: int = 0


def post(rows: Iterable[Row], entry: Entry) -> Posted:
    """Enter rows in batches, and return the numbers by result. Rows entered before an error stay; entering them again
    leaves them unchanged."""
    counts: Counter[str] = Counter()
    seen: set[tuple[str, str]] = set()
    now = time.time()
    some = iter(rows)
    while portion := list(islice(some, _AT_ONCE)):
        fit = list(_fit(portion, counts, seen, now))
        counts.update(one.what for one in entry.enter_past(fit, now))
    return Posted(**counts)


def _fit(rows: Iterable[Row], counts: Counter[str], seen: set[tuple[str, str]], now: float) -> Iterator[PastAttempt]:
    """Yield the attempts that can be entered and were not `seen`; count the others."""
    for row in (row for row in rows if row.run is None):
        ended = row.ended or row.onset
        if row.verdict is None:
            counts["unread"] += 1
        elif row.outcome == "running":
            counts["running"] += 1
        elif ended is None or not 0 <= ended.timestamp() <= now:
            counts["undated"] += 1
        elif (place := (job_of(row), key_of(row))) in seen:
            counts["repeated"] += 1
        elif misfit(past := _past(row, ended.timestamp(), row.verdict)):
            counts["unfit"] += 1
        else:
            seen.add(place)
            yield past


def _past(row: Row, ended: float, verdict: str) -> PastAttempt:
    began = row.started.timestamp() if row.started is not None and row.ended is not None else None
    return PastAttempt(
        job=job_of(row),
        key=key_of(row),
        number=number_of(row),
        facts=_facts(row),
        started=began if began is not None and 0 <= began <= ended else None,
        ended=ended,
        exit_code=row.exit_code,
        verdict=_verdict(verdict),
    )


def _facts(row: Row) -> JobFacts:
    return JobFacts(
        user=row.user,
        framework=row.framework,
        nodelist=_nodelist(row.nodes),
        nodes=row.node_count,
        gpus=row.gpus,
    )


def _nodelist(nodes: Sequence[str]) -> str | None:
    """Return the names of as many nodes as a service accepts."""
    named = ",".join(nodes[:_MOST_NODES])
    return (named if len(named) <= _LONGEST_LIST else named[:_LONGEST_LIST].rpartition(",")[0]) or None
