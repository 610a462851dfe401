"""Rules that were written elsewhere come in: through the same guards as what an agent proposes.

What a file says of a rule's status or approval counts for nothing: it begins in shadow, or waits for a human.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from logdoctor.errors import InputError, RuleError, RuleRefused
from logdoctor.learn.guards import Approval, Guards
from logdoctor.learn.matching import taken
from logdoctor.learn.metrics import LOSS, STEP, STEP_OF
from logdoctor.learn.proposal import Refusal
from logdoctor.llm.masking import mask
from logdoctor.review.files import rules_in
from logdoctor.rules.schema import FilterRule
from logdoctor.store.learned import ERROR_WORD, Learned, LearnedRules, NewRule, Source, Votes

AGENT = "import"
"""Whose proposals imported rules are."""
STEP_NAME = "import"

_METRICS = {STEP, STEP_OF, LOSS}
"""The expressions that a learned rule may read metrics with: others could take for ever."""


class Imported(NamedTuple):
    """What became of one rule of a file, or of a file that cannot be read (then `rule` is "").

    `outcome` is `entered`, `known` (the kind has a rule with this pattern, which stays as it is), `refused` (then
    `guard` and `cause` say why), or `held` (it is good, but another rule of its file was refused). `id` and `status`
    are those of the learned rule, `waits_for` why a human must approve it.
    """

    where: str
    rule: str
    outcome: str
    id: str = ""
    status: str = ""
    waits_for: str = ""
    guard: str = ""
    cause: str = ""


class File(NamedTuple):
    """A file by its name; reading it may raise `RuleError`."""

    name: str
    read: Callable[[], bytes]


def import_files(
    files: Iterable[File], kind: str | None, guards: Guards, rules: LearnedRules, by: str, at: float, most: int
) -> list[Imported]:
    """What became of each rule of the files; `kind` is for those that name none.

    Of a file in which one rule is refused nothing is entered, nor of one with which there are more than `most` rules.
    """
    told: list[Imported] = []
    there = _There(rules)
    for file in files:
        try:
            found = rules_in(file.read(), file.name)
        except RuleError as error:
            told.append(Imported(file.name, "", "refused", guard="file", cause=error.cause))
            continue
        if len(told) + len(found) > most:
            cause = f"with its rules there are more than {most}; import it apart, in parts if it alone has more"
            told.append(Imported(file.name, "", "refused", guard="file", cause=cause))
            continue
        told += _import_file(file.name, found, kind, guards, rules, there, by, at)
    return told


class _Fit(NamedTuple):
    """A rule that may be entered, or the one that is there."""

    rule: FilterRule
    new: NewRule
    known: Learned | None


def _import_file(
    where: str,
    found: Sequence[FilterRule],
    kind: str | None,
    guards: Guards,
    rules: LearnedRules,
    there: "_There",
    by: str,
    at: float,
) -> list[Imported]:
    looked = [_looked_at(rule, _kind(rule, kind), guards, there) for rule in found]
    good = [one for one in looked if isinstance(one, _Fit)]
    if len(good) < len(looked):
        return [_told(where, one) for one in looked]
    try:
        entered = rules.add([one.new for one in good if not one.known], by, at, STEP_NAME, _why(where, found))
    except (RuleRefused, InputError) as error:
        return [Imported(where, one.rule.id, "refused", guard="store", cause=error.cause) for one in good]
    there.enter(entered)
    told = []
    for one in good:
        rule = there[one.new.kind][one.new.pattern]
        outcome = "known" if one.known else "entered"
        told.append(Imported(where, one.rule.id, outcome, rule.id, rule.status, rule.waits_for))
    return told


class _There(dict[str, dict[str, Learned]]):
    """The rules of each kind by their pattern, read once."""

    def __init__(self, rules: LearnedRules) -> None:
        self._rules = rules

    def __missing__(self, kind: str) -> dict[str, Learned]:
        self[kind] = {rule.pattern: rule for rule in self._rules.list(kind)}
        return self[kind]

    def enter(self, entered: Iterable[Learned]) -> None:
        """Add rules that were entered now."""
        for rule in entered:
            self[rule.kind][rule.pattern] = rule


def _kind(rule: FilterRule, kind: str | None) -> str:
    return rule.scope.get("kind") or kind or ""


def _looked_at(rule: FilterRule, kind: str, guards: Guards, there: _There) -> "_Fit | tuple[FilterRule, Refusal]":
    """The rule fit to be entered, or which guard refused it and why."""
    if cause := _form_cause(rule, kind):
        return rule, Refusal(rule.patterns[0] if rule.patterns else "", "form", cause)
    (pattern,) = rule.patterns
    examples = tuple(mask(text) for text in rule.must_match)
    new = NewRule(kind, pattern, rule.title, examples, rule.metrics, "shadow", "", AGENT, Source(), _UNVOTED, 0)
    if known := there[kind].get(pattern):
        return _Fit(rule, new, known)
    outcome = guards.outcome_of_rule(pattern, examples, there[kind].keys())
    if isinstance(outcome, Refusal):
        return rule, outcome
    if any(taken([pattern], rule.must_not_match)):
        return rule, Refusal(pattern, "claims", "it matches a line of its `must_not_match`")
    if isinstance(outcome, Approval) or rule.harmless:
        cause = outcome.cause if isinstance(outcome, Approval) else "its file says that it takes lines like trouble"
        new = msgspec.structs.replace(new, status="proposed", waits_for=f"{ERROR_WORD}: {cause}")
    return _Fit(rule, new, None)


_UNVOTED = Votes(0, (), "")


def _form_cause(rule: FilterRule, kind: str) -> str | None:
    """Why a rule of a file cannot be a learned rule, whatever it matches."""
    if not kind:
        return "it names no kind of jobs (scope: {kind: ...}), and none was given"
    if len(rule.patterns) != 1:
        return f"it holds {len(rule.patterns)} patterns; a learned rule has one"
    if rule.status == "retired":
        return "it is retired"
    if rule.fallback:
        return "`fallback` is for rules that come with logdoctor; a learned rule is always tried last"
    if any("\n" in text for text in (*rule.must_match, *rule.must_not_match)):
        return "an example holds a line break"
    if not set(rule.metrics) <= _METRICS:
        return "its metrics are not those that learned rules read"
    return None


def _told(where: str, looked: "_Fit | tuple[FilterRule, Refusal]") -> Imported:
    """What is said of a rule before anything was entered."""
    if not isinstance(looked, _Fit):
        rule, refusal = looked
        return Imported(where, rule.id, "refused", guard=refusal.guard, cause=refusal.cause)
    if known := looked.known:
        return Imported(where, looked.rule.id, "known", known.id, known.status, known.waits_for)
    return Imported(where, looked.rule.id, "held", waits_for=looked.new.waits_for)


def _why(where: str, found: Sequence[FilterRule]) -> str:
    """Where the rules come from, as their file says."""
    one = found[0].origin
    told = f"by {one.by}, {one.at}, {one.source}" if len(found) == 1 else f"{len(found)} rules"
    return f"from {where}: {told}"
