"""The queue of work: each item is a row until it is done, so neither a full queue nor `kill -9` loses any.

An item is entered in the transaction that makes it due (a verdict, a confirmation) and deleted when it is done.
Interrupted work is done again, so all work is idempotent. Items have no leases: only the leading process works on them.
"""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.schema import work

SETTLED = "settled"
"""Keep what is left of a settled attempt for lessons, and look its failure up if the rules left it open."""
LOOK_UP = "look_up"
"""Look the failure of an attempt up among past cases."""
ASK = "ask"
"""Ask the model about the failure of an attempt."""
TEACH = "teach"
"""Learn from a confirmation."""
FORGET = "forget"
"""Undo what a withdrawn confirmation decided and taught."""
COUNT = "count"
"""Count what learned rules did in a settled attempt."""
RECHECK = "recheck"
"""Diagnose a settled attempt again without learned rules."""
OPEN_FAILURES = "open_failures"
"""Find the open failures of the last day, to look them up again."""

_DAY = 86_400.0
_BROKEN_OFF = 3  # tries after which work may be what kills the service: a restart does not make it due


class NewWork(NamedTuple):
    """Work to enter. `key` is what it is about, `body` what only the one who enters it knows."""

    kind: str
    key: str
    body: str = ""


class WorkItem(NamedTuple):
    """Queued work, since `at`, after so many `tries` that failed or were interrupted."""

    id: int
    kind: str
    key: str
    body: str
    at: float
    tries: int


class Work:
    """The queue of one database; thread-safe. Changes are durable on return."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def enter(self, new: Iterable[NewWork], at: float) -> None:
        """Enter work that is due now, replacing the same work."""
        with self._database.writing() as connection:
            for one in new:
                enter(connection, one, at)

    def resume(self, now: float) -> None:
        """Make postponed and interrupted work due now, unless it was tried too often."""
        with self._database.writing() as connection:
            connection.execute(sa.update(work).where(work.c.tries < _BROKEN_OFF).values(due=now))

    def due(self, kinds: Collection[str], now: float, limit: int = 100) -> list[WorkItem]:
        """Return the due work of some kinds, the longest waiting first.

        No work waits longer than a day: anything due later was entered while the clock was wrong.
        """
        is_due = sa.or_(work.c.due <= now, work.c.due > now + _DAY)
        query = sa.select(work).where(work.c.kind.in_(kinds), is_due).order_by(work.c.due, work.c.id)
        with self._database.reading() as connection:
            return [_item(row) for row in connection.execute(query.limit(limit))]

    def next_due(self, kinds: Collection[str]) -> float | None:
        """Return when the next work of some kinds is due; None when there is none."""
        query = sa.select(sa.func.min(work.c.due)).where(work.c.kind.in_(kinds))
        with self._database.reading() as connection:
            found = connection.scalar(query)
        return None if found is None else float(found)

    def begin(self, item: WorkItem, again: float) -> None:
        """Count a try, and make the work due `again` unless it is finished. So work that crashes the service is not
        retried first at every start."""
        self._change(item, tries=item.tries + 1, due=again)

    def put_off(self, item: WorkItem, due: float) -> None:
        """Postpone work."""
        self._change(item, due=due)

    def finish(self, item: WorkItem) -> None:
        """Delete finished work, unless the same was entered again meanwhile."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(work).where(work.c.id == item.id))

    def keys(self, kinds: Collection[str]) -> set[str]:
        """Return the keys of queued work of some kinds."""
        with self._database.reading() as connection:
            return set(connection.scalars(sa.select(work.c.key).where(work.c.kind.in_(kinds))))

    def _change(self, item: WorkItem, **values: float) -> None:
        with self._database.writing() as connection:
            connection.execute(sa.update(work).where(work.c.id == item.id).values(values))


def enter(connection: sa.Connection, new: NewWork, at: float) -> None:
    """Enter work in the transaction that makes it due, replacing the same work."""
    connection.execute(sa.delete(work).where(work.c.kind == new.kind, work.c.key == new.key))
    values = {"kind": new.kind, "key": new.key, "body": new.body, "at": at, "due": at, "tries": 0}
    connection.execute(sa.insert(work).values(values))


def key_of(job: str, attempt: int) -> str:
    """Return the key of work on an attempt."""
    return f"{job}/{attempt}"


def attempt_of(key: str) -> tuple[str, int]:
    """Return the job and the number of the attempt that work is about."""
    job, _, number = key.rpartition("/")
    return job, int(number)


def _item(row: sa.Row[Any]) -> WorkItem:
    return WorkItem(row.id, row.kind, row.key, row.body, row.at, row.tries)
