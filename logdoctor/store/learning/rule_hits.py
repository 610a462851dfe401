"""Hits of learned rules (lines matched and taken) by attempt, with the totals of each rule."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.fit import plain
from logdoctor.store.learning.rule_rows import DIAGNOSIS, add_to, checked_count, checked_kind, of_attempt, refused
from logdoctor.store.names import checked, checked_attempt
from logdoctor.store.schema import counted_attempts, learned_rules, rule_hits, rule_kinds

_rules = learned_rules


class RuleHits:
    """The hits of the learned rules of one database, kept as `LearnedRules` keeps the rules."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def count(self, kind: str, job: str, attempt: int, hits: Mapping[str, tuple[int, int]], at: float) -> None:
        """Count what rules of the kind (by id) matched and took in an attempt: `{id: (lines, taken)}`.

        It replaces what was counted for this attempt before, so a verdict may be issued again; but a rule keeps at
        least the lines of this attempt that it was entered with. Hits of filter rules and of diagnosis rules are
        counted separately. `RuleRefused` for a rule of another kind, `NameRefused` for a bad name; then nothing was
        counted.
        """
        kind, attempt = checked_kind(kind), checked_attempt(attempt)
        checked("job", job)
        counts = {id: (checked_count(lines), checked_count(taken)) for id, (lines, taken) in hits.items()}
        with self._database.writing() as connection:
            turn = 0 if kind == DIAGNOSIS else _turn(connection, kind, job, attempt, at)
            _replace(connection, kind, job, attempt, counts, turn, at)

    def idle(self, kind: str) -> dict[str, int]:
        """Return how many attempts were counted since each shadow rule matched or entered shadow.

        An attempt that is counted again keeps its place in the order.
        """
        query = sa.select(_rules.c.id, rule_kinds.c.counted - _rules.c.last_turn).order_by(_rules.c.place)
        query = query.join(rule_kinds, rule_kinds.c.kind == _rules.c.kind)
        with self._database.reading() as connection:
            rows = connection.execute(query.where(_rules.c.kind == plain(kind), _rules.c.status == "shadow"))
            return {id: max(int(idle), 0) for id, idle in rows}


def counted(connection: sa.Connection, kind: str) -> int:
    """Return how many attempts of a kind were counted."""
    return int(connection.scalar(sa.select(rule_kinds.c.counted).where(rule_kinds.c.kind == kind)) or 0)


def enter_first_hits(connection: sa.Connection, number: int, job: str, attempt: int, lines: int, at: float) -> None:
    """Count the lines of a new rule in its source attempt; later counts for that attempt replace them."""
    whose = {"job": checked("job", job), "attempt": checked_attempt(attempt), "rule": number}
    connection.execute(sa.insert(rule_hits).values(**whose, lines=lines, taken=0, seen=lines))
    values = {"jobs": 1, "lines": lines, "last_hit": at}
    connection.execute(sa.update(_rules).where(_rules.c.number == number).values(values))


def _turn(connection: sa.Connection, kind: str, job: str, attempt: int, at: float) -> int:
    """Return the attempt's number within its kind, in the order of first counts."""
    table = counted_attempts
    known = connection.execute(sa.select(table).where(*of_attempt(table, job, attempt))).first()
    if known is not None and known.kind == kind:
        return int(known.turn)
    add_to(connection, rule_kinds, {"kind": kind}, {"counted": 1})
    turn = counted(connection, kind)
    connection.execute(
        sa.delete(table).where(*of_attempt(table, job, attempt))
    )  # newly reported facts changed its kind
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
    """Replace the attempt's counts, and update the totals of the rules."""
    mine = sa.select(_rules.c.number, _rules.c.id).where(_rules.c.kind == kind)
    numbers = {row.id: row.number for row in connection.execute(mine)}
    if unknown := sorted(counts.keys() - numbers.keys()):
        raise refused(unknown[0], f"is none of the kind {ascii(kind)[:100]}", "Count rules of that kind only.")
    where = (*of_attempt(rule_hits, job, attempt), rule_hits.c.rule.in_(_of_same_sort(kind)))
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
    """Return the diagnosis rules, or for a kind of jobs all filter rules: an attempt has hits of both."""
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
