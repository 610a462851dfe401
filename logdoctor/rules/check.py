"""Checks whether a rule book is fit for use, by the examples inside its rules.

The same check runs in tests, from the command line, and before an agent may write a rule.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import regex

from logdoctor import taxonomy
from logdoctor.errors import RuleError
from logdoctor.rules.captures import captures
from logdoctor.rules.load import RuleBook
from logdoctor.rules.match import Matcher
from logdoctor.rules.priority import priority
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import DiagnosisRule, FilterRule, Rule
from logdoctor.safe.links import checked_link

_DISGUISES = ("", "[rank3]: ", "2024-03-02 11:08:47,123 ")
"""Prefixes behind which every example must match as it does bare."""
_CAPTURE_SECONDS = 0.2


class Problem(NamedTuple):
    """One thing wrong with one rule."""

    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


def digests(book: RuleBook) -> frozenset[str]:
    """Return digests of a book's rules and tables; they identify rules that passed together."""
    rules: tuple[Rule, ...] = (*book.filters, *book.diagnoses)
    return frozenset(map(_digest, rules)) | {book.tables_digest}


def _digest(rule: FilterRule | DiagnosisRule) -> str:
    return hashlib.sha256(msgspec.json.encode(rule)).hexdigest()[:16]


def check(book: RuleBook, scanner: Scanner, known: frozenset[str] = frozenset()) -> list[Problem]:
    """Return everything wrong with a rule book; an empty list means it may be used.

    Rules in `known` (digests) have passed together. If rules were only added to them, only new rules are checked, and
    those with an example that a new rule matches: nothing else can have changed.
    """
    rules: tuple[Rule, ...] = (*book.filters, *book.diagnoses)
    known = known if known <= digests(book) else frozenset()
    passed = [_digest(rule) in known for rule in rules]
    new = [rule for rule, old in zip(rules, passed, strict=True) if not old]
    others = [rule for rule, old in zip(rules, passed, strict=True) if old]
    concerned = {rule.id for rule in new} | (_touched_by(new, others, scanner) if others else set())
    filters = [rule for rule in book.filters if rule.id in concerned]
    diagnoses = [rule for rule in book.diagnoses if rule.id in concerned]
    said = _Said(scanner, [*filters, *diagnoses])
    if problems := [problem for rule in rules if rule.id in concerned for problem in _form(rule, said)]:
        return problems
    try:
        Scanner(RuleBook(tuple(diagnoses), Path()), scanner.cache).compile_denials()  # the examples need not reach them
    except RuleError as error:
        return [Problem(error.thing.removeprefix("rule "), error.cause)]
    for filter_rule in filters:
        problems += _filter_examples(filter_rule, book, said)
    for diagnosis in diagnoses:
        problems += _diagnosis_examples(diagnosis, book, said)
    return problems + list(_evidence_law(book, diagnoses, said)) + list(_ties(book, diagnoses, said))


class _Said:
    """A scanner's answers about lines; those in the given rules are matched all at once, which is faster."""

    def __init__(self, scanner: Scanner, rules: Sequence[Rule]) -> None:
        self._scanner = scanner
        texts = list(dict.fromkeys(text for rule in rules for text in _every_text(rule)))
        lines = list(dict.fromkeys(line for text in texts for line in _disguised(text) if "\n" not in line))
        self._matching: dict[str, set[str]] = {}
        self._hits: dict[str, tuple[int, list[int]]] = {}
        with suppress(RuleError):  # a pattern is refused: each line is then matched alone, until one needs that pattern
            self._matching = dict(zip(texts, scanner.matching(texts), strict=True))
            self._hits = dict(zip(lines, hits(scanner, lines), strict=True))

    def matching(self, line: str) -> set[str]:
        """Return the sources of all live patterns that match a line."""
        return self._matching[line] if line in self._matching else self._scanner.matching([line])[0]

    def hits(self, line: str) -> tuple[int, list[int]]:
        """Return the result of `hits` for one line."""
        return self._hits[line] if line in self._hits else hits(self._scanner, [line])[0]


def _touched_by(new: Sequence[Rule], others: Sequence[Rule], scanner: Scanner) -> set[str]:
    """Return the ids of rules with an example that a new rule matches."""
    lines = [(rule.id, text) for rule in others for text in _every_text(rule)]
    alone = Scanner(RuleBook(tuple(new), Path()), scanner.cache)
    touched = alone.touched([f"{start}{text}" for _, text in lines for start in _DISGUISES])
    return {lines[place // len(_DISGUISES)][0] for place in touched}


def check_learned(rule: DiagnosisRule, book: RuleBook, scanner: Scanner) -> list[Problem]:
    """Return everything wrong with one diagnosis rule outside the scanner's book.

    It is tried alone, as if active, and against the book: no filter rule may take its examples, and no rule may tie
    with it.
    """
    one = msgspec.structs.replace(rule, status="active", retired=None)
    alone = RuleBook((one,), Path())
    problems = check(alone, Scanner(alone))
    found = hits(scanner, [example.text for example in rule.must_match])
    for example, (owner, evidence) in zip(rule.must_match, found, strict=True):
        if owner >= 0:
            problems.append(Problem(rule.id, f"its example {example.text!r} is taken by {book.filters[owner].id}"))
        for other in (book.diagnoses[number] for number in evidence):
            if other.verdict.reason != one.verdict.reason and priority(other) == priority(one):
                problems.append(Problem(rule.id, f"ties with {other.id} on {example.text!r}"))
    return problems


def _form(rule: Rule, said: _Said) -> Iterator[Problem]:
    """Yield problems of form: a pattern that does not compile or has no example, an incomplete retirement, a bad
    runbook."""
    patterns = rule.patterns if isinstance(rule, FilterRule) else rule.when.any
    others = rule.metrics if isinstance(rule, FilterRule) else rule.when.unless
    if not patterns:
        yield Problem(rule.id, "has no pattern")
    if not rule.must_match:
        yield Problem(rule.id, "has no example that must match")
    try:
        hit = _matching(rule, patterns if isinstance(rule, FilterRule) else (*patterns, *others), said)
    except RuleError as error:
        yield Problem(rule.id, f"{error.thing}: {error.cause}")
        return
    for pattern in (*patterns, *others):
        try:
            regex.compile(pattern.removeprefix("^"))
        except regex.error as error:
            yield Problem(rule.id, f"the regex package refuses {pattern!r}: {error}")
            return
    for pattern in patterns:
        if pattern not in hit:
            yield Problem(rule.id, f"no example of its own for pattern {pattern!r}")
    if (rule.status == "retired") != (rule.retired is not None):
        yield Problem(rule.id, "status 'retired' and the field 'retired' (at, by, why) belong together")
    if isinstance(rule, DiagnosisRule) and rule.runbook:
        try:
            checked_link(rule.runbook)
        except ValueError as error:
            yield Problem(rule.id, f"its runbook is no link: {error}")


def _matching(rule: Rule, patterns: tuple[str, ...], said: _Said) -> set[str]:
    """Return which of a rule's patterns match one of its examples; patterns of inactive rules are compiled here."""
    if rule.status == "active":
        return {source for text in _texts(rule) for source in said.matching(text)}
    matcher = Matcher(patterns)
    return {patterns[number] for text in _texts(rule) for number in matcher.scan(text.encode())[0].tolist()}


def _texts(rule: Rule) -> tuple[str, ...]:
    if isinstance(rule, FilterRule):
        return rule.must_match
    return tuple(example.text for example in rule.must_match)


def _every_text(rule: Rule) -> Iterator[str]:
    """Yield all example lines of a rule."""
    yield from _texts(rule)
    if isinstance(rule, FilterRule):
        yield from rule.must_not_match
    else:
        yield from (example.text for example in rule.must_not_match)
        yield from (wrong.text for wrong in rule.known_wrong)


def _disguised(text: str) -> Iterator[str]:
    for prefix in _DISGUISES:
        yield prefix + text


def hits(scanner: Scanner, lines: Sequence[str]) -> list[tuple[int, list[int]]]:
    """Return for each line its filter rule, or -1, and the diagnosis rules it proves."""
    buffer = "\n".join(lines).encode()
    scan = scanner.scan(buffer, np.flatnonzero(np.frombuffer(buffer, np.uint8) == ord("\n")))
    found: list[tuple[int, list[int]]] = [(owner, []) for owner in scan.owner[: len(lines)].tolist()]
    for line, rule in scan.evidence.tolist():
        found[line][1].append(rule)
    return found


def _filter_examples(rule: FilterRule, book: RuleBook, said: _Said) -> Iterator[Problem]:
    if rule.status != "active":
        return
    for text in rule.must_match:
        for line in _disguised(text):
            owner, evidence = said.hits(line)
            if evidence:
                yield Problem(rule.id, f"its example {line!r} is evidence for {book.diagnoses[evidence[0]].id}")
                break
            if owner < 0:
                yield Problem(rule.id, f"must match {line!r} but does not (or needs `harmless: true`)")
                break
    for text in rule.must_not_match:
        if not said.matching(text).isdisjoint(rule.patterns) and said.hits(text)[0] >= 0:
            yield Problem(rule.id, f"must not match {text!r} but does")
    for metric in rule.metrics:
        if not any(regex.search(metric, text, timeout=_CAPTURE_SECONDS) for text in rule.must_match):
            yield Problem(rule.id, f"no example for the metrics {metric!r}")
    if rule.unit and not any("<throughput>" in metric for metric in rule.metrics):
        yield Problem(rule.id, f"has the unit {rule.unit} of a throughput that none of its metrics reads")


def _diagnosis_examples(rule: DiagnosisRule, book: RuleBook, said: _Said) -> Iterator[Problem]:
    if rule.status != "active":
        return
    number = book.diagnoses.index(rule)
    for example in rule.must_match:
        for line in _disguised(example.text):
            if number not in said.hits(line)[1]:
                yield Problem(rule.id, f"must match {line!r} but does not")
                break
        found = captures(rule, example.text)
        wrong = {name: found.get(name) for name, want in example.captures.items() if found.get(name) != want}
        if wrong:
            yield Problem(rule.id, f"captures {wrong} in {example.text!r}; expected {example.captures}")
        if rule.verdict.lookup and found.get(rule.verdict.lookup) is None:
            yield Problem(rule.id, f"captures no {rule.verdict.lookup!r} to look up in {example.text!r}")
    for example in rule.must_not_match:
        if number in said.hits(example.text)[1]:
            yield Problem(rule.id, f"must not match {example.text!r} but does")
    for wrong_today in rule.known_wrong:
        if number not in said.hits(wrong_today.text)[1]:
            yield Problem(rule.id, f"the known false match {wrong_today.text!r} is fixed: move it to must_not_match")
    if rule.verdict.lookup:
        yield from _table_problems(rule, book)


def _table_problems(rule: DiagnosisRule, book: RuleBook) -> Iterator[Problem]:
    for key, row in book.knowledge(rule.verdict.lookup).items():
        if row.get("role") not in taxonomy.ROLES or (
            row["role"] != "note" and row.get("reason") not in taxonomy.REASONS
        ):
            yield Problem(rule.id, f"table {rule.verdict.lookup!r}, row {key!r}: role or reason is not in the taxonomy")


def _evidence_law(book: RuleBook, diagnoses: Sequence[DiagnosisRule], said: _Said) -> Iterator[Problem]:
    """Yield live filter rules that take an example of a cause (law 2).

    That includes examples of retired rules. The scanner lets evidence win for live rules; this finds rules that lean on
    it, and guards the evidence of retired ones.
    """
    by_pattern: dict[str, FilterRule] = {}
    for filter_rule in book.filters:
        if filter_rule.status == "active" and not filter_rule.harmless:
            by_pattern |= dict.fromkeys(filter_rule.patterns, filter_rule)
    for rule in diagnoses:
        for example in rule.must_match if rule.verdict.role in ("cause", "proximate") else ():
            for source in sorted(said.matching(example.text) & by_pattern.keys()):
                yield Problem(by_pattern[source].id, f"takes {example.text!r}, which is evidence of {rule.id}")


def _ties(book: RuleBook, diagnoses: Sequence[DiagnosisRule], said: _Said) -> Iterator[Problem]:
    """Yield disagreeing rules that hit one example and are not ordered by role or specificity."""
    places = {rule.id: place for place, rule in enumerate(book.diagnoses)}
    checked = {rule.id for rule in diagnoses}
    for rule in diagnoses:
        number = places[rule.id]
        for example in rule.must_match if rule.status == "active" else ():
            for other_number in said.hits(example.text)[1]:
                other = book.diagnoses[other_number]
                same = (rule.verdict.reason, rule.verdict.outcome) == (
                    other.verdict.reason,
                    other.verdict.outcome,
                )
                once = other_number > number or other.id not in checked
                if other_number != number and once and not same and priority(rule) == priority(other):
                    yield Problem(rule.id, f"ties with {other.id} on {example.text!r}")


def require(book: RuleBook, scanner: Scanner, known: frozenset[str] = frozenset()) -> None:
    """Raise `RuleError` for a book's first problem; rules `known` have passed together."""
    for problem in check(book, scanner, known):
        raise RuleError(f"rule {problem.rule}", problem.what, "Run `logdoctor rules check` for the whole list.")
