"""How often jobs failed, from the records."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from logdoctor.cli.options import Place, served_settings
from logdoctor.job.recovery.catalogue.interval import Failures, Span, counted
from logdoctor.store.jobs.records import Attempt, StoredVerdict, Wanted

if TYPE_CHECKING:
    from logdoctor.cli.client.attempts import ServedAttempts
    from logdoctor.store.jobs.records import Records

_NEVER_RESUMES = ("fix_first", "none")
"""Recoveries after which the job does not resume from an unchanged checkpoint: they do not affect how often to save."""


def failures_of(jobs: Iterable[str], place: Place) -> Failures:
    """Return how long the attempts ran, and how many failures can be resumed from."""
    records = _records(place)
    spans = []
    for job in jobs:
        verdicts = {one.attempt: one for one in records.every(Wanted(job=job))}
        spans += list(_spans(records.attempts(job), verdicts))
    return counted(spans)


def _records(place: Place) -> "Records | ServedAttempts":
    if place.service is not None:
        from logdoctor.cli.client.attempts import ServedAttempts

        return ServedAttempts(place.service)
    from logdoctor.wiring import stored

    return stored.records(served_settings(place.data_dir))


def _spans(attempts: Iterable[Attempt], verdicts: dict[int, StoredVerdict]) -> Iterator[Span]:
    """Yield how long each attempt ran, where its end is known."""
    for attempt in attempts:
        judged = verdicts.get(attempt.number)
        failed = judged is not None and judged.verdict.outcome == "failed"
        ended = attempt.ended if attempt.ended is not None else judged.at if judged is not None and failed else None
        if ended is not None:
            resumes = failed and judged is not None and judged.verdict.recovery not in _NEVER_RESUMES
            yield Span(ended - attempt.started, resumes)
