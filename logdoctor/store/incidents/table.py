"""Incidents: attempts that failed for the same cause, what people did about them, and lists of them.

`grouping` assigns attempts to incidents; this module is for those who look and decide.
"""

import datetime
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from logdoctor.errors import IncidentRefused
from logdoctor.store.database import Database
from logdoctor.store.fit import MAX_ID, fit, fit_id, fit_limit
from logdoctor.store.incidents import search, tending, work
from logdoctor.store.incidents.grouping import BY_US, end_quiet, enter_step, regroup
from logdoctor.store.incidents.mutes import is_muted
from logdoctor.store.incidents.query import State
from logdoctor.store.incidents.search import FACETS, WantedIncidents
from logdoctor.store.incidents.severity import Level, level, sums
from logdoctor.store.jobs.records import VERDICT_FIELDS, Page, StoredVerdict, after, begins, cursor_of, read_verdicts
from logdoctor.store.keeping.audit import MAX_WHO, MAX_WORDS
from logdoctor.store.lookup import of_keys
from logdoctor.store.schema import (
    CURRENT,
    OPEN_INCIDENT,
    bodies,
    counter,
    incident_attempts,
    incident_events,
    incidents,
    next_event,
    nodes,
    verdicts,
)

__all__ = ["Incident", "IncidentEvent", "IncidentPage", "Incidents", "State", "Step", "Told", "WantedIncidents"]

Step = Literal["acknowledge", "resolve", "reopen"]
"""Steps that people take on incidents."""
Told = Literal[
    "opened",
    "joined",
    "left",
    "merged",
    "split",  # by earlier versions
    "acknowledged",
    "resolved",
    "reopened",
    "assigned",
    "snoozed",
    "woken",
    "muted",
    "unmuted",
    "commented",
    "cordoned",
    "uncordoned",
]
"""Kinds of events in the history of an incident."""

_STEPS: dict[Step, tuple[tuple[State, ...], State, Told]] = {
    "acknowledge": (("new",), "acknowledged", "acknowledged"),
    "resolve": (("new", "acknowledged"), "resolved", "resolved"),
    "reopen": (("resolved",), "new", "reopened"),
}
_MOST_TIMES = 50_000
_CAUGHT_UP = 200  # verdicts at a time
_c, _a = incidents.c, incident_attempts.c


class Incident(msgspec.Struct, frozen=True):
    """Attempts that failed for the same cause. All times are seconds since the epoch.

    `event` numbers the changes of all incidents, together with those of verdicts. `node` is "" unless the cause is that
    of one node. `by` took the last step, with `note`, at `changed`; both are "" for those who may not see all attempts
    that ever were in it. `opened` is when the first attempt failed, `last` when the newest did, whose verdict is
    `newest`; None when all attempts left. `attempts` and `jobs` are those that the caller may see, and so are `gpus`
    (of the largest; None if unknown), `gpu_hours` and `severity` (see store/incidents/severity.py), with its `level`.
    It is `snoozed` until `snoozed_until` or until it has `snoozed_attempts`, and `muted` while its fingerprint or node
    is. `assignee` looks after it, "" for nobody. `on_node` is how many failed attempts suspect `node` in all, `others`
    how many other incidents have the fingerprint. A merged incident redirects to `merged_into`.
    """

    id: int
    event: int
    fingerprint: str
    node: str
    state: State
    by: str
    note: str
    changed: float
    opened: float
    last: float
    merged_into: int | None
    attempts: int
    jobs: int
    newest: StoredVerdict | None
    on_node: int
    others: int
    assignee: str
    snoozed: bool
    snoozed_until: float | None
    snoozed_attempts: int | None
    muted: bool
    gpus: int | None
    gpu_hours: float
    severity: float
    level: Level


class IncidentPage(msgspec.Struct, frozen=True):
    """A page of incidents, and the cursor of the next page, if any."""

    items: list[Incident]
    next: str | None


class IncidentEvent(msgspec.Struct, frozen=True):
    """An event in the history of an incident; `job` and `attempt` are None unless it concerns one attempt."""

    id: int
    incident: int
    at: float
    by: str
    step: Told
    note: str
    job: str | None
    attempt: int | None


class _Seen(msgspec.Struct, frozen=True):
    """The part of an incident's attempts that a caller may see; `newest` is the id of a verdict."""

    attempts: int
    jobs: int
    opened: float
    last: float
    newest: int | None


class _Size(NamedTuple):
    """The size of an incident's attempts that a caller may see."""

    gpus: int | None
    gpu_hours: float
    severity: float


_NO_SIZE = _Size(None, 0.0, 0.0)


class Incidents:
    """The incidents of one database; thread-safe. Every change is durable when its call returns.

    Calls `listeners` with the id of an incident after each step of a person. All calls raise `StoreError` when the
    database fails. With `prefixes` a call reveals nothing of jobs whose names begin otherwise.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.listeners: list[Callable[[int], None]] = []

    def search(self, wanted: WantedIncidents, cursor: str | None = None, limit: int = 50) -> IncidentPage:
        """Return a page of the wanted incidents, newest `last` first by default; `CursorError` for a bad cursor."""
        wanted = _now(wanted)
        limit = fit_limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(search.searching(wanted, cursor).limit(limit + 1)).all()
            items = _read(connection, [row.id for row in rows[:limit]], wanted.prefixes)
        return IncidentPage(items, cursor_of(rows[limit - 1].place, rows[limit - 1].id) if len(rows) > limit else None)

    def counts(self, wanted: WantedIncidents) -> dict[str, dict[str, int]]:
        """Return counts as `{"state": {...}, "reason": {...}, "category": {...}, "recovery": {...}}`; by state whatever
        states are wanted."""
        wanted = _now(wanted)
        states = search.states(wanted)
        counts: dict[str, Counter[str]] = {name: Counter() for name in FACETS}
        with self._database.reading() as connection:
            for state, *values, count in connection.execute(search.counting(wanted)):
                counts["state"][state] += count
                for name, value in zip(FACETS[1:], values, strict=True):
                    counts[name][value] += count if not states or state in states else 0
        return {name: {value: count for value, count in of.items() if count} for name, of in counts.items()}

    def times(self, wanted: WantedIncidents) -> list[float]:
        """Return when the wanted incidents last failed, newest first; of very many, the newest."""
        query = search.searching(msgspec.structs.replace(_now(wanted), order="last"), None).limit(_MOST_TIMES)
        with self._database.reading() as connection:
            return [row.place for row in connection.execute(query)]

    def failures(self, ids: Sequence[int], prefixes: tuple[str, ...]) -> dict[int, list[float]]:
        """Return when the visible attempts of these incidents failed; of very many, the newest."""
        query = sa.select(_a.incident, _a.at).where(_a.incident.in_(ids)).order_by(_a.at.desc()).limit(_MOST_TIMES)
        query = query.where(begins(_a.job, prefixes)) if prefixes else query
        found: dict[int, list[float]] = {id: [] for id in ids}
        with self._database.reading() as connection:
            for id, at in connection.execute(query):
                found[id].append(at)
        return found

    def one(self, id: int, prefixes: tuple[str, ...] = ()) -> Incident | None:
        """Return the incident with this id, even if merged or without attempts."""
        with self._database.reading() as connection:
            return next(iter(_read(connection, [fit_id(id)], prefixes)), None)

    def newest(self, prefixes: tuple[str, ...] = ()) -> int:
        """Return the highest id of an incident; 0 when there is none."""
        query = sa.select(sa.func.max(_c.id)).where(search.visible(prefixes))
        with self._database.reading() as connection:
            return int(connection.scalar(query) or 0)

    def of(self, job: str, attempt: int) -> int | None:
        """Return the id of an attempt's incident."""
        query = sa.select(_a.incident).where(_a.job == fit(job, len(job)), _a.attempt == fit_id(attempt))
        with self._database.reading() as connection:
            return connection.scalar(query)

    def covers(self, id: int, prefixes: tuple[str, ...]) -> bool:
        """Return whether every attempt ever in an incident matches these prefixes: then its state may be changed, and
        its notes read."""
        query = sa.select(_c.id).where(_c.id == fit_id(id), search.visible(prefixes))
        with self._database.reading() as connection:
            return connection.scalar(query) is not None and not _with_others(connection, [fit_id(id)], prefixes)

    def members(self, id: int, cursor: str | None = None, limit: int = 50, prefixes: tuple[str, ...] = ()) -> Page:
        """Return a page of the current verdicts of an incident's attempts, newest first; `CursorError` for a bad
        cursor."""
        source = incident_attempts.join(verdicts, verdicts.c.id == _a.verdict)
        source = source.join(bodies, bodies.c.verdict == _a.verdict)
        failed = _a.at.label("failed_at")
        query = sa.select(*VERDICT_FIELDS, failed).select_from(source).where(_a.incident == fit_id(id))
        if prefixes:
            query = query.where(begins(_a.job, prefixes))
        if cursor is not None:
            query = query.where(after(_a.at, _a.verdict, cursor, int))
        limit = fit_limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(_a.at.desc(), _a.verdict.desc()).limit(limit + 1)).all()
        more = len(rows) > limit
        return Page(
            read_verdicts(rows[:limit]), cursor_of(rows[limit - 1].failed_at, rows[limit - 1].id) if more else None
        )

    def failed_at(self, attempts: Sequence[tuple[str, int]]) -> dict[tuple[str, int], float]:
        """Return when each of these attempts failed, whatever later verdicts say; attempts without an incident are left
        out."""
        query = sa.select(_a.job, _a.attempt, _a.at)
        with self._database.reading() as connection:
            found = of_keys(connection, query, _a["job", "attempt"], attempts)
            return {(job, attempt): at for job, attempt, at in found}

    def step(self, id: int, step: Step, by: str, note: str, at: float, seen_as: State | None) -> Incident:
        """Take a person's step and return the incident. `IncidentRefused` when it does not exist, is no longer in the
        state `seen_as`, or cannot take the step; it says who was quicker."""

        def take(connection: sa.Connection, row: sa.Row[Any], by: str, note: str) -> None:
            _check(connection, row, step, seen_as)
            _, state, told = _STEPS[step]
            values = {"state": state, "by": by, "note": note, "changed": at, "event": next_event(connection)}
            if state == "resolved":
                values |= {"snoozed_until": None, "snoozed_attempts": None}
            connection.execute(sa.update(incidents).where(_c.id == row.id).values(**values))
            enter_step(connection, row.id, told, by, note, at)

        return self._worked(id, by, note, take)

    def assign(self, id: int, assignee: str, by: str, note: str, at: float) -> Incident:
        """Assign an incident, "" for nobody, and return it. Here and below: `IncidentRefused` when it does not exist,
        was merged, or the change is impossible."""

        def deed(connection: sa.Connection, row: sa.Row[Any], by: str, note: str) -> None:
            work.assign(connection, row, assignee, by, note, at)

        return self._worked(id, by, note, deed)

    def snooze(self, id: int, until: float | None, more: int | None, by: str, note: str, at: float) -> Incident:
        """Snooze an open incident `until` a time (epoch seconds) and return it. The snooze ends earlier once so many
        `more` attempts failed. Then the incident is notified again."""

        def deed(connection: sa.Connection, row: sa.Row[Any], by: str, note: str) -> None:
            work.snooze(connection, row, until, more, by, note, at)

        return self._worked(id, by, note, deed)

    def unsnooze(self, id: int, by: str, note: str, at: float) -> Incident:
        """End the snooze of an incident and return it."""

        def deed(connection: sa.Connection, row: sa.Row[Any], by: str, note: str) -> None:
            work.unsnooze(connection, row, by, note, at)

        return self._worked(id, by, note, deed)

    def comment(self, id: int, by: str, note: str, at: float) -> Incident:
        """Add a comment to an incident and return it."""

        def deed(connection: sa.Connection, row: sa.Row[Any], by: str, note: str) -> None:
            work.comment(connection, row, by, note, at)

        return self._worked(id, by, note, deed)

    def tend(self, now: float) -> int:
        """End snoozes and resolve incidents whose jobs all ran past the failure; return how many changed."""
        with self._database.reading() as connection:
            if not tending.is_due(connection, now):
                return 0
        with self._database.writing() as connection:
            next_event(connection)  # from here on nobody else enters a verdict
            changed = tending.settle(connection, now)
        for id in changed:
            self._tell(id)
        return len(changed)

    def _worked(
        self, id: int, by: str, note: str, deed: Callable[[sa.Connection, sa.Row[Any], str, str], None]
    ) -> Incident:
        """Return an incident after a person's change, and call the listeners."""
        id, by, note = fit_id(id), fit(by, MAX_WHO), fit(note, MAX_WORDS)
        if not by.strip():
            raise IncidentRefused(f"incident {id}", "no name was given", "Say who you are.")
        with self._database.writing() as connection:
            row = _found(connection, id)
            if row.merged_into is not None:
                raise IncidentRefused(
                    f"incident {id}", f"it was merged into incident {row.merged_into}", "Use that incident."
                )
            deed(connection, row, by, note)
            changed = _read(connection, [id], ())[0]
        self._tell(id)
        return changed

    def _tell(self, id: int) -> None:
        for listener in list(self.listeners):
            listener(id)

    def events(self, id: int, limit: int = 100, prefixes: tuple[str, ...] = ()) -> list[IncidentEvent]:
        """Return the history of an incident, newest first."""
        story = incident_events.c
        query = sa.select(incident_events).where(story.incident == fit_id(id)).order_by(story.id.desc())
        if prefixes:
            query = query.where(sa.or_(story.job.is_(None), begins(story.job, prefixes)))
        covered = not prefixes or self.covers(id, prefixes)
        with self._database.reading() as connection:
            found = [IncidentEvent(**row._mapping) for row in connection.execute(query.limit(fit_limit(limit)))]
        if covered:
            return found
        return [one if one.by == BY_US else msgspec.structs.replace(one, by="", note="") for one in found]

    def last_event(self) -> int:
        """Return the number of the last change of an incident or a verdict; 0 before the first."""
        with self._database.reading() as connection:
            return counter(connection, "event")

    def newer(self, event: int, limit: int = 100, prefixes: tuple[str, ...] = ()) -> list[Incident]:
        """Return the incidents that changed after an event, in the order of their last change: for resuming a stream.

        Merged ones and those without attempts are included, so that a list knows what to remove. With prefixes,
        incidents left with only other jobs' attempts are not: nothing is revealed of these.
        """
        query = sa.select(_c.id).where(_c.event > min(max(event, 0), MAX_ID), search.visible(prefixes))
        with self._database.reading() as connection:
            ids = connection.scalars(query.order_by(_c.event).limit(fit_limit(limit))).all()
            return _read(connection, ids, prefixes)

    def open_by_category(self) -> dict[tuple[str, str], int]:
        """Return how many incidents are open, by category and state."""
        kinds = (incidents.c.category, incidents.c.state)
        query = sa.select(*kinds, sa.func.count()).where(
            incidents.c.state != "resolved", incidents.c.merged_into.is_(None)
        )
        with self._database.reading() as connection:
            return {(category, state): count for category, state, count in connection.execute(query.group_by(*kinds))}

    def catch_up(self, now: float) -> int:
        """Put current failed verdicts of an older version's database into incidents, without notification; return their
        number.

        The second time there are none. If there were any, incidents that no attempt joined long before `now` are
        resolved: nobody should have to work off the past.
        """
        lone = verdicts.join(bodies, bodies.c.verdict == verdicts.c.id).outerjoin(
            incident_attempts, _a.verdict == verdicts.c.id
        )
        query = sa.select(*VERDICT_FIELDS).select_from(lone).where(CURRENT, verdicts.c.outcome == "failed")
        query = query.where(_a.verdict.is_(None)).order_by(verdicts.c.at, verdicts.c.id).limit(_CAUGHT_UP)
        number = 0
        while True:
            with self._database.writing() as connection:
                next_event(connection)  # from here on nobody else enters a verdict
                found = read_verdicts(connection.execute(query))
                for stored in found:
                    regroup(connection, None, stored, next_event(connection), told=True)
                number += len(found)
                if number and len(found) < _CAUGHT_UP:  # in the same transaction, so that a crash leaves none open
                    end_quiet(connection, now)
            if len(found) < _CAUGHT_UP:
                return number


def _found(connection: sa.Connection, id: int) -> sa.Row[Any]:
    row = connection.execute(sa.select(incidents).where(_c.id == fit_id(id))).first()
    if row is None:
        raise IncidentRefused(f"incident {id}", "does not exist", "List the incidents.")
    return row


def _now(wanted: WantedIncidents) -> WantedIncidents:
    """Return the filter with `now` set to the present, unless given."""
    return wanted if wanted.now else msgspec.structs.replace(wanted, now=time.time())


def _check(connection: sa.Connection, row: sa.Row[Any], step: Step, seen_as: State | None) -> None:
    """Raise `IncidentRefused` unless the incident may take the step."""
    thing, again = f"incident {row.id}", "Check it again."
    allowed = _STEPS[step][0]
    if row.state not in allowed or (seen_as is not None and seen_as != row.state):
        raise IncidentRefused(thing, _quicker(row), again)
    if step != "reopen":
        return
    if row.attempts == 0:
        raise IncidentRefused(thing, "it has no failed attempts left", "There is nothing to do.")
    open_one = connection.scalar(sa.select(_c.id).where(_c.key == row.key, OPEN_INCIDENT))
    if open_one is not None:
        raise IncidentRefused(thing, f"the same failure is open as incident {open_one}", "Look there.")


def _quicker(row: sa.Row[Any]) -> str:
    """Return who brought an incident into its state, and when."""
    moment = datetime.datetime.fromtimestamp(row.changed, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if row.state != "new":
        return f"{row.by} {row.state} it at {moment}"
    return f"it is new since {moment}" if row.by == BY_US else f"{row.by} reopened it at {moment}"


# reading


def _read(connection: sa.Connection, ids: Sequence[int], prefixes: tuple[str, ...]) -> list[Incident]:
    """Return the visible incidents with these ids, in this order."""
    if not ids:
        return []
    now = time.time()
    quiet = (sa.func.coalesce(search.is_snoozed(now), sa.false()), is_muted(now))
    shown = (*incidents.c, *(one.label(name) for one, name in zip(quiet, ("snoozed", "muted"), strict=True)))
    query = sa.select(*shown).where(_c.id.in_(ids), search.visible(prefixes))
    rows = {row.id: row for row in connection.execute(query)}
    seen = _seen(connection, rows, prefixes)
    found = _verdicts(connection, [one.newest for one in seen.values() if one.newest is not None])
    on_nodes = _on_nodes(connection, {row.node for row in rows.values() if row.node}, prefixes)
    alike = _alike(connection, {row.fingerprint for row in rows.values()}, prefixes)
    others = _with_others(connection, list(rows), prefixes)
    sizes = _sizes(connection, list(rows), prefixes)
    return [
        _incident(connection, rows[id], seen[id], found, on_nodes, alike, id not in others, sizes.get(id, _NO_SIZE))
        for id in dict.fromkeys(ids)
        if id in rows
    ]


def _incident(
    connection: sa.Connection,
    row: sa.Row[Any],
    seen: _Seen,
    found: Mapping[int, StoredVerdict],
    on_nodes: Mapping[str, int],
    alike: Mapping[str, int],
    covered: bool,
    size: _Size,
) -> Incident:
    told = covered or row.by == BY_US
    return Incident(
        id=row.id,
        event=row.event,
        fingerprint=row.fingerprint,
        node=row.node,
        state=row.state,
        by=row.by if told else "",
        note=row.note if told else "",
        changed=row.changed,
        opened=seen.opened,
        last=seen.last,
        merged_into=_end(connection, row.merged_into),
        attempts=seen.attempts,
        jobs=seen.jobs,
        newest=None if seen.newest is None else found.get(seen.newest),
        on_node=on_nodes.get(row.node, 0),
        others=alike.get(row.fingerprint, 0) - (row.attempts > 0),
        assignee=row.assignee if covered else "",
        snoozed=bool(row.snoozed),
        snoozed_until=row.snoozed_until,
        snoozed_attempts=row.snoozed_attempts,
        muted=bool(row.muted),
        gpus=size.gpus,
        gpu_hours=round(size.gpu_hours, 3),
        severity=round(size.severity, 1),
        level=level(size.severity),
    )


def _sizes(connection: sa.Connection, ids: Sequence[int], prefixes: tuple[str, ...]) -> dict[int, _Size]:
    """Return the size of each incident's visible attempts."""
    query = sa.select(_a.incident, *sums()).where(_a.incident.in_(ids)).group_by(_a.incident)
    if prefixes:
        query = query.where(begins(_a.job, prefixes))
    return {id: _Size(*size) for id, *size in connection.execute(query)}


def _with_others(connection: sa.Connection, ids: Sequence[int], prefixes: tuple[str, ...]) -> set[int]:
    """Return which incidents ever had an attempt of a hidden job: notes may be about that."""
    if not prefixes:
        return set()
    return set(connection.scalars(sa.select(_c.id).where(_c.id.in_(ids), ~search.covered(prefixes))))


def _seen(connection: sa.Connection, rows: Mapping[int, sa.Row[Any]], prefixes: tuple[str, ...]) -> dict[int, _Seen]:
    """Return the visible part of each incident's attempts."""
    all_of = {id: _Seen(row.attempts, row.jobs, row.opened, row.last, row.newest) for id, row in rows.items()}
    if not prefixes:
        return all_of
    ids = list(rows)
    newest = search.newest_seen(prefixes, ids)
    jobs = sa.select(_a.incident, sa.func.count(_a.job.distinct())).where(_a.incident.in_(ids))
    jobs = jobs.where(begins(_a.job, prefixes)).group_by(_a.incident)
    job_counts = {id: count for id, count in connection.execute(jobs)}
    for row in connection.execute(sa.select(newest).where(newest.c.place == 1)):
        counts = (row.attempts, job_counts[row.incident])
        all_of[row.incident] = _Seen(*counts, row.first, row.at, row.verdict)
    return all_of


def _verdicts(connection: sa.Connection, ids: Sequence[int]) -> dict[int, StoredVerdict]:
    source = verdicts.join(bodies, bodies.c.verdict == verdicts.c.id)
    query = sa.select(*VERDICT_FIELDS).select_from(source).where(verdicts.c.id.in_(ids))
    return {stored.id: stored for stored in read_verdicts(connection.execute(query))}


def _on_nodes(connection: sa.Connection, names: Iterable[str], prefixes: tuple[str, ...]) -> dict[str, int]:
    """Return how many current failed verdicts suspect each of the nodes."""
    names = list(names)
    if not names:
        return {}
    source = nodes.join(verdicts, verdicts.c.id == nodes.c.verdict)
    query = sa.select(nodes.c.node, sa.func.count()).select_from(source).group_by(nodes.c.node)
    query = query.where(nodes.c.node.in_(names), verdicts.c.outcome == "failed")
    if prefixes:
        query = query.where(begins(verdicts.c.job, prefixes))
    return {name: count for name, count in connection.execute(query)}


def _alike(connection: sa.Connection, fingerprints: Iterable[str], prefixes: tuple[str, ...]) -> dict[str, int]:
    """Return how many incidents with attempts have each of the fingerprints."""
    query = sa.select(_c.fingerprint, sa.func.count()).where(_c.attempts > 0, _c.fingerprint.in_(list(fingerprints)))
    query = query.where(search.visible(prefixes)).group_by(_c.fingerprint)
    return {name: count for name, count in connection.execute(query)}


def _end(connection: sa.Connection, merged_into: int | None) -> int | None:
    """Return where a chain of merged incidents ends; it has no cycles (see `grouping`)."""
    while merged_into is not None:
        onward = connection.scalar(sa.select(_c.merged_into).where(_c.id == merged_into))
        if onward is None:
            return merged_into
        merged_into = onward
    return None
