"""Jobs, their attempts, and the verdicts on them, kept for ever.

Retention deletes raw logs, never records: nothing here deletes a job, an attempt or a verdict.
"""

import base64
import binascii
import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from logdoctor.errors import CursorError, InputError, LimitReached, NameRefused, StoreError
from logdoctor.store.database import Database
from logdoctor.store.fit import MAX_ID, MAX_PAGE, fit_limit, plain
from logdoctor.store.incidents import grouping
from logdoctor.store.keeping.work import NewWork, enter
from logdoctor.store.learning import rule_totals
from logdoctor.store.log.shards import Owned, fenced
from logdoctor.store.lookup import of_keys
from logdoctor.store.names import MAX_ATTEMPT
from logdoctor.store.schema import (
    CURRENT,
    FACETS,
    attempts,
    bodies,
    counter,
    ends,
    jobs,
    next_event,
    nodes,
    streams,
)
from logdoctor.store.schema import verdicts as table
from logdoctor.taxonomy import OUTCOMES
from logdoctor.types import LEARNED, Evidence, Verdict

_MAX_CURSOR = 2000
_its = ends.alias("its")


class JobFacts(msgspec.Struct, frozen=True):
    """The reported facts of a job. `gpus` is the total number, `parent` the `job/attempt` it continues, `nodelist`
    names its nodes as schedulers do: `gpu-[01-08],gpu-11`. It is `placed` when its reporter may say where jobs run;
    else it is a claim, on which no node is tested or cordoned. `like` is never reported: it is the kind of jobs
    whose logs look like its own."""

    name: str | None = None
    user: str | None = None
    framework: str | None = None
    launcher: str | None = None
    image: str | None = None
    command: str | None = None
    checkpoint_dir: str | None = None
    parent: str | None = None
    nodelist: str | None = None
    placed: bool = False
    nodes: int | None = None
    ranks_per_node: int | None = None
    gpus: int | None = None
    labels: dict[str, str] = {}
    like: str | None = None


class Job(msgspec.Struct, frozen=True):
    """A job, and when it was first and last reported on. All times are seconds since the epoch."""

    job: str
    facts: JobFacts
    created: float
    updated: float


class JobPage(msgspec.Struct, frozen=True):
    """A page of jobs, and the cursor of the next page, if any."""

    items: list[Job]
    next: str | None


class End(msgspec.Struct, frozen=True):
    """How a stream's process ended; the stream "" stands for the whole attempt."""

    stream: str
    exit_code: int | None
    signal: int | None
    scheduler_state: str | None
    at: float


class Attempt(msgspec.Struct, frozen=True):
    """One try to run a job. `ended` is when the whole attempt was reported to have ended, else, once a final verdict
    stands (`settled`), when the last of its processes was. `ends` are ordered by stream. `deleted` is since when there
    is no raw log: retention deleted it, or a past attempt was entered without it."""

    job: str
    number: int
    started: float
    ended: float | None
    settled: bool
    ends: tuple[End, ...]
    deleted: float | None = None


class StoredVerdict(msgspec.Struct, frozen=True):
    """A stored verdict: the `current` one of its attempt, or `superseded_by` the id of another.

    `event` numbers the changes of all verdicts: it is raised when a verdict is published and when its `final` changes,
    so it orders what a listener has seen. `user` is the job's, as currently known.
    """

    id: int
    event: int
    job: str
    attempt: int
    at: float
    final: bool
    current: bool
    superseded_by: int | None
    user: str | None
    verdict: Verdict


class Wanted(msgspec.Struct, frozen=True):
    """Which current verdicts to list: all given conditions must hold. `since` <= time < `until`.

    One of `outcomes` must match; none means any. `prefixes` are prefixes of job names, one of which must match; none
    means all jobs.
    """

    reason: str | None = None
    category: str | None = None
    node: str | None = None
    user: str | None = None
    job: str | None = None
    outcomes: tuple[str, ...] = ()
    recovery: str | None = None
    fingerprint: str | None = None
    since: float | None = None
    until: float | None = None
    prefixes: tuple[str, ...] = ()


class Page(msgspec.Struct, frozen=True):
    """A page of verdicts, and the cursor of the next page, if any."""

    items: list[StoredVerdict]
    next: str | None


class Unjudged(msgspec.Struct, frozen=True):
    """An attempt without a verdict so far; `ended` is when the whole of it was reported to have ended, `user` the
    job's, as currently known."""

    job: str
    attempt: int
    started: float
    ended: float | None
    user: str | None


class UnjudgedAttempts(msgspec.Struct, frozen=True):
    """The newest attempts without a verdict so far, and the total number of such attempts."""

    items: list[Unjudged]
    total: int


class _Owner(msgspec.Struct):
    """The part of a job's facts that names its user."""

    user: str | None = None


class _Cited(msgspec.Struct):
    """The evidence of a verdict; the rest of the body is not decoded."""

    evidence: tuple[Evidence, ...]


Counts = dict[str, dict[str, int]]

VERDICT_FIELDS = (table, bodies.c.body)
"""Columns of verdicts with their bodies, for `read_verdicts`."""
_FROM = table.join(bodies, bodies.c.verdict == table.c.id)
PAST = "past/"
"""Prefix of the keys of past attempts (`store/jobs/past.py`), which no sender may use."""
IS_PAST = sa.func.substr(attempts.c.key, 1, len(PAST)) == PAST
"""Condition: the attempt was over when it was entered."""
_WATCHED = attempts.alias()
_OUT_OF_ORDER = sa.and_(
    IS_PAST,
    sa.exists().where(
        _WATCHED.c.job == attempts.c.job,
        _WATCHED.c.number < attempts.c.number,
        sa.or_(_WATCHED.c.key.is_(None), sa.func.substr(_WATCHED.c.key, 1, len(PAST)) != PAST),
        _WATCHED.c.started > attempts.c.started,
    ),
)
"""Condition: a past attempt has a higher number than one that the service watched later."""
_COUNTED = ("reason", "category", "outcome")
_VERDICTS_TELL = ("reason", "category", "node", "recovery", "fingerprint")
_NO_VERDICT = ~sa.exists().where(table.c.job == attempts.c.job, table.c.attempt == attempts.c.number)
_encode = msgspec.json.Encoder().encode
_verdict = msgspec.json.Decoder(Verdict)
_cited = msgspec.json.Decoder(_Cited)
_facts = msgspec.json.Decoder(JobFacts)
_owner = msgspec.json.Decoder(_Owner)
_place = msgspec.json.Decoder(tuple[float, int | str])


class Records:
    """The records of one database; thread-safe. Every change is durable when its call returns.

    All calls raise `StoreError` when the database fails or a name cannot be stored.
    """

    def __init__(self, url: str) -> None:
        self.database = Database(url)

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def put_job(self, job: str, facts: JobFacts, at: float) -> Job:
        """Merge facts into those of a job and return it: given ones replace, absent ones leave what is known."""
        with self.database.writing() as connection:
            known = open_job(connection, job, at)
            told = Job(job, merged(known.facts, facts), known.created, max(at, known.updated))
            tell(connection, known, told)
        return told

    def job(self, job: str) -> Job | None:
        """Return a job; None if unknown."""
        with self.database.reading() as connection:
            return read_job(connection, job)

    def jobs(self, cursor: str | None = None, limit: int = 50, prefixes: tuple[str, ...] = ()) -> JobPage:
        """Return a page of jobs, newest first; `CursorError` for a bad cursor."""
        query = sa.select(jobs).order_by(jobs.c.created.desc(), jobs.c.job.desc())
        if cursor is not None:
            query = query.where(after(jobs.c.created, jobs.c.job, cursor, str))
        if prefixes:
            query = query.where(begins(jobs.c.job, prefixes))
        limit = fit_limit(limit)
        with self.database.reading() as connection:
            found = [_job_of(row) for row in connection.execute(query.limit(limit + 1))]
        more = len(found) > limit
        return JobPage(found[:limit], cursor_of(found[limit - 1].created, found[limit - 1].job) if more else None)

    def allot_attempt(self, job: str, key: str, at: float) -> int:
        """Return the number of the attempt with this key: the same for the same key, else the next one, from 1.

        `NameRefused` for a key reserved for past attempts, `LimitReached` when there is no next number.
        """
        if key.startswith(PAST):
            cause = f"begins with {PAST}, as those of past attempts do"
            raise NameRefused(f"the key {ascii(key)[:100]}", cause, "Use another key.")
        with self.database.writing() as connection:
            open_job(connection, job, at)
            mine = attempts.c.job == job
            known = connection.scalar(sa.select(attempts.c.number).where(mine, attempts.c.key == storable("key", key)))
            if known is not None:
                return int(known)
            number = next_number(connection, job)
            connection.execute(sa.insert(attempts).values(new_attempt(job, number, key, at)))
            return number

    def open_attempt(self, job: str, number: int, at: float) -> Attempt:
        """Return the attempt, creating it and its job if they do not exist."""
        return self.known_attempts([(job, number)], at)[job, number]

    def begun(self, names: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
        """Return which of some attempts, given as (job, number), exist."""
        with self.database.reading() as connection:
            return set(_attempts_of(connection, names))

    def has_key(self, job: str, key: str) -> bool:
        """Return whether this key of a job has a number."""
        mine = (attempts.c.job == job, attempts.c.key == storable("key", key))
        with self.database.reading() as connection:
            return connection.scalar(sa.select(attempts.c.number).where(*mine)) is not None

    def known_attempts(self, names: Collection[tuple[str, int]], at: float) -> dict[tuple[str, int], Attempt]:
        """Return the attempts by job and number, creating missing ones, in few statements."""
        with self.database.reading() as connection:
            known = _attempts_of(connection, names)
        new = [name for name in names if name not in known]
        return known | dict(zip(new, self.open_attempts(new, at) if new else (), strict=True))

    def open_attempts(self, names: Sequence[tuple[str, int]], at: float) -> list[Attempt]:
        """Return the attempts, given as (job, number), creating missing ones and their jobs. One that begins replaces a
        past one of its number: that one's verdict stands until there is another, but is not final."""
        with self.database.writing() as connection:
            return _open_attempts(connection, names, at)

    def end(self, job: str, number: int, end: End) -> Attempt:
        """Record the end of a stream, replacing an earlier one, and return the attempt.

        The stream "" ends the attempt: its first time stays as `ended`.
        """
        with self.database.writing() as connection:
            _open_attempt(connection, job, number, end.at)
            connection.execute(
                sa.delete(ends).where(
                    ends.c.job == job, ends.c.attempt == number, ends.c.stream == storable("stream", end.stream)
                )
            )
            values = msgspec.structs.asdict(end) | {"scheduler_state": plain(end.scheduler_state)}
            connection.execute(sa.insert(ends).values(job=job, attempt=number, **values))
            if not end.stream:
                connection.execute(
                    sa.update(attempts).where(*is_attempt(job, number), attempts.c.ended.is_(None)).values(ended=end.at)
                )
            return _open_attempt(connection, job, number, end.at)

    def settle(self, job: str, number: int, settled: bool = True) -> None:
        """Set whether an attempt needs no more judging; does nothing for an unknown one."""
        with self.database.writing() as connection:
            connection.execute(sa.update(attempts).where(*is_attempt(job, number)).values(_settling(settled)))

    def reopen(self, job: str, number: int, owned: Owned | None = None) -> StoredVerdict | None:
        """Mark an attempt as to be judged again: after a restart it is among those of `unsettled`.

        Its current verdict is no longer final, and is returned if that is a change. `Fenced` when its shard is no
        longer `owned`.
        """
        with self.database.writing() as connection:
            if owned is not None:
                fenced(connection, owned)
            kept = (*is_attempt(job, number), attempts.c.deleted.is_(None))
            if not connection.execute(sa.update(attempts).where(*kept).values(_settling(False))).rowcount:
                return None
            return _doubt(connection, job, number)

    def attempt(self, job: str, number: int) -> Attempt | None:
        """Return one attempt of a job."""
        with self.database.reading() as connection:
            return read_attempt(connection, job, number)

    def attempts(self, job: str) -> list[Attempt]:
        """Return the attempts of a job, in order."""
        with self.database.reading() as connection:
            return _attempts(connection, attempts.c.job == job)

    def later_attempt(self, job: str, number: int) -> Attempt | None:
        """Return the last attempt of a job after this one, preferring running ones; None if there is none. A past one
        is later if it began later, whatever its number."""
        later = (attempts.c.job == job, attempts.c.number > number, ~_OUT_OF_ORDER)
        runs = sa.and_(attempts.c.ended.is_(None), attempts.c.settled.is_(False))
        query = sa.select(attempts.c.number).where(*later)
        query = query.order_by(sa.case((runs, 0), else_=1), attempts.c.number.desc()).limit(1)
        with self.database.reading() as connection:
            last = connection.scalar(query)
            return None if last is None else read_attempt(connection, job, last)

    def last_attempts(self, jobs: Iterable[str]) -> dict[str, tuple[int, bool]]:
        """Return each job's last attempt number, and whether that attempt seems to run. Past ones come before those
        that began later, whatever their numbers."""
        numbers = sa.select(attempts.c.job, sa.func.max(attempts.c.number).label("number"))
        last = numbers.where(attempts.c.job.in_(list(set(jobs))), ~_OUT_OF_ORDER).group_by(attempts.c.job).subquery()
        runs = sa.and_(attempts.c.ended.is_(None), attempts.c.settled.is_(False)).label("runs")
        query = sa.select(attempts.c.job, attempts.c.number, runs)
        query = query.join(last, sa.and_(last.c.job == attempts.c.job, last.c.number == attempts.c.number))
        with self.database.reading() as connection:
            return {job: (number, bool(running)) for job, number, running in connection.execute(query)}

    def whose(self, of: Sequence[tuple[str, int]]) -> dict[int, tuple[str, int]]:
        """Return the ids of all verdicts on these attempts, superseded ones too, with their attempts."""
        query = sa.select(table.c.id, table.c.job, table.c.attempt)
        with self.database.reading() as connection:
            found = of_keys(connection, query, table.c["job", "attempt"], of)
            return {id: (job, attempt) for id, job, attempt in found}

    def unsettled(self) -> list[Attempt]:
        """Return all attempts that need judging, by job and number, for a restart."""
        with self.database.reading() as connection:
            return _attempts(connection, attempts.c.settled.is_(False))

    def awaiting(self) -> tuple[int, float | None]:
        """Return how many ended attempts lack a final verdict, and when the first ended."""
        ended = (attempts.c.settled.is_(False), attempts.c.ended.is_not(None), attempts.c.deleted.is_(None))
        with self.database.reading() as connection:
            count, first = connection.execute(
                sa.select(sa.func.count(), sa.func.min(attempts.c.ended)).where(*ended)
            ).one()
        return int(count), first

    def reissue(
        self, job: str, number: int, verdict: Verdict, at: float, of: Callable[[Verdict], bool] | None = None
    ) -> StoredVerdict | None:
        """Replace the final verdict of an attempt. Return None if the new one says the same, the attempt was reopened
        meanwhile, or `of` rejects the current verdict."""
        body = as_text(verdict)
        verdict = readable(body)
        with self.database.writing() as connection:
            kept, former = read_attempt(connection, job, number), read_current(connection, job, number)
            if kept is None or not kept.settled or (of is not None and (former is None or not of(former.verdict))):
                return None
            if former is not None and untimed(former.verdict) == untimed(verdict):
                return None
            return supersede(connection, former, job, number, verdict, body, True, at)

    def publish(
        self,
        job: str,
        number: int,
        verdict: Verdict,
        final: bool,
        at: float,
        work: Sequence[NewWork] = (),
        owned: Owned | None = None,
    ) -> StoredVerdict | None:
        """Make a verdict the current one of its attempt and return it; None if the current one says the same. `work` is
        queued in the same transaction. `Fenced` when the attempt's shard is no longer `owned`.

        Verdicts are compared without `seconds`. If only `final` differs, the current one is changed in place: it keeps
        its id and time and gets a new `event`. In each case the attempt is settled afterwards exactly if the verdict is
        final.
        """
        body = as_text(verdict)
        verdict = readable(body)
        with self.database.writing() as connection:
            if owned is not None:
                fenced(connection, owned)
            attempt = _open_attempt(connection, job, number, at)
            at = max(at, attempt.started)  # clocks differ, and anything older is about a past attempt
            changed = (*is_attempt(job, number), attempts.c.settled != final)
            connection.execute(sa.update(attempts).where(*changed).values(_settling(final)))
            for one in work:
                enter(connection, one, at)
            former = read_current(connection, job, number)
            if former is not None and former.at < attempt.started:
                grouping.leave(connection, former, at, "another attempt took its place")
                return supersede(connection, former, job, number, verdict, body, final, at)
            if former is None or untimed(former.verdict) != untimed(verdict):
                return supersede(connection, former, job, number, verdict, body, final, at)
            if former.final == final:
                return None
            event = next_event(connection)
            connection.execute(sa.update(table).where(table.c.id == former.id).values(final=final, event=event))
            grouping.touch(connection, job, number, event)
            return msgspec.structs.replace(former, final=final, event=event)

    def verdict(self, id: int) -> StoredVerdict | None:
        """Return the verdict with this id, superseded or not."""
        if not 0 < id <= MAX_ID:
            return None
        with self.database.reading() as connection:
            return _one(connection, table.c.id == id)

    def current(self, job: str, number: int) -> StoredVerdict | None:
        """Return the current verdict on an attempt."""
        with self.database.reading() as connection:
            return read_current(connection, job, number)

    def provisional(self, names: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
        """Return those attempts, by job and number, whose verdict is not final."""
        columns = table.c["job", "attempt"]
        query = sa.select(*columns).where(CURRENT, table.c.final.is_(False))
        with self.database.reading() as connection:
            return {(job, attempt) for job, attempt in of_keys(connection, query, columns, names)}

    def history(self, job: str, number: int, limit: int = 100) -> list[StoredVerdict]:
        """Return the verdicts on an attempt, newest first."""
        query = _select().where(table.c.job == job, table.c.attempt == number).order_by(table.c.id.desc())
        with self.database.reading() as connection:
            return read_verdicts(connection.execute(query.limit(fit_limit(limit))))

    def search(self, wanted: Wanted, cursor: str | None = None, limit: int = 50) -> Page:
        """Return a page of the wanted current verdicts, newest first; `CursorError` for a bad cursor.

        While others publish, each verdict comes once and in order: a new one belongs before the first page.
        """
        limit = fit_limit(limit)
        with self.database.reading() as connection:
            found = read_verdicts(connection.execute(searching(wanted, cursor).limit(limit + 1)))
        more = len(found) > limit
        return Page(found[:limit], cursor_of(found[limit - 1].at, found[limit - 1].id) if more else None)

    def every(self, wanted: Wanted) -> Iterator[StoredVerdict]:
        """Yield all wanted current verdicts, newest first, holding few in memory at a time."""
        cursor: str | None = None
        while True:
            page = self.search(wanted, cursor, MAX_PAGE)
            yield from page.items
            if (cursor := page.next) is None:
                return

    def unjudged(self, wanted: Wanted, limit: int = 50) -> UnjudgedAttempts:
        """Return the attempts without a verdict of the wanted job, user and time, newest first. There are none if
        anything is wanted that only a verdict has, or another outcome than running."""
        judged_only = any(getattr(wanted, name) is not None for name in _VERDICTS_TELL)
        if judged_only or (wanted.outcomes and "running" not in wanted.outcomes):
            return UnjudgedAttempts([], 0)
        where = _begun(wanted)
        query: sa.Select[Any] = (
            sa.select(attempts.c.job, attempts.c.number, attempts.c.started, attempts.c.ended, jobs.c.facts)
            .join(jobs, jobs.c.job == attempts.c.job)
            .where(*where)
            .order_by(attempts.c.started.desc(), attempts.c.job.desc(), attempts.c.number.desc())
        )
        limit = fit_limit(limit)
        with self.database.reading() as connection:
            if wanted.user is None:
                counting = sa.select(sa.func.count()).select_from(attempts).where(*where)
                total = int(connection.scalar(counting) or 0)
                found = [_unjudged(row) for row in connection.execute(query.limit(limit))] if total else []
            else:  # only the facts name the user, and databases query JSON in different ways
                whose = plain(wanted.user)
                found = [one for row in connection.execute(query) if plain((one := _unjudged(row)).user) == whose]
                total = len(found)
        return UnjudgedAttempts(found[:limit], total)

    def newer(self, event: int, limit: int = 100) -> list[StoredVerdict]:
        """Return the verdicts that changed after an event, in the order of their last change: for resuming a stream.

        Superseded ones are included (see `current`). A verdict comes once, with its last event, so a call with the last
        event returned continues without a gap.
        """
        if event >= MAX_ID:
            return []
        query = _select().where(table.c.event > max(event, 0)).order_by(table.c.event)
        with self.database.reading() as connection:
            return read_verdicts(connection.execute(query.limit(fit_limit(limit))))

    def evidence_after(self, verdict_id: int, limit: int) -> list[tuple[int, tuple[Evidence, ...]]]:
        """Return the evidence of the verdicts with higher ids, superseded ones included, by id: no rule may ever take
        it.

        It is written once, so a call with the last id returned continues without a gap.
        """
        if verdict_id >= MAX_ID:
            return []
        query = sa.select(bodies).where(bodies.c.verdict > max(verdict_id, 0)).order_by(bodies.c.verdict)
        with self.database.reading() as connection:
            rows = connection.execute(query.limit(min(max(limit, 1), MAX_ID)))
            return [(row.verdict, _cited.decode(row.body).evidence) for row in rows]

    def last_event(self) -> int:
        """Return the number of the last change of a verdict or an incident; 0 before the first."""
        with self.database.reading() as connection:
            return counter(connection, "event")

    def counts(self, wanted: Wanted) -> Counts:
        """Return counts of the wanted verdicts: `{"reason": {...}, "category": {...}, "outcome": {...}}`."""
        columns = [table.c[name] for name in _COUNTED]
        source, where = _where(wanted)
        query = sa.select(*columns, sa.func.count()).select_from(source).where(*where).group_by(*columns)
        counts: Counts = {name: {} for name in _COUNTED}
        with self.database.reading() as connection:
            for *values, count in connection.execute(query):
                for name, value in zip(_COUNTED, values, strict=True):
                    counts[name][value] = counts[name].get(value, 0) + count
        return counts


def searching(wanted: Wanted, cursor: str | None) -> sa.Select[Any]:
    """Return the query of `Records.search`, without its limit."""
    source, where = _where(wanted)
    # verdict_nodes has the time too, so its own index gives a node's verdicts in order
    at, id = (table.c.at, table.c.id) if wanted.node is None else (nodes.c.at, nodes.c.verdict)
    if cursor is not None:
        where.append(after(at, id, cursor, int))
    query = sa.select(*VERDICT_FIELDS).select_from(source.join(bodies, bodies.c.verdict == table.c.id))
    return query.where(*where).order_by(at.desc(), id.desc())


def _where(wanted: Wanted) -> tuple[sa.FromClause, list[sa.ColumnElement[bool]]]:
    """Return the tables and the conditions of the wanted verdicts."""
    source: sa.FromClause = table
    where: list[sa.ColumnElement[bool]] = [CURRENT]
    at = table.c.at
    if wanted.node is not None:
        source = nodes.join(table, table.c.id == nodes.c.verdict)
        where.append(nodes.c.node == plain(wanted.node))
        at = nodes.c.at
    for facet in FACETS:
        if facet != "outcome" and (value := getattr(wanted, facet)) is not None:
            where.append(table.c[facet] == plain(value))
    if len(wanted.outcomes) == 1:
        where.append(table.c.outcome == plain(wanted.outcomes[0]))
    elif wanted.outcomes:  # most rows match, and stated this way the newest are scanned without a sort
        where.append(table.c.outcome.not_in([one for one in OUTCOMES if one not in wanted.outcomes]))
    if wanted.since is not None:
        where.append(at >= wanted.since)
    if wanted.until is not None:
        where.append(at < wanted.until)
    if wanted.prefixes:
        where.append(begins(table.c.job, wanted.prefixes))
    return source, where


def _begun(wanted: Wanted) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of attempts without a verdict. Unsettled ones are few among all, and are indexed."""
    where = [attempts.c.settled.is_(False), attempts.c.deleted.is_(None), _NO_VERDICT]
    if wanted.job is not None:
        where.append(attempts.c.job == plain(wanted.job))
    if wanted.since is not None:
        where.append(attempts.c.started >= wanted.since)
    if wanted.until is not None:
        where.append(attempts.c.started < wanted.until)
    if wanted.prefixes:
        where.append(begins(attempts.c.job, wanted.prefixes))
    return where


def _unjudged(row: sa.Row[Any]) -> Unjudged:
    return Unjudged(row.job, row.number, row.started, row.ended, _owner.decode(row.facts).user)


def begins(column: sa.ColumnElement[str], prefixes: Iterable[str]) -> sa.ColumnElement[bool]:
    """Return whether the column begins with one of the prefixes. LIKE will not do: SQLite's ignores case."""
    return sa.or_(*(sa.func.substr(column, 1, len(prefix)) == plain(prefix) for prefix in prefixes))


def after(first: sa.ColumnElement[Any], second: sa.ColumnElement[Any], cursor: str, kind: type) -> Any:
    """Return the condition for rows after the cursor, in descending order."""
    return sa.tuple_(first, second) < sa.tuple_(*(sa.literal(value) for value in _read_cursor(cursor, kind)))


def cursor_of(first: float, second: int | str) -> str:
    """Return the cursor of the rows after an item with this sort key."""
    return base64.urlsafe_b64encode(_encode((first, second))).decode("ascii")


def _read_cursor(cursor: str, kind: type) -> tuple[float, int | str]:
    with contextlib.suppress(binascii.Error, UnicodeError, ValueError, msgspec.DecodeError):
        if len(cursor) <= _MAX_CURSOR:
            first, second = _place.decode(base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True))
            if math.isfinite(first) and type(second) is kind and (kind is str or abs(int(second)) <= MAX_ID):
                return first, second
    raise CursorError("the cursor", "does not come from a page of this list", "Start again without a cursor.")


def storable(thing: str, text: str) -> str:
    """Return an identifying text unchanged; `NameRefused` if not every database can hold it."""
    if plain(text) != text:
        raise NameRefused(f"the {thing} {ascii(text)[:100]}", "cannot be stored", "Use printable characters.")
    return text


def as_text(value: Verdict | JobFacts) -> str:
    """Return the value as JSON; `InputError` when JSON cannot hold it."""
    try:
        return _encode(value).decode("utf-8")
    except (UnicodeEncodeError, OverflowError) as error:
        raise InputError("a record", f"cannot be stored ({error})", "Send valid UTF-8 and 64-bit numbers.") from error


def readable(body: str) -> Verdict:
    """Return the verdict as it will be read back; `StoreError` if it could not be (JSON has no NaN)."""
    try:
        return _verdict.decode(body)
    except msgspec.ValidationError as error:
        raise StoreError("the verdict", f"cannot be stored ({error})", "Report this as a bug.") from error


def untimed(verdict: Verdict) -> Verdict:
    """Return the verdict without its duration, which is not part of what it says."""
    return msgspec.structs.replace(verdict, seconds=0.0)


_TELL_THE_KIND = ("framework", "command", "image")


def merged(old: JobFacts, new: JobFacts) -> JobFacts:
    """Merge facts, newer over older; a claimed nodelist never replaces an authorised one. `like` is dropped when
    another fact that determines the kind changes."""
    given = {name: value for name, value in msgspec.structs.asdict(new).items() if value not in (None, {})}
    if new.nodelist is None or (old.placed and not new.placed):
        given |= {"nodelist": old.nodelist, "placed": old.placed}
    if new.like is None and any(given.get(name) not in (None, getattr(old, name)) for name in _TELL_THE_KIND):
        given["like"] = None
    return msgspec.structs.replace(old, **given)


def read_job(connection: sa.Connection, job: str) -> Job | None:
    """Return a job; None if unknown."""
    row = connection.execute(sa.select(jobs).where(jobs.c.job == job)).first()
    return None if row is None else _job_of(row)


def _job_of(row: sa.Row[Any]) -> Job:
    return Job(row.job, _facts.decode(row.facts), row.created, row.updated)


def open_job(connection: sa.Connection, job: str, at: float) -> Job:
    """Return a job, creating it if it does not exist."""
    if known := read_job(connection, job):
        return known
    _open_jobs(connection, [job], at)
    return Job(job, JobFacts(), at, at)


def _open_jobs(connection: sa.Connection, names: Collection[str], at: float) -> None:
    """Create jobs that do not exist."""
    known = set(connection.scalars(sa.select(jobs.c.job).where(jobs.c.job.in_(names))))
    facts = as_text(JobFacts())
    if new := [storable("job", job) for job in names if job not in known]:
        connection.execute(sa.insert(jobs), [{"job": job, "facts": facts, "created": at, "updated": at} for job in new])


def tell(connection: sa.Connection, known: Job, told: Job) -> None:
    """Replace the stored facts of a job."""
    values = {"facts": as_text(told.facts), "created": told.created, "updated": told.updated}
    connection.execute(sa.update(jobs).where(jobs.c.job == told.job).values(values))
    if told.facts.user != known.facts.user:
        user, former = plain(told.facts.user), plain(known.facts.user)
        connection.execute(sa.update(table).where(table.c.job == told.job).values(user=user))
        grouping.rename_user(connection, told.job, former, user)
    if told.facts != known.facts:
        grouping.resize(connection, told.job, as_text(told.facts))


def is_attempt(job: str, number: int) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    """Return the conditions for one attempt."""
    return attempts.c.job == job, attempts.c.number == number


def read_attempt(connection: sa.Connection, job: str, number: int) -> Attempt | None:
    """Return one attempt of a job."""
    return next(iter(_attempts(connection, *is_attempt(job, number))), None)


def _attempts(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> list[Attempt]:
    """Return the attempts that meet the conditions, in order, with their ends."""
    place = sa.and_(ends.c.job == attempts.c.job, ends.c.attempt == attempts.c.number)
    told = connection.execute(sa.select(ends).join(attempts, place).where(*where).order_by(ends.c.stream))
    query = sa.select(attempts).where(*where).order_by(attempts.c.job, attempts.c.number)
    return _with_ends(told, connection.execute(query))


def _attempts_of(connection: sa.Connection, names: Collection[tuple[str, int]]) -> dict[tuple[str, int], Attempt]:
    """Return which of some attempts exist, by job and number, with their ends."""
    told = of_keys(connection, sa.select(ends).order_by(ends.c.stream), ends.c["job", "attempt"], names)
    found = of_keys(connection, sa.select(attempts), attempts.c["job", "number"], names)
    return {(one.job, one.number): one for one in _with_ends(told, found)}


def _with_ends(told: Iterable[Any], found: Iterable[Any]) -> list[Attempt]:
    """Return the attempts of rows, each with its own ends."""
    reported: dict[tuple[str, int], list[End]] = {}
    for row in told:
        end = End(row.stream, row.exit_code, row.signal, row.scheduler_state, row.at)
        reported.setdefault((row.job, row.attempt), []).append(end)
    return [
        Attempt(
            row.job,
            row.number,
            row.started,
            row.ended,
            row.settled,
            tuple(reported.get((row.job, row.number), ())),
            row.deleted,
        )
        for row in found
    ]


def _settling(settled: bool) -> dict[str, Any]:
    """Return what changes with a final verdict: senders of single streams never say when the whole attempt ended. If a
    stream fell silent without an end, the attempt has none."""
    mine = (ends.c.job == attempts.c.job, ends.c.attempt == attempts.c.number)
    told = sa.exists().where(*mine, ends.c.stream == "").correlate(attempts)
    last = sa.select(sa.func.max(ends.c.at)).where(*mine)
    its = _its.c.job == attempts.c.job, _its.c.attempt == attempts.c.number, _its.c.stream == streams.c.stream
    unended = ~sa.exists().where(*its).correlate(attempts, streams)
    silent = sa.exists().where(streams.c.job == attempts.c.job, streams.c.attempt == attempts.c.number, unended)
    over = last.where(~silent.correlate(attempts)).scalar_subquery()
    return {
        "settled": settled,
        "ended": sa.func.coalesce(attempts.c.ended, over) if settled else sa.case((told, attempts.c.ended)),
    }


def _open_attempt(connection: sa.Connection, job: str, number: int, at: float) -> Attempt:
    return _open_attempts(connection, [(job, number)], at)[0]


def _open_attempts(connection: sa.Connection, names: Sequence[tuple[str, int]], at: float) -> list[Attempt]:
    """Open attempts with as many statements as for one: hundreds begin at once."""
    known = _attempts_of(connection, names)
    if any(one.deleted is not None for one in known.values()):
        _take_places(connection, [name for name, one in known.items() if one.deleted is not None], at)
        known = _attempts_of(connection, names)
    if new := [name for name in dict.fromkeys(names) if name not in known]:
        _open_jobs(connection, {job for job, _ in new}, at)
        connection.execute(sa.insert(attempts), [new_attempt(job, number, None, at) for job, number in new])
        known |= {(job, number): Attempt(job, number, at, None, False, ()) for job, number in new}
    return [known[name] for name in names]


def _take_places(connection: sa.Connection, names: Sequence[tuple[str, int]], at: float) -> None:
    """Replace those of some attempts that are past ones by attempts that begin now."""
    past_ones = sa.select(attempts).where(IS_PAST)
    for past in list(of_keys(connection, past_ones, attempts.c["job", "number"], names)):
        started = max(at, math.nextafter(past.ended, math.inf))  # a past one may have ended by a clock that is ahead
        begun = {"key": None, "started": started, "ended": None, "settled": False, "deleted": None}
        connection.execute(sa.update(attempts).where(*is_attempt(past.job, past.number)).values(begun))
        connection.execute(sa.delete(ends).where(ends.c.job == past.job, ends.c.attempt == past.number))
        _doubt(connection, past.job, past.number)


def _doubt(connection: sa.Connection, job: str, number: int) -> StoredVerdict | None:
    """Mark the verdict on an attempt as no longer final and return it; None when there is no final one."""
    former = read_current(connection, job, number)
    if former is None or not former.final:
        return None
    event = next_event(connection)
    connection.execute(sa.update(table).where(table.c.id == former.id).values(final=False, event=event))
    grouping.touch(connection, job, number, event)
    return msgspec.structs.replace(former, final=False, event=event)


def next_number(connection: sa.Connection, job: str) -> int:
    """Return the number of a job's next attempt; `LimitReached` when there is none."""
    last = connection.scalar(sa.select(sa.func.max(attempts.c.number)).where(attempts.c.job == job)) or 0
    if last >= MAX_ATTEMPT:
        raise LimitReached(f"job {job}", f"it has an attempt {last}", "Use another job name.")
    return int(last) + 1


def new_attempt(job: str, number: int, key: str | None, at: float) -> dict[str, Any]:
    """Return the row of a new attempt; `StoreError` for a number out of range."""
    if not 0 <= number <= MAX_ATTEMPT:
        raise StoreError(f"attempt {number} of job {job}", "is out of range", f"Use 0 to {MAX_ATTEMPT}.")
    return {"job": job, "number": number, "key": key, "started": at, "settled": False}


def _select() -> sa.Select[Any]:
    return sa.select(*VERDICT_FIELDS).select_from(_FROM)


def read_verdicts(rows: Iterable[sa.Row[Any]]) -> list[StoredVerdict]:
    """Return the verdicts of rows that have `VERDICT_FIELDS`."""
    return [
        StoredVerdict(
            id=row.id,
            event=row.event,
            job=row.job,
            attempt=row.attempt,
            at=row.at,
            final=row.final,
            current=row.superseded_by is None,
            superseded_by=row.superseded_by,
            user=row.user,
            verdict=_verdict.decode(row.body),
        )
        for row in rows
    ]


def _one(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> StoredVerdict | None:
    return next(iter(read_verdicts(connection.execute(_select().where(*where)))), None)


def read_current(connection: sa.Connection, job: str, number: int) -> StoredVerdict | None:
    """Return the current verdict on an attempt."""
    return _one(connection, CURRENT, table.c.job == job, table.c.attempt == number)


def supersede(
    connection: sa.Connection,
    former: StoredVerdict | None,
    job: str,
    number: int,
    verdict: Verdict,
    body: str,
    final: bool,
    at: float,
    past: bool = False,
) -> StoredVerdict:
    """Replace the former verdict by a new one and return that; `past` for a past attempt."""
    user = plain(open_job(connection, job, at).facts.user)
    event = next_event(connection)
    facets = {name: plain(getattr(verdict, name)) for name in FACETS if hasattr(verdict, name)}
    new = sa.insert(table).values(
        event=event, job=job, attempt=number, at=at, final=final, user=user, decided=_decided(verdict), **facets
    )
    id = int(connection.execute(new.returning(table.c.id)).scalar_one())
    connection.execute(sa.insert(bodies).values(verdict=id, body=body))
    suspected = {plain(suspect.node) for suspect in verdict.suspects if suspect.node is not None}
    if suspected:
        connection.execute(sa.insert(nodes), [{"node": node, "at": at, "verdict": id} for node in suspected])
    if former is not None:
        connection.execute(sa.update(table).where(table.c.id == former.id).values(superseded_by=id))
        connection.execute(sa.delete(nodes).where(nodes.c.verdict == former.id))
    rule_totals.count(connection, former.verdict if former else None, verdict, at)
    stored = StoredVerdict(id, event, job, number, at, final, True, None, user, verdict)
    grouping.regroup(connection, former, stored, past=past)
    return stored


def _decided(verdict: Verdict) -> str:
    """Return what made the verdict, with learned rules as "learned"."""
    by = verdict.decided_by
    return "learned" if by.kind == "rule" and by.rule.startswith(LEARNED) else by.kind
