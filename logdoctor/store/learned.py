"""Learned rules: their life, what they matched, what was refused, and what the models cost.

A filter rule belongs to a kind of jobs. A diagnosis rule has a claim, belongs to the kind `DIAGNOSIS`, and is for all
jobs: its hits are counted apart from those of filter rules.

Rules are only appended, and a rule keeps its place among those of its kind for ever: who counts by place goes on
counting while others enter rules. A step of a rule and the record of who took it are written as one.
"""

import builtins
import hashlib
import heapq
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import sqlalchemy as sa

from logdoctor import taxonomy
from logdoctor.errors import CursorError, InputError, RuleRefused
from logdoctor.store.fit import MAX_PAGE
from logdoctor.store.names import checked, checked_attempt
from logdoctor.store.schema import (
    Database,
    counted_attempts,
    counters,
    learned_rules,
    model_calls,
    model_totals,
    noticed_lines,
    printed_shapes,
    refusal_counts,
    rule_events,
    rule_hits,
    rule_kinds,
    rule_refusals,
    seen_shapes,
)

STATUSES = ("proposed", "shadow", "active", "retired")

ERROR_WORD = "error-word"
"""How `waits_for` begins when lines of the rule look like trouble: who approves it says that they are harmless."""

DIAGNOSIS = "diagnosis"
"""The kind of learned diagnosis rules; no kind of jobs is called so."""

CORDON = "cordon"
"""How `waits_for` begins when a rule in shadow waits because its recovery takes a node out."""

MAX_RULES = 5000
"""Rules of a kind, retired ones too."""
MAX_PATTERN = 4000
"""Characters of a pattern."""
MAX_KIND = 300
"""Characters of a kind."""
MAX_REFUSALS = 2000
"""Refusals of a kind that are kept; of older ones only the number is."""
MAX_SHAPES = 50_000
MAX_PRINTED = 5_000
"""Shapes of a kind that are kept: of those that were looked at the last, of those that were printed the first."""
MAX_NOTICED = 200
"""Noticed lines of an attempt that are kept: those that most runs noticed."""

_COMMON = 3  # kinds that print a form which then tells nothing of a job
_MAX_TEXT = 2000
_MAX_NAME = 200
_MAX_TEXTS = 50  # examples or metrics of a rule
_MAX_EXAMPLE = 16_384
_MAX_COUNT = 2**48  # sums of it stay below 64 bits
_MAX_ID = 2**63 - 1

_MAX_SLUG = 80
_FIRST_DIGITS = 8

_NEXT = {
    "proposed": ("shadow", "retired"),
    "shadow": ("active", "retired", "proposed"),
    "active": ("shadow", "retired", "proposed"),
    "retired": ("shadow",),
}
"""Where a rule may go from a status: nothing becomes active that was not watched before."""


class Source(msgspec.Struct, frozen=True):
    """Where a rule comes from: the attempt it was learned from, and what was told about the job."""

    job: str | None = None
    attempt: int | None = None
    framework: str | None = None
    image: str | None = None
    command: str | None = None
    user: str | None = None
    name: str | None = None


class Votes(msgspec.Struct, frozen=True):
    """How many runs answered, the numbers of those that agreed, and what the judge said."""

    runs: int
    agreed: tuple[int, ...]
    judge: str


class Claim(msgspec.Struct, frozen=True):
    """What a learned diagnosis rule says of a failure; its line is the cause. "" means the taxonomy's default."""

    reason: str
    fault: str = ""
    recovery: str = ""
    suggestion: str = ""

    @property
    def cordons(self) -> bool:
        """Whether nodes may be taken out because of it."""
        recovery = self.recovery or (default.recovery if (default := taxonomy.REASONS.get(self.reason)) else "")
        return recovery == "isolate_and_restart"


class NewRule(msgspec.Struct, frozen=True):
    """A rule to be entered, as `proposed` or `shadow`.

    `waits_for` says why a human must approve it ("" when none must), beginning with `ERROR_WORD` when that is
    because its lines look like trouble: only its beginning is ours, the rest may quote a log. `lines` is how many
    lines of its source attempt it was seen to match. A diagnosis rule has a `claim`; one that `cordons` begins in
    shadow and waits there, with `CORDON`.
    """

    kind: str
    pattern: str
    title: str
    examples: tuple[str, ...]
    metrics: tuple[str, ...]
    status: str
    waits_for: str
    agent: str
    source: Source
    votes: Votes
    lines: int
    harmless: bool = False
    claim: Claim | None = None


class Learned(msgspec.Struct, frozen=True):
    """A learned rule. `place` is 0, 1, 2, ... among the rules of its kind, in the order of their entry.

    `jobs` is the number of attempts in which it matched, `lines` how many lines it matched there, `taken` how many
    it took while it was active. `created`, `changed` (its last step) and `last_hit` (when an attempt in which it
    matched was last counted) are seconds since the epoch.
    """

    id: str
    place: int
    kind: str
    pattern: str
    title: str
    examples: tuple[str, ...]
    metrics: tuple[str, ...]
    harmless: bool
    status: str
    waits_for: str
    agent: str
    source: Source
    votes: Votes
    jobs: int
    lines: int
    taken: int
    created: float
    changed: float
    claim: Claim | None = None
    last_hit: float | None = None

    @property
    def waits(self) -> bool:
        """Whether it goes on only when a human lets it: a proposed one, or one in shadow that may take nodes out."""
        return self.status == "proposed" or (self.status == "shadow" and bool(self.waits_for))


class LearnedPage(msgspec.Struct, frozen=True):
    """Some learned rules, and the cursor of the next page if there is one."""

    items: list[Learned]
    next: str | None


class Event(msgspec.Struct, frozen=True):
    """A step of a rule: who took it, when and why. `undoes` is the id of the event that it takes back.

    `rule` is the rule's id; `from_status` is "" when the rule was entered. `harmless` is the flag after the step.
    """

    id: int
    rule: str
    at: float
    by: str
    step: str
    from_status: str
    to_status: str
    why: str
    undoes: int | None
    harmless: bool


class Refused(msgspec.Struct, frozen=True):
    """A proposal that was not taken: which guard refused it, and why."""

    pattern: str
    guard: str
    cause: str
    votes: Votes | None = None


class StoredRefusal(msgspec.Struct, frozen=True):
    """A refused proposal, and whose it was, when, for which attempt."""

    id: int
    kind: str
    job: str
    attempt: int
    agent: str
    at: float
    pattern: str
    guard: str
    cause: str
    votes: Votes | None


class Noticed(msgspec.Struct, frozen=True):
    """An error line that an agent noticed, and how many of its runs did."""

    stream: str
    line: int
    text: str
    runs: int


class Spent(msgspec.Struct, frozen=True):
    """What model calls came to."""

    calls: int
    tokens: int
    dollars: float


class ModelTotal(msgspec.Struct, frozen=True):
    """All calls ever of a model for a purpose that ended alike: `result` is "ok" or the kind of failure."""

    model: str
    purpose: str
    result: str
    calls: int
    tokens_in: int
    tokens_out: int
    dollars: float


class _Origin(msgspec.Struct, frozen=True):
    """What is written once and never looked for."""

    title: str
    examples: tuple[str, ...]
    metrics: tuple[str, ...]
    waits_for: str
    source: Source
    votes: Votes
    claim: Claim | None = None


_encode = msgspec.json.Encoder().encode
_origin = msgspec.json.Decoder(_Origin)
_votes = msgspec.json.Decoder(Votes)
_rules = learned_rules


class LearnedRules:
    """The learned rules of one database; any thread and any process may call. Changes are durable on return.

    All calls raise `StoreError` when the database fails. Times (`at`) are seconds since the epoch.
    """

    def __init__(self, database: Database, most: int = MAX_RULES) -> None:
        self._database = database
        self._most = most

    # rules and their life

    def add(
        self, rules: Sequence[NewRule], by: str, at: float, step: str = "added", why: str = ""
    ) -> builtins.list[Learned]:
        """The rules as they are now stored, in their order; one that the kind has already comes back unchanged.

        `RuleRefused` when one of them cannot be stored or its kind is full; then none was.
        """
        who = _who(by)
        sound = [_sound(rule) for rule in rules]
        if not sound:
            return []
        with self._database.writing() as connection:
            return [_learned(_enter(connection, rule, self._most, who, at, step, why)) for rule in sound]

    def one(self, id: str) -> Learned:
        """The rule with this id; `RuleRefused` when there is none."""
        with self._database.reading() as connection:
            return _learned(_find(connection, id))

    def some(self, ids: Sequence[str]) -> dict[str, Learned]:
        """Those of some rules that there are, by their ids."""
        query = sa.select(_rules).where(_rules.c.id.in_([_plain(id) for id in ids]))
        with self._database.reading() as connection:
            return {row.id: _learned(row) for row in connection.execute(query)}

    def list(
        self, kind: str | None = None, status: str | None = None, agent: str | None = None, limit: int | None = None
    ) -> builtins.list[Learned]:
        """The rules for which all that is given holds, by kind and place; all of them without a limit."""
        query = sa.select(_rules).where(*_where(kind, status, agent)).order_by(_rules.c.kind, _rules.c.place)
        if limit is not None:
            query = query.limit(min(max(limit, 1), _MAX_ID))
        with self._database.reading() as connection:
            return [_learned(row) for row in connection.execute(query)]

    def page(
        self,
        kind: str | None = None,
        status: str | None = None,
        agent: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> LearnedPage:
        """A page of the rules for which all that is given holds, the newest first; `CursorError` for a bad cursor."""
        query = sa.select(_rules).where(*_where(kind, status, agent)).order_by(_rules.c.number.desc())
        if cursor is not None:
            query = query.where(_rules.c.number < _read_cursor(cursor))
        limit = _limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(query.limit(limit + 1)).all()
        found = [_learned(row) for row in rows[:limit]]
        return LearnedPage(found, str(rows[limit - 1].number) if len(rows) > limit else None)

    def kinds(self) -> dict[str, dict[str, int]]:
        """How many rules each kind has of each status: `{kind: {status: count}}`, by kind."""
        query = sa.select(_rules.c.kind, _rules.c.status, sa.func.count()).group_by(_rules.c.kind, _rules.c.status)
        kinds: dict[str, dict[str, int]] = {}
        with self._database.reading() as connection:
            for kind, status, count in connection.execute(query.order_by(_rules.c.kind, _rules.c.status)):
                kinds.setdefault(kind, {})[status] = count
        return kinds

    def version(self) -> int:
        """A number that every change raises that matters for matching: a new rule, its status, its flag."""
        with self._database.reading() as connection:
            return int(connection.scalar(sa.select(counters.c.value).where(counters.c.name == "learned")) or 0)

    def move(
        self, id: str, status: str, by: str, why: str, at: float, step: str = "move", expected: str | None = None
    ) -> Learned:
        """The rule with another status: the way of code, which tells `step`, such as "promote" or "demote".

        `RuleRefused` when there is no way to that status, when the rule waits for a human, or when its status is
        no longer the `expected` one. A diagnosis rule that may take nodes out becomes active only by `approve`.
        """

        def to(row: sa.Row[Any]) -> tuple[str, bool]:
            origin = _origin.decode(row.origin)
            cordons = origin.claim is not None and origin.claim.cordons
            if cordons and status == "active":
                raise _refused(
                    id, "can take nodes out of service, so a person must approve it", "Approve or retire it."
                )
            if row.status in ("proposed", "retired") and status == "shadow" and origin.waits_for and not cordons:
                raise _refused(id, f"is waiting for approval ({origin.waits_for})", "Approve or retire it.")
            return status, row.harmless

        return self._step(id, step, to, by, why, at, expected)

    def approve(self, id: str, by: str, why: str, at: float, expected: str | None = None) -> Learned:
        """The rule a step further: proposed or retired -> shadow -> active; a human's step.

        With it the rule is `harmless` when it waited because its lines look like trouble. `RuleRefused` when it
        is active.
        """

        def to(row: sa.Row[Any]) -> tuple[str, bool]:
            if row.status == "active":
                raise _refused(id, "is already active", "There is nothing left to approve.")
            harmless = row.harmless or _origin.decode(row.origin).waits_for.startswith(ERROR_WORD)
            return "active" if row.status == "shadow" else "shadow", harmless

        return self._step(id, "approve", to, by, why, at, expected)

    def retire(self, id: str, by: str, why: str, at: float, expected: str | None = None) -> Learned:
        """The rule, now retired; `RuleRefused` when it was."""
        return self._step(id, "retire", lambda row: ("retired", row.harmless), by, why, at, expected)

    def undo(self, id: str, by: str, why: str, at: float, expected: int | None = None) -> Learned:
        """The rule as it was before its latest step that was not taken back yet.

        `RuleRefused` when nothing is left to take back, or when that step is no longer the `expected` one (the id of
        an event). The undoing is recorded and cannot be undone itself.
        """
        who = _who(by)
        with self._database.writing() as connection:
            row = _find(connection, id)
            last = _last_step(connection, row.number)
            if last is None:
                raise _refused(id, "has no step that could be undone", "Approve or retire it instead.")
            if expected is not None and last.id != expected:
                raise _refused(id, "has a newer step", "Check it again.")
            return _change(connection, row, "undo", last.from_status, last.from_harmless, who, why, at, last.id)

    def events(self, id: str | None = None, limit: int = 100, before: int | None = None) -> builtins.list[Event]:
        """The steps of a rule or of all, the newest first; those before the event with the id `before`.

        `RuleRefused` when there is no such rule.
        """
        query = sa.select(rule_events, _rules.c.id.label("name")).join(_rules, _rules.c.number == rule_events.c.rule)
        with self._database.reading() as connection:
            if id is not None:
                query = query.where(rule_events.c.rule == _find(connection, id).number)
            if before is not None:
                query = query.where(rule_events.c.id < min(max(before, 0), _MAX_ID))
            rows = connection.execute(query.order_by(rule_events.c.id.desc()).limit(_limit(limit)))
            return [_event(row) for row in rows]

    def _step(
        self,
        id: str,
        step: str,
        to: Callable[[sa.Row[Any]], tuple[str, bool]],
        by: str,
        why: str,
        at: float,
        expected: str | None,
    ) -> Learned:
        """The rule after a step; `to` says of the row which status and flag it leads to."""
        who = _who(by)
        with self._database.writing() as connection:
            row = _find(connection, id)
            if expected is not None and row.status != expected:
                raise _refused(id, f"is {row.status}, not {ascii(expected)[:50]} any more", "Check it again.")
            status, harmless = to(row)
            if status not in _NEXT[row.status]:
                cause = f"is {status} already" if status == row.status else f"is {row.status}"
                raise _refused(id, cause, f"From there it can become {', '.join(_NEXT[row.status])}.")
            return _change(connection, row, step, status, harmless, who, why, at)

    # what the rules matched

    def count(self, kind: str, job: str, attempt: int, hits: Mapping[str, tuple[int, int]], at: float) -> None:
        """Counts what rules of the kind (by id) matched and took in an attempt: `{id: (lines, taken)}`.

        It replaces what was counted for this attempt before, so a verdict may be issued again; but a rule keeps at
        least the lines of this attempt that it was entered with. What filter rules did in it and what diagnosis rules
        did is counted apart. `RuleRefused` for a rule that the kind does not have, `NameRefused` for a bad name; then
        nothing was counted.
        """
        kind, attempt = _kind(kind), checked_attempt(attempt)
        checked("job", job)
        counts = {id: (_count(lines), _count(taken)) for id, (lines, taken) in hits.items()}
        with self._database.writing() as connection:
            turn = 0 if kind == DIAGNOSIS else _turn(connection, kind, job, attempt, at)
            _replace(connection, kind, job, attempt, counts, turn, at)

    def idle(self, kind: str) -> dict[str, int]:
        """For each rule of the kind in shadow: how many attempts were counted since it matched or came there.

        An attempt that is counted again keeps its place in the order.
        """
        query = sa.select(_rules.c.id, rule_kinds.c.counted - _rules.c.last_turn).order_by(_rules.c.place)
        query = query.join(rule_kinds, rule_kinds.c.kind == _rules.c.kind)
        with self._database.reading() as connection:
            rows = connection.execute(query.where(_rules.c.kind == _plain(kind), _rules.c.status == "shadow"))
            return {id: max(int(idle), 0) for id, idle in rows}

    # what was refused, seen and noticed

    def refuse(self, kind: str, job: str, attempt: int, agent: str, refusals: Sequence[Refused], at: float) -> None:
        """Keeps refused proposals of an agent for an attempt, cut to 2,000 characters, the last 2,000 of a kind."""
        kind, attempt = _kind(kind), checked_attempt(attempt)
        checked("job", job)
        if not refusals:
            return
        whose = {"kind": kind, "job": job, "attempt": attempt, "agent": _text(agent, _MAX_NAME), "at": at}
        counts: dict[str, int] = {}
        for refusal in refusals:
            guard = _text(refusal.guard, _MAX_NAME)
            counts[guard] = counts.get(guard, 0) + 1
        with self._database.writing() as connection:
            kept = refusals[-MAX_REFUSALS:]
            connection.execute(sa.insert(rule_refusals), [whose | _refusal_values(refusal) for refusal in kept])
            for guard, count in sorted(counts.items()):
                _raise(connection, refusal_counts, {"guard": guard}, {"refused": count})
            mine = rule_refusals.c.kind == kind
            newest = sa.select(rule_refusals.c.id).where(mine).order_by(rule_refusals.c.id.desc())
            if (last := connection.scalar(newest.offset(MAX_REFUSALS).limit(1))) is not None:
                connection.execute(sa.delete(rule_refusals).where(mine, rule_refusals.c.id <= last))

    def refusals(
        self, kind: str | None = None, guard: str | None = None, limit: int = 100, before: int | None = None
    ) -> builtins.list[StoredRefusal]:
        """The refusals that are kept for which all that is given holds, the newest first; those before the id."""
        query = sa.select(rule_refusals).order_by(rule_refusals.c.id.desc())
        if kind is not None:
            query = query.where(rule_refusals.c.kind == _plain(kind))
        if guard is not None:
            query = query.where(rule_refusals.c.guard == _plain(guard))
        if before is not None:
            query = query.where(rule_refusals.c.id < min(max(before, 0), _MAX_ID))
        with self._database.reading() as connection:
            return [_refusal(row) for row in connection.execute(query.limit(_limit(limit)))]

    def refusal_counts(self) -> dict[str, int]:
        """How many proposals each guard refused, ever."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(refusal_counts).order_by(refusal_counts.c.guard))
            return {row.guard: row.refused for row in rows}

    def seen_shapes(self, kind: str) -> set[int]:
        """The shapes of lines that were looked at for this kind."""
        with self._database.reading() as connection:
            return set(_shapes(connection, seen_shapes, _plain(kind)).tolist())

    def add_shapes(self, kind: str, shapes: Iterable[int]) -> None:
        """Keeps shapes that were looked at; the last 50,000 of a kind. `InputError` beyond 64 bits with a sign."""
        self._keep_shapes(seen_shapes, kind, shapes, slice(-MAX_SHAPES, None))

    def add_printed(self, kind: str, shapes: Iterable[int]) -> None:
        """Keeps shapes of lines that a job of this kind printed; the first 5,000 of a kind, with which its jobs begin.
        `InputError` as above."""
        self._keep_shapes(printed_shapes, kind, shapes, slice(MAX_PRINTED))

    def printed(self, shapes: Collection[int]) -> dict[str, int]:
        """How many of some shapes were printed by jobs of each kind, less those that three kinds or more print; a row
        that cannot be read counts for nothing."""
        asked = np.array(sorted(shapes), dtype="<i8")
        found: dict[str, Any] = {}
        with self._database.reading() as connection:
            for row in connection.execute(sa.select(printed_shapes.c.kind, printed_shapes.c.shapes)):
                if len(row.shapes) % asked.itemsize == 0:
                    found[row.kind] = np.isin(asked, np.frombuffer(row.shapes, dtype="<i8"))
        telling = sum(found.values(), np.zeros(len(asked), np.int64)) < _COMMON
        return {kind: int((hit & telling).sum()) for kind, hit in found.items()}

    def _keep_shapes(self, table: sa.Table, kind: str, shapes: Iterable[int], kept: slice) -> None:
        kind = _kind(kind)
        with self._database.writing() as connection:
            former = _shapes(connection, table, kind)
            known = set(former.tolist())
            new = np.array([shape for shape in dict.fromkeys(shapes) if shape not in known], dtype="<i8")
            if not len(new):
                return
            stored = np.concatenate((former, new))[kept].tobytes()
            change = sa.update(table).where(table.c.kind == kind).values(shapes=stored)
            if not connection.execute(change).rowcount:
                connection.execute(sa.insert(table).values(kind=kind, shapes=stored))

    def note(self, job: str, attempt: int, kind: str, lines: Sequence[Noticed]) -> None:
        """Keeps error lines that an agent noticed in an attempt: of all that were told the 200 of most runs."""
        kind, attempt = _kind(kind), checked_attempt(attempt)
        checked("job", job)
        with self._database.writing() as connection:
            found = {(line.stream, line.line): line for line in _noticed(connection, job, attempt)}
            for line in map(_told, lines):
                former = found.get((line.stream, line.line))
                if former is None or former.runs < line.runs:
                    found[line.stream, line.line] = line
            kept = heapq.nsmallest(MAX_NOTICED, found.values(), key=lambda line: (-line.runs, line.stream, line.line))
            connection.execute(sa.delete(noticed_lines).where(*_of(noticed_lines, job, attempt)))
            if kept:
                whose = {"job": job, "attempt": attempt, "kind": kind}
                connection.execute(sa.insert(noticed_lines), [whose | msgspec.structs.asdict(line) for line in kept])

    def noticed(self, job: str, attempt: int) -> builtins.list[Noticed]:
        """The error lines that an agent noticed in an attempt, by stream and line."""
        with self._database.reading() as connection:
            return _noticed(connection, _plain(job), attempt)

    # what models cost

    def enter(
        self,
        job: str,
        model: str,
        purpose: str,
        tokens_in: int,
        tokens_out: int,
        dollars: float,
        failure: str,
        at: float,
    ) -> None:
        """Writes down a call of a model for a job ("" for none); `failure` is its kind, "" for a good answer.

        What was spent must count, so nothing is refused: texts are cut, and impossible numbers are brought in range.
        """
        names = {"model": _text(model, _MAX_NAME), "purpose": _text(purpose, _MAX_NAME)}
        spent = {
            "tokens_in": min(max(tokens_in, 0), _MAX_COUNT),
            "tokens_out": min(max(tokens_out, 0), _MAX_COUNT),
            "dollars": max(dollars, 0.0) if math.isfinite(dollars) else 0.0,
        }
        failure = _text(failure, _MAX_NAME)
        with self._database.writing() as connection:
            call = names | spent | {"job": _text(job, _MAX_NAME), "failure": failure, "at": at}
            connection.execute(sa.insert(model_calls).values(call))
            _raise(connection, model_totals, names | {"result": failure or "ok"}, {"calls": 1} | spent)

    def spent(self, job: str | None, since: float) -> Spent:
        """What calls came to from a time on: those of a job, or all for None."""
        columns = model_calls.c
        query = sa.select(
            sa.func.count(), sa.func.sum(columns.tokens_in + columns.tokens_out), sa.func.sum(columns.dollars)
        ).where(columns.at >= since)
        if job is not None:
            query = query.where(columns.job == _text(job, _MAX_NAME))
        with self._database.reading() as connection:
            calls, tokens, dollars = connection.execute(query).one()
        return Spent(int(calls), int(tokens or 0), float(dollars or 0.0))

    def model_totals(self) -> builtins.list[ModelTotal]:
        """All calls ever, by model, purpose and result."""
        columns = model_totals.c
        query = sa.select(model_totals).order_by(columns.model, columns.purpose, columns.result)
        with self._database.reading() as connection:
            return [ModelTotal(**row._mapping) for row in connection.execute(query)]


# what comes from outside


def _refused(id: str, cause: str, next_step: str) -> RuleRefused:
    return RuleRefused(f"the learned rule {ascii(id)[:200]}", cause, next_step)


def _plain(text: str) -> str:
    """The text as columns hold it: NUL and halves of surrogate pairs, which databases refuse, are replaced."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _text(text: str, most: int = _MAX_TEXT) -> str:
    return _plain(text[:most])


def _who(by: str) -> str:
    """The name of who takes a step; `RuleRefused` when it is none."""
    if not by.strip():
        raise RuleRefused("a step of a learned rule", "names nobody who took it", "Say who you are.")
    return _text(by, _MAX_NAME)


def _kind(kind: str) -> str:
    """The kind; `RuleRefused` for one that cannot be stored and shown."""
    if not kind.strip() or len(kind) > MAX_KIND or not kind.isprintable():
        cause = f"is not a kind of job ({len(kind)} characters)"
        raise RuleRefused(f"the kind {ascii(kind)[:100]}", cause, f"Use 1 to {MAX_KIND} printable characters.")
    return kind


def _count(value: int) -> int:
    if not 0 <= value <= _MAX_COUNT:
        raise InputError("a number of lines", f"is {str(value)[:50]}", f"Use 0 to {_MAX_COUNT}.")
    return value


def _sound(rule: NewRule) -> NewRule:
    """The rule as it will be stored; `RuleRefused` when it cannot be.

    What says something about the rule is cut where it is too long; what must stay as it is, is refused.
    """
    _kind(rule.kind)
    _count(rule.lines)
    if rule.source.attempt is not None:
        checked_attempt(rule.source.attempt)
    if not rule.pattern or len(rule.pattern) > MAX_PATTERN:
        raise _unfit(rule, f"its pattern has {len(rule.pattern)} characters", f"Use 1 to {MAX_PATTERN}.")
    if any(mark in rule.pattern for mark in "\0\n\r"):
        raise _unfit(rule, "its pattern holds a line break or NUL", "Write it in one line.")
    if rule.status not in ("proposed", "shadow"):
        raise _unfit(rule, f"it would start as {ascii(rule.status)[:50]}", "Use proposed or shadow.")
    if rule.status != "proposed" and rule.waits_for and not (rule.claim and rule.claim.cordons):
        raise _unfit(rule, "it needs approval", "Let it start as proposed.")
    if (rule.claim is None) == (rule.kind == DIAGNOSIS):
        raise _unfit(rule, "a diagnosis rule has a claim, and no other has", f"Use the kind {DIAGNOSIS} for them.")
    if rule.claim is not None and (complaint := _claim_complaint(rule.claim)):
        raise _unfit(rule, complaint, "Use a word of logdoctor/taxonomy.py.")
    for name, texts in (("examples", rule.examples), ("metrics", rule.metrics)):
        if len(texts) > _MAX_TEXTS or any(len(text) > _MAX_EXAMPLE for text in texts):
            raise _unfit(rule, f"its {name} are too long", f"Use {_MAX_TEXTS} of at most {_MAX_EXAMPLE} characters.")
    try:
        for text in (rule.pattern, *rule.examples, *rule.metrics):
            text.encode()
    except UnicodeEncodeError as error:
        raise _unfit(rule, f"its text is not UTF-8 ({error.reason})", "Leave out halves of surrogate pairs.") from error
    told = {name: _text(value) for name, value in msgspec.structs.asdict(rule.source).items() if isinstance(value, str)}
    return msgspec.structs.replace(
        rule,
        title=_text(rule.title, _MAX_NAME),
        waits_for=_text(rule.waits_for),
        agent=_text(rule.agent, _MAX_NAME),
        source=msgspec.structs.replace(rule.source, **told),
        votes=_cut(rule.votes),
        claim=rule.claim and msgspec.structs.replace(rule.claim, suggestion=_text(rule.claim.suggestion)),
    )


def _claim_complaint(claim: Claim) -> str | None:
    """What is no word of the taxonomy, or no reason of a failure."""
    if claim.reason not in taxonomy.REASONS or claim.reason == "Unknown":
        return f"its reason {ascii(claim.reason)[:80]} is not in the taxonomy"
    for name, value, known in (
        ("fault", claim.fault, taxonomy.FAULTS),
        ("recovery", claim.recovery, taxonomy.RECOVERIES),
    ):
        if value and value not in known:
            return f"its {name} {ascii(value)[:80]} is not in the taxonomy"
    return None


def _cut(votes: Votes) -> Votes:
    return msgspec.structs.replace(votes, agreed=votes.agreed[:_MAX_TEXTS], judge=_text(votes.judge))


def _unfit(rule: NewRule, cause: str, next_step: str) -> RuleRefused:
    return RuleRefused(f"the pattern {rule.pattern[:100]!a} of {rule.kind[:100]!a}", cause, next_step)


def _limit(limit: int) -> int:
    return min(max(limit, 1), MAX_PAGE)


def _read_cursor(cursor: str) -> int:
    if cursor.isascii() and cursor.isdigit() and len(cursor) < 20 and int(cursor) <= _MAX_ID:
        return int(cursor)
    raise CursorError("the cursor", "does not come from a page of this list", "Start again without a cursor.")


# rules


def _where(kind: str | None, status: str | None, agent: str | None) -> list[sa.ColumnElement[bool]]:
    given = ((_rules.c.kind, kind), (_rules.c.status, status), (_rules.c.agent, agent))
    return [column == _plain(value) for column, value in given if value is not None]


def _learned(row: sa.Row[Any]) -> Learned:
    """The rule of a row. One whose row was damaged keeps its place, and is retired as far as anybody can tell."""
    try:
        origin, status = _origin.decode(row.origin), row.status
    except msgspec.DecodeError as error:
        title = f"cannot be read ({str(error)[:200]})"
        origin, status = _Origin(title, (), (), title, Source(), Votes(0, (), "")), "retired"
    return Learned(
        id=row.id,
        place=row.place,
        kind=row.kind,
        pattern=row.pattern,
        title=origin.title,
        examples=origin.examples,
        metrics=origin.metrics,
        harmless=row.harmless,
        status=status,
        waits_for=origin.waits_for,
        agent=row.agent,
        source=origin.source,
        votes=origin.votes,
        jobs=row.jobs,
        lines=row.lines,
        taken=row.taken,
        created=row.created,
        changed=row.changed,
        claim=origin.claim,
        last_hit=row.last_hit,
    )


def _find(connection: sa.Connection, id: str) -> sa.Row[Any]:
    row = connection.execute(sa.select(_rules).where(_rules.c.id == _plain(id))).first()
    if row is None:
        raise _refused(id, "does not exist", "List the learned rules.")
    return row


def _row(connection: sa.Connection, number: int) -> sa.Row[Any]:
    return connection.execute(sa.select(_rules).where(_rules.c.number == number)).one()


def _enter(connection: sa.Connection, rule: NewRule, most: int, by: str, at: float, step: str, why: str) -> sa.Row[Any]:
    """The row of the rule: the one it has, or a new one at the end of its kind."""
    said = (rule.claim.reason, rule.claim.recovery) if rule.claim else ()  # what two may say otherwise of one line
    digest = hashlib.sha256(_encode((rule.kind, rule.pattern, *said))).hexdigest()
    if known := connection.execute(sa.select(_rules).where(_rules.c.digest == digest)).first():
        return known
    last = connection.scalar(sa.select(sa.func.max(_rules.c.place)).where(_rules.c.kind == rule.kind))
    place = 0 if last is None else int(last) + 1
    if place >= most:
        raise _unfit(rule, f"the kind has {place} rules", "No more can be learned for it.")
    new = sa.insert(_rules).values(
        id=_free_id(connection, rule.kind, digest),
        kind=rule.kind,
        place=place,
        digest=digest,
        pattern=rule.pattern,
        status=rule.status,
        harmless=rule.harmless,
        agent=rule.agent,
        jobs=0,
        lines=0,
        taken=0,
        last_turn=_counted(connection, rule.kind),
        created=at,
        changed=at,
        origin=_encode(
            _Origin(rule.title, rule.examples, rule.metrics, rule.waits_for, rule.source, rule.votes, rule.claim)
        ).decode(),
    )
    number = int(connection.execute(new.returning(_rules.c.number)).scalar_one())
    _count_source(connection, number, rule, at)
    _write_event(connection, number, step, ("", rule.harmless), (rule.status, rule.harmless), by, why, at)
    return _row(connection, number)


def _count_source(connection: sa.Connection, number: int, rule: NewRule, at: float) -> None:
    """Counts the lines of the source attempt; what is counted for it later replaces them."""
    job, attempt = rule.source.job, rule.source.attempt
    if job is None or attempt is None or not rule.lines:
        return
    whose = {"job": checked("job", job), "attempt": checked_attempt(attempt), "rule": number}
    connection.execute(sa.insert(rule_hits).values(**whose, lines=rule.lines, taken=0, seen=rule.lines))
    counted = {"jobs": 1, "lines": rule.lines, "last_hit": at}
    connection.execute(sa.update(_rules).where(_rules.c.number == number).values(counted))


def _free_id(connection: sa.Connection, kind: str, digest: str) -> str:
    """`learned/<kind>/<digits>`: as few digits of the digest as tell the rule from those before."""
    for digits in range(_FIRST_DIGITS, len(digest), 8):
        id = f"learned/{_slug(kind)}/{digest[:digits]}"
        if connection.scalar(sa.select(_rules.c.number).where(_rules.c.id == id)) is None:
            return id
    return f"learned/{_slug(kind)}/{digest}"


def _slug(kind: str) -> str:
    """The kind in a-z, 0-9, `-` and `/`, at most 80 characters, fit to be a path; kinds may share one."""
    parts = (re.sub("[^a-z0-9]+", "-", part).strip("-") for part in kind.lower().split("/"))
    return "/".join(filter(None, parts))[:_MAX_SLUG].rstrip("/-") or "kind"


def _change(
    connection: sa.Connection,
    row: sa.Row[Any],
    step: str,
    status: str,
    harmless: bool,
    by: str,
    why: str,
    at: float,
    undoes: int | None = None,
) -> Learned:
    """The rule with this status and flag, and the event of it."""
    values: dict[str, Any] = {"status": status, "harmless": harmless, "changed": at}
    if status == "shadow":  # it is watched from now on, however long it was not seen before
        values["last_turn"] = _counted(connection, row.kind)
    connection.execute(sa.update(_rules).where(_rules.c.number == row.number).values(values))
    _write_event(connection, row.number, step, (row.status, row.harmless), (status, harmless), by, why, at, undoes)
    return _learned(_row(connection, row.number))


def _write_event(
    connection: sa.Connection,
    rule: int,
    step: str,
    before: tuple[str, bool],
    after: tuple[str, bool],
    by: str,
    why: str,
    at: float,
    undoes: int | None = None,
) -> None:
    """Writes down a step, and raises the version: nothing else changes a rule."""
    event = sa.insert(rule_events).values(
        rule=rule,
        at=at,
        by=by,
        step=_text(step, _MAX_NAME),
        from_status=before[0],
        to_status=after[0],
        from_harmless=before[1],
        to_harmless=after[1],
        why=_text(why),
        undoes=undoes,
    )
    connection.execute(event)
    connection.execute(sa.update(counters).where(counters.c.name == "learned").values(value=counters.c.value + 1))


def _last_step(connection: sa.Connection, rule: int) -> sa.Row[Any] | None:
    """The latest event of the rule that is neither its entry, nor an undoing, nor undone."""
    later = rule_events.alias()
    undone = sa.select(later.c.undoes).where(later.c.rule == rule, later.c.undoes.is_not(None))
    mine = (rule_events.c.rule == rule, rule_events.c.from_status != "", rule_events.c.undoes.is_(None))
    query = sa.select(rule_events).where(*mine, rule_events.c.id.not_in(undone))
    return connection.execute(query.order_by(rule_events.c.id.desc()).limit(1)).first()


def _event(row: sa.Row[Any]) -> Event:
    return Event(
        id=row.id,
        rule=row.name,
        at=row.at,
        by=row.by,
        step=row.step,
        from_status=row.from_status,
        to_status=row.to_status,
        why=row.why,
        undoes=row.undoes,
        harmless=row.to_harmless,
    )


# counting


def _raise(
    connection: sa.Connection, table: sa.Table, key: Mapping[str, str], amounts: Mapping[str, int | float]
) -> None:
    """Adds to the numbers of a row, which is made when it is missing; nobody else writes meanwhile."""
    where = [table.c[name] == value for name, value in key.items()]
    more = {name: table.c[name] + amount for name, amount in amounts.items()}
    if not connection.execute(sa.update(table).where(*where).values(more)).rowcount:
        connection.execute(sa.insert(table).values({**key, **amounts}))


def _of(table: sa.Table, job: str, attempt: int) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return table.c.job == job, table.c.attempt == attempt


def _counted(connection: sa.Connection, kind: str) -> int:
    return int(connection.scalar(sa.select(rule_kinds.c.counted).where(rule_kinds.c.kind == kind)) or 0)


def _turn(connection: sa.Connection, kind: str, job: str, attempt: int, at: float) -> int:
    """The attempt's number among those of its kind, in the order in which they were first counted."""
    table = counted_attempts
    known = connection.execute(sa.select(table).where(*_of(table, job, attempt))).first()
    if known is not None and known.kind == kind:
        return int(known.turn)
    _raise(connection, rule_kinds, {"kind": kind}, {"counted": 1})
    turn = _counted(connection, kind)
    connection.execute(sa.delete(table).where(*_of(table, job, attempt)))  # more was told, and its kind is another
    connection.execute(sa.insert(table).values(job=job, attempt=attempt, kind=kind, turn=turn, at=at))
    return turn


def _replace(
    connection: sa.Connection,
    kind: str,
    job: str,
    attempt: int,
    counts: Mapping[str, tuple[int, int]],
    turn: int,
    at: float,
) -> None:
    """Puts these counts in the place of the attempt's former ones, and brings the rules' totals up to date."""
    mine = sa.select(_rules.c.number, _rules.c.id).where(_rules.c.kind == kind)
    numbers = {row.id: row.number for row in connection.execute(mine)}
    if unknown := sorted(counts.keys() - numbers.keys()):
        raise _refused(unknown[0], f"is none of the kind {ascii(kind)[:100]}", "Count rules of that kind only.")
    where = (*_of(rule_hits, job, attempt), rule_hits.c.rule.in_(_of_same_sort(kind)))
    former = {
        row.rule: (row.lines, row.taken, row.seen) for row in connection.execute(sa.select(rule_hits).where(*where))
    }
    hits = {rule: (seen, 0, seen) for rule, (_, _, seen) in former.items() if seen}
    for id, (lines, taken) in counts.items():
        seen = former.get(numbers[id], (0, 0, 0))[2]
        if lines or taken:
            hits[numbers[id]] = (max(lines, seen), taken, seen)
    changed = {rule for rule in former.keys() | hits.keys() if former.get(rule) != hits.get(rule)}
    if not changed:
        return
    connection.execute(sa.delete(rule_hits).where(*where))
    whose = {"job": job, "attempt": attempt}
    names = ("lines", "taken", "seen")
    if hits:
        rows = [{**whose, "rule": rule, **dict(zip(names, hit, strict=True))} for rule, hit in sorted(hits.items())]
        connection.execute(sa.insert(rule_hits), rows)
    nothing = (0, 0, 0)
    changes = [
        {
            "one": rule,
            "more_jobs": (rule in hits) - (rule in former),
            "more_lines": hits.get(rule, nothing)[0] - former.get(rule, nothing)[0],
            "more_taken": hits.get(rule, nothing)[1] - former.get(rule, nothing)[1],
            "turn": turn if rule in hits else 0,
            "hit_at": at if rule in hits else 0.0,
        }
        for rule in sorted(changed)
    ]
    connection.execute(_TOTALS, changes)


def _of_same_sort(kind: str) -> sa.Select[Any]:
    """The diagnosis rules or, for a kind of jobs, the filter rules of all kinds: an attempt has hits of both sorts."""
    same = _rules.c.kind == DIAGNOSIS if kind == DIAGNOSIS else _rules.c.kind != DIAGNOSIS
    return sa.select(_rules.c.number).where(same)


_TURN = sa.bindparam("turn", type_=sa.BigInteger)
_HIT_AT = sa.bindparam("hit_at", type_=sa.Double)
_LAST_HIT = sa.func.coalesce(_rules.c.last_hit, 0.0)
_TOTALS = (
    sa.update(_rules)
    .where(_rules.c.number == sa.bindparam("one"))
    .values(
        jobs=_rules.c.jobs + sa.bindparam("more_jobs"),
        lines=_rules.c.lines + sa.bindparam("more_lines"),
        taken=_rules.c.taken + sa.bindparam("more_taken"),
        last_turn=sa.case((_rules.c.last_turn < _TURN, _TURN), else_=_rules.c.last_turn),
        last_hit=sa.case((_LAST_HIT < _HIT_AT, _HIT_AT), else_=_rules.c.last_hit),
    )
)


# refusals, shapes, notices


def _refusal_values(refusal: Refused) -> dict[str, Any]:
    return {
        "pattern": _text(refusal.pattern),
        "guard": _text(refusal.guard, _MAX_NAME),
        "cause": _text(refusal.cause),
        "votes": None if refusal.votes is None else _encode(_cut(refusal.votes)).decode(),
    }


def _refusal(row: sa.Row[Any]) -> StoredRefusal:
    votes = None if row.votes is None else _votes.decode(row.votes)
    return StoredRefusal(**{**row._mapping, "votes": votes})


def _shapes(connection: sa.Connection, table: sa.Table, kind: str) -> Any:
    """The shapes that a table has of a kind, the oldest first: an array of 64-bit numbers."""
    kept = connection.scalar(sa.select(table.c.shapes).where(table.c.kind == kind))
    return np.frombuffer(kept or b"", dtype="<i8")


def _told(line: Noticed) -> Noticed:
    """The line as it will be stored; `InputError` for a number out of range."""
    return Noticed(checked("stream", line.stream), _count(line.line), _text(line.text), min(_count(line.runs), 10**6))


def _noticed(connection: sa.Connection, job: str, attempt: int) -> list[Noticed]:
    table = noticed_lines
    query = sa.select(table).where(*_of(table, job, attempt)).order_by(table.c.stream, table.c.line)
    return [Noticed(row.stream, row.line, row.text, row.runs) for row in connection.execute(query)]
