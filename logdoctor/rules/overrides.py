"""Overrides of diagnosis rules by people: for a job, for jobs of a kind, or for all, until they expire."""

import datetime
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from logdoctor.rules.schema import Claim, DiagnosisRule, OverrideRule

SCOPES = ("job", "kind")
"""Keys of a scope; the first takes precedence over the second, and both over an empty scope."""


class Overriding(NamedTuple):
    """Overrides, and the job they are looked up for: its name and its kind ("" when unknown)."""

    overrides: tuple[OverrideRule, ...] = ()
    job: str = ""
    kind: str = ""


def last_day_of(days: int | None) -> datetime.date | None:
    """Return the day (UTC) that is `days` from today, until whose end something holds; None for no end."""
    return None if days is None else datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days)


def in_force(asked: Overriding, day: datetime.date) -> tuple[OverrideRule, ...]:
    """Return the overrides in force for a job on a day: per rule the closest scope, of equals the later."""
    chosen: dict[str, OverrideRule] = {}
    for one in asked.overrides:
        if _holds(one, asked, day) and (one.rule not in chosen or _distance(one) <= _distance(chosen[one.rule])):
            chosen[one.rule] = one
    return tuple(chosen.values())


def applies(scope: dict[str, str], job: str, kind: str) -> bool:
    """Return whether a scope includes a job of a kind; an unknown name is in no scope."""
    whose = {"job": job, "kind": kind}
    return all(bool(value) and whose.get(name) == value for name, value in scope.items())


def overruled(rules: Iterable[DiagnosisRule], overrides: Iterable[OverrideRule]) -> tuple[DiagnosisRule, ...]:
    """Return the rules in their places; overridden ones match the same lines with their new verdict."""
    by = {one.rule: one for one in overrides}
    return tuple(_saying(rule, by[rule.id]) if rule.id in by else rule for rule in rules)


def _holds(one: OverrideRule, asked: Overriding, day: datetime.date) -> bool:
    fresh = one.expires is None or day <= one.expires
    return one.status == "active" and fresh and applies(one.scope, asked.job, asked.kind)


def _distance(one: OverrideRule) -> int:
    return next((place for place, name in enumerate(SCOPES) if name in one.scope), len(SCOPES))


def _saying(rule: DiagnosisRule, by: OverrideRule) -> DiagnosisRule:
    """Return a rule as overridden: a muted one matches its lines and claims nothing. Otherwise it makes the new claim
    in its own role, under the override's id, so that a verdict names who decided."""
    replace = msgspec.structs.replace
    if by.verdict is None:
        return replace(rule, verdict=Claim(), suggestion="", explains=())
    failing = rule.verdict.role in ("cause", "proximate", "cascade") and not rule.verdict.lookup
    claim = replace(by.verdict, role=rule.verdict.role if failing else "cause", here=rule.verdict.here)
    return replace(rule, id=by.id, title=by.title, verdict=claim, suggestion=by.suggestion)
