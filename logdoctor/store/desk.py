"""What people keep beside incidents: views of the list that have a name, and runbooks.

A view is for all who may see all jobs; a runbook is the page to follow for a reason, a rule or a fingerprint.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
import sqlalchemy as sa

from logdoctor.errors import IncidentRefused
from logdoctor.links import checked_link
from logdoctor.store.audit import MAX_WHO
from logdoctor.store.database import Database
from logdoctor.store.fit import fit
from logdoctor.store.schema import runbooks, saved_views

RunbookKind = Literal["reason", "rule", "fingerprint"]
_MAX_NAME = 60
_MAX_QUERY = 2000
_MAX_VALUE = 300
_MOST = 200  # views, and a thousand runbooks
_MOST_RUNBOOKS = 1000
_PLACE: dict[str, int] = {"fingerprint": 0, "rule": 1, "reason": 2}
"""What is the more precise comes first."""


class SavedView(msgspec.Struct, frozen=True):
    """A filter of the list of incidents, `query` as it stands in its URL, by its name."""

    name: str
    query: str
    by: str
    at: float


class Runbook(msgspec.Struct, frozen=True):
    """What to follow when a failure has this reason, was named by this rule, or has this fingerprint."""

    kind: RunbookKind
    value: str
    url: str
    by: str
    at: float


class Desk:
    """Views and runbooks of one database; any thread may call. `StoreError` when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def views(self) -> list[SavedView]:
        """Return the saved views, by name."""
        query = sa.select(saved_views).order_by(saved_views.c.name).limit(_MOST)
        with self._database.reading() as connection:
            return [SavedView(**row._mapping) for row in connection.execute(query)]

    def save_view(self, name: str, query: str, by: str, at: float) -> SavedView:
        """Return the view, in the place of one with the same name; `IncidentRefused` without a name, or when there are
        too many."""
        name, by = " ".join(fit(name, _MAX_NAME).split()), fit(by, MAX_WHO)
        if not name or len(query) > _MAX_QUERY:
            raise IncidentRefused("the view", "it has no name, or its filter is too long", "Give it a short name.")
        query = fit(query, _MAX_QUERY)
        row = {"query": query, "by": by, "at": at}
        named = saved_views.c.name == name
        with self._database.writing() as connection:
            if not connection.execute(sa.update(saved_views).where(named).values(row)).rowcount:
                _room(connection, saved_views, _MOST, "the view")
                connection.execute(sa.insert(saved_views).values(name=name, **row))
        return SavedView(name, query, by, at)

    def forget_view(self, name: str) -> bool:
        """Return whether there was such a view; there is none now."""
        with self._database.writing() as connection:
            named = saved_views.c.name == fit(name, _MAX_NAME)
            return bool(connection.execute(sa.delete(saved_views).where(named)).rowcount)

    def runbooks(self) -> list[Runbook]:
        """Return all runbooks."""
        query = sa.select(runbooks).order_by(runbooks.c.kind, runbooks.c.value).limit(_MOST_RUNBOOKS)
        with self._database.reading() as connection:
            return [Runbook(**row._mapping) for row in connection.execute(query)]

    def put_runbook(self, kind: RunbookKind, value: str, url: str, by: str, at: float) -> Runbook:
        """Return the runbook, in the place of an older one; `IncidentRefused` when its URL is not safe as a link."""
        value, by = fit(value.strip(), _MAX_VALUE), fit(by, MAX_WHO)
        try:
            url = checked_link(url)
        except ValueError as error:
            raise IncidentRefused("the runbook", str(error), "Use https://HOST/PATH.") from None
        if not value:
            raise IncidentRefused("the runbook", f"it names no {kind}", "Say what it is for.")
        row = {"url": url, "by": by, "at": at}
        same = _is(kind, value)
        with self._database.writing() as connection:
            if not connection.execute(sa.update(runbooks).where(same).values(row)).rowcount:
                _room(connection, runbooks, _MOST_RUNBOOKS, "the runbook")
                connection.execute(sa.insert(runbooks).values(kind=kind, value=value, **row))
        return Runbook(kind, value, url, by, at)

    def forget_runbook(self, kind: RunbookKind, value: str) -> bool:
        """Return whether there was such a runbook; there is none now."""
        with self._database.writing() as connection:
            return bool(connection.execute(sa.delete(runbooks).where(_is(kind, fit(value, _MAX_VALUE)))).rowcount)

    def runbooks_for(self, reason: str, rule: str, fingerprint: str) -> Sequence[Runbook]:
        """Return the runbooks of a failure, the most precise first: of its fingerprint, its rule, its reason."""
        given = {"reason": reason, "rule": rule, "fingerprint": fingerprint}
        where = sa.or_(*(_is(kind, fit(value, _MAX_VALUE)) for kind, value in given.items()))
        with self._database.reading() as connection:
            found = [Runbook(**row._mapping) for row in connection.execute(sa.select(runbooks).where(where))]
        return sorted(found, key=lambda one: _PLACE[one.kind])


def _is(kind: str, value: str) -> sa.ColumnElement[bool]:
    return sa.and_(runbooks.c.kind == kind, runbooks.c.value == value)


def _room(connection: sa.Connection, table: sa.Table, most: int, thing: str) -> None:
    if int(connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0) >= most:
        raise IncidentRefused(thing, f"there are {most} already", "Delete one first.")
