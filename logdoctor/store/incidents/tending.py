"""Automatic changes of incidents: snoozes end, and failures that their jobs ran past are resolved.

This is checked from time to time, as nothing is written while a job makes its steps.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from logdoctor.store.incidents.grouping import resolve, wake
from logdoctor.store.schema import (
    CURRENT,
    OPEN_INCIDENT,
    attempts,
    incident_attempts,
    incidents,
    next_event,
    node_cordons,
    streams,
    verdicts,
)

RUNS_ON = 1800.0
"""Least seconds that a later attempt must run, and longer than the failed one, to have run past the failure."""
SPEAKS = 900.0
"""Seconds within which it must have written something: a hanging job has not run past anything."""

_GOOD = ("completed", "recovered")
_MOST = 500  # incidents per transaction
_c, _a = incidents.c, incident_attempts.c
_later = attempts.alias("later")
_FAILED = (
    sa.select(_a.incident, _a.job, sa.func.max(_a.attempt).label("attempt"), sa.func.max(_a.seconds).label("seconds"))
    .group_by(_a.incident, _a.job)
    .subquery()
)
_SPOKE = (
    sa.select(sa.func.max(streams.c.changed))
    .where(streams.c.job == _later.c.job, streams.c.attempt == _later.c.number)
    .scalar_subquery()
)
_TAKEN_OUT = sa.exists().where(node_cordons.c.node == _c.node, node_cordons.c.state == "standing")


class _Later(NamedTuple):
    """A later attempt of a job of an incident."""

    incident: int
    job: str
    failed_after: float
    number: int
    started: float
    ended: float | None
    settled: bool
    spoke: float | None
    outcome: str | None
    final: bool | None

    def is_past(self, now: float) -> bool:
        """Return whether it ran past the failure: it ended well, or it has run longer than the failed one."""
        if self.outcome is not None:
            return bool(self.final) and self.outcome in _GOOD
        runs = self.ended is None and not self.settled
        speaks = self.spoke is not None and now - self.spoke <= SPEAKS
        return runs and speaks and now - self.started > max(self.failed_after, RUNS_ON)


def end_snoozes(connection: sa.Connection, now: float) -> list[int]:
    """Wake the incidents whose snooze is over, and return them."""
    query = sa.select(_c.id).where(_c.snoozed_until <= now, OPEN_INCIDENT).order_by(_c.id).limit(_MOST)
    found = list(connection.scalars(query))
    for id in found:
        wake(connection, id, now, next_event(connection), "its time has come")
    return found


def run_past(connection: sa.Connection, now: float) -> Mapping[int, str]:
    """Return the open incidents whose jobs all ran past the failure, with notes.

    One with a node stays open until a cordon of ours stands: the job may run elsewhere, and the node is as bad as
    before.
    """
    is_ours = (OPEN_INCIDENT, sa.or_(_c.node == "", _TAKEN_OUT))
    failed = sa.select(_FAILED).join(incidents, _c.id == _FAILED.c.incident).where(*is_ours).subquery()
    query = (
        sa.select(
            failed.c.incident,
            failed.c.job,
            sa.func.coalesce(failed.c.seconds, 0).label("failed_after"),
            _later.c.number,
            _later.c.started,
            _later.c.ended,
            _later.c.settled,
            _SPOKE.label("spoke"),
            verdicts.c.outcome,
            verdicts.c.final,
        )
        .select_from(failed)
        .join(_later, sa.and_(_later.c.job == failed.c.job, _later.c.number > failed.c.attempt))
        .outerjoin(verdicts, sa.and_(verdicts.c.job == _later.c.job, verdicts.c.attempt == _later.c.number, CURRENT))
        .order_by(failed.c.incident, failed.c.job, _later.c.number)
    )
    past: dict[int, dict[str, int]] = {}
    for row in connection.execute(query):
        later = _Later._make(row)
        if later.is_past(now):
            past.setdefault(later.incident, {}).setdefault(later.job, later.number)
    if not past:
        return {}
    counts = sa.select(_c.id, _c.jobs).where(_c.id.in_(list(past)))
    jobs = {id: count for id, count in connection.execute(counts)}
    return {id: _said(sorted(ran.items())) for id, ran in past.items() if len(ran) == jobs[id]}


def _said(ran: Sequence[tuple[str, int]]) -> str:
    job, number = ran[0]
    more = f", and so did {len(ran) - 1} more job{'s' if len(ran) > 2 else ''}" if len(ran) > 1 else ""
    return f"attempt {number} of {job[:200]} ran on past the failure{more}"


def is_due(reading: sa.Connection, now: float) -> bool:
    """Return whether `settle` has anything to do."""
    over = sa.select(_c.id).where(_c.snoozed_until <= now, OPEN_INCIDENT).limit(1)
    return reading.scalar(over) is not None or bool(run_past(reading, now))


def settle(connection: sa.Connection, now: float) -> list[int]:
    """End snoozes and resolve incidents that jobs ran past; return those that changed."""
    changed = end_snoozes(connection, now)
    for id, note in run_past(connection, now).items():
        resolve(connection, id, now, next_event(connection), note)
        changed.append(id)
    return changed
