"""Queries for lists of incidents.

A token bound to jobs sees of an incident only its own attempts: for it the newest attempt, the time and the reason are
those of the attempts it may see, and an incident without any does not exist.
"""

import operator
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from logdoctor.store.fit import fit
from logdoctor.store.incidents.mutes import is_muted
from logdoctor.store.incidents.query import FIELDS, STATE_SETS, STATES, State, Term, is_flag, is_state, parse, states_of
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

FACETS = ("state", "reason", "category", "recovery")
"""What incidents are counted by."""

_MAX_TEXT = 300
_MAX_WORDS = 8
_HOLDS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "=": operator.eq}
_OF_ATTEMPTS = ("", "node", "job", "user")  # fields of terms that one attempt must match
_c, _a = incidents.c, incident_attempts.c
_one = incident_attempts.alias()  # any attempt of an incident, not only its newest


class WantedIncidents(msgspec.Struct, frozen=True):
    """Which incidents to list: all given conditions must hold. `since` <= time of the newest attempt < `until`.

    Reason, category, recovery and fault are those of the newest attempt. One of `states` must match; none means any.
    `node`, `user`, `job` and the words of `text` must all match one attempt; words are searched in reason, suspected
    nodes, job, user and first quote, ignoring case. `q` is a query (see `query`), whose states take the place of
    `states`; `InputError` when it has no meaning. With `quiet` "hide", open ones that are snoozed or muted at `now`
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
    q: str = ""


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
    place = view.last
    if wanted.order != "last":
        place = sa.func.coalesce(_summed(wanted.order, wanted.prefixes), 0.0)
    if cursor is not None:
        where.append(after(place, _c.id, cursor, int))
    query = sa.select(_c.id, place.label("place")).select_from(view.source).where(*where)
    return query.order_by(place.desc(), _c.id.desc())


def _summed(order: str, prefixes: Sequence[str]) -> sa.ColumnElement[float]:
    """Return a sum over the visible attempts of an incident, or their number; null where it is unknown."""
    mine = incident_attempts.alias()
    number = sa.func.count().label("attempts")
    column = next(one for one in (*sums(mine), number) if one.name == order)
    query = sa.select(column).where(mine.c.incident == _c.id)
    if prefixes:
        query = query.where(begins(mine.c.job, prefixes))
    return sa.cast(query.scalar_subquery(), sa.Double)


def is_snoozed(now: float) -> sa.ColumnElement[bool]:
    """Return whether an incident is snoozed, until a time or until more attempts fail."""
    return sa.or_(_c.snoozed_until > now, sa.func.coalesce(_c.snoozed_attempts, 0) > _c.attempts)


def is_quiet(now: float) -> sa.ColumnElement[bool]:
    """Return whether an incident is quiet: snoozed, or its fingerprint or node is muted."""
    return sa.or_(sa.func.coalesce(is_snoozed(now), sa.false()), is_muted(now))


def counting(wanted: WantedIncidents) -> sa.Select[Any]:
    """Return the query that counts incidents by state, reason, category and recovery together, whatever states are
    wanted."""
    view = _view(wanted.prefixes)
    columns = [_c.state, *(view.newest[name] for name in FACETS[1:])]
    q = " ".join(one.text for one in parse(wanted.q) if one.excludes or not is_state(one))
    free = msgspec.structs.replace(wanted, states=(), q=q)
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


def covered(prefixes: Sequence[str]) -> sa.ColumnElement[bool]:
    """Return whether all attempts ever in an incident are of jobs with these prefixes; notes and assignees may be about
    others."""
    if not prefixes:
        return sa.true()
    story = incident_events.c
    return ~sa.exists().where(story.incident == _c.id, story.job.is_not(None), ~begins(story.job, prefixes))


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


def states(wanted: WantedIncidents) -> tuple[State, ...]:
    """Return the wanted states; none means any."""
    return states_of(parse(wanted.q)) or wanted.states


def _where(wanted: WantedIncidents, view: _View) -> list[sa.ColumnElement[bool]]:
    """Return the conditions on incidents."""
    where: list[sa.ColumnElement[bool]] = [UNMERGED]
    if (any_of := states(wanted)) and set(any_of) != set(STATES):
        where.append(_c.state.in_(any_of))
    if wanted.quiet == "only":
        where += [OPEN_INCIDENT, is_quiet(wanted.now)]
    elif wanted.quiet == "hide":
        where.append(sa.or_(sa.not_(OPEN_INCIDENT), sa.not_(is_quiet(wanted.now))))
    if wanted.since is not None:
        where.append(view.last >= wanted.since)
    if wanted.until is not None:
        where.append(view.last < wanted.until)
    alike: dict[Any, list[sa.ColumnElement[bool]]] = {}
    for number, one in enumerate((*_given(wanted), *parse(wanted.q))):
        of_one = one.field in _OF_ATTEMPTS
        holds = _of_attempt(one) if of_one else _of_incident(one, wanted, view)
        if one.excludes:
            where.append(sa.not_(sa.func.coalesce(_has_attempt(wanted, [holds]) if of_one else holds, sa.false())))
        elif not is_state(one):
            alone = not (one.field and one.text) or is_flag(one) or one.is_limit
            alike.setdefault((of_one, number if alone else one.field), []).append(holds)
    either = [(of_one, sa.or_(*each)) for (of_one, _), each in alike.items()]
    where += [holds for of_one, holds in either if not of_one]
    if of := [holds for of_one, holds in either if of_one]:
        where.append(_has_attempt(wanted, of))
    return where


def _given(wanted: WantedIncidents) -> Iterator[Term]:
    """Yield the conditions beside the query as terms."""
    for name in FIELDS:
        if (value := getattr(wanted, name, None)) is not None:
            yield Term("", name, fit(value, _MAX_TEXT))
    for word in fit(wanted.text or "", _MAX_TEXT).split()[:_MAX_WORDS]:
        yield Term("", "", word)


def _has_attempt(wanted: WantedIncidents, of: list[sa.ColumnElement[bool]]) -> sa.ColumnElement[bool]:
    """Return whether a visible attempt of an incident fulfils all conditions."""
    mine = [begins(_one.c.job, wanted.prefixes)] if wanted.prefixes else []
    return _c.id.in_(sa.select(_one.c.incident).where(*of, *mine))


def _of_incident(one: Term, wanted: WantedIncidents, view: _View) -> sa.ColumnElement[bool]:
    if is_state(one):
        return _c.state.in_(STATE_SETS[one.value])
    if is_flag(one):
        now = wanted.now
        called = {"snoozed": is_snoozed(now), "muted": is_muted(now), "quiet": is_quiet(now)}
        return sa.and_(OPEN_INCIDENT, called[one.value])
    if one.field == "assignee":
        return sa.and_(_matches(_c.assignee, one), covered(wanted.prefixes))
    if not one.bounds:
        return _matches(_c.fingerprint if one.field == "fingerprint" else view.newest[one.field], one)
    if one.field == "id":
        number: Any = _c.id
    elif one.field == "age":
        number = sa.literal(wanted.now) - view.last
    else:
        number = _summed({"hours": "gpu_hours"}.get(one.field, one.field), wanted.prefixes)
    return sa.and_(*(_HOLDS[sign](number, value) for sign, value in one.bounds))


def _of_attempt(one: Term) -> sa.ColumnElement[bool]:
    """Return the condition of a term on an attempt."""
    if not one.field:
        return _one.c.words.contains(one.value.casefold(), autoescape=True)
    if one.field == "node":
        return _one.c.verdict.in_(sa.select(nodes.c.verdict).where(_matches(nodes.c.node, one)))
    return _matches(_one.c[one.field], one)


def _matches(column: sa.ColumnElement[Any], one: Term) -> sa.ColumnElement[bool]:
    """Return whether a column is the value of a term; with wildcards, whose case does not matter, is like it."""
    if not one.wild:
        return column == one.value
    pattern = re.sub(r"([\\%_])", r"\\\1", one.value).replace("*", "%").replace("?", "_")
    return sa.func.lower(column).like(sa.func.lower(pattern), escape="\\")
