"""Past attempts, entered after their end: they count in reports and lists of their own time and notify nobody."""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import sqlalchemy as sa

from logdoctor.errors import InputError
from logdoctor.store.database import Database
from logdoctor.store.incidents import grouping
from logdoctor.store.jobs.past_limits import require_fit
from logdoctor.store.jobs.records import (
    IS_PAST,
    PAST,
    End,
    Job,
    JobFacts,
    as_text,
    is_attempt,
    merged,
    new_attempt,
    next_number,
    open_job,
    read_attempt,
    read_current,
    read_job,
    readable,
    storable,
    supersede,
    tell,
    untimed,
)
from logdoctor.store.schema import LIVE, attempts, confirmations, ends
from logdoctor.types import Verdict

_AHEAD = 60.0  # seconds by which the clock of a sender of past attempts may be ahead


class PastAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt entered after its end, with the verdict on its log, which is not stored. Times are seconds since the
    epoch; `started` is None if unknown. `key` is the same whenever it is entered; `number` is that of the attempt,
    None for the next free one."""

    job: str
    key: str
    number: int | None = None
    facts: JobFacts = JobFacts()
    started: float | None = None
    ended: float
    exit_code: int | None = None
    verdict: Verdict


Entering = Literal["entered", "replaced", "unchanged", "confirmed", "known"]
"""The result for a past attempt: it is new; it replaced an earlier entry; nothing changed; nothing changed because a
person confirmed the cause; or the service watched it, and knows better."""


class EnteredAttempt(msgspec.Struct, frozen=True):
    """The result for a past attempt, and its number; None if it has none because it is `known`."""

    job: str
    attempt: int | None
    what: Entering


class PastRecords:
    """The past attempts of one database; thread-safe. Durable when a call returns.

    All calls raise `StoreError` when the database fails.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def enter_past(self, past: Sequence[PastAttempt], now: float) -> list[EnteredAttempt]:
        """Enter all past attempts or none, and return the result of each.

        Facts that others reported of a job stay, and so does an attempt known by another key. A verdict has the time of
        its attempt's end and is final; its failure belongs to a resolved incident of its time, without notification.
        `InputError` for impossible times, `NameRefused` for names, `LimitReached` when there is no next number.
        """
        for one in past:
            _check(one, now)
        with self._database.writing() as connection:
            return [_enter(connection, one, now) for one in past]


def _check(past: PastAttempt, now: float) -> None:
    require_fit(past)
    began = past.ended if past.started is None else past.started
    if not (math.isfinite(past.ended) and 0 <= began <= past.ended <= now + _AHEAD):
        cause = f"it cannot have run from {began:g} to {past.ended:g}"
        raise InputError(f"the past attempt of job {past.job[:100]!a}", cause, "Give seconds since the epoch (UTC).")


def _enter(connection: sa.Connection, past: PastAttempt, now: float) -> EnteredAttempt:
    body = as_text(past.verdict)
    verdict = readable(body)
    number, is_new = _number(connection, past)
    if number is None:
        return EnteredAttempt(past.job, past.number, "known")
    if connection.execute(sa.select(confirmations.c.id).where(*_confirmed(past.job, number))).first():
        return EnteredAttempt(past.job, number, "confirmed")
    changed = _tell(connection, past, number, now)
    former = read_current(connection, past.job, number)
    moved = former is not None and former.at != past.ended
    if former is not None and moved:
        grouping.leave(connection, former, now, "its dates were corrected")
    if former is None or moved or untimed(former.verdict) != untimed(verdict):
        supersede(connection, former, past.job, number, verdict, body, True, past.ended, past=True)
        changed = True
    return EnteredAttempt(past.job, number, "entered" if is_new else "replaced" if changed else "unchanged")


def _number(connection: sa.Connection, past: PastAttempt) -> tuple[int | None, bool]:
    """Return the number of a past attempt, and whether it is new; None when another attempt has its number, or when it
    has none and may be any attempt that the service watched."""
    mine, key = attempts.c.job == past.job, storable("key", PAST + past.key)
    if (known := connection.scalar(sa.select(attempts.c.number).where(mine, attempts.c.key == key))) is not None:
        return int(known), False
    if past.number is None:
        watched = sa.or_(attempts.c.key.is_(None), ~IS_PAST)
        if connection.execute(sa.select(attempts.c.number).where(mine, watched).limit(1)).first():
            return None, False
        return next_number(connection, past.job), True
    return (None, False) if read_attempt(connection, past.job, past.number) else (past.number, True)


def _tell(connection: sa.Connection, past: PastAttempt, number: int, now: float) -> bool:
    """Record a past attempt's times, and unreported facts of its job; return whether anything changed.

    Of several past attempts of a job the last one determines its facts, the others fill in what that leaves open.
    """
    began = past.ended if past.started is None else past.started
    known = read_job(connection, past.job)
    told_by_others = known is not None and (known.created, known.updated) != _span(connection, past.job)
    job = known or open_job(connection, past.job, began)
    changed = _place(connection, past, number, began, now)
    facts = msgspec.structs.replace(past.facts, placed=False, like=None)  # its nodes may come from text of its log
    is_last = not told_by_others and _last(connection, past.job) == number
    facts = merged(job.facts, facts) if is_last else merged(facts, job.facts)
    span = (min(job.created, began), job.updated) if told_by_others else _span(connection, past.job)
    tell(connection, job, Job(past.job, facts, *span))
    return changed or facts != job.facts


def _place(connection: sa.Connection, past: PastAttempt, number: int, began: float, now: float) -> bool:
    """Enter a past attempt, or correct its times and end; return whether anything changed."""
    end = End("", past.exit_code, None, None, past.ended)
    known = read_attempt(connection, past.job, number)
    if known is not None and (known.started, known.ended, known.ends) == (began, past.ended, (end,)):
        return False
    if known is None:
        new = new_attempt(past.job, number, PAST + past.key, began)
        connection.execute(sa.insert(attempts).values(new | {"settled": True, "deleted": now}))
    when = {"started": began, "ended": past.ended}
    connection.execute(sa.update(attempts).where(*is_attempt(past.job, number)).values(when))
    connection.execute(sa.delete(ends).where(ends.c.job == past.job, ends.c.attempt == number))
    connection.execute(sa.insert(ends).values(job=past.job, attempt=number, **msgspec.structs.asdict(end)))
    return True


def _span(connection: sa.Connection, job: str) -> tuple[float, float]:
    """Return when a job's first past attempt began and its last one ended; NaN without any."""
    query = sa.select(sa.func.min(attempts.c.started), sa.func.max(attempts.c.ended))
    began, ended = connection.execute(query.where(attempts.c.job == job, IS_PAST)).one()
    return (math.nan, math.nan) if began is None else (began, ended)


def _last(connection: sa.Connection, job: str) -> int | None:
    """Return the number of a job's past attempt that ended last."""
    query = sa.select(attempts.c.number).where(attempts.c.job == job, IS_PAST)
    return connection.scalar(query.order_by(attempts.c.ended.desc(), attempts.c.number.desc()).limit(1))


def _confirmed(job: str, number: int) -> tuple[sa.ColumnElement[bool], ...]:
    return confirmations.c.job == job, confirmations.c.attempt == number, LIVE
