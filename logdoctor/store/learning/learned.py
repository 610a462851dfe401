"""Learned rules and their lifecycle.

A filter rule belongs to a kind of jobs. A diagnosis rule has a claim, belongs to the kind `DIAGNOSIS`, and is for all
jobs: its hits are counted apart from those of filter rules.

Rules are only appended, and a rule keeps its place among those of its kind for ever, so counting by place continues
while others add rules. A step of a rule and the record of who took it are written in one transaction.
"""

import builtins
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from logdoctor import taxonomy
from logdoctor.errors import RuleRefused
from logdoctor.store.database import Database
from logdoctor.store.fit import MAX_ID, below, fit, fit_limit, plain
from logdoctor.store.learning.noticed import NoticedLines
from logdoctor.store.learning.overrides import Overrides
from logdoctor.store.learning.refusals import Refusals, Votes
from logdoctor.store.learning.rule_hits import RuleHits, counted, enter_first_hits
from logdoctor.store.learning.rule_rows import (
    DIAGNOSIS,
    MAX_NAME,
    MAX_TEXTS,
    bounded,
    checked_count,
    checked_kind,
    refused,
)
from logdoctor.store.learning.shapes import Shapes
from logdoctor.store.names import checked_attempt
from logdoctor.store.schema import count_up, counter, learned_rules, rule_events

STATUSES = ("proposed", "shadow", "active", "retired")

ERROR_WORD = "error-word"
"""Prefix of `waits_for` for a rule whose lines look like trouble: approving it says that they are harmless."""

CORDON = "cordon"
"""Prefix of `waits_for` for a rule in shadow whose recovery cordons a node."""

MAX_RULES = 5000
"""Rules of a kind, including retired ones."""
MAX_PATTERN = 4000
"""Characters of a pattern."""

_MAX_EXAMPLE = 16_384

_MAX_SLUG = 80
_FIRST_DIGITS = 8

_NEXT = {
    "proposed": ("shadow", "retired"),
    "shadow": ("active", "retired", "proposed"),
    "active": ("shadow", "retired", "proposed"),
    "retired": ("shadow",),
}
"""The transitions between statuses: no rule becomes active without shadow."""


class Source(msgspec.Struct, frozen=True):
    """The source of a rule: the attempt it was learned from, and facts of its job."""

    job: str | None = None
    attempt: int | None = None
    framework: str | None = None
    image: str | None = None
    command: str | None = None
    user: str | None = None
    name: str | None = None


class StoredClaim(msgspec.Struct, frozen=True):
    """What a learned diagnosis rule says of a failure; its line is the cause. "" means the taxonomy's default."""

    reason: str
    fault: str = ""
    recovery: str = ""
    suggestion: str = ""

    @property
    def cordons(self) -> bool:
        """Whether nodes may be cordoned because of it."""
        recovery = self.recovery or (default.recovery if (default := taxonomy.REASONS.get(self.reason)) else "")
        return recovery == "isolate_and_restart"


class NewRule(msgspec.Struct, frozen=True):
    """A rule to add, as `proposed` or `shadow`.

    `waits_for` says why a human must approve it ("" if none must), beginning with `ERROR_WORD` if its lines look like
    trouble: only its beginning is ours, the rest may quote a log. `lines` is how many lines of its source attempt it
    matched. A diagnosis rule has a `claim`; one that `cordons` begins in shadow and waits there, with `CORDON`.
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
    claim: StoredClaim | None = None


class Learned(msgspec.Struct, frozen=True):
    """A learned rule. `place` is 0, 1, 2, ... among the rules of its kind, in the order of entry.

    `jobs` is the number of attempts in which it matched, `lines` how many lines it matched there, `taken` how many it
    took while it was active. `created`, `changed` (its last step) and `last_hit` (when an attempt in which it matched
    was last counted) are seconds since the epoch.
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
    claim: StoredClaim | None = None
    last_hit: float | None = None

    @property
    def waits(self) -> bool:
        """Whether it waits for a human: a proposed rule, or one in shadow that may cordon nodes."""
        return self.status == "proposed" or (self.status == "shadow" and bool(self.waits_for))


class LearnedPage(msgspec.Struct, frozen=True):
    """A page of learned rules, and the cursor of the next page, if any."""

    items: list[Learned]
    next: str | None


class Event(msgspec.Struct, frozen=True):
    """A step of a rule: who took it, when and why. `undoes` is the id of the event that it reverts.

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


class _Origin(msgspec.Struct, frozen=True):
    """The columns that are written once and never searched."""

    title: str
    examples: tuple[str, ...]
    metrics: tuple[str, ...]
    waits_for: str
    source: Source
    votes: Votes
    claim: StoredClaim | None = None


_encode = msgspec.json.Encoder().encode
_origin = msgspec.json.Decoder(_Origin)
_rules = learned_rules


class LearnedRules:
    """The learned rules of one database; usable from any thread and process. Changes are durable on return.

    With them go their `hits`, the `refusals` of proposals, the `shapes` of examined lines, the `noticed` lines, and the
    `overrides` of shipped rules. All calls raise `StoreError` when the database fails. Times (`at`) are seconds since
    the epoch.
    """

    def __init__(self, database: Database, most: int = MAX_RULES) -> None:
        self._database = database
        self._most = most
        self.hits = RuleHits(database)
        self.refusals = Refusals(database)
        self.shapes = Shapes(database)
        self.noticed = NoticedLines(database)
        self.overrides = Overrides(database)

    # rules and their lifecycle

    def add(
        self, rules: Sequence[NewRule], by: str, at: float, step: str = "added", why: str = ""
    ) -> builtins.list[Learned]:
        """Store rules and return them in order; one that the kind has already is returned unchanged.

        `RuleRefused` when one is invalid or its kind is full; then none was stored.
        """
        who = _who(by)
        sound = [_sound(rule) for rule in rules]
        if not sound:
            return []
        with self._database.writing() as connection:
            return [_learned(_enter(connection, rule, self._most, who, at, step, why)) for rule in sound]

    def one(self, id: str) -> Learned:
        """Return the rule with this id; `RuleRefused` when there is none."""
        with self._database.reading() as connection:
            return _learned(_find(connection, id))

    def some(self, ids: Sequence[str]) -> dict[str, Learned]:
        """Return the existing rules among these ids, by id."""
        query = sa.select(_rules).where(_rules.c.id.in_([plain(id) for id in ids]))
        with self._database.reading() as connection:
            return {row.id: _learned(row) for row in connection.execute(query)}

    def list(
        self, kind: str | None = None, status: str | None = None, agent: str | None = None, limit: int | None = None
    ) -> builtins.list[Learned]:
        """Return the rules that match all given conditions, by kind and place; all of them without a limit."""
        query = sa.select(_rules).where(*_where(kind, status, agent)).order_by(_rules.c.kind, _rules.c.place)
        if limit is not None:
            query = query.limit(min(max(limit, 1), MAX_ID))
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
        """Return a page of the rules that match all given conditions, newest first; `CursorError` for a bad cursor."""
        query = sa.select(_rules).where(*_where(kind, status, agent)).order_by(_rules.c.number.desc())
        query = query.where(_rules.c.number < below(cursor))
        limit = fit_limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(query.limit(limit + 1)).all()
        found = [_learned(row) for row in rows[:limit]]
        return LearnedPage(found, str(rows[limit - 1].number) if len(rows) > limit else None)

    def kinds(self) -> dict[str, dict[str, int]]:
        """Return the number of rules by kind and status: `{kind: {status: count}}`, by kind."""
        query = sa.select(_rules.c.kind, _rules.c.status, sa.func.count()).group_by(_rules.c.kind, _rules.c.status)
        kinds: dict[str, dict[str, int]] = {}
        with self._database.reading() as connection:
            for kind, status, count in connection.execute(query.order_by(_rules.c.kind, _rules.c.status)):
                kinds.setdefault(kind, {})[status] = count
        return kinds

    def version(self) -> int:
        """Return a number that grows with every change that affects matching: a new rule, its status, its flag."""
        with self._database.reading() as connection:
            return counter(connection, "learned")

    def move(
        self, id: str, status: str, by: str, why: str, at: float, step: str = "move", expected: str | None = None
    ) -> Learned:
        """Change a rule's status and return it; used by code (not people), which names the `step`, such as "promote".

        `RuleRefused` when there is no such transition, when the rule waits for a human, or when its status is no longer
        the `expected` one. A diagnosis rule that may cordon nodes becomes active only by `approve`.
        """

        def to(row: sa.Row[Any]) -> tuple[str, bool]:
            origin = _origin.decode(row.origin)
            cordons = origin.claim is not None and origin.claim.cordons
            if cordons and status == "active":
                raise refused(id, "can cordon nodes, so a person must approve it", "Approve or retire it.")
            if row.status in ("proposed", "retired") and status == "shadow" and origin.waits_for and not cordons:
                raise refused(id, f"is waiting for approval ({origin.waits_for})", "Approve or retire it.")
            return status, row.harmless

        return self._step(id, step, to, by, why, at, expected)

    def approve(self, id: str, by: str, why: str, at: float, expected: str | None = None) -> Learned:
        """Move a rule one step (proposed or retired -> shadow -> active) and return it. Only a human does this.

        This marks it as `harmless` if it waited because its lines look like trouble. `RuleRefused` when it is active.
        """

        def to(row: sa.Row[Any]) -> tuple[str, bool]:
            if row.status == "active":
                raise refused(id, "is already active", "There is nothing left to approve.")
            harmless = row.harmless or _origin.decode(row.origin).waits_for.startswith(ERROR_WORD)
            return "active" if row.status == "shadow" else "shadow", harmless

        return self._step(id, "approve", to, by, why, at, expected)

    def retire(self, id: str, by: str, why: str, at: float, expected: str | None = None) -> Learned:
        """Retire a rule and return it; `RuleRefused` when it is retired already."""
        return self._step(id, "retire", lambda row: ("retired", row.harmless), by, why, at, expected)

    def undo(self, id: str, by: str, why: str, at: float, expected: int | None = None) -> Learned:
        """Revert the latest step of a rule not reverted yet, and return the rule.

        `RuleRefused` when no step is left to revert, or when that step is no longer the `expected` one (the id of an
        event). The undoing is recorded and cannot be undone itself.
        """
        who = _who(by)
        with self._database.writing() as connection:
            row = _find(connection, id)
            last = _last_step(connection, row.number)
            if last is None:
                raise refused(id, "has no step that could be undone", "Approve or retire it instead.")
            if expected is not None and last.id != expected:
                raise refused(id, "has a newer step", "Check it again.")
            return _change(connection, row, "undo", last.from_status, last.from_harmless, who, why, at, last.id)

    def events(self, id: str | None = None, limit: int = 100, before: int | None = None) -> builtins.list[Event]:
        """Return the steps of a rule or of all, newest first; those before the event with the id `before`.

        `RuleRefused` when there is no such rule.
        """
        query = sa.select(rule_events, _rules.c.id.label("name")).join(_rules, _rules.c.number == rule_events.c.rule)
        with self._database.reading() as connection:
            if id is not None:
                query = query.where(rule_events.c.rule == _find(connection, id).number)
            if before is not None:
                query = query.where(rule_events.c.id < min(max(before, 0), MAX_ID))
            rows = connection.execute(query.order_by(rule_events.c.id.desc()).limit(fit_limit(limit)))
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
        """Take a step and return the rule; `to` maps the row to the new status and flag."""
        who = _who(by)
        with self._database.writing() as connection:
            row = _find(connection, id)
            if expected is not None and row.status != expected:
                raise refused(id, f"is {row.status}, not {ascii(expected)[:50]} any more", "Check it again.")
            status, harmless = to(row)
            if status not in _NEXT[row.status]:
                cause = f"is {status} already" if status == row.status else f"is {row.status}"
                raise refused(id, cause, f"From there it can become {', '.join(_NEXT[row.status])}.")
            return _change(connection, row, step, status, harmless, who, why, at)


# validation of input


def _who(by: str) -> str:
    """Return the name of who takes a step; `RuleRefused` when it is empty."""
    if not by.strip():
        raise RuleRefused("a step of a learned rule", "names nobody who took it", "Say who you are.")
    return fit(by, MAX_NAME)


def _sound(rule: NewRule) -> NewRule:
    """Return the rule as it will be stored; `RuleRefused` when it is invalid.

    Descriptive texts are cut if too long; what must stay as it is, is refused.
    """
    checked_kind(rule.kind)
    checked_count(rule.lines)
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
        if len(texts) > MAX_TEXTS or any(len(text) > _MAX_EXAMPLE for text in texts):
            raise _unfit(rule, f"its {name} are too long", f"Use {MAX_TEXTS} of at most {_MAX_EXAMPLE} characters.")
    try:
        for text in (rule.pattern, *rule.examples, *rule.metrics):
            text.encode()
    except UnicodeEncodeError as error:
        raise _unfit(rule, f"its text is not UTF-8 ({error.reason})", "Leave out halves of surrogate pairs.") from error
    source = msgspec.structs.asdict(rule.source)
    said = {name: bounded(value) for name, value in source.items() if isinstance(value, str)}
    return msgspec.structs.replace(
        rule,
        title=fit(rule.title, MAX_NAME),
        waits_for=bounded(rule.waits_for),
        agent=fit(rule.agent, MAX_NAME),
        source=msgspec.structs.replace(rule.source, **said),
        votes=rule.votes.cut(),
        claim=rule.claim and msgspec.structs.replace(rule.claim, suggestion=bounded(rule.claim.suggestion)),
    )


def _claim_complaint(claim: StoredClaim) -> str | None:
    """Return what is not in the taxonomy, or no reason of a failure; None if all is valid."""
    if claim.reason not in taxonomy.REASONS or claim.reason == "Unknown":
        return f"its reason {ascii(claim.reason)[:80]} is not in the taxonomy"
    for name, value, known in (
        ("fault", claim.fault, taxonomy.FAULTS),
        ("recovery", claim.recovery, taxonomy.RECOVERIES),
    ):
        if value and value not in known:
            return f"its {name} {ascii(value)[:80]} is not in the taxonomy"
    return None


def _unfit(rule: NewRule, cause: str, next_step: str) -> RuleRefused:
    return RuleRefused(f"the pattern {rule.pattern[:100]!a} of {rule.kind[:100]!a}", cause, next_step)


# rules


def _where(kind: str | None, status: str | None, agent: str | None) -> list[sa.ColumnElement[bool]]:
    given = ((_rules.c.kind, kind), (_rules.c.status, status), (_rules.c.agent, agent))
    return [column == plain(value) for column, value in given if value is not None]


def _learned(row: sa.Row[Any]) -> Learned:
    """Return the rule of a row. A damaged one keeps its place, and counts as retired."""
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
    row = connection.execute(sa.select(_rules).where(_rules.c.id == plain(id))).first()
    if row is None:
        raise refused(id, "does not exist", "List the learned rules.")
    return row


def _row(connection: sa.Connection, number: int) -> sa.Row[Any]:
    return connection.execute(sa.select(_rules).where(_rules.c.number == number)).one()


def _enter(connection: sa.Connection, rule: NewRule, most: int, by: str, at: float, step: str, why: str) -> sa.Row[Any]:
    """Return the rule's row, adding one at the end of its kind if needed."""
    said = (rule.claim.reason, rule.claim.recovery) if rule.claim else ()  # two rules for one line may differ only here
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
        last_turn=counted(connection, rule.kind),
        created=at,
        changed=at,
        origin=_encode(
            _Origin(rule.title, rule.examples, rule.metrics, rule.waits_for, rule.source, rule.votes, rule.claim)
        ).decode(),
    )
    number = int(connection.execute(new.returning(_rules.c.number)).scalar_one())
    job, attempt = rule.source.job, rule.source.attempt
    if job is not None and attempt is not None and rule.lines:
        enter_first_hits(connection, number, job, attempt, rule.lines, at)
    _write_event(connection, number, step, ("", rule.harmless), (rule.status, rule.harmless), by, why, at)
    return _row(connection, number)


def _free_id(connection: sa.Connection, kind: str, digest: str) -> str:
    """Return `learned/<kind>/<digits>`, with as few digits of the digest as make it unique."""
    for digits in range(_FIRST_DIGITS, len(digest), 8):
        id = f"learned/{_slug(kind)}/{digest[:digits]}"
        if connection.scalar(sa.select(_rules.c.number).where(_rules.c.id == id)) is None:
            return id
    return f"learned/{_slug(kind)}/{digest}"


def _slug(kind: str) -> str:
    """Return the kind as a path in a-z, 0-9, `-` and `/`, at most 80 characters; kinds may share one."""
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
    """Set the status and flag of a rule, record the event, and return the rule."""
    values: dict[str, Any] = {"status": status, "harmless": harmless, "changed": at}
    if status == "shadow":  # it is watched from now on, however long it has gone unseen
        values["last_turn"] = counted(connection, row.kind)
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
    """Record a step and raise the version: nothing else changes a rule."""
    event = sa.insert(rule_events).values(
        rule=rule,
        at=at,
        by=by,
        step=fit(step, MAX_NAME),
        from_status=before[0],
        to_status=after[0],
        from_harmless=before[1],
        to_harmless=after[1],
        why=bounded(why),
        undoes=undoes,
    )
    connection.execute(event)
    count_up(connection, "learned")


def _last_step(connection: sa.Connection, rule: int) -> sa.Row[Any] | None:
    """Return the rule's latest event that is not its entry, an undoing, or undone."""
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
