"""Compares two tables of the same logs, row by row: what changed, by which rules, and which one is right."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from logdoctor import taxonomy
from logdoctor.pipeline.batch.places import Place, place_of
from logdoctor.pipeline.batch.rows import Row

if TYPE_CHECKING:
    from logdoctor.store.learning.confirmed import Confirmation

FIELDS = ("outcome", "reason", "recovery", "suspects")
"""The fields compared: other differences change nobody's actions."""

COLUMNS = (
    *("source", "attempt", "run", "job", *FIELDS, "rule", "decided_by", "quote", "quote_stream", "quote_line", "error"),
    *("logdoctor", "rulebook"),
)
"""The columns needed for a comparison; reading the others takes longer than comparing."""

BEYOND_RULES = ("case", "agent")
"""What decides above the rules, when asked."""

UNREADABLE = "unreadable"
"""Stands for the rule when a log could not be read."""

_NOWHERE = Place("", 0)
"""The place of an earlier run, which no confirmation refers to."""

Went = Literal["right", "wrong", "still right", "still wrong", ""]
"""The direction of a change, judged by a person's confirmation; "" without one."""


class Said(msgspec.Struct, frozen=True):
    """What a row says: the answer, the line that proves it, and what decided; or the `error` of an unreadable log."""

    outcome: str | None
    reason: str | None
    recovery: str | None
    suspects: tuple[str, ...]
    rule: str
    quote: str | None
    quote_stream: str | None
    quote_line: int | None
    error: str | None


class Truth(msgspec.Struct, frozen=True):
    """A person's confirmation of a failure."""

    case: int
    by: str
    reason: str
    recovery: str


class Change(msgspec.Struct, frozen=True):
    """A log, or the earlier `run` in it that begins at a line, with a changed answer; `fields` are those that
    differ."""

    source: str
    job: str | None
    attempt: str
    run: int | None
    fields: tuple[str, ...]
    old: Said
    new: Said
    truth: Truth | None
    went: Went


class Group(msgspec.Struct, frozen=True):
    """The changes in which one rule decides in place of another. Rules are ids, or what else decided: `structure`,
    `agent`, `nobody`, `unreadable`."""

    old_rule: str
    new_rule: str
    right: int
    wrong: int
    changes: tuple[Change, ...]


class Table(msgspec.Struct, frozen=True):
    """A compared table: its name, the number of its rows, their numbers by "version digest-of-rules", and the numbers
    of those decided by something other than rules (`BEYOND_RULES`)."""

    name: str
    rows: int
    made_with: dict[str, int]
    beyond_rules: dict[str, int] = {}


class Comparison(msgspec.Struct, frozen=True):
    """What changed between two tables. `same` and `changed` count the logs of both, `added` and `vanished` those of
    only one. Of the `confirmed` logs, whose failure a person confirmed, the old table has `right_before` right and the
    new one `right_now`. Groups with the most changes come first."""

    old: Table
    new: Table
    same: int
    changed: int
    added: int
    vanished: int
    confirmed: int
    right_before: int
    right_now: int
    groups: tuple[Group, ...]


Truths = Mapping[Place, Truth]


def truths(cases: "Iterable[Confirmation]") -> dict[Place, Truth]:
    """Return people's confirmations, by the attempt that they refer to."""
    return {
        Place(one.job, one.attempt): Truth(
            one.id, one.by, one.reason, one.recovery or taxonomy.REASONS[one.reason].recovery
        )
        for one in cases
        if not one.withdrawn
    }


def compare(old_name: str, old: Iterable[Row], new_name: str, new: Iterable[Row], known: Truths) -> Comparison:
    """Return what changed from one table to another. `known` are people's confirmations; one counts if exactly one new
    row is at its place. Rows with the same source, attempt and run are compared in order. Little of each row is kept.
    """
    before: defaultdict[tuple[str, str, int | None], list[Said]] = defaultdict(list)
    old_made, new_made = Counter[str](), Counter[str]()
    asked = Counter[str]()
    for row in old:
        before[row.source, row.attempt, row.run].append(_said(row))
        old_made[_made_with(row)] += 1
        asked[row.decided_by or ""] += row.decided_by in BEYOND_RULES
    same = added = 0
    at = Counter[Place]()
    told: dict[Place, tuple[Said, Said]] = {}
    changed: list[tuple[Place, Change]] = []
    for row in new:
        new_made[_made_with(row)] += 1
        place = place_of(row) if row.run is None else _NOWHERE
        if place in known:
            at[place] += 1
        if not (waiting := before.get((row.source, row.attempt, row.run))):
            added += 1
            continue
        was, now = waiting.pop(0), _said(row)
        if place in known:
            told[place] = was, now
        if fields := tuple(name for name in FIELDS if getattr(was, name) != getattr(now, name)):
            changed.append((place, Change(row.source, row.job, row.attempt, row.run, fields, was, now, None, "")))
        else:
            same += 1
    sure = {place: known[place] for place, rows in at.items() if rows == 1}
    judged = [(*told[place], truth) for place, truth in sure.items() if place in told]
    changes: defaultdict[tuple[str, str], list[Change]] = defaultdict(list)
    for place, one in changed:
        changes[one.old.rule, one.new.rule].append(_by_truth(one, sure.get(place)))
    groups = [_group(rules, some) for rules, some in changes.items()]
    return Comparison(
        Table(old_name, old_made.total(), dict(old_made.most_common()), dict(+asked)),
        Table(new_name, new_made.total(), dict(new_made.most_common())),
        same,
        len(changed),
        added,
        sum(map(len, before.values())),
        len(judged),
        sum(_agrees(was, truth) for was, _, truth in judged),
        sum(_agrees(now, truth) for _, now, truth in judged),
        tuple(sorted(groups, key=lambda group: (-len(group.changes), group.old_rule, group.new_rule))),
    )


def _by_truth(change: Change, truth: Truth | None) -> Change:
    return msgspec.structs.replace(change, truth=truth, went=_went(change.old, change.new, truth))


def _said(row: Row) -> Said:
    rule = UNREADABLE if row.error is not None else row.rule or row.decided_by or ""
    suspects = tuple(sorted(row.suspects))
    proof = (row.quote, row.quote_stream, row.quote_line)
    return Said(row.outcome, row.reason, row.recovery, suspects, rule, *proof, row.error)


def _made_with(row: Row) -> str:
    return f"{row.logdoctor} {row.rulebook}".strip()


def _agrees(said: Said, truth: Truth) -> bool:
    return (said.reason, said.recovery) == (truth.reason, truth.recovery)


def _went(old: Said, new: Said, truth: Truth | None) -> Went:
    if truth is None:
        return ""
    if _agrees(new, truth):
        return "still right" if _agrees(old, truth) else "right"
    return "wrong" if _agrees(old, truth) else "still wrong"


def _group(rules: tuple[str, str], some: list[Change]) -> Group:
    went = Counter(one.went for one in some)
    return Group(*rules, went["right"], went["wrong"], tuple(some))
