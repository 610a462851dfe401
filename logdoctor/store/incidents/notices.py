"""The outbox of notifications: messages about incidents, their targets and their results.

A message is entered in the transaction that marks its incident as notified. Sending begins with a claim that postpones
the next try, so that a process that dies meanwhile leaves the message to be sent again by the next one.
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

_CURSOR = "notices"  # the counter of the last change of an incident that was processed
_OPEN = ("waiting", "held")
_SETTLED = ("delivered", "withdrawn", "summed")
_AHEAD = 60.0  # a time this many seconds ahead was written by a clock that was ahead
_c = notices.c
_i = incidents.c


class Notice(msgspec.Struct, frozen=True):
    """A message to a target: waiting or held until it is `due`, delivered, given up (dead), withdrawn as no longer
    needed, or part of a `summary`. It is given up after `until`; `why` is the result of the last of its `tries`,
    `by` the person who wanted it sent. Times are seconds since the epoch."""

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
    """A page of messages, newest first, and the cursor of the next page, if any."""

    items: list[Notice]
    next: str | None


class Closed(NamedTuple):
    """A target that said it is gone: when and why; `digest` is that of its URL."""

    digest: str
    at: float
    why: str


class UnsentIncident(NamedTuple):
    """An incident not notified yet, with the verdict on its newest attempt and the facts of that job."""

    id: int
    state: str
    opened: float
    attempts: int
    jobs: int
    verdict: StoredVerdict
    facts: JobFacts | None = None


class Gone(NamedTuple):
    """A notified incident that is resolved: by whom, with what note."""

    id: int
    by: str
    note: str


class NewNotice(NamedTuple):
    """A message to enter for a target, given up after `until`; for a closed target it is `dead` at once, with the
    reason."""

    target: str
    body: str
    due: float
    until: float
    dead: str = ""


class Notices:
    """The outbox of one database; usable from any thread and process. Changes are durable when the call returns.

    All calls raise `StoreError` when the database fails.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def unsent(self, stale: float, settled: float, limit: int = 200, now: float = math.inf) -> list[UnsentIncident]:
        """Return the incidents to notify now, oldest first: their newest verdict is final, or they were opened by
        `settled`, or after `now` by a clock that was ahead. Those that no longer need it are marked as notified:
        resolved or merged ones, and those opened, or woken from a snooze, before `stale`. Snoozed and muted ones
        wait."""
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
        """Return an incident as it would be notified now; None when no attempt is left in it."""
        return next(iter(self._described(_i.id == fit_id(incident), limit=1)), None)

    def _described(self, *wanted: sa.ColumnElement[bool], limit: int) -> list[UnsentIncident]:
        """Return some incidents that have attempts, oldest first."""
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
        """Return when the oldest incident that is to be notified was opened; None when there is none."""
        is_loud = sa.not_(is_quiet(now))
        query = sa.select(sa.func.min(_i.opened)).where(_i.notified.is_(False), _i.newest.is_not(None), is_loud)
        with self._database.reading() as connection:
            found: float | None = connection.scalar(query)
        return found

    def enqueue(self, unsent: UnsentIncident, entries: Sequence[NewNotice], at: float) -> bool:
        """Enter the messages of an incident and mark it as notified. Return False when it was resolved or notified
        since it was read."""
        with self._database.writing() as connection:
            same = (_i.id == unsent.id, _i.state != "resolved", _i.notified.is_(False))
            if not connection.execute(sa.update(incidents).where(*same).values(notified=True)).rowcount:
                return False
            for entry in entries:
                _enter(connection, entry, OPENED, unsent.id, at)
            return True

    def resolutions(self, limit: int = 500) -> tuple[list[Gone], int | None]:
        """Return the notified incidents resolved since `saw`, in order, and its next argument; None when there is none.
        What happened before the first call is skipped."""
        with self._database.reading() as connection:
            after = connection.scalar(sa.select(counters.c.value).where(counters.c.name == _CURSOR))
            if after is None:
                return [], int(connection.scalar(sa.select(sa.func.max(_i.event))) or 0)
            query = sa.select(_i.id, _i.by, _i.note, _i.state, _i.merged_into, _i.event).where(_i.event > after)
            rows = connection.execute(query.order_by(_i.event).limit(limit)).all()
        gone = [Gone(row.id, row.by, row.note) for row in rows if row.state == "resolved" and row.merged_into is None]
        return gone, rows[-1].event if rows else None

    def saw(self, event: int) -> None:
        """Mark the changes of incidents up to this one as processed."""
        with self._database.writing() as connection:
            mine = counters.c.name == _CURSOR
            if not connection.execute(sa.update(counters).where(mine).values(value=event)).rowcount:
                connection.execute(sa.insert(counters).values(name=_CURSOR, value=event))

    def of(self, incident: int) -> list[Notice]:
        """Return the messages about an incident, oldest first."""
        query = sa.select(notices).where(_c.incident == fit_id(incident)).order_by(_c.id)
        with self._database.reading() as connection:
            return [_read(row) for row in connection.execute(query.limit(500))]

    def enqueue_resolved(self, incident: int, entries: Mapping[str, NewNotice], at: float) -> int:
        """Enter messages for notified targets that an incident is resolved; return their number. Each target gets it
        once; unsent messages about the incident are withdrawn."""
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
        """Enter a test message for a target and return it, claimed until it is due."""
        with self._database.writing() as connection:
            id = _enter(connection, entry, TRIAL, None, at, fit(by, MAX_WHO), tries=1)
            return _found(connection, id)

    def due(self, target: str, now: float, limit: int = 1000) -> list[Notice]:
        """Return the messages due for a target, in the order of entry."""
        query = sa.select(notices).where(_c.target == target, _c.state.in_(_OPEN), _c.due <= now).order_by(_c.id)
        with self._database.reading() as connection:
            return [_read(row) for row in connection.execute(query.limit(limit))]

    def next_due(self, target: str) -> float | None:
        """Return when the next message to a target is due; None when there is none."""
        query = sa.select(sa.func.min(_c.due)).where(_c.target == target, _c.state.in_(_OPEN))
        with self._database.reading() as connection:
            found: float | None = connection.scalar(query)
        return found

    def claim(self, id: int, now: float, seconds: float) -> Notice | None:
        """Claim a message for `seconds` and return it; None when it is not due: somebody else is sending it, or has."""
        with self._database.writing() as connection:
            mine = (_c.id == fit_id(id), _c.state.in_(_OPEN), _c.due <= now)
            values = {"state": "waiting", "tries": _c.tries + 1, "due": now + seconds, "changed": now}
            if not connection.execute(sa.update(notices).where(*mine).values(values)).rowcount:
                return None
            return _found(connection, id)

    def settle_notice(self, id: int, state: Literal["delivered", "dead"], why: str, at: float) -> Notice:
        """Set the result of a message if it still waits, and return it."""
        values = {"state": state, "why": fit(why, MAX_WORDS), "due": at, "changed": at}
        with self._database.writing() as connection:
            connection.execute(sa.update(notices).where(_c.id == id, _c.state.in_(_OPEN)).values(values))
            return _found(connection, id)

    def put_off(self, claimed: Notice, due: float, why: str, at: float) -> Notice:
        """Postpone a message and return it; unchanged if somebody requested it again since it was claimed."""
        values = {"due": due, "why": fit(why, MAX_WORDS), "changed": at}
        with self._database.writing() as connection:
            mine = (_c.id == claimed.id, _c.state.in_(_OPEN), _c.tries == claimed.tries)
            connection.execute(sa.update(notices).where(*mine).values(values))
            return _found(connection, claimed.id)

    def hold(self, ids: Sequence[int], until: float, give_up: float, at: float) -> None:
        """Hold messages back until quiet hours end."""
        values = {"state": "held", "due": until, "until": give_up, "changed": at}
        with self._database.writing() as connection:
            connection.execute(sa.update(notices).where(_c.id.in_(ids), _c.state.in_(_OPEN)).values(values))

    def sum_up(self, ids: Sequence[int], entry: NewNotice, at: float) -> Notice | None:
        """Replace many messages by one and return that; None when one of them was tried already."""
        with self._database.writing() as connection:
            these = (_c.id.in_(ids), _c.state.in_(_OPEN), _c.tries == 0)
            if connection.scalar(sa.select(sa.func.count()).select_from(notices).where(*these)) != len(ids):
                return None
            id = _enter(connection, entry, SUMMARY, None, at)
            connection.execute(sa.update(notices).where(*these).values(state="summed", summary=id, changed=at, why=""))
            return _found(connection, id)

    def send_again(self, id: int, by: str, now: float, until: float) -> Notice:
        """Make a message due now and return it; `NoticeRefused` for one delivered, summed up or unknown."""
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
        """Return a page of messages, newest first, by state and target if given; `CursorError` for a bad cursor."""
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
        """Return the newest message to a target that was tried and has a result."""
        tried = (_c.target == target, _c.tries > 0, _c.why != "")
        with self._database.reading() as connection:
            row = connection.execute(sa.select(notices).where(*tried).order_by(_c.id.desc()).limit(1)).first()
        return None if row is None else _read(row)

    def open_counts(self) -> dict[str, dict[str, int]]:
        """Return each target's numbers of waiting, held and given-up messages, without tests."""
        query = sa.select(_c.target, _c.state, sa.func.count())
        query = query.where(_c.state.in_((*_OPEN, "dead")), _c.event != TRIAL)
        counts: dict[str, dict[str, int]] = {}
        with self._database.reading() as connection:
            for target, state, count in connection.execute(query.group_by(_c.target, _c.state)):
                counts.setdefault(target, {})[state] = count
        return counts

    def first_ends(self) -> dict[str, float]:
        """Return when each target's first waiting or held message is given up, without tests."""
        query = sa.select(_c.target, sa.func.min(_c.until)).where(_c.state.in_(_OPEN), _c.event != TRIAL)
        with self._database.reading() as connection:
            rows = connection.execute(query.group_by(_c.target)).all()
        return {row[0]: row[1] for row in rows}

    def bring_forward(self, now: float, until: float) -> int:
        """Make messages due now that a clock that was ahead postponed; return their number. Without this they would
        wait until it is that late again."""
        ahead = (_c.state.in_(_OPEN), _c.changed > now + _AHEAD)
        with self._database.reading() as connection:
            if connection.scalar(sa.select(_c.id).where(*ahead).limit(1)) is None:
                return 0
        with self._database.writing() as connection:
            values = {"due": now, "until": until, "changed": now}
            return connection.execute(sa.update(notices).where(*ahead).values(values)).rowcount

    def forget(self, before: float, dead_before: float, limit: int = 500) -> int:
        """Delete at most `limit` old messages and return their number: those settled before one time, and those given
        up before another. The newest of each target stays.

        Those about an incident stay until it is resolved and all of them are that old, as they record which targets get
        or got its resolution. Deleting them never repeats the notice that it was opened: the incident records that
        itself.
        """
        with self._database.reading() as connection:
            newest = set(connection.scalars(sa.select(sa.func.max(_c.id)).group_by(_c.target)))
            which = _forgettable(before, dead_before, newest)
            # oldest first: if this is interrupted, an incident keeps its latest messages
            ids = connection.scalars(sa.select(_c.id).where(which).order_by(_c.id).limit(limit)).all()
        if not ids:
            return 0
        with self._database.writing() as connection:
            return connection.execute(sa.delete(notices).where(_c.id.in_(ids), which)).rowcount

    def close_target(self, target: str, closed: Closed) -> None:
        """Close a target: it is sent nothing, and what waits for it is given up."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(notice_targets).where(notice_targets.c.target == target))
            values = closed._asdict() | {"why": fit(closed.why, MAX_WORDS)}
            connection.execute(sa.insert(notice_targets).values(target=target, **values))
            _give_up(connection, _c.target == target, f"the target is gone ({closed.why})", closed.at)

    def open_target(self, target: str) -> None:
        """Reopen a target; does nothing when it is not closed."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(notice_targets).where(notice_targets.c.target == target))

    def closed_targets(self) -> dict[str, Closed]:
        """Return the closed targets, by name."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(notice_targets)).all()
        return {row.target: Closed(row.digest, row.at, row.why) for row in rows}

    def keep_only(self, targets: Collection[str], at: float) -> None:
        """Give up messages to targets that are no longer set."""
        with self._database.writing() as connection:
            _give_up(connection, _c.target.not_in(list(targets)), "the target no longer exists", at)


def _forgettable(before: float, dead_before: float, newest: Collection[int]) -> sa.ColumnElement[bool]:
    """Return the condition for messages that nothing needs any longer."""

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
