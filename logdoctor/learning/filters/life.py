"""The life of learned rules: promoted from shadow after enough watching, demoted or retired after harm."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from logdoctor.learning import steps
from logdoctor.learning.filters.book import Books
from logdoctor.llm.masking import mask
from logdoctor.rules.schema import FilterRule
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.text import shown
from logdoctor.types import Evidence

_FORGOTTEN = 20
"""Attempts of its kind without a match after which a rule in shadow is retired."""


class WatchTerms(NamedTuple):
    """How many attempts and lines a rule is watched before it takes any; 0 jobs: until a person approves it."""

    jobs: int
    lines: int


def quotes(evidence: Iterable[Evidence]) -> list[str]:
    """Return the quoted lines that a verdict rests on for what they say, without colours.

    Lines cited for their place (`progress/...`: the last step, the end of the log) are routine and stay quotable when a
    rule takes them; those that a model took for errors (`agent/...`) are an opinion, and prove nothing.
    """
    return [shown(one.quote) for one in evidence if not one.rule.startswith(("progress/", "agent/"))]


def retire_what_matches(
    rules: LearnedRules, books: Books, lines: Iterable[str], where: str, at: float
) -> list[FilterRule]:
    """Retire and return the rules that match one of these lines, evidence of a verdict (law 2)."""
    retired: dict[str, FilterRule] = {}
    for line in lines:
        for rule in books.alive_that_match(line):
            if rule.id not in retired:
                retire(rules, rule, f"matches evidence of {where}: {mask(line)[:200]}", at)
                retired[rule.id] = rule
    return list(retired.values())


def retire(rules: LearnedRules, rule: FilterRule, why: str, at: float) -> None:
    """Retire a live rule."""
    steps.take(rules, rule.id, rule.status, "retired", "demote", why, at)


def count(
    rules: LearnedRules,
    kind: str,
    attempt: tuple[str, int],
    hits: Mapping[str, tuple[int, int]],
    terms: WatchTerms,
    at: float,
) -> list[str]:
    """Enter what a kind's rules matched and took in a settled attempt; return the ids of promoted rules."""
    rules.hits.count(kind, *attempt, hits, at)
    promoted = []
    for rule in rules.list(kind, "shadow"):
        if 0 < terms.jobs <= rule.jobs and rule.lines >= terms.lines and steps.may_rise(rules, rule.id):
            why = f"matched {rule.lines} lines in {rule.jobs} attempts, none of them evidence"
            if steps.take(rules, rule.id, "shadow", "active", "promote", why, at):
                promoted.append(rule.id)
    for rule_id, idle in rules.hits.idle(kind).items():
        if idle >= _FORGOTTEN:
            steps.take(rules, rule_id, "shadow", "retired", "demote", f"no match in {idle} attempts", at)
    return promoted


def promote(rules: LearnedRules, kind: str, ids: Iterable[str], why: str, at: float) -> list[str]:
    """Promote those of some rules that are in shadow and may rise; return their ids."""
    waiting = {rule.id for rule in rules.list(kind, "shadow")}
    return [
        rule_id
        for rule_id in ids
        if rule_id in waiting
        and steps.may_rise(rules, rule_id)
        and steps.take(rules, rule_id, "shadow", "active", "promote", why, at)
    ]


def demote(rules: LearnedRules, ids: Iterable[str], why: str, at: float) -> None:
    """Demote active rules that took what a verdict needed; they stay in shadow until a person approves them."""
    for rule_id in ids:
        steps.take(rules, rule_id, "active", "shadow", "demote", why, at)
