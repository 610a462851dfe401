"""Mutes of fingerprints and nodes: their incidents are listed apart and not notified."""

import time
from collections.abc import Callable
from typing import Literal

import msgspec
import sqlalchemy as sa

from logdoctor.errors import IncidentRefused
from logdoctor.store.database import Database
from logdoctor.store.fit import fit, fit_id, fit_limit
from logdoctor.store.incidents.grouping import enter_step
from logdoctor.store.keeping.audit import MAX_WHO, MAX_WORDS
from logdoctor.store.schema import OPEN_INCIDENT, incidents, mutes, next_event

Muted = Literal["fingerprint", "node"]
LONGEST = 366 * 86_400.0
"""Longest mute, in seconds: nothing may be forgotten for ever."""

_MAX_VALUE = 300
_MOST = 1000  # open incidents whose history records a mute, at most
_c, _i = mutes.c, incidents.c


class Mute(msgspec.Struct, frozen=True):
    """A mute of a fingerprint or a node (`kind`, `value`), `until` a time or until it is `lifted`. Times are seconds
    since the epoch."""

    id: int
    kind: Muted
    value: str
    by: str
    at: float
    until: float
    why: str
    lifted: float | None
    lifted_by: str


def is_muted(now: float) -> sa.ColumnElement[bool]:
    """Return whether the fingerprint or the node of an incident is muted."""
    fingerprint = sa.and_(_c.kind == "fingerprint", _c.value == _i.fingerprint)
    node = sa.and_(_c.kind == "node", _c.value == _i.node)
    return sa.exists().where(_c.until > now, _c.lifted.is_(None), sa.or_(fingerprint, node))


class Mutes:
    """The mutes of one database; thread-safe. `StoreError` when the database fails. Calls `changed` after each
    change."""

    def __init__(self, database: Database, changed: Callable[[], None] = lambda: None) -> None:
        self._database, self._changed = database, changed

    def mute(self, kind: Muted, value: str, by: str, why: str, until: float, at: float) -> Mute:
        """Mute a fingerprint or a node and return the mute. The open incidents it silences record it. `IncidentRefused`
        without value or name, or for an end in the past or too far away."""
        value, by, why = fit(value.strip(), _MAX_VALUE), fit(by, MAX_WHO), fit(why, MAX_WORDS)
        thing = f"the mute of {kind} {value[:80]}"
        if not value or not by.strip():
            raise IncidentRefused(thing, "it has no value or no name", "Say what is to be muted, and who you are.")
        if not at < until <= at + LONGEST:
            cause = "it has to end within a year, and not in the past"
            raise IncidentRefused(thing, cause, "Say until when.")
        row = {"kind": kind, "value": value, "by": by, "at": at, "until": until, "why": why, "lifted_by": ""}
        with self._database.writing() as connection:
            id = int(connection.execute(sa.insert(mutes).values(row).returning(_c.id)).scalar_one())
            _tell(connection, kind, value, "muted", by, f"{kind} {value}{': ' if why else ''}{why}", at)
        self._changed()
        return Mute(id, kind, value, by, at, until, why, None, "")

    def lift(self, id: int, by: str, at: float) -> Mute:
        """End a mute and return it; `IncidentRefused` when it is over already, or does not exist."""
        by = fit(by, MAX_WHO)
        with self._database.writing() as connection:
            row = connection.execute(sa.select(mutes).where(_c.id == fit_id(id))).first()
            if row is None or row.lifted is not None or row.until <= at:
                cause = "does not exist" if row is None else "is over"
                raise IncidentRefused(f"mute {id}", cause, "List the mutes.")
            values = {"lifted": at, "lifted_by": by}
            connection.execute(sa.update(mutes).where(_c.id == row.id).values(values))
            _tell(connection, row.kind, row.value, "unmuted", by, f"{row.kind} {row.value}", at)
            lifted = Mute(**{**row._mapping, **values})
        self._changed()
        return lifted

    def all(self, now: float | None = None, limit: int = 200) -> list[Mute]:
        """Return the mutes, newest first; with `now` only those in force then."""
        query = sa.select(mutes).order_by(_c.id.desc()).limit(fit_limit(limit))
        if now is not None:
            query = query.where(_c.until > now, _c.lifted.is_(None))
        with self._database.reading() as connection:
            return [Mute(**row._mapping) for row in connection.execute(query)]

    def of(self, fingerprint: str, node: str, now: float | None = None) -> list[Mute]:
        """Return the mutes in force for an incident."""
        now = time.time() if now is None else now
        wanted = {("fingerprint", fingerprint), ("node", node)}
        return [one for one in self.all(now, 500) if (one.kind, one.value) in wanted]


def _tell(connection: sa.Connection, kind: str, value: str, step: str, by: str, note: str, at: float) -> None:
    """Record a mute, or its end, in the history of each affected open incident."""
    column = _i.fingerprint if kind == "fingerprint" else _i.node
    query = sa.select(_i.id).where(column == value, OPEN_INCIDENT).order_by(_i.id.desc()).limit(_MOST)
    for id in connection.scalars(query).all():
        enter_step(connection, id, step, by, fit(note, MAX_WORDS), at)
        connection.execute(sa.update(incidents).where(_i.id == id).values(event=next_event(connection)))
