"""What is to be told of incidents, to whom, and what became of it: the outbox of notifications.

A message is entered in the transaction that marks its incident as told, and leaves with a claim: who sends it puts off
its next try first, so that a process that dies in between leaves it to be sent again, by whoever comes next.
"""

import math
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from logdoctor.errors import NoticeRefused
from logdoctor.store.database import Database
from logdoctor.store.fit import below, fit, fit_id, fit_limit
from logdoctor.store.incidents.search import is_quiet
from logdoctor.store.jobs.records import VERDICT_FIELDS, JobFacts, StoredVerdict, read_job, read_verdicts
from logdoctor.store.keeping.audit import MAX_WHO, MAX_WORDS
from logdoctor.store.schema import bodies, counters, incidents, notice_targets, notices, verdicts

OPENED, RESOLVED, SUMMARY, TRIAL = "incident.opened", "incident.resolved", "incidents.summary", "test"

NoticeState = Literal["waiting", "held", "delivered", "dead", "withdrawn", "summed"]

_CURSOR = "notices"  # the counter: the last change of an incident that was looked at
_OPEN = ("waiting", "held")
_SETTLED = ("delivered", "withdrawn", "summed")
_AHEAD = 60.0  # seconds after now that only a clock wrote that was ahead then
_c = notices.c
_i = incidents.c


class Notice(msgspec.Struct, frozen=True):
    """A message to a target. It waits or is held back until it is `due`, was delivered, is given up (dead), was
    withdrawn because there was no more need, or went into a `summary`. It is given up after `until`; `why` is what came
    of the last of its `tries`, `by` the person who wanted it sent. Times are seconds since the epoch."""

    id: int
    at: float
    target: str
    event: str
    incident: int | None
    key: str
    body: str
    state: NoticeState
    tries: int
    due: float
    until: float
    changed: float
    why: str
    by: str
    summary: int | None


class NoticePage(msgspec.Struct, frozen=True):
    """Some messages, the newest first, and the cursor of the next page if there is one."""

    items: list[Notice]
    next: str | None


class Closed(NamedTuple):
    """A target that said it is gone, at this time and in these words; `digest` is that of its URL."""

    digest: str
    at: float
    why: str


class UnsentIncident(NamedTuple):
    """An incident that was not told yet, with the verdict on its newest attempt, and what was told of the job of
    that."""

    id: int
    state: str
    opened: float
    attempts: int
    jobs: int
    verdict: StoredVerdict
    facts: JobFacts | None = None


class Gone(NamedTuple):
    """A told incident that is resolved: by whom, with what note."""

    id: int
    by: str
    note: str


class NewNotice(NamedTuple):
    """A message to be entered for a target, which is given up after `until`; one for a target that is gone is `dead`
    from the beginning, and says why."""

    target: str
    body: str
    due: float
    until: float
    dead: str = ""


class Notices:
    """The outbox of one database; any thread and any process may call. Changes are durable when the call returns.

    All calls raise `StoreError` when the database fails.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def unsent(self, stale: float, settled: float, limit: int = 200, now: float = math.inf) -> list[UnsentIncident]:
        """Return the incidents that are to be told now, the oldest first: where the newest verdict is final, or
        provisional and the incident was opened by `settled`, or after `now` by a clock that was ahead. Those that need
        no telling any more are marked as told: resolved or merged ones, and those opened, or woken from a snooze,
        before `stale`. Snoozed and muted ones are told when that is over."""
        since = sa.func.coalesce(_i.woken, _i.opened)
        needless = sa.or_(_i.state == "resolved", _i.merged_into.is_not(None), since < stale)
        pending = sa.and_(_i.notified.is_(False), needless)
        with self._database.reading() as connection:
            is_needless = connection.scalar(sa.select(_i.id).where(pending).limit(1)) is not None
        if is_needless:
            with self._database.writing() as connection:
                connection.execute(sa.update(incidents).where(pending).values(notified=True))
        is_settled = sa.or_(verdicts.c.final, _i.opened <= settled, _i.opened > now + _AHEAD)
        is_loud = sa.not_(is_quiet(time.time() if math.isinf(now) else now))
        return self._described(_i.notified.is_(False), is_settled, is_loud, limit=limit)

    def as_it_stands(self, incident: int) -> UnsentIncident | None:
        """Return what is told of an incident now, told of before or not; None when no attempt is left in it."""
        return next(iter(self._described(_i.id == fit_id(incident), limit=1)), None)

    def _described(self, *wanted: sa.ColumnElement[bool], limit: int) -> list[UnsentIncident]:
        """Return some incidents that have attempts, the oldest first."""
        about = (_i.id.label("incident"), _i.state, _i.opened, _i.attempts, _i.jobs)
        source = incidents.join(verdicts, verdicts.c.id == _i.newest).join(bodies, bodies.c.verdict == _i.newest)
        query = sa.select(*(column.label(f"of_{column.name}") for column in about), *VERDICT_FIELDS)
        query = query.select_from(source).where(*wanted).order_by(_i.id).limit(limit)
        with self._database.reading() as connection:
            rows: Sequence[Any] = connection.execute(query).all()
            known = {row.job: _facts(connection, row.job) for row in rows}
        return [
            UnsentIncident(
                row.of_incident, row.of_state, row.of_opened, row.of_attempts, row.of_jobs, verdict, known[row.job]
            )
            for row, verdict in zip(rows, read_verdicts(rows), strict=True)
        ]

    def oldest_unsent(self, now: float) -> float | None:
        """Return when the oldest incident was opened that was not told yet and is not to be kept quiet; None when there
        is none."""
        is_loud = sa.not_(is_quiet(now))
        query = sa.select(sa.func.min(_i.opened)).where(_i.notified.is_(False), _i.newest.is_not(None), is_loud)
        with self._database.reading() as connection:
            found: float | None = connection.scalar(query)
        return found

    def enqueue(self, unsent: UnsentIncident, entries: Sequence[NewNotice], at: float) -> bool:
        """Return whether the messages of an incident were entered, which counts as told now. False when it was resolved
        since it was read, or told by others."""
        with self._database.writing() as connection:
            same = (_i.id == unsent.id, _i.state != "resolved", _i.notified.is_(False))
            if not connection.execute(sa.update(incidents).where(*same).values(notified=True)).rowcount:
                return False
            for entry in entries:
                _enter(connection, entry, OPENED, unsent.id, at)
            return True

    def resolutions(self, limit: int = 500) -> tuple[list[Gone], int | None]:
        """Return the told incidents that were resolved since what `saw` was told of, in order, and the change to tell
        it of when they were seen to; None when there is none. What happened before the first call is passed over."""
        with self._database.reading() as connection:
            after = connection.scalar(sa.select(counters.c.value).where(counters.c.name == _CURSOR))
            if after is None:
                return [], int(connection.scalar(sa.select(sa.func.max(_i.event))) or 0)
            query = sa.select(_i.id, _i.by, _i.note, _i.state, _i.merged_into, _i.event).where(_i.event > after)
            rows = connection.execute(query.order_by(_i.event).limit(limit)).all()
        gone = [Gone(row.id, row.by, row.note) for row in rows if row.state == "resolved" and row.merged_into is None]
        return gone, rows[-1].event if rows else None

    def saw(self, event: int) -> None:
        """Note that the changes of incidents up to this one do not come again."""
        with self._database.writing() as connection:
            mine = counters.c.name == _CURSOR
            if not connection.execute(sa.update(counters).where(mine).values(value=event)).rowcount:
                connection.execute(sa.insert(counters).values(name=_CURSOR, value=event))

    def of(self, incident: int) -> list[Notice]:
        """Return the messages about an incident, the oldest first."""
        query = sa.select(notices).where(_c.incident == fit_id(incident)).order_by(_c.id)
        with self._database.reading() as connection:
            return [_read(row) for row in connection.execute(query.limit(500))]

    def enqueue_resolved(self, incident: int, entries: Mapping[str, NewNotice], at: float) -> int:
        """Return how many targets are to be told that an incident is resolved: those that were told of it, once.
        Messages of it that nobody tried to send yet are withdrawn."""
        about = _c.incident == incident
        with self._database.writing() as connection:
            unsent = (about, _c.event == OPENED, _c.state.in_(_OPEN), _c.tries == 0, _c.by == "")
            why = "the incident was resolved before the message was sent"
            connection.execute(sa.update(notices).where(*unsent).values(state="withdrawn", why=why, changed=at))
            whole = notices.alias()
            arrives = sa.exists().where(whole.c.id == _c.summary, whole.c.state != "dead")
            is_sent = sa.or_(_c.state.in_((*_OPEN, "delivered")), sa.and_(_c.state == "summed", arrives))
            sent = (about, _c.event == OPENED, is_sent)
            rows = connection.execute(sa.select(_c.target, sa.func.max(_c.due)).where(*sent).group_by(_c.target)).all()
            again = set(connection.scalars(sa.select(_c.target).where(about, _c.event == RESOLVED)))
            wanted = [(entries[row[0]], row[1]) for row in rows if row[0] in entries and row[0] not in again]
            for entry, before in wanted:  # not before the message that it follows
                _enter(connection, entry._replace(due=max(entry.due, before)), RESOLVED, incident, at)
            return len(wanted)

    def enter_trial(self, entry: NewNotice, by: str, at: float) -> Notice:
        """Return a message that somebody tries a target with, claimed by the caller until it is due."""
        with self._database.writing() as connection:
            id = _enter(connection, entry, TRIAL, None, at, fit(by, MAX_WHO), tries=1)
            return _found(connection, id)

    def due(self, target: str, now: float, limit: int = 1000) -> list[Notice]:
        """Return what is to be sent to a target now, in the order in which it was entered."""
        query = sa.select(notices).where(_c.target == target, _c.state.in_(_OPEN), _c.due <= now).order_by(_c.id)
        with self._database.reading() as connection:
            return [_read(row) for row in connection.execute(query.limit(limit))]

    def next_due(self, target: str) -> float | None:
        """Return when something is next to be sent to a target; None when nothing is."""
        query = sa.select(sa.func.min(_c.due)).where(_c.target == target, _c.state.in_(_OPEN))
        with self._database.reading() as connection:
            found: float | None = connection.scalar(query)
        return found

    def claim(self, id: int, now: float, seconds: float) -> Notice | None:
        """Return the message, to be sent by the caller within some seconds, after which others may; None when it is not
        due: somebody else is sending it, or has."""
        with self._database.writing() as connection:
            mine = (_c.id == fit_id(id), _c.state.in_(_OPEN), _c.due <= now)
            values = {"state": "waiting", "tries": _c.tries + 1, "due": now + seconds, "changed": now}
            if not connection.execute(sa.update(notices).where(*mine).values(values)).rowcount:
                return None
            return _found(connection, id)

    def settle_notice(self, id: int, state: Literal["delivered", "dead"], why: str, at: float) -> Notice:
        """Return the message with what became of it, if it still waits."""
        values = {"state": state, "why": fit(why, MAX_WORDS), "due": at, "changed": at}
        with self._database.writing() as connection:
            connection.execute(sa.update(notices).where(_c.id == id, _c.state.in_(_OPEN)).values(values))
            return _found(connection, id)

    def put_off(self, claimed: Notice, due: float, why: str, at: float) -> Notice:
        """Return the message, to be tried again later; as it is when somebody wants it sent again since it was
        claimed."""
        values = {"due": due, "why": fit(why, MAX_WORDS), "changed": at}
        with self._database.writing() as connection:
            mine = (_c.id == claimed.id, _c.state.in_(_OPEN), _c.tries == claimed.tries)
            connection.execute(sa.update(notices).where(*mine).values(values))
            return _found(connection, claimed.id)

    def hold(self, ids: Sequence[int], until: float, give_up: float, at: float) -> None:
        """Keep messages back until quiet hours end."""
        values = {"state": "held", "due": until, "until": give_up, "changed": at}
        with self._database.writing() as connection:
            connection.execute(sa.update(notices).where(_c.id.in_(ids), _c.state.in_(_OPEN)).values(values))

    def sum_up(self, ids: Sequence[int], entry: NewNotice, at: float) -> Notice | None:
        """Return one message in place of many, which nobody tried to send yet; None when somebody did."""
        with self._database.writing() as connection:
            these = (_c.id.in_(ids), _c.state.in_(_OPEN), _c.tries == 0)
            if connection.scalar(sa.select(sa.func.count()).select_from(notices).where(*these)) != len(ids):
                return None
            id = _enter(connection, entry, SUMMARY, None, at)
            connection.execute(sa.update(notices).where(*these).values(state="summed", summary=id, changed=at, why=""))
            return _found(connection, id)

    def send_again(self, id: int, by: str, now: float, until: float) -> Notice:
        """Return the message, due now; `NoticeRefused` for one that arrived, went into a summary or does not exist."""
        with self._database.writing() as connection:
            found = _found(connection, id)
            if found.event == TRIAL or found.state not in (*_OPEN, "dead"):
                cause = "is a test" if found.event == TRIAL else f"is {found.state}"
                raise NoticeRefused(
                    f"notification {id}", cause, "Only messages that wait or were given up can be sent again."
                )
            values = {"state": "waiting", "tries": 0, "due": now, "until": until, "changed": now}
            connection.execute(sa.update(notices).where(_c.id == id).values(**values, by=fit(by, MAX_WHO)))
            return _found(connection, id)

    def notice(self, id: int) -> Notice | None:
        """Return the message with this id."""
        with self._database.reading() as connection:
            row = connection.execute(sa.select(notices).where(_c.id == fit_id(id))).first()
        return None if row is None else _read(row)

    def notices(
        self, cursor: str | None = None, limit: int = 50, state: str | None = None, target: str | None = None
    ) -> NoticePage:
        """Return a page of messages, the newest first, of all states and targets or of one; `CursorError` for a bad
        cursor."""
        query = sa.select(notices).where(_c.id < below(cursor)).order_by(_c.id.desc())
        if state is not None:
            query = query.where(_c.state == fit(state, MAX_WHO))
        if target is not None:
            query = query.where(_c.target == fit(target, MAX_WHO))
        limit = fit_limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(query.limit(limit + 1)).all()
        items = [_read(row) for row in rows[:limit]]
        return NoticePage(items, str(items[-1].id) if len(rows) > limit else None)

    def last_tried(self, target: str) -> Notice | None:
        """Return the newest message that somebody tried to send to a target, and that has an answer."""
        tried = (_c.target == target, _c.tries > 0, _c.why != "")
        with self._database.reading() as connection:
            row = connection.execute(sa.select(notices).where(*tried).order_by(_c.id.desc()).limit(1)).first()
        return None if row is None else _read(row)

    def open_counts(self) -> dict[str, dict[str, int]]:
        """Return how many messages of each target wait, are held back or were given up; tests do not count."""
        query = sa.select(_c.target, _c.state, sa.func.count())
        query = query.where(_c.state.in_((*_OPEN, "dead")), _c.event != TRIAL)
        counts: dict[str, dict[str, int]] = {}
        with self._database.reading() as connection:
            for target, state, count in connection.execute(query.group_by(_c.target, _c.state)):
                counts.setdefault(target, {})[state] = count
        return counts

    def first_ends(self) -> dict[str, float]:
        """Return when the first of the messages to each target that wait or are held back is given up; tests do not
        count."""
        query = sa.select(_c.target, sa.func.min(_c.until)).where(_c.state.in_(_OPEN), _c.event != TRIAL)
        with self._database.reading() as connection:
            rows = connection.execute(query.group_by(_c.target)).all()
        return {row[0]: row[1] for row in rows}

    def bring_forward(self, now: float, until: float) -> int:
        """Return how many messages are due now, and given up at `until`, because they were put off by a clock that was
        ahead, and would wait until it is as late again."""
        ahead = (_c.state.in_(_OPEN), _c.changed > now + _AHEAD)
        with self._database.reading() as connection:
            if connection.scalar(sa.select(_c.id).where(*ahead).limit(1)) is None:
                return 0
        with self._database.writing() as connection:
            values = {"due": now, "until": until, "changed": now}
            return connection.execute(sa.update(notices).where(*ahead).values(values)).rowcount

    def forget(self, before: float, dead_before: float, limit: int = 500) -> int:
        """Return how many messages were deleted, at most `limit`: those that came to an end before a moment, and those
        that were given up before another one. The newest of each target stays.

        Those about an incident stay until it is resolved and all of them are that old, for they say who is to be told
        of its end, and who was. That an incident is opened is told once whatever is deleted: it says so itself.
        """
        with self._database.reading() as connection:
            newest = set(connection.scalars(sa.select(sa.func.max(_c.id)).group_by(_c.target)))
            which = _forgettable(before, dead_before, newest)
            # the oldest first: should this end half-way, an incident is left with those that are told last
            ids = connection.scalars(sa.select(_c.id).where(which).order_by(_c.id).limit(limit)).all()
        if not ids:
            return 0
        with self._database.writing() as connection:
            return connection.execute(sa.delete(notices).where(_c.id.in_(ids), which)).rowcount

    def close_target(self, target: str, closed: Closed) -> None:
        """Send a target nothing any more; what waits for it is given up."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(notice_targets).where(notice_targets.c.target == target))
            values = closed._asdict() | {"why": fit(closed.why, MAX_WORDS)}
            connection.execute(sa.insert(notice_targets).values(target=target, **values))
            _give_up(connection, _c.target == target, f"the target is gone ({closed.why})", closed.at)

    def open_target(self, target: str) -> None:
        """Send a target messages again; nothing happens when it is not closed."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(notice_targets).where(notice_targets.c.target == target))

    def closed_targets(self) -> dict[str, Closed]:
        """Return the targets that are sent nothing, by name."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(notice_targets)).all()
        return {row.target: Closed(row.digest, row.at, row.why) for row in rows}

    def keep_only(self, targets: Collection[str], at: float) -> None:
        """Give up what waits for targets that are not set any more."""
        with self._database.writing() as connection:
            _give_up(connection, _c.target.not_in(list(targets)), "the target no longer exists", at)


def _forgettable(before: float, dead_before: float, newest: Collection[int]) -> sa.ColumnElement[bool]:
    """Return what is true of messages that nothing needs any more."""

    def is_old(one: Any) -> sa.ColumnElement[bool]:
        ended = sa.and_(one.state.in_(_SETTLED), one.changed < before)
        dead = sa.and_(one.state == "dead", one.changed < dead_before)
        return sa.and_(sa.or_(ended, dead), one.id.not_in(newest))

    other, part = notices.alias(), notices.alias()
    is_over = sa.or_(_i.state == "resolved", _i.merged_into.is_not(None))
    over = sa.exists().where(_i.id == _c.incident, is_over)
    needed = sa.exists().where(other.c.incident == _c.incident, sa.not_(is_old(other.c)))
    summed = sa.exists().where(part.c.summary == _c.id)
    return sa.and_(is_old(_c), sa.not_(summed), sa.or_(_c.incident.is_(None), sa.and_(over, sa.not_(needed))))


def _facts(connection: sa.Connection, job: str) -> JobFacts | None:
    known = read_job(connection, job)
    return None if known is None else known.facts


def _enter(
    connection: sa.Connection,
    entry: NewNotice,
    event: str,
    incident: int | None,
    at: float,
    by: str = "",
    tries: int = 0,
) -> int:
    values = {
        "at": at,
        "target": entry.target,
        "event": event,
        "incident": incident,
        "key": f"msg_{secrets.token_hex(16)}",
        "body": entry.body,
        "state": "dead" if entry.dead else "waiting",
        "tries": tries,
        "due": entry.due,
        "until": entry.until,
        "changed": at,
        "why": fit(entry.dead, MAX_WORDS),
        "by": by,
    }
    return int(connection.execute(sa.insert(notices).values(values).returning(_c.id)).scalar_one())


def _give_up(connection: sa.Connection, which: sa.ColumnElement[bool], why: str, at: float) -> None:
    values = {"state": "dead", "why": fit(why, MAX_WORDS), "changed": at}
    connection.execute(sa.update(notices).where(which, _c.state.in_(_OPEN)).values(values))


def _found(connection: sa.Connection, id: int) -> Notice:
    row = connection.execute(sa.select(notices).where(_c.id == fit_id(id))).first()
    if row is None:
        raise NoticeRefused(f"notification {id}", "does not exist", "List the notifications.")
    return _read(row)


def _read(row: sa.Row[Any]) -> Notice:
    return Notice(**row._mapping)
