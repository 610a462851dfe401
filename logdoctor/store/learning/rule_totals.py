"""How often each shipped rule takes part in current verdicts, updated as verdicts come and are superseded.

Learned rules are not included: they have their own counts (`store/learning/learned.py`), which include matches in
shadow.
"""

from collections.abc import Iterator, Mapping

import msgspec
import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.schema import CURRENT, bodies, rule_totals, verdicts
from logdoctor.types import Compression, DecidedBy, Evidence, Symptom, Verdict

_SHIPPED = ("filter/", "diagnosis/")  # other names are learned rules, cases, or parts of the program
_READ = 500  # verdicts at a time


class Total(msgspec.Struct, frozen=True):
    """The number of current verdicts in which a rule took part, and the last time (seconds since the epoch). `lines`
    are those a filter rule took, or those cited for a diagnosis rule."""

    attempts: int
    lines: int
    last: float


class _Named(msgspec.Struct):
    """The parts of a verdict that name rules; the rest of the body is not decoded."""

    compression: Compression
    evidence: tuple[Evidence, ...]
    symptoms: tuple[Symptom, ...]
    decided_by: DecidedBy


_named = msgspec.json.Decoder(_Named)


class RuleTotals:
    """The totals of one database; thread-safe. All calls raise `StoreError` when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> dict[str, Total]:
        """Return the totals by rule id; rules that take part in nothing are left out."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(rule_totals).order_by(rule_totals.c.rule))
            return {row.rule: Total(row.attempts, row.lines, row.last) for row in rows}

    def catch_up(self) -> int:
        """Count the current verdicts of an older version's database, and return their number.

        Does nothing if there are totals already.
        """
        with self._database.writing() as connection:
            if connection.execute(sa.select(rule_totals.c.rule).limit(1)).first() is not None:
                return 0
            found: dict[str, Total] = {}
            number = 0
            for at, named in _standing(connection):
                number += 1
                for rule, lines in _lines_of(named).items():
                    former = found.get(rule, Total(0, 0, at))
                    found[rule] = Total(former.attempts + 1, former.lines + lines, max(former.last, at))
            if found:
                rows = [{"rule": rule, **msgspec.structs.asdict(total)} for rule, total in found.items()]
                connection.execute(sa.insert(rule_totals), rows)
            return number


def count(connection: sa.Connection, former: Verdict | None, new: Verdict, at: float) -> None:
    """Count a verdict that replaces the former one of its attempt, which is subtracted. Runs in the transaction that
    writes it, so that the totals match the current verdicts."""
    before = _lines_of(former) if former is not None else {}
    after = _lines_of(new)
    named = sorted(before.keys() | after.keys())
    if not named:
        return
    known = set(connection.scalars(sa.select(rule_totals.c.rule).where(rule_totals.c.rule.in_(named))))
    if fresh := [rule for rule in after if rule not in known]:
        rows = [{"rule": rule, "attempts": 1, "lines": after[rule], "last": at} for rule in fresh]
        connection.execute(sa.insert(rule_totals), rows)
    if changes := [_change(rule, before, after, at) for rule in named if rule in known]:
        connection.execute(_CHANGE, changes)
    if before.keys() - after.keys():
        gone = rule_totals.c.rule.in_(named) & (rule_totals.c.attempts <= 0)
        connection.execute(sa.delete(rule_totals).where(gone))


def _change(rule: str, before: Mapping[str, int], after: Mapping[str, int], at: float) -> dict[str, object]:
    return {
        "one": rule,
        "more_attempts": (rule in after) - (rule in before),
        "more_lines": after.get(rule, 0) - before.get(rule, 0),
        "at": at if rule in after else 0.0,
    }


_AT = sa.bindparam("at", type_=sa.Double)
_CHANGE = (
    sa.update(rule_totals)
    .where(rule_totals.c.rule == sa.bindparam("one"))
    .values(
        attempts=rule_totals.c.attempts + sa.bindparam("more_attempts"),
        lines=rule_totals.c.lines + sa.bindparam("more_lines"),
        last=sa.case((rule_totals.c.last < _AT, _AT), else_=rule_totals.c.last),
    )
)


def _lines_of(verdict: Verdict | _Named) -> dict[str, int]:
    """Return the shipped rules that took part in a verdict, each with its lines."""
    lines = {rule: taken.lines for rule, taken in verdict.compression.rules.items()}
    for rule in (verdict.decided_by.rule, *(symptom.explained_by for symptom in verdict.symptoms)):
        lines.setdefault(rule, 0)
    for one in verdict.evidence:
        lines[one.rule] = lines.get(one.rule, 0) + 1
    return {rule: number for rule, number in lines.items() if rule.startswith(_SHIPPED)}


def _standing(connection: sa.Connection) -> Iterator[tuple[float, _Named]]:
    """Yield the current verdicts with their times, holding few in memory at a time."""
    query = sa.select(verdicts.c.id, verdicts.c.at, bodies.c.body).join(bodies, bodies.c.verdict == verdicts.c.id)
    query = query.where(CURRENT).order_by(verdicts.c.id).limit(_READ)
    last = 0
    while rows := connection.execute(query.where(verdicts.c.id > last)).all():
        for row in rows:
            yield row.at, _named.decode(row.body)
        last = rows[-1].id
