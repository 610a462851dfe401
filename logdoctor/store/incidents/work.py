"""Changes that people make to an incident besides its state: assignee, snooze, comments."""

import datetime
from typing import Any

import sqlalchemy as sa

from logdoctor.errors import IncidentRefused
from logdoctor.store.fit import fit
from logdoctor.store.incidents.grouping import enter_step
from logdoctor.store.keeping.audit import MAX_WHO, MAX_WORDS
from logdoctor.store.schema import incidents, next_event

MOST_MORE = 1_000_000
"""Most failures that a snooze can wait for."""
_OPEN = ("new", "acknowledged")

Row = sa.Row[Any]


def assign(connection: sa.Connection, row: Row, assignee: str, by: str, note: str, at: float) -> None:
    """Assign an incident, "" for nobody."""
    assignee = " ".join(fit(assignee, MAX_WHO).split())
    if assignee == row.assignee:
        raise _refused(row, f"{assignee} has it already" if assignee else "nobody has it")
    _change(connection, row.id, assignee=assignee)
    enter_step(connection, row.id, "assigned", by, _with_note(f"to {assignee or 'nobody'}", note), at)


def snooze(
    connection: sa.Connection, row: Row, until: float | None, more: int | None, by: str, note: str, at: float
) -> None:
    """Snooze an open incident until a time, or until enough more attempts failed."""
    if row.state not in _OPEN:
        raise _refused(row, f"it is {row.state}")
    if (until is None and more is None) or (until is not None and until <= at):
        raise IncidentRefused(f"incident {row.id}", "the snooze has no end, or one in the past", "Say until when.")
    if more is not None and not 1 <= more <= MOST_MORE:
        raise IncidentRefused(f"incident {row.id}", f"{more} is no number of failures", "Name a number from 1 on.")
    wakes = None if more is None else row.attempts + more
    _change(connection, row.id, snoozed_until=until, snoozed_attempts=wakes)
    enter_step(connection, row.id, "snoozed", by, _with_note(_until(until, more), note), at)


def unsnooze(connection: sa.Connection, row: Row, by: str, note: str, at: float) -> None:
    """End the snooze of an incident."""
    if row.snoozed_until is None and row.snoozed_attempts is None:
        raise _refused(row, "it is not snoozed")
    _change(connection, row.id, snoozed_until=None, snoozed_attempts=None)
    enter_step(connection, row.id, "woken", by, note, at)


def comment(connection: sa.Connection, row: Row, by: str, note: str, at: float) -> None:
    """Add a comment to an incident."""
    if not note.strip():
        raise IncidentRefused(f"incident {row.id}", "the comment is empty", "Write something.")
    _change(connection, row.id)
    enter_step(connection, row.id, "commented", by, note, at)


def _change(connection: sa.Connection, id: int, **values: Any) -> None:
    values["event"] = next_event(connection)
    connection.execute(sa.update(incidents).where(incidents.c.id == id).values(values))


def _refused(row: Row, cause: str) -> IncidentRefused:
    return IncidentRefused(f"incident {row.id}", cause, "Check it again.")


def _with_note(said: str, note: str) -> str:
    return fit(f"{said}: {note}" if note else said, MAX_WORDS)


def _until(until: float | None, more: int | None) -> str:
    """Return when a snooze ends, in words."""
    parts = []
    if until is not None:
        parts.append(f"until {datetime.datetime.fromtimestamp(until, datetime.UTC).strftime('%Y-%m-%d %H:%M UTC')}")
    if more is not None:
        parts.append(f"until {more:,} more fail{'s' if more == 1 else ''}")
    return " or ".join(parts)
