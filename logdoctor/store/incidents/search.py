"""Queries for lists of incidents.

A token bound to jobs sees of an incident only its own attempts: for it the newest attempt, the time and the reason are
those of the attempts it may see, and an incident without any does not exist.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from logdoctor.store.fit import fit
from logdoctor.store.incidents.mutes import is_muted
from logdoctor.store.incidents.severity import Order, sums
from logdoctor.store.jobs.records import after, begins
from logdoctor.store.schema import (
    OPEN_INCIDENT,
    UNMERGED,
    incident_attempts,
    incident_events,
    incidents,
    nodes,
)

State = Literal["new", "acknowledged", "resolved"]
STATES: tuple[State, ...] = ("new", "acknowledged", "resolved")
FACETS = ("state", "reason", "category", "recovery")
"""What incidents are counted by."""

_MAX_TEXT = 300
_MAX_WORDS = 8
_c, _a = incidents.c, incident_attempts.c
_one = incident_attempts.alias()  # any attempt of an incident, not only its newest


class WantedIncidents(msgspec.Struct, frozen=True):
    """Which incidents to list: all given conditions must hold. `since` <= time of the newest attempt < `until`.

    Reason, category, recovery and fault are those of the newest attempt. One of `states` must match; none means any.
    `node`, `user`, `job` and the words of `text` must all match one attempt; words are searched in reason, suspected
    nodes, job, user and first quote, ignoring case. With `quiet` "hide", open ones that are snoozed or muted at `now`
    (seconds since the epoch) are left out, with "only" nothing else is listed. The largest by `order` come first.
    `prefixes` are prefixes of job names, one of which must match; none means all jobs.
    """

    states: tuple[State, ...] = ("new", "acknowledged")
    reason: str | None = None
    category: str | None = None
    recovery: str | None = None
    fault: str | None = None
    node: str | None = None
    user: str | None = None
    job: str | None = None
    fingerprint: str | None = None
    text: str | None = None
    since: float | None = None
    until: float | None = None
    prefixes: tuple[str, ...] = ()
    assignee: str | None = None
    quiet: Literal["hide", "only"] | None = None
    now: float = 0.0
    order: Order = "last"


class _View(NamedTuple):
    """A caller's view of incidents: the source, and the newest attempt's columns and time."""

    source: sa.FromClause
    newest: Any
    last: sa.ColumnElement[float]


def searching(wanted: WantedIncidents, cursor: str | None) -> sa.Select[Any]:
    """Return the query for the wanted ids with their sort key (`place`), largest first: by default the time of the
    newest attempt."""
    view = _view(wanted.prefixes)
    where = _where(wanted, view)
    place = view.last if wanted.order == "last" else _summed(wanted.order, wanted.prefixes)
    if cursor is not None:
        where.append(after(place, _c.id, cursor, int))
    query = sa.select(_c.id, place.label("place")).select_from(view.source).where(*where)
    return query.order_by(place.desc(), _c.id.desc())


def _summed(order: Order, prefixes: Sequence[str]) -> sa.ColumnElement[float]:
    """Return a sum over the visible attempts of an incident; 0 where it is unknown."""
    mine = incident_attempts.alias()
    column = next(one for one in sums(mine) if one.name == order)
    query = sa.select(column).where(mine.c.incident == _c.id)
    if prefixes:
        query = query.where(begins(mine.c.job, prefixes))
    return sa.func.coalesce(sa.cast(query.scalar_subquery(), sa.Double), 0.0)


def is_snoozed(now: float) -> sa.ColumnElement[bool]:
    """Return whether an incident is snoozed, until a time or until more attempts fail."""
    return sa.or_(_c.snoozed_until > now, sa.func.coalesce(_c.snoozed_attempts, 0) > _c.attempts)


def is_quiet(now: float) -> sa.ColumnElement[bool]:
    """Return whether an incident is quiet: snoozed, or its fingerprint or node is muted."""
    return sa.or_(sa.func.coalesce(is_snoozed(now), sa.false()), is_muted(now))


def counting(wanted: WantedIncidents) -> sa.Select[Any]:
    """Return the query that counts incidents by state, reason, category and recovery together. It ignores wanted values
    of these, so that each can be counted without itself."""
    view = _view(wanted.prefixes)
    columns = [_c.state, *(view.newest[name] for name in FACETS[1:])]
    free = msgspec.structs.replace(wanted, states=(), reason=None, category=None, recovery=None)
    query = sa.select(*columns, sa.func.count()).select_from(view.source).where(*_where(free, view))
    return query.group_by(*columns)


def visible(prefixes: Sequence[str]) -> sa.ColumnElement[bool]:
    """Return whether an incident is visible to somebody with these job prefixes: it has an attempt of such a job, or it
    is empty and had one."""
    if not prefixes:
        return sa.true()
    joined = sa.exists().where(_a.incident == _c.id, begins(_a.job, prefixes))
    story = incident_events.c
    once = sa.exists().where(story.incident == _c.id, story.job.is_not(None), begins(story.job, prefixes))
    return sa.or_(joined, sa.and_(_c.attempts == 0, once))


def newest_seen(prefixes: Sequence[str], ids: Sequence[int]) -> sa.Subquery:
    """Return the newest visible attempt of each incident (`place` is 1) and the visible number."""
    query = sa.select(
        _a.incident,
        _a.verdict,
        _a.at,
        sa.func.row_number().over(partition_by=_a.incident, order_by=(_a.at.desc(), _a.verdict.desc())).label("place"),
        sa.func.count().over(partition_by=_a.incident).label("attempts"),
        sa.func.min(_a.at).over(partition_by=_a.incident).label("first"),
    )
    return query.where(begins(_a.job, prefixes), _a.incident.in_(ids)).subquery()


def _view(prefixes: Sequence[str]) -> _View:
    if not prefixes:
        return _View(incidents, _c, _c.last)
    mine = incident_attempts.alias()  # one index lookup per incident is quicker than ranking all attempts
    newest = sa.select(mine.c.verdict).where(mine.c.incident == _c.id, begins(mine.c.job, prefixes))
    newest = newest.order_by(mine.c.at.desc(), mine.c.verdict.desc()).limit(1)
    return _View(incidents.join(incident_attempts, _a.verdict == newest.scalar_subquery()), _a, _a.at)


def _where(wanted: WantedIncidents, view: _View) -> list[sa.ColumnElement[bool]]:
    """Return the conditions on incidents."""
    where: list[sa.ColumnElement[bool]] = [UNMERGED]
    if wanted.states and set(wanted.states) != set(STATES):
        where.append(_c.state.in_(wanted.states))
    for name in ("reason", "category", "recovery", "fault"):
        if (value := getattr(wanted, name)) is not None:
            where.append(view.newest[name] == fit(value, _MAX_TEXT))
    if wanted.fingerprint is not None:
        where.append(_c.fingerprint == fit(wanted.fingerprint, _MAX_TEXT))
    if wanted.assignee is not None:
        where.append(_c.assignee == fit(wanted.assignee, _MAX_TEXT))
    if wanted.quiet == "only":
        where += [OPEN_INCIDENT, is_quiet(wanted.now)]
    elif wanted.quiet == "hide":
        where.append(sa.or_(sa.not_(OPEN_INCIDENT), sa.not_(is_quiet(wanted.now))))
    if wanted.since is not None:
        where.append(view.last >= wanted.since)
    if wanted.until is not None:
        where.append(view.last < wanted.until)
    if of := _of_an_attempt(wanted):
        if wanted.prefixes:
            of.append(begins(_one.c.job, wanted.prefixes))
        where.append(_c.id.in_(sa.select(_one.c.incident).where(*of)))
    return where


def _of_an_attempt(wanted: WantedIncidents) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that one attempt of an incident must fulfil."""
    where: list[sa.ColumnElement[bool]] = []
    if wanted.node is not None:
        suspected = sa.select(nodes.c.verdict).where(nodes.c.node == fit(wanted.node, _MAX_TEXT))
        where.append(_one.c.verdict.in_(suspected))
    if wanted.user is not None:
        where.append(_one.c.user == fit(wanted.user, _MAX_TEXT))
    if wanted.job is not None:
        where.append(_one.c.job == fit(wanted.job, _MAX_TEXT))
    if wanted.text:
        words = fit(wanted.text, _MAX_TEXT).casefold().split()
        where += [_one.c.words.contains(word, autoescape=True) for word in words[:_MAX_WORDS]]
    return where
