"""The data of reports: the failed attempts, read at once."""

import msgspec
import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.jobs.records import begins
from logdoctor.store.jobs.size import gpus_of
from logdoctor.store.learning.confirmed import AGREEMENT
from logdoctor.store.schema import CURRENT, OF_ITS_ATTEMPT, attempts, confirmations, jobs, nodes, verdicts
from logdoctor.types import Failures, ReportedFailure

MOST = 100_000
"""Failures in a report, at most: those with the newest verdicts."""


class _Said(msgspec.Struct):
    by: str


_said = msgspec.json.Decoder(_Said)
_later = attempts.alias("later")
_first = verdicts.alias("first")
_FAILED = sa.func.coalesce(
    attempts.c.ended,
    sa.select(sa.func.min(_first.c.at))
    .where(_first.c.job == verdicts.c.job, _first.c.attempt == verdicts.c.attempt, _first.c.outcome == "failed")
    .where(_first.c.at >= attempts.c.started)  # else it is of a past attempt that this one replaced
    .scalar_subquery(),
    verdicts.c.at,
).label("failed")
_NEXT = (
    sa.select(_later.c.started)
    .where(_later.c.job == verdicts.c.job, _later.c.number > verdicts.c.attempt)
    .order_by(_later.c.number)
    .limit(1)
    .scalar_subquery()
    .label("next")
)
_IS_FAILURE = (CURRENT, verdicts.c.outcome == "failed")
_QUERY = (
    sa.select(
        verdicts.c.job,
        verdicts.c.attempt,
        verdicts.c.reason,
        verdicts.c.category,
        verdicts.c.decided,
        attempts.c.started,
        _FAILED,
        _NEXT,
        verdicts.c.id,
    )
    .join(attempts, sa.and_(attempts.c.job == verdicts.c.job, attempts.c.number == verdicts.c.attempt))
    .where(*_IS_FAILURE)
    .order_by(verdicts.c.at.desc(), verdicts.c.id.desc())
)
_SIZES = sa.select(jobs.c.job, jobs.c.facts)
_PERSONS = sa.select(confirmations.c.job, confirmations.c.attempt, confirmations.c.body).where(OF_ITS_ATTEMPT)


class Reports:
    """The failures of one database; thread-safe. `StoreError` when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def failures(
        self, since: float | None = None, until: float | None = None, prefixes: tuple[str, ...] = (), most: int = MOST
    ) -> Failures:
        """Return the failed attempts with `since` <= failure < `until`, newest verdicts first. Their jobs have one of
        the prefixes (none means all)."""
        query = _QUERY.where(begins(verdicts.c.job, prefixes)) if prefixes else _QUERY
        if since is not None:
            query = query.where(_FAILED >= since)
        if until is not None:
            query = query.where(_FAILED < until)
        failing = query.order_by(None).with_only_columns(verdicts.c.job)
        with self._database.reading() as connection:
            rows = connection.execute(query.limit(most + 1)).all()
            counted = connection.execute(_SIZES.where(jobs.c.job.in_(failing))).all() if rows else ()
            said = connection.execute(_PERSONS.where(confirmations.c.job.in_(failing))).all() if rows else ()
            suspected = sa.select(nodes.c.verdict, nodes.c.node)
            suspected = suspected.where(nodes.c.verdict.in_(query.order_by(None).with_only_columns(verdicts.c.id)))
            named: dict[int, list[str]] = {}
            for id, node in connection.execute(suspected) if rows else ():
                named.setdefault(id, []).append(node)
        sizes = {job: gpus_of(facts) for job, facts in counted}
        persons = {(job, attempt) for job, attempt, body in said if _said.decode(body).by != AGREEMENT}
        items = [
            ReportedFailure(
                reason,
                category,
                "person" if (job, attempt) in persons else by,
                started,
                failed,
                following,
                sizes.get(job),
                tuple(named.get(id, ())),
            )
            for job, attempt, reason, category, by, started, failed, following, id in rows[:most]
        ]
        return Failures(items, len(rows) > most)
