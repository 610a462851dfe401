"""Diagnosis rules that people overruled: for a job, for jobs of a kind, or for all, as far as that still holds."""

import datetime
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from logdoctor.rules.schema import Claim, DiagnosisRule, OverrideRule

SCOPES = ("job", "kind")
"""What a scope may name; the first goes before the second, and both before a scope that names nothing."""


class Overriding(NamedTuple):
    """Overrides, and the job for which they are asked: its name and its kind, "" for what is not known."""

    overrides: tuple[OverrideRule, ...] = ()
    job: str = ""
    kind: str = ""


def last_day_of(days: int | None) -> datetime.date | None:
    """Return the day up to whose end something holds for so many days from today (UTC); None for no end."""
    return None if days is None else datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days)


def in_force(asked: Overriding, day: datetime.date) -> tuple[OverrideRule, ...]:
    """Return the overrides that hold on a day for a job, at most one of each rule: the closest, of two the later."""
    chosen: dict[str, OverrideRule] = {}
    for one in asked.overrides:
        if _holds(one, asked, day) and (one.rule not in chosen or _distance(one) <= _distance(chosen[one.rule])):
            chosen[one.rule] = one
    return tuple(chosen.values())


def applies(scope: dict[str, str], job: str, kind: str) -> bool:
    """Return whether a scope is that of a job of a kind; a name that is not known is in no scope."""
    whose = {"job": job, "kind": kind}
    return all(bool(value) and whose.get(name) == value for name, value in scope.items())


def overruled(rules: Iterable[DiagnosisRule], overrides: Iterable[OverrideRule]) -> tuple[DiagnosisRule, ...]:
    """Return the rules in their places; those that are overruled match the same lines and say what they now say."""
    by = {one.rule: one for one in overrides}
    return tuple(_saying(rule, by[rule.id]) if rule.id in by else rule for rule in rules)


def _holds(one: OverrideRule, asked: Overriding, day: datetime.date) -> bool:
    fresh = one.expires is None or day <= one.expires
    return one.status == "active" and fresh and applies(one.scope, asked.job, asked.kind)


def _distance(one: OverrideRule) -> int:
    return next((place for place, name in enumerate(SCOPES) if name in one.scope), len(SCOPES))


def _saying(rule: DiagnosisRule, by: OverrideRule) -> DiagnosisRule:
    """Return the rule as it is overruled: a muted one knows its lines and makes nothing of them; else it says in its
    role what it was told, under the name of the override, so that a verdict tells who decided."""
    replace = msgspec.structs.replace
    if by.verdict is None:
        return replace(rule, verdict=Claim(), suggestion="", explains=())
    failing = rule.verdict.role in ("cause", "proximate", "cascade") and not rule.verdict.lookup
    claim = replace(by.verdict, role=rule.verdict.role if failing else "cause", here=rule.verdict.here)
    return replace(rule, id=by.id, title=by.title, verdict=claim, suggestion=by.suggestion)
