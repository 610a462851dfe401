"""Rules that contradict a person's correction, and the verdict without them."""

import datetime
from collections.abc import Sequence
from typing import NamedTuple

from logdoctor.diagnose.decide import diagnose
from logdoctor.diagnose.ending import FAILED
from logdoctor.rules.load import RuleBook
from logdoctor.rules.schema import Claim, Origin, OverrideRule
from logdoctor.types import Record, Verdict

_MOST = 5  # most rules that one correction overrules


class Objection(NamedTuple):
    """A rule that decides otherwise: what it says, and on which line.

    `renamed` when it matches the line that the person named: then it takes on the correction, else it is silenced.
    """

    rule: str
    reason: str
    recovery: str
    quote: str
    renamed: bool


class Objections(NamedTuple):
    """The rules that contradict a correction, one after the other, and the verdict once all are overruled."""

    rules: tuple[Objection, ...]
    verdict: Verdict


def objections(
    records: Sequence[Record],
    book: RuleBook,
    standing: tuple[OverrideRule, ...],
    said: Claim,
    named: tuple[str, int] | None,
) -> Objections:
    """Return the rules that decide an attempt otherwise than `said`, at most 5. `named` is the line (stream, number)
    that tells of the failure; `standing` are overrides already in force."""
    numbers = {rule.id: number for number, rule in enumerate(book.diagnoses)}
    overruled = {one.id: one.rule for one in standing}
    found: dict[str, Objection] = {}
    while True:
        over = (*standing, *(_override(one, said) for one in found.values()))
        verdict = diagnose(records, book.overruled(over), reported=FAILED)
        by = overruled.get(verdict.decided_by.rule, verdict.decided_by.rule)
        right = verdict.outcome == "failed" and (verdict.reason, verdict.recovery) == (said.reason, said.recovery)
        if right or by not in numbers or by in found or len(found) == _MOST:
            return Objections(tuple(found.values()), verdict)
        quote = verdict.evidence[0].quote if verdict.evidence else ""
        found[by] = Objection(by, verdict.reason, verdict.recovery, quote, _matches(records, numbers[by], named))


def _override(objection: Objection, said: Claim) -> OverrideRule:
    claim = said if objection.renamed else None
    origin = Origin("", datetime.date.min, "")
    return OverrideRule(objection.rule, "active", objection.rule, objection.rule, origin, verdict=claim)


def _matches(records: Sequence[Record], rule: int, named: tuple[str, int] | None) -> bool:
    """Return whether a rule matches the named line."""
    if named is None:
        return False
    lines = (line for record in records if record.stream == named[0] for line in record.lines)
    return any(line.number == named[1] and rule in line.rules for line in lines)
