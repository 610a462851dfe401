"""Imports rules that were written elsewhere, through the same guards as an agent's proposals.

A file's status or approval is ignored: the rule begins in shadow, or waits for a person.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from logdoctor import taxonomy
from logdoctor.diagnose.taught import line_matches
from logdoctor.errors import InputError, RuleError, RuleRefused
from logdoctor.learning.diagnoses.guards import DiagnosisGuards
from logdoctor.learning.files.files import rules_in
from logdoctor.learning.filters.guards import Approval, FilterGuards
from logdoctor.learning.filters.matching import taken
from logdoctor.learning.filters.metrics import KNOWN
from logdoctor.learning.form import awaited, full_claim
from logdoctor.learning.proposed import Refusal
from logdoctor.llm.masking import mask
from logdoctor.rules.schema import DiagnosisRule, FilterRule, Rule
from logdoctor.store.learning.learned import ERROR_WORD, Learned, LearnedRules, NewRule, Source
from logdoctor.store.learning.refusals import Votes
from logdoctor.store.learning.rule_rows import DIAGNOSIS

AGENT = "import"
"""The author recorded for imported rules."""
STEP_NAME = "import"


class Imported(NamedTuple):
    """The result for one rule of a file, or for an unreadable file (then `rule` is "").

    `outcome` is `entered`, `known` (the kind has a rule with this pattern, which stays as it is), `refused` (then
    `guard` and `cause` say why), or `held` (it is good, but another rule of its file was refused). `id` and `status`
    are those of the learned rule; `waits_for` is why a person must approve it.
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
    files: Iterable[File],
    kind: str | None,
    guards: FilterGuards,
    rules: LearnedRules,
    by: str,
    at: float,
    most: int,
    diagnosis: DiagnosisGuards | None = None,
) -> list[Imported]:
    """Import rules from files, and return the result for each rule.

    `kind` is for filter rules that name none; `diagnosis` guards diagnosis rules, which are refused without it. If one
    rule of a file is refused, or the file exceeds `most` rules in total, nothing of it is entered.
    """
    reported: list[Imported] = []
    there = _There(rules)
    for file in files:
        try:
            found = rules_in(file.read(), file.name)
        except RuleError as error:
            reported.append(Imported(file.name, "", "refused", guard="file", cause=error.cause))
            continue
        if len(reported) + len(found) > most:
            cause = f"with its rules there are more than {most}; import it separately, in parts if it alone has more"
            reported.append(Imported(file.name, "", "refused", guard="file", cause=cause))
            continue
        asked = _Asked(kind, guards, diagnosis, there)
        reported += _import_file(file.name, found, asked, rules, by, at)
    return reported


class _Fit(NamedTuple):
    """A rule fit to be entered, and the existing one, if known."""

    rule: Rule
    new: NewRule
    known: Learned | None


class _Asked(NamedTuple):
    """The parameters of an import."""

    kind: str | None
    guards: FilterGuards
    diagnosis: DiagnosisGuards | None
    there: "_There"


def _import_file(
    where: str, found: Sequence[Rule], asked: _Asked, rules: LearnedRules, by: str, at: float
) -> list[Imported]:
    there = asked.there
    looked = [_looked_at(rule, asked) for rule in found]
    good = [one for one in looked if isinstance(one, _Fit)]
    if len(good) < len(looked):
        return [_reported(where, one) for one in looked]
    try:
        entered = rules.add([one.new for one in good if not one.known], by, at, STEP_NAME, _why(where, found))
    except (RuleRefused, InputError) as error:
        return [Imported(where, one.rule.id, "refused", guard="store", cause=error.cause) for one in good]
    there.enter(entered)
    reported = []
    for one in good:
        rule = there[one.new.kind][_key(one.new)]
        outcome = "known" if one.known else "entered"
        reported.append(Imported(where, one.rule.id, outcome, rule.id, rule.status, rule.waits_for))
    return reported


class _There(dict[str, dict[str, Learned]]):
    """The rules of each kind by pattern, read once."""

    def __init__(self, rules: LearnedRules) -> None:
        self._rules = rules

    def __missing__(self, kind: str) -> dict[str, Learned]:
        self[kind] = {_key(rule): rule for rule in self._rules.list(kind)}
        return self[kind]

    def enter(self, entered: Iterable[Learned]) -> None:
        """Add rules that were just entered."""
        for rule in entered:
            self[rule.kind][_key(rule)] = rule


def _key(rule: Learned | NewRule) -> str:
    """Return what identifies a rule within its kind: its pattern, and its claim, if any."""
    return rule.pattern if rule.claim is None else "\0".join((rule.pattern, rule.claim.reason, rule.claim.recovery))


def _looked_at(rule: Rule, asked: _Asked) -> "_Fit | tuple[Rule, Refusal]":
    """Return the rule fit to be entered, or which guard refused it and why."""
    patterns = rule.patterns if isinstance(rule, FilterRule) else rule.when.any
    pattern = patterns[0] if patterns else ""
    kind = (rule.scope.get("kind") or asked.kind or "") if isinstance(rule, FilterRule) else DIAGNOSIS
    if isinstance(rule, FilterRule):
        cause = _form_cause(rule, kind)
    else:
        cause = _diagnosis_form_cause(rule, asked.diagnosis)
    if cause:
        return rule, Refusal(pattern, "form", cause)
    new = _new_rule(rule, kind, pattern)
    if known := asked.there[kind].get(_key(new)):
        return _Fit(rule, new, known)
    if new.claim is None:
        outcome = asked.guards.outcome_of_rule(pattern, new.examples, asked.there[kind].keys())
    else:
        assert asked.diagnosis is not None  # else its form was refused
        outcome = asked.diagnosis.refusal_of_rule(pattern, new.claim, new.examples)
    if isinstance(outcome, Refusal):
        return rule, outcome
    if guard := _guard_against_own(rule, pattern):
        return rule, Refusal(pattern, guard, "it matches a line of its `must_not_match`")
    if isinstance(outcome, Approval) or (isinstance(rule, FilterRule) and rule.harmless):
        cause = outcome.cause if outcome else "its file says that it removes lines that look like errors"
        new = msgspec.structs.replace(new, status="proposed", waits_for=f"{ERROR_WORD}: {cause}")
    return _Fit(rule, new, None)


def _new_rule(rule: Rule, kind: str, pattern: str) -> NewRule:
    """Return a rule of a file as it is entered."""
    if isinstance(rule, FilterRule):
        texts, metrics, claim = rule.must_match, rule.metrics, None
    else:
        texts, metrics = tuple(one.text for one in rule.must_match), ()
        said = rule.verdict
        claim = full_claim(said.reason, said.fault, said.recovery, rule.suggestion)
    examples, waits = tuple(mask(text) for text in texts), awaited(claim) if claim else ""
    life = ("shadow", waits, AGENT, Source(), _UNVOTED, 0)
    return NewRule(kind, pattern, rule.title, examples, metrics, *life, claim=claim)


def _guard_against_own(rule: Rule, pattern: str) -> str:
    """Return the guard that a rule fails by matching its own `must_not_match`; "" when it matches none."""
    if isinstance(rule, FilterRule):
        return "claims" if any(taken([pattern], rule.must_not_match)) else ""
    return "evidence" if line_matches(pattern, [one.text for one in rule.must_not_match]) else ""


def _diagnosis_form_cause(rule: DiagnosisRule, guards: DiagnosisGuards | None) -> str | None:
    """Return why a file's diagnosis rule cannot be a learned rule; None if it can."""
    said = rule.verdict
    if guards is None:
        return "diagnosis rules are not accepted here"
    if len(rule.when.any) != 1 or rule.when.unless:
        return "a learned diagnosis rule has one pattern in `any`, and no `unless`"
    if said.lookup or said.outcome or said.here or rule.explains or rule.scope or said.role != "cause":
        return "a learned diagnosis rule names a cause by its reason, fault and recovery, and nothing else"
    if said.reason not in taxonomy.REASONS or said.reason == "Unknown":
        return f"its reason {ascii(said.reason)[:80]} is not in the taxonomy"
    if said.recovery not in ("", *taxonomy.RECOVERIES) or said.fault not in ("", *taxonomy.FAULTS):
        return "its recovery or fault is not in the taxonomy"
    if rule.status == "retired":
        return "it is retired"
    if any("\n" in one.text for one in (*rule.must_match, *rule.must_not_match)):
        return "an example holds a line break"
    return None


_OTHERWISE = (
    '. "Rules of your own" in rules/README.md shows the form for import; '
    "in a folder of LOGDOCTOR_MORE_RULES rules have every form"
)
_UNVOTED = Votes(0, (), "")


def _form_cause(rule: FilterRule, kind: str) -> str | None:
    """Return why a file's filter rule cannot be a learned rule; None if it can."""
    if not kind:
        return "it names no kind of job (scope: {kind: ...}), and none was given"
    if len(rule.patterns) != 1:
        return f"it holds {len(rule.patterns)} patterns; a learned rule has one"
    if rule.status == "retired":
        return "it is retired"
    if rule.fallback:
        return "`fallback` is for shipped rules; a learned rule is always tried last"
    if any("\n" in text for text in (*rule.must_match, *rule.must_not_match)):
        return "an example holds a line break"
    if not set(rule.metrics) <= KNOWN:
        return "its metrics are not those that learned rules read"
    return None


def _reported(where: str, looked: "_Fit | tuple[Rule, Refusal]") -> Imported:
    """Return the report on a rule when nothing of its file was entered."""
    if not isinstance(looked, _Fit):
        rule, refusal = looked
        hint = _OTHERWISE if refusal.guard in ("form", "anchor", "grammar") else ""
        return Imported(where, rule.id, "refused", guard=refusal.guard, cause=refusal.cause + hint)
    if known := looked.known:
        return Imported(where, looked.rule.id, "known", known.id, known.status, known.waits_for)
    return Imported(where, looked.rule.id, "held", waits_for=looked.new.waits_for)


def _why(where: str, found: Sequence[Rule]) -> str:
    """Return the origin of the rules, according to their file."""
    one = found[0].origin
    origin = f"by {one.by}, {one.at}, {one.source}" if len(found) == 1 else f"{len(found)} rules"
    return f"from {where}: {origin}"
