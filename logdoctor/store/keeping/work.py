"""Work that waits: a row until it is done, so that neither a full queue nor `kill -9` loses any.

A row is entered in the transaction that makes the work due (a verdict, a confirmation) and goes when the work is done.
What breaks off is done again, so doing it twice comes to the same. There is no lease: only the service that holds the
lock of the data folder works.
"""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.schema import work

SETTLED = "settled"
"""Keep what is left of a settled attempt for lessons, and look its failure up when the rules left it open."""
LOOK_UP = "look_up"
"""Look the failure of an attempt up among past cases."""
ASK = "ask"
"""Ask the model about the failure of an attempt."""
TEACH = "teach"
"""Learn from a confirmation."""
FORGET = "forget"
"""Take back what a withdrawn confirmation decided and taught."""
COUNT = "count"
"""Count what learned rules did in a settled attempt."""
RECHECK = "recheck"
"""Diagnose a settled attempt again without learned rules."""
OPEN_FAILURES = "open_failures"
"""Find the failures of the last day that were left open, to look them up again."""

_DAY = 86_400.0
_BROKEN_OFF = 3  # tries after which work may be what kills the service: it waits for its time


class NewWork(NamedTuple):
    """Work to be entered. `key` is what it is about, `body` what only the one who enters it knows."""

    kind: str
    key: str
    body: str = ""


class WorkItem(NamedTuple):
    """Work that waits, since `at`, after so many `tries` that broke off or failed."""

    id: int
    kind: str
    key: str
    body: str
    at: float
    tries: int


class Work:
    """The work that waits in one database; any thread may call. Changes are durable on return."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def enter(self, new: Iterable[NewWork], at: float) -> None:
        """Enter work that is due now, in place of the same work that waits."""
        with self._database.writing() as connection:
            for one in new:
                enter(connection, one, at)

    def resume(self, now: float) -> None:
        """Make due what the last service broke off, or put off."""
        with self._database.writing() as connection:
            connection.execute(sa.update(work).where(work.c.tries < _BROKEN_OFF).values(due=now))

    def due(self, kinds: Collection[str], now: float, limit: int = 100) -> list[WorkItem]:
        """Return the work of some kinds that is due, that which waits longest first.

        No work waits for more than a day: what is due later was entered while the clock was wrong.
        """
        is_due = sa.or_(work.c.due <= now, work.c.due > now + _DAY)
        query = sa.select(work).where(work.c.kind.in_(kinds), is_due).order_by(work.c.due, work.c.id)
        with self._database.reading() as connection:
            return [_item(row) for row in connection.execute(query.limit(limit))]

    def next_due(self, kinds: Collection[str]) -> float | None:
        """Return when the next work of some kinds is due; None when none waits."""
        query = sa.select(sa.func.min(work.c.due)).where(work.c.kind.in_(kinds))
        with self._database.reading() as connection:
            found = connection.scalar(query)
        return None if found is None else float(found)

    def begin(self, item: WorkItem, again: float) -> None:
        """Count a try, after which the work is due `again` unless it is finished: what kills the service is not the
        first thing that the next one does for ever."""
        self._change(item, tries=item.tries + 1, due=again)

    def put_off(self, item: WorkItem, due: float) -> None:
        """Let work wait."""
        self._change(item, due=due)

    def finish(self, item: WorkItem) -> None:
        """Remove work that is done, unless the same was entered anew meanwhile."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(work).where(work.c.id == item.id))

    def keys(self, kinds: Collection[str]) -> set[str]:
        """Return what work of some kinds waits about."""
        with self._database.reading() as connection:
            return set(connection.scalars(sa.select(work.c.key).where(work.c.kind.in_(kinds))))

    def _change(self, item: WorkItem, **values: float) -> None:
        with self._database.writing() as connection:
            connection.execute(sa.update(work).where(work.c.id == item.id).values(values))


def enter(connection: sa.Connection, new: NewWork, at: float) -> None:
    """Enter work that is due now, in place of the same work that waits; for who writes what makes it due."""
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
