"""Runbooks: the pages to follow for a reason, a rule or a fingerprint."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import sqlalchemy as sa

from logdoctor.errors import IncidentRefused
from logdoctor.safe.links import checked_link
from logdoctor.store.database import Database
from logdoctor.store.fit import fit
from logdoctor.store.keeping.audit import MAX_WHO
from logdoctor.store.schema import runbooks

RunbookKind = Literal["reason", "rule", "fingerprint"]
_MAX_VALUE = 300
_MOST = 1000
_PLACE: dict[str, int] = {"fingerprint": 0, "rule": 1, "reason": 2}
"""The more precise kind comes first."""


class Runbook(msgspec.Struct, frozen=True):
    """A runbook for failures with this reason, rule or fingerprint."""

    kind: RunbookKind
    value: str
    url: str
    by: str
    at: float


class Desk:
    """The runbooks of one database; thread-safe. `StoreError` when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def runbooks(self) -> list[Runbook]:
        """Return all runbooks."""
        query = sa.select(runbooks).order_by(runbooks.c.kind, runbooks.c.value).limit(_MOST)
        with self._database.reading() as connection:
            return [Runbook(**row._mapping) for row in connection.execute(query)]

    def put_runbook(self, kind: RunbookKind, value: str, url: str, by: str, at: float) -> Runbook:
        """Add or replace a runbook and return it; `IncidentRefused` when its URL is not safe as a link."""
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
                if int(connection.scalar(sa.select(sa.func.count()).select_from(runbooks)) or 0) >= _MOST:
                    raise IncidentRefused("the runbook", f"there are {_MOST} already", "Delete one first.")
                connection.execute(sa.insert(runbooks).values(kind=kind, value=value, **row))
        return Runbook(kind, value, url, by, at)

    def forget_runbook(self, kind: RunbookKind, value: str) -> bool:
        """Delete a runbook; return whether there was one."""
        with self._database.writing() as connection:
            return bool(connection.execute(sa.delete(runbooks).where(_is(kind, fit(value, _MAX_VALUE)))).rowcount)

    def runbooks_for(self, reason: str, rule: str, fingerprint: str) -> Sequence[Runbook]:
        """Return the runbooks of a failure, most precise first: by fingerprint, rule, reason."""
        given = {"reason": reason, "rule": rule, "fingerprint": fingerprint}
        where = sa.or_(*(_is(kind, fit(value, _MAX_VALUE)) for kind, value in given.items()))
        with self._database.reading() as connection:
            found = [Runbook(**row._mapping) for row in connection.execute(sa.select(runbooks).where(where))]
        return sorted(found, key=lambda one: _PLACE[one.kind])


def _is(kind: str, value: str) -> sa.ColumnElement[bool]:
    return sa.and_(runbooks.c.kind == kind, runbooks.c.value == value)
