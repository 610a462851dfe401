"""What people do with an incident beside its state: whose it is, when it is looked at again, what is said of it, and
which attempts it has."""

import datetime
import secrets
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from logdoctor.errors import IncidentRefused
from logdoctor.store.audit import MAX_WHO, MAX_WORDS
from logdoctor.store.fit import fit
from logdoctor.store.grouping import BY_US, enter_step, group_of, recount
from logdoctor.store.lookup import of_keys
from logdoctor.store.records import VERDICT_FIELDS, read_verdicts
from logdoctor.store.schema import (
    OPEN_INCIDENT,
    bodies,
    incident_attempts,
    incident_events,
    incidents,
    next_event,
    verdicts,
)

MOST_MORE = 1_000_000
"""Failures for which one waits at most."""
_OPEN = ("new", "acknowledged")
_c, _a = incidents.c, incident_attempts.c

Row = sa.Row[Any]


def assign(connection: sa.Connection, row: Row, assignee: str, by: str, note: str, at: float) -> None:
    """Say whose an incident is; "" that it is nobody's."""
    assignee = " ".join(fit(assignee, MAX_WHO).split())
    if assignee == row.assignee:
        raise _refused(row, f"{assignee} has it already" if assignee else "nobody has it")
    _change(connection, row.id, assignee=assignee)
    enter_step(connection, row.id, "assigned", by, _with_note(f"to {assignee or 'nobody'}", note), at)


def snooze(
    connection: sa.Connection, row: Row, until: float | None, more: int | None, by: str, note: str, at: float
) -> None:
    """Let an open incident rest until a time, or until so many more attempts failed; whichever comes first."""
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
    """Say something of an incident."""
    if not note.strip():
        raise IncidentRefused(f"incident {row.id}", "the comment is empty", "Write something.")
    _change(connection, row.id)
    enter_step(connection, row.id, "commented", by, note, at)


def merge(connection: sa.Connection, row: Row, into: Row, by: str, note: str, at: float) -> None:
    """Put all attempts of an incident into another one, which stands for it from now on.

    Its next failures go there, too, as long as that one is open. Each attempt remembers the group that it is of, so
    that a later verdict with the same cause leaves it there, and a split can undo this.
    """
    if into.id == row.id:
        raise IncidentRefused(f"incident {row.id}", "it cannot be merged into itself", "Name another incident.")
    if into.merged_into is not None:
        raise IncidentRefused(f"incident {into.id}", f"it was merged into incident {into.merged_into}", "Use that one.")
    if row.state in _OPEN and into.state not in _OPEN:
        raise IncidentRefused(f"incident {into.id}", "it is resolved, and the other one is not", "Reopen it first.")
    _tell_of_all(connection, row.id, into.id, f"with incident {row.id}", at)
    group = sa.case((_a.pinned != "", _a.pinned), else_=row.key)
    pinned = sa.case((group == into.key, ""), else_=group)
    connection.execute(
        sa.update(incident_attempts).where(_a.incident == row.id).values(incident=into.id, pinned=pinned)
    )
    said = _with_note(f"into incident {into.id}", note)
    gone = {"attempts": 0, "jobs": 0, "newest": None, "notified": True, "merged_into": into.id, "changed": at}
    gone |= {"state": "resolved", "by": by, "note": f"merged {said}", "snoozed_until": None, "snoozed_attempts": None}
    _change(connection, row.id, **gone)
    enter_step(connection, row.id, "merged", by, said, at)
    recount(connection, into.id, next_event(connection))
    enter_step(connection, into.id, "merged", by, _with_note(f"incident {row.id} into this one", note), at)


def split(
    connection: sa.Connection, row: Row, attempts: Sequence[tuple[str, int]], by: str, note: str, at: float
) -> int:
    """Return the id of a new incident with some of the attempts of one; these stay there as long as their cause is the
    same. What a merge put together comes apart as it was, if nothing has its place."""
    wanted = list(dict.fromkeys(attempts))
    query = sa.select(incident_attempts).where(_a.incident == row.id)
    found = {(one.job, one.attempt): one for one in of_keys(connection, query, _a["job", "attempt"], wanted)}
    if missing := next((one for one in wanted if one not in found), None):
        cause = f"it has no attempt {missing[0][:80]}/{missing[1]}"
        raise IncidentRefused(f"incident {row.id}", cause, "List its attempts.")
    if not wanted or len(wanted) >= row.attempts:
        cause = "all of its attempts would leave it" if wanted else "no attempt was named"
        raise IncidentRefused(f"incident {row.id}", cause, "Name some of its attempts.")
    moved = sorted(found.values(), key=lambda one: (one.at, one.verdict))
    own = {one.pinned or row.key for one in moved}
    key = next(iter(own))
    is_free = connection.scalar(sa.select(_c.id).where(_c.key == key, OPEN_INCIDENT)) is None
    is_undone = len(own) == 1 and key != row.key and is_free
    id = _opened(connection, moved[-1], key if is_undone else f"{key} apart {secrets.token_hex(4)}", by, note, at)
    note = _with_note(f"from incident {row.id}", note)
    enter_step(connection, id, "split", by, note, at)
    for one in moved:
        pinned = "" if is_undone else one.pinned or row.key
        place = (_a.job == one.job, _a.attempt == one.attempt)
        connection.execute(sa.update(incident_attempts).where(*place).values(incident=id, pinned=pinned))
        enter_step(connection, id, "joined", BY_US, f"from incident {row.id}", at, one.job, one.attempt)
        enter_step(connection, row.id, "left", BY_US, f"into incident {id}", at, one.job, one.attempt)
    recount(connection, id, next_event(connection))
    recount(connection, row.id, next_event(connection))
    enter_step(connection, row.id, "split", by, f"{len(moved)} attempts into incident {id}", at)
    return id


def _opened(connection: sa.Connection, newest: Row, key: str, by: str, note: str, at: float) -> int:
    """Return the id of a new incident, of which nobody is notified: its failures were told of before."""
    source = verdicts.join(bodies, bodies.c.verdict == verdicts.c.id)
    query = sa.select(*VERDICT_FIELDS).select_from(source).where(verdicts.c.id == newest.verdict)
    (stored,) = read_verdicts(connection.execute(query))
    group = group_of(stored.job, stored.verdict)
    shown = {name: getattr(newest, name) for name in ("reason", "category", "recovery", "fault")}
    new = {
        "event": next_event(connection),
        "key": key,
        "fingerprint": group.fingerprint if group else "",
        "node": group.node if group else "",
        "state": "new",
        "by": by,
        "note": note,
        "changed": at,
        "opened": newest.at,
        "last": newest.at,
        "attempts": 1,
        "jobs": 1,
        "newest": newest.verdict,
        "notified": True,
    }
    return int(connection.execute(sa.insert(incidents).values(new | shown).returning(_c.id)).scalar_one())


def _tell_of_all(connection: sa.Connection, of: int, into: int, note: str, at: float) -> None:
    """Enter each attempt of an incident into the story of another, which it joins: who may not see it must not read
    what is said there."""
    said = (sa.literal(into), sa.literal(at), sa.literal(BY_US), sa.literal("joined"), sa.literal(note))
    rows = sa.select(*said, _a.job, _a.attempt).where(_a.incident == of)
    names = ["incident", "at", "by", "step", "note", "job", "attempt"]
    connection.execute(sa.insert(incident_events).from_select(names, rows))


def _change(connection: sa.Connection, id: int, **values: Any) -> None:
    values["event"] = next_event(connection)
    connection.execute(sa.update(incidents).where(_c.id == id).values(values))


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
