"""Code decides whether a diagnosis pattern may become a rule: its claim applies to every line it hits.

A rule that hits too much blames the wrong thing, restarts what cannot run, or cordons good nodes. So a proposal is
refused unless each guard passes it, in this order:

    form         text of one line that begins with `^`, printable, of the small language of `learning.grammar`
    compile      small enough to compile, and Hyperscan compiles it
    secret       its literal text holds no password, key or token
    literal      enough words of its own: exception class names and words of many failures do not count
    evidence     hits the line that it was written for, also behind the prefixes of launchers
    healthy      hits no line that is known to be harmless, nor any past attempt that did not fail
    others       hits no example of a rule of another reason, nor any past attempt with another reason
    rules-check  what `logdoctor rules check` demands of every rule
    effect       with it, its own attempt gets the confirmed reason and recovery, by its line

Refusals are counted by these names, and by `duplicate` and `claim`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import NamedTuple

import msgspec
import regex

from logdoctor import taxonomy
from logdoctor.diagnose.carriers import is_report
from logdoctor.diagnose.decide import diagnose
from logdoctor.diagnose.ending import FAILED
from logdoctor.diagnose.taught import Taught, line_matches
from logdoctor.errors import RuleError
from logdoctor.learning.backtest import BackTest, Says
from logdoctor.learning.diagnoses.past import as_records
from logdoctor.learning.form import diagnosis
from logdoctor.learning.grammar import Chars, Choice, Node, Pattern
from logdoctor.learning.proposed import Refusal, first_refusal, learnable, refusal
from logdoctor.llm.masking import mask
from logdoctor.rules.check import check_learned
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import DiagnosisRule, FilterRule
from logdoctor.store.learning.confirmed import Confirmed, Kept, Past
from logdoctor.store.learning.learned import Learned, StoredClaim
from logdoctor.text import origin, shown
from logdoctor.types import Record

GUARDS = ("form", "compile", "secret", "literal", "evidence", "healthy", "others", "rules-check", "effect")
"""All guards, in order."""

_WORDS, _LETTERS = 3, 9  # of its own
_FEW_WORDS, _MORE_LETTERS = 2, 12  # long words: fewer are enough
_CLASS = regex.compile(
    r"\w*(?:Error|Exception|Failure|Fault|Interrupt|Warning|Timeout|Killed|Exit)|std|runtime_error|what"
)
_GENERIC = frozenset(
    """
    a abort aborted aborting all an and any are as at attempt be been but by call called calls can cannot code
    connection could critical cuda current default detected did died do does due during encountered end error errors
    exception exit exitcode exited exiting exits fail failed failing fails failure fatal file finished first
    following for from gpu had has have host in info internal into invalid is it its job killed last launch launched
    launcher line local log main message module most nccl no node not occurred of on or other pid process processes
    python raised rank ranks reason received recent report request retries retry retrying return returned root
    runtime see signal so some started state status step stopped task that the this thread time timeout to torch
    trace traceback training unable unexpected unhandled unknown using value warning was were what when while with
    within worker workers
    """.split()
)
"""Words shared by failures of many reasons."""
_PREFIXES = ("", "[rank3]: ", "2024-03-02 11:08:47,123 ")

Backtest = Callable[[tuple[str, int] | None], Iterator[Past]]


class ConfirmedTrial(NamedTuple):
    """The origin of a pattern: the attempt, its records, its confirmed `claim`, digests that identify the failure, and
    the rules that judge it, if some are overridden."""

    job: str
    attempt: int
    records: Sequence[Record]
    claim: StoredClaim
    digests: AbstractSet[str] = frozenset()
    book: RuleBook | None = None


class DiagnosisCandidate(NamedTuple):
    """A pattern for a line (its stream, number and raw text) of an attempt."""

    pattern: str
    title: str
    stream: str
    line: int
    text: str


class DiagnosisGuards:
    """The guards, with the shipped rules and kept attempts that they test against."""

    def __init__(self, book: RuleBook, scanner: Scanner, past: Backtest) -> None:
        self._book, self._scanner, self._past = book, scanner, past

    @cached_property
    def _harmless(self) -> list[Record]:
        """Return lines that no rule may hit; built for the first back-test."""
        return _records(_harmless(self._book))

    def first_fit(
        self, candidates: Sequence[DiagnosisCandidate], trial: ConfirmedTrial, backtest: BackTest | None = None
    ) -> tuple[DiagnosisCandidate | None, list[Refusal]]:
        """Return the first candidate that passes all guards, if any; and the refusals before it.

        With a `backtest` they are tried on as many of the newest attempts as its time allows, and it records the hits
        of each candidate by index.
        """
        refused: dict[int, Refusal] = {}
        rules: dict[int, DiagnosisRule] = {}
        for place, one in enumerate(candidates):
            if said := _refused_alone(one.pattern, [one.text]):
                refused[place] = said
            else:
                rules[place] = _rule(one.pattern, trial.claim, [one.text], place, one.title)
        refused |= self._backtested(rules, trial, backtest)
        for place, one in enumerate(candidates):
            said = refused.get(place) or first_refusal(mask(one.pattern), self._asked(rules[place], trial))
            if said is None:
                return one, [refused[at] for at in sorted(refused) if at < place]
            refused[place] = said
        return None, [refused[at] for at in sorted(refused)]

    def refusal_of_rule(self, pattern: str, claim: StoredClaim, examples: Sequence[str]) -> Refusal | None:
        """Return the guards' refusal of a pattern written elsewhere, judged by its examples; None if they pass it."""
        if not examples:
            return refusal(mask(pattern), "evidence", "it has no example")
        rule, trial = _rule(pattern, claim, examples, 0, ""), ConfirmedTrial("", -1, (), claim)
        return (
            _refused_alone(pattern, examples)
            or self._backtested({0: rule}, trial).get(0)
            or first_refusal(mask(pattern), [("rules-check", self._check_cause(rule))])
        )

    def harm(self, rule: DiagnosisRule, trial: ConfirmedTrial) -> Refusal | None:
        """Return the refusal of an accepted rule that now hits what it must not, or None."""
        return self._backtested({0: rule}, trial).get(0)

    def _asked(self, rule: DiagnosisRule, trial: ConfirmedTrial) -> Iterator[tuple[str, str | None]]:
        """Yield the most expensive guards, which are asked last."""
        yield "rules-check", self._check_cause(rule)
        yield "effect", self._effect_cause(rule, trial)

    def _check_cause(self, rule: DiagnosisRule) -> str | None:
        problems = check_learned(_with_own_examples(rule), self._book, self._scanner)
        return problems[0].what if problems else None

    def _backtested(
        self, rules: dict[int, DiagnosisRule], trial: ConfirmedTrial, backtest: BackTest | None = None
    ) -> dict[int, Refusal]:
        """Return the refusals of rules that hit what they must not, by index; all are tried together."""
        if not rules:
            return {}
        taught = Taught(list(rules.values()))
        place_of = {rule.id: place for place, rule in rules.items()}
        refused: dict[int, Refusal] = {}

        def refuse(rule: str, guard: str, cause: str) -> None:
            place = place_of[rule]
            refused.setdefault(place, refusal(mask(rules[place].when.any[0]), guard, f"the pattern hits {cause}"))

        for rule, lines in taught.hits(self._harmless).items():
            refuse(rule, "healthy", f"a harmless line: {self._harmless[0].lines[lines[0][1]].text[:200]!r}")
        others = _of_other_reasons(self._book, trial.claim.reason)
        examples = list(others)
        for rule, lines in taught.hits(_records(examples)).items():
            line = examples[lines[0][1]]
            whose = others[line]
            said = f"an example of the rule {whose.id} ({whose.verdict.reason})"
            refuse(rule, "others", f"{said}: {line[:200]!r}")
        past_attempts = self._past((trial.job, trial.attempt))
        for past in backtest.course(past_attempts) if backtest else past_attempts:
            if backtest is None and len(refused) == len(rules):
                break
            cause = contradiction(past, trial)
            if cause is None and backtest is None:
                continue
            for rule, lines in taught.hits(as_records(past.lines)).items():
                if cause:
                    refuse(rule, cause[0], f"{past.job}/{past.attempt}, line {lines[0][1]}, which {cause[1]}")
                if backtest:
                    backtest.enter(place_of[rule], past, lines, says(past, trial))
        return refused

    def _effect_cause(self, rule: DiagnosisRule, trial: ConfirmedTrial) -> str | None:
        records, book = Taught([rule]).applied(trial.records, trial.book or self._book)
        verdict = diagnose(records, book, reported=FAILED)
        decides = f"{verdict.decided_by.rule or 'no rule'} would still decide its own attempt"
        wanted = rule.verdict
        if (verdict.outcome, verdict.reason, verdict.recovery) != ("failed", wanted.reason, wanted.recovery):
            return f"{decides}: {verdict.reason} ({verdict.outcome}, {taxonomy.ADVICE[verdict.recovery]})"
        if verdict.decided_by.rule != rule.id or all(one.rule != rule.id for one in verdict.evidence):
            return f"{decides}, not its line"
        return None


def _rule(pattern: str, claim: StoredClaim, examples: Sequence[str], place: int, title: str) -> DiagnosisRule:
    return diagnosis(f"learned/candidate/{place}", pattern, claim, [mask(shown(text)) for text in examples], title)


def _refused_alone(source: str, lines: Sequence[str]) -> Refusal | None:
    """Return the refusal by a guard that needs no other attempt; None without one."""
    pattern = learnable(source, source if source.endswith("$") and not source.endswith("\\$") else f"{source}$")
    if isinstance(pattern, Refusal):
        guard = "form" if pattern.guard in ("anchor", "grammar") else pattern.guard
        return pattern._replace(pattern=mask(pattern.pattern), guard=guard)
    try:
        return first_refusal(mask(source), _asked_alone(source, pattern, lines))
    except RuleError as error:
        return refusal(mask(source), "compile", error.cause)


def _asked_alone(source: str, pattern: Pattern, lines: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    yield "literal", _literal_cause(pattern, lines)
    tried = [prefix + shown(line) for line in lines for prefix in _PREFIXES]
    missed = sorted(set(range(len(tried))) - set(line_matches(source, tried)))
    yield "evidence", f"the pattern does not match {tried[missed[0]][:200]!r}" if missed else None


def _literal_cause(pattern: Pattern, lines: Sequence[str]) -> str | None:
    """Return why a pattern's required text is too little to identify a failure; None when it is enough."""
    for line in lines:
        name = origin(shown(line)).message[:200].lstrip().split(":", 1)[0]
        if is_report(name):
            return f"{name} only reports what happened elsewhere"
    words = own_words(pattern)
    letters = sum(len(word) if word.isascii() else 3 * len(word) for word in words)
    count = sum(1 if word.isascii() else 1 + len(word) // 3 for word in words)
    if (count < _WORDS or letters < _LETTERS) and (count < _FEW_WORDS or letters < _MORE_LETTERS):
        said = f"only {', '.join(sorted(words))} of" if words else "nothing of"
        return f"{said} its text is its own: the rest could be of any failure"
    return None


def own_words(pattern: Pattern) -> set[str]:
    """Return the required words of a pattern, without class names and common words of failures."""
    found = set()
    for text in _required(pattern.nodes):
        for word in regex.findall(r"[^\W\d_]{2,}", regex.sub(r"\w+", _without_class, text)):
            if word.lower() not in _GENERIC:
                found.add(word.lower())
    return found


def _without_class(match: regex.Match[str]) -> str:
    return " " if _CLASS.fullmatch(match.group()) else match.group()


def _required(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield runs of literal text outside of alternatives."""
    run = bytearray()
    for node in nodes:
        if isinstance(node, Chars) and node.literal and node.least:
            run += bytes(node.members) * node.least
            continue
        if isinstance(node, Chars | Choice) and run:
            yield run.decode("utf-8", "replace")
            run.clear()
    if run:
        yield run.decode("utf-8", "replace")


def _with_own_examples(rule: DiagnosisRule) -> DiagnosisRule:
    """Return the rule with those masked examples that it still matches; masking may remove what it needs."""
    texts = [example.text for example in rule.must_match]
    good = [rule.must_match[place] for place in line_matches(rule.when.any[0], texts)]
    return msgspec.structs.replace(rule, must_match=tuple(good))


def _harmless(book: RuleBook) -> Iterator[str]:
    """Yield lines known to be routine, or to report a good end."""
    for rule in book.filters:
        yield from _examples(rule)
    for one in book.diagnoses:
        if one.verdict.outcome in ("completed", "recovered", "cancelled"):
            yield from (example.text for example in one.must_match)


def _examples(rule: FilterRule) -> Iterable[str]:
    return rule.must_match if rule.status == "active" else ()


def _of_other_reasons(book: RuleBook, reason: str) -> dict[str, DiagnosisRule]:
    """Return example lines of other reasons, or that follow any failure, each with its rule."""
    found: dict[str, DiagnosisRule] = {}
    for rule in book.diagnoses:
        claim = rule.verdict
        if claim.lookup or claim.outcome:
            continue
        if claim.reason != reason or claim.role in ("teardown", "note"):
            lines = (line for example in rule.must_match for line in example.text.split("\n"))
            found |= {line: rule for line in lines if line not in found}
    return found


def _records(texts: Iterable[str]) -> list[Record]:
    """Return lines as one record, numbered from 0."""
    lines = (line for text in texts for line in text.split("\n"))
    return as_records(Kept("", number, line) for number, line in enumerate(dict.fromkeys(lines))) or [Record("", "")]


def contradiction(past: Past, trial: ConfirmedTrial) -> tuple[str, str] | None:
    """Return (guard, cause) why a rule with this claim must not hit a past attempt; None if it may.

    An attempt of unknown cause or unknown outcome says nothing. Nor does an unconfirmed guess (by structure, case or
    agent) about the same failure: the confirmation corrects it.
    """
    if past.outcome == "unknown":
        return None
    if past.outcome not in ("failed", "recovered"):
        return "healthy", f"was {past.outcome}"
    if past.reason in (trial.claim.reason, "Unknown"):
        return None
    if past.outcome == "recovered" and past.reason == "None":
        return "healthy", "recovered from nothing that it would explain"
    if not past.confirmed and not past.decided.startswith("rule") and past.digest in trial.digests:
        return None
    return "others", f"failed of {past.reason}"


def says(past: Past, trial: ConfirmedTrial) -> Says:
    """Return whether a rule with this claim is right about a past attempt."""
    if contradiction(past, trial):
        return "contradicts"
    return "agrees" if past.outcome == "failed" and past.reason == trial.claim.reason else "open"


def trial_of(rule: Learned, claim: StoredClaim, confirmed: Confirmed) -> ConfirmedTrial:
    """Return the origin of a rule with this claim, for trying it again."""
    job, attempt = rule.source.job or "", -1 if rule.source.attempt is None else rule.source.attempt
    confirmation = confirmed.live(job, attempt)
    return ConfirmedTrial(job, attempt, (), claim, frozenset(confirmation.digests if confirmation else ()))
