"""The append-only audit of tests, cordons and actions: who did what and why, step by step."""

from typing import Literal

import msgspec
import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.fit import below, fit, fit_id, fit_limit
from logdoctor.store.schema import node_actions, node_audit, node_cordons, tested_nodes

MAX_WORDS = 2000
"""Characters of a reason that are kept."""
MAX_WHO = 200

What = Literal["test", "cordon", "action"]
_c = node_audit.c


class AuditEvent(msgspec.Struct, frozen=True):
    """One step of a test, a cordon or an action (`what`), whose id is `subject`. `node` is "" if it is about several
    nodes or none; `by` took the step `at` a time, in seconds since the epoch."""

    id: int
    at: float
    by: str
    what: What
    subject: int
    node: str
    step: str
    why: str


class AuditPage(msgspec.Struct, frozen=True):
    """A page of events, newest first, and the cursor of the next page, if any."""

    items: list[AuditEvent]
    next: str | None


def enter(
    connection: sa.Connection, what: What, subject: int, step: str, by: str, why: str, at: float, node: str = ""
) -> None:
    """Append an event in the transaction of its change: neither exists without the other."""
    values = {"at": at, "by": fit(by, MAX_WHO), "what": what, "subject": subject, "node": node, "step": step}
    connection.execute(sa.insert(node_audit).values(**values, why=fit(why, MAX_WORDS)))


class Audit:
    """The audit of one database; thread-safe. `StoreError` when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def audit(
        self, cursor: str | None = None, limit: int = 50, node: str | None = None, test: int | None = None
    ) -> AuditPage:
        """Return a page of events, newest first; `CursorError` for a bad cursor.

        With `node`, those that name the node and those of its tests; with `test`, those of the test and of the cordons
        and actions that followed from it.
        """
        query = sa.select(node_audit).where(_c.id < below(cursor)).order_by(_c.id.desc())
        if node is not None:
            query = query.where(_about_node(fit(node, MAX_WHO)))
        if test is not None:
            query = query.where(_about_test(fit_id(test)))
        limit = fit_limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(query.limit(limit + 1)).all()
        items = [AuditEvent(**row._mapping) for row in rows[:limit]]
        return AuditPage(items, str(items[-1].id) if len(rows) > limit else None)


def _about_node(node: str) -> sa.ColumnElement[bool]:
    tests = sa.select(tested_nodes.c.test).where(tested_nodes.c.node == node)
    return sa.or_(_c.node == node, sa.and_(_c.what == "test", _c.node == "", _c.subject.in_(tests)))


def _about_test(test: int) -> sa.ColumnElement[bool]:
    followed = (
        sa.and_(_c.what == what, _c.subject.in_(sa.select(table.c.id).where(table.c.test == test)))
        for what, table in (("cordon", node_cordons), ("action", node_actions))
    )
    return sa.or_(sa.and_(_c.what == "test", _c.subject == test), *followed)
