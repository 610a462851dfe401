"""Failures grouped into incidents: the group of a verdict, and how groups follow changed verdicts.

All of it happens in the transaction that changes the verdict, so every current verdict `failed` is in exactly one
incident, and no other verdict is in any.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from logdoctor.store.fit import fit
from logdoctor.store.jobs.size import gpus_of
from logdoctor.store.keeping.audit import MAX_WORDS
from logdoctor.store.schema import (
    OPEN_INCIDENT,
    attempts,
    ends,
    incident_attempts,
    incident_events,
    incidents,
    jobs,
    next_event,
)
from logdoctor.types import Verdict

if TYPE_CHECKING:
    from logdoctor.store.jobs.records import StoredVerdict

BY_US = "logdoctor"
"""The author of steps that no person took."""

QUIET = 7 * 86_400.0
"""Seconds after which an open incident that no attempt joined is over: the next failure opens a new one, which is
notified again."""

_OVER = f"no new attempt for {QUIET / 86_400:.0f} days"
_ENTERED = "it was over when it was entered"
_COURSE = "progress/"  # prefix of rules that cite the course of steps or losses, or their end
_MAX_NODE = 300
_MAX_WORD = 300  # characters of one term in an attempt's search text
_MOST_GPUS = 10_000_000
_MOST_SECONDS = 1_000_000_000
_MAX_NODES = 32  # nodes of an attempt in its search text; the filter by node knows all
_c, _a = incidents.c, incident_attempts.c

# Statements that every verdict needs are built once: building them takes longer than running them. Names of bound
# parameters begin with `of_`, so that they are no columns.
_HERE = (_a.job == sa.bindparam("of_job"), _a.attempt == sa.bindparam("of_attempt"))
_HELD = sa.select(incidents, _a.at.label("failed_at")).join(incident_attempts, _a.incident == _c.id).where(*_HERE)
_HAS_JOB = sa.exists().where(_a.incident == _c.id, _a.job == sa.bindparam("of_job")).label("has_job")
_ENDED = sa.select(sa.func.max(ends.c.at)).where(
    ends.c.job == sa.bindparam("of_job"),
    ends.c.attempt == sa.bindparam("of_attempt"),
    sa.exists().where(attempts.c.job == ends.c.job, attempts.c.number == ends.c.attempt, attempts.c.ended.is_not(None)),
)
_OPEN = sa.select(incidents, _HAS_JOB).where(_c.key == sa.bindparam("of_key"), OPEN_INCIDENT)
_PAST = (
    sa.select(incidents, _HAS_JOB)
    .where(_c.fingerprint == sa.bindparam("of_fingerprint"), _c.key == sa.bindparam("of_key"))
    .where(_c.state == "resolved", _c.merged_into.is_(None), _c.attempts > 0)
    .where(_c.opened <= sa.bindparam("of_at") + QUIET, _c.last >= sa.bindparam("of_at") - QUIET)
    .order_by(_c.id.desc())
)
_BRIDGED = _PAST.where(_c.id != sa.bindparam("of_id"), _c.by == BY_US, _c.note == _ENTERED)
_PAST = _PAST.limit(1)
_COUNTED = sa.select(
    sa.func.count().label("attempts"),
    sa.func.count(sa.distinct(_a.job)).label("jobs"),
    sa.func.min(_a.at).label("opened"),
).where(_a.incident == sa.bindparam("of_id"))
_SIZE = (
    sa.select(attempts.c.started, jobs.c.facts)
    .join(jobs, jobs.c.job == attempts.c.job)
    .where(attempts.c.job == sa.bindparam("of_job"), attempts.c.number == sa.bindparam("of_attempt"))
)
_OF_JOB = sa.select(_a.job).where(_a.incident == sa.bindparam("of_id"), _a.job == sa.bindparam("of_job")).limit(1)
_FIRST = sa.select(sa.func.min(_a.at)).where(_a.incident == sa.bindparam("of_id"))
_INSERT, _MOVE = sa.insert(incident_attempts), sa.update(incident_attempts).where(*_HERE)
_OPENED, _CHANGE = sa.insert(incidents).returning(_c.id), sa.update(incidents).where(_c.id == sa.bindparam("of_id"))
_TELL = sa.insert(incident_events)
_MOVE_ALL = sa.update(incident_attempts).where(_a.incident == sa.bindparam("of_id"))
_LEAVE = sa.delete(incident_attempts).where(*_HERE)


class IncidentGroup(NamedTuple):
    """What the failures of one incident share; `node` is "" if it is not part of that."""

    key: str
    fingerprint: str
    node: str


class Member(NamedTuple):
    """An attempt of an incident, as its verdict describes it; it failed `at` a time, after `seconds` on `gpus` if
    known."""

    job: str
    attempt: int
    verdict: int
    at: float
    user: str | None
    reason: str
    category: str
    recovery: str
    fault: str
    words: str
    gpus: int | None
    seconds: int | None


def group_of(job: str, verdict: Verdict) -> IncidentGroup | None:
    """Return the group of a job's verdict; None unless it says `failed`.

    Failures of one group share fingerprint and fault, those of the infrastructure also their first suspected node.
    Where nothing tells one job's cause from another's (it is Unknown, or no line names it, as in a hang) each job is
    its own group.
    """
    if verdict.outcome != "failed":
        return None
    fingerprint = fit(verdict.fingerprint or f"reason {verdict.reason}", _MAX_NODE)
    alike = f"{fingerprint} {verdict.fault}"
    node = next((suspect.node for suspect in verdict.suspects if suspect.node), None)
    if verdict.reason != "Unknown" and verdict.fault == "infrastructure" and node:
        node = fit(node, _MAX_NODE)
        return IncidentGroup(f"{alike} node {node}", fingerprint, node)
    if verdict.reason == "Unknown" or not _is_named(verdict):
        return IncidentGroup(f"{alike} job {job}", fingerprint, "")
    return IncidentGroup(alike, fingerprint, "")


def _is_named(verdict: Verdict) -> bool:
    """Return whether a line names the cause, rather than the course of the steps alone."""
    return bool(verdict.evidence) and not verdict.evidence[0].rule.startswith(_COURSE)


def regroup(
    connection: sa.Connection,
    former: "StoredVerdict | None",
    stored: "StoredVerdict",
    event: int | None = None,
    told: bool = False,
    past: bool = False,
) -> None:
    """Put the attempt of a verdict that replaces the `former` one into its incident.

    `event` numbers the change, by default the verdict's own. With `told`, a new incident is not notified; nor is one
    that corrects a final verdict whose failure was notified already. An attempt that was over when it was entered
    (`past`) belongs to a resolved incident of its time: it joins one, or a new one is resolved at once without
    notification. An attempt judged again keeps its time of failure: it makes no incident newer.
    """
    group = group_of(stored.job, stored.verdict)
    failed = former is not None and former.verdict.outcome == "failed"
    held = connection.execute(_HELD, _place(stored)).first() if failed else None
    event = stored.event if event is None else event
    if group is None:
        if held is not None:
            connection.execute(_LEAVE, _place(stored))
            _left(connection, held, stored, stored.at, event, f"its verdict says {stored.verdict.outcome}")
        return
    member = _member(connection, stored, _failed_at(connection, stored, held))
    if held is not None and group.key == held.key:
        connection.execute(_MOVE, _place(stored) | _described(member))
        _refresh(connection, held, member, event)
        return
    into = _incident_for(connection, group, member, past)
    if into is not None and not past and member.at - into.last > QUIET:
        resolve(connection, into.id, stored.at, next_event(connection), _OVER)
        into = None
    if held is not None and held.attempts == 1 and into is None:
        connection.execute(_MOVE, _place(stored) | _described(member))
        _refresh(connection, held, member, event, **group._asdict())
    elif into is None:
        corrected = held if former is not None and former.final else None
        told |= past or (corrected is not None and corrected.notified)
        over = _ENTERED if past else ""
        if corrected is not None and corrected.state == "resolved":
            over = f"incident {corrected.id}, which had it, is over"
        id = _open(connection, group, member, event, told, stored.at, over)
        _enter(connection, id, member, held)
        if held is not None:
            why = f"its verdict has another cause: incident {id}"
            _left(connection, held, stored, stored.at, next_event(connection), why)
    else:
        merged = held is not None and held.attempts == 1
        _join(connection, into, member, held, event, stored.at, f"with incident {held.id}" if merged and held else "")
        if merged and held is not None:
            _merge(connection, held, into.id, stored, next_event(connection))
        elif held is not None:
            why = f"its verdict has another cause: incident {into.id}"
            _left(connection, held, stored, stored.at, next_event(connection), why)
        if past:
            _bridge(connection, into.id, group, member, stored)


def leave(connection: sa.Connection, stored: "StoredVerdict", at: float, why: str) -> None:
    """Remove an attempt from its incident, because its time turned out to be another."""
    held = connection.execute(_HELD, _place(stored)).first()
    if held is not None:
        connection.execute(_LEAVE, _place(stored))
        _left(connection, held, stored, at, next_event(connection), why)


def _incident_for(connection: sa.Connection, group: IncidentGroup, member: Member, past: bool) -> sa.Row[Any] | None:
    """Return the incident that a failure joins, if any."""
    of = {"of_key": group.key, "of_job": member.job}
    if not past:
        return connection.execute(_OPEN, of).first()
    return connection.execute(_PAST, of | {"of_fingerprint": group.fingerprint, "of_at": member.at}).first()


def _bridge(
    connection: sa.Connection, into: int, group: IncidentGroup, member: Member, stored: "StoredVerdict"
) -> None:
    """Merge past incidents that a new member connects. So the order in which past failures are entered does not
    matter."""
    of = {"of_key": group.key, "of_job": member.job, "of_fingerprint": group.fingerprint, "of_at": member.at}
    for other in connection.execute(_BRIDGED, of | {"of_id": into}).all():
        connection.execute(_MOVE_ALL, {"of_id": other.id, "incident": into})
        _merge(connection, other, into, stored, next_event(connection))
        recount(connection, into, next_event(connection))


def recount(connection: sa.Connection, id: int, event: int) -> None:
    """Update the counts and the newest attempt of an incident whose attempts were moved."""
    counts, newest = connection.execute(_COUNTED, {"of_id": id}).one(), _newest(connection, id)
    shown = _facets(newest) if newest else {}
    connection.execute(_CHANGE, {"of_id": id, "event": event, **counts._mapping, **shown})


def end_quiet(connection: sa.Connection, now: float) -> None:
    """Resolve the new incidents that no attempt joined for `QUIET` seconds."""
    query = sa.select(incidents).where(_c.state == "new", _c.last < now - QUIET).order_by(_c.id)
    for row in connection.execute(query).all():
        resolve(connection, row.id, now, next_event(connection), _OVER)


def wake(connection: sa.Connection, id: int, now: float, event: int, note: str) -> None:
    """End the snooze of an incident whose condition was met: it is notified again."""
    values = {"snoozed_until": None, "snoozed_attempts": None, "woken": now, "notified": False, "event": event}
    connection.execute(_CHANGE, {"of_id": id, **values})
    enter_step(connection, id, "woken", BY_US, note, now)


def touch(connection: sa.Connection, job: str, attempt: int, event: int) -> None:
    """Mark an incident as changed, for a change of a verdict that moves no attempt."""
    of = sa.select(_a.incident).where(_a.job == job, _a.attempt == attempt).scalar_subquery()
    connection.execute(sa.update(incidents).where(_c.id == of).values(event=event))


def rename_user(connection: sa.Connection, job: str, former: str | None, user: str | None) -> None:
    """Set the user of a job in its incidents, once known or known better."""
    words = sa.literal(_word(user)) + sa.func.substr(_a.words, len(_word(former)) + 1)
    connection.execute(sa.update(incident_attempts).where(_a.job == job).values(user=user, words=words))


def enter_step(
    connection: sa.Connection,
    incident: int,
    step: str,
    by: str,
    note: str,
    at: float,
    job: str | None = None,
    attempt: int | None = None,
) -> None:
    """Append a step to the history of an incident."""
    values = {"incident": incident, "at": at, "by": by, "step": step, "note": note, "job": job, "attempt": attempt}
    connection.execute(_TELL, values)


def _place(one: "StoredVerdict | Member") -> dict[str, Any]:
    return {"of_job": one.job, "of_attempt": one.attempt}


def _failed_at(connection: sa.Connection, stored: "StoredVerdict", held: sa.Row[Any] | None) -> float:
    """Return when an attempt failed: at its first failed verdict, but not after its end."""
    if held is not None:
        return float(held.failed_at)
    ended = connection.scalar(_ENDED, _place(stored))
    return stored.at if ended is None else min(stored.at, ended)


def resize(connection: sa.Connection, job: str, facts: str) -> None:
    """Set a job's GPUs in its incidents, once known or known better; `facts` are its facts as JSON."""
    gpus = _gpus(facts)
    changed = sa.update(incident_attempts).where(_a.job == job, _a.gpus.is_distinct_from(gpus))
    connection.execute(changed.values(gpus=gpus))


def _gpus(facts: str) -> int | None:
    gpus = gpus_of(facts)
    return None if gpus is None else min(gpus, _MOST_GPUS)


def _member(connection: sa.Connection, stored: "StoredVerdict", at: float) -> Member:
    verdict = stored.verdict
    size = connection.execute(_SIZE, _place(stored)).first()
    nodes = dict.fromkeys(suspect.node for suspect in verdict.suspects if suspect.node)
    quote = verdict.evidence[0].quote if verdict.evidence else ""
    words = (stored.user, verdict.reason, *list(nodes)[:_MAX_NODES], stored.job, quote)
    return Member(
        job=stored.job,
        attempt=stored.attempt,
        verdict=stored.id,
        at=at,
        user=stored.user,
        reason=fit(verdict.reason, _MAX_WORD),
        category=verdict.category,
        recovery=verdict.recovery,
        fault=verdict.fault,
        words="\n".join(_word(word) for word in words),
        gpus=_gpus(size.facts) if size else None,
        seconds=min(max(round(at - size.started), 0), _MOST_SECONDS) if size else None,
    )


def _word(text: str | None) -> str:
    return fit(text or "", _MAX_WORD).replace("\n", " ").casefold()


def _described(member: Member) -> dict[str, Any]:
    """Return the columns that an attempt's verdict describes."""
    return {name: value for name, value in member._asdict().items() if name not in ("job", "attempt")}


def _facets(member: Member) -> dict[str, Any]:
    """Return the columns that an incident takes from its newest attempt."""
    shown = {name: getattr(member, name) for name in ("reason", "category", "recovery", "fault")}
    return {**shown, "newest": member.verdict, "last": member.at}


def _enter(connection: sa.Connection, incident: int, member: Member, held: sa.Row[Any] | None) -> None:
    """Put an attempt into an incident, out of the one that held it."""
    if held is None:
        connection.execute(_INSERT, {"incident": incident, **member._asdict()})
        return
    connection.execute(_MOVE, _place(member) | {"incident": incident} | _described(member))


def _open(
    connection: sa.Connection, group: IncidentGroup, member: Member, event: int, told: bool, now: float, over: str
) -> int:
    """Open an incident for one attempt, not yet entered, and return its id; `over` says why it is resolved at once, ""
    if it is open."""
    state = "resolved" if over else "new"
    row = {**group._asdict(), **_facets(member), "event": event, "state": state, "by": BY_US, "note": over}
    row |= {"changed": now, "opened": member.at, "attempts": 1, "jobs": 1, "notified": told}
    id = int(connection.execute(_OPENED, row).scalar_one())
    enter_step(connection, id, "opened", BY_US, "", now, member.job, member.attempt)
    if over:
        enter_step(connection, id, "resolved", BY_US, over, now)
    return id


def _join(
    connection: sa.Connection,
    into: sa.Row[Any],
    member: Member,
    held: sa.Row[Any] | None,
    event: int,
    now: float,
    note: str,
) -> None:
    _enter(connection, into.id, member, held)
    counts = {"attempts": into.attempts + 1, "jobs": into.jobs + (not into.has_job)}
    counts["opened"] = min(into.opened, member.at)
    _refresh(connection, into, member, event, **counts)
    enter_step(connection, into.id, "joined", BY_US, note, now, member.job, member.attempt)
    if into.snoozed_attempts is not None and counts["attempts"] >= into.snoozed_attempts:
        wake(connection, into.id, now, next_event(connection), f"{counts['attempts']} attempts failed")


def _refresh(connection: sa.Connection, row: sa.Row[Any], member: Member, event: int, **values: Any) -> None:
    """Update an incident, one of whose attempts changed or joined, from its newest attempt."""
    newest: Member | None = member
    if (member.at, member.verdict) < (row.last, row.newest or 0):
        newest = _newest(connection, row.id)  # the clock went back, or an old attempt is judged again
    shown = _facets(newest) if newest else {}
    connection.execute(_CHANGE, {"of_id": row.id, "event": event, **shown, **values})


def _newest(connection: sa.Connection, incident: int) -> Member | None:
    columns = [_a[name] for name in Member._fields]
    query = sa.select(*columns).where(_a.incident == incident).order_by(_a.at.desc(), _a.verdict.desc())
    row = connection.execute(query.limit(1)).first()
    return None if row is None else Member(*row)


def _left(
    connection: sa.Connection, held: sa.Row[Any], stored: "StoredVerdict", at: float, event: int, note: str
) -> None:
    """Subtract a removed attempt from its incident, and resolve that if it was the last."""
    enter_step(connection, held.id, "left", BY_US, note, at, stored.job, stored.attempt)
    if held.attempts == 1:
        _empty(connection, held, at, event, "it has no failed attempts left")
        return
    still = connection.execute(_OF_JOB, {"of_id": held.id, "of_job": stored.job}).first()
    newest, first = _newest(connection, held.id), connection.scalar(_FIRST, {"of_id": held.id})
    values = {"attempts": held.attempts - 1, "jobs": held.jobs - (still is None), "opened": first}
    connection.execute(_CHANGE, {"of_id": held.id, "event": event, **values, **(_facets(newest) if newest else {})})


def resolve(connection: sa.Connection, id: int, at: float, event: int, note: str) -> None:
    """Resolve an incident automatically."""
    values = {"of_id": id, "event": event, "state": "resolved", "by": BY_US, "note": note, "changed": at}
    values |= {"snoozed_until": None, "snoozed_attempts": None}
    connection.execute(_CHANGE, values)
    enter_step(connection, id, "resolved", BY_US, note, at)


def _merge(connection: sa.Connection, held: sa.Row[Any], into: int, stored: "StoredVerdict", event: int) -> None:
    """End an incident whose attempts moved into another.

    A merged incident stays resolved and nothing merges into it again, so there are no cycles. Nobody sees its page
    again, so the last words of a person on it are copied into the history of the other one.
    """
    note = f"into incident {into}"
    enter_step(connection, held.id, "merged", BY_US, note, stored.at, stored.job, stored.attempt)
    if held.by != BY_US:
        told = "reopened" if held.state == "new" else held.state
        said = fit(f"of incident {held.id}{': ' if held.note else ''}{held.note}", MAX_WORDS)
        enter_step(connection, into, told, held.by, said, held.changed, stored.job, stored.attempt)
    _empty(connection, held, stored.at, event, f"merged {note}", merged_into=into)


def _empty(
    connection: sa.Connection, held: sa.Row[Any], at: float, event: int, note: str, merged_into: int | None = None
) -> None:
    """Resolve an incident without attempts; one that a person resolved keeps their name and words."""
    values: dict[str, Any] = {"attempts": 0, "jobs": 0, "newest": None, "notified": True, "merged_into": merged_into}
    values |= {"snoozed_until": None, "snoozed_attempts": None}
    if held.state != "resolved":
        values |= {"state": "resolved", "by": BY_US, "note": note, "changed": at}
        if merged_into is None:
            enter_step(connection, held.id, "resolved", BY_US, note, at)
    connection.execute(_CHANGE, {"of_id": held.id, "event": event, **values})
