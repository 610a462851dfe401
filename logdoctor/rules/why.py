"""Why a line is taken, kept or evidence: for people who write rules."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from logdoctor.rules import marks
from logdoctor.rules.captures import captures
from logdoctor.rules.load import RuleBook
from logdoctor.rules.match import Matcher
from logdoctor.rules.priority import priority
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import DiagnosisRule

_REMEMBERED = 500  # patterns


def why(scanner: Scanner, line: str) -> Iterator[str]:
    """Yield sentences about one line: who takes it, what it is evidence of, and which matches have no effect."""
    book = scanner.book
    live = scanner.matching([line])[0]
    written = line.encode()
    scan = scanner.scan(written + b"\n", np.array([len(written)]))
    owner = int(scan.owner[0])
    evidence = sorted((book.diagnoses[int(number)] for number in scan.evidence[:, 1]), key=priority)
    for rule in evidence:
        found = captures(rule, line)
        yield f"evidence   {rule.id}: {_says(rule, found, book)} {found or ''}".rstrip()
    marked = [name for name, source in (marks.STRONG | marks.WEAK).items() if _matches(source, line)]
    if marked:
        yield f"marks      {', '.join(marked)}"
    for filter_rule in book.filters:
        if _hit(filter_rule.patterns, filter_rule.status, live, line):
            if owner >= 0 and filter_rule is book.filters[owner]:
                yield f"taken by   {filter_rule.id}"
            else:
                yield f"in vain    {filter_rule.id}: {_in_vain(filter_rule.status, owner >= 0, bool(evidence))}"
    for rule in book.diagnoses:
        if rule not in evidence and _hit(rule.when.any, rule.status, live, line):
            denied = [pattern for pattern in rule.when.unless if _matches(pattern, line)]
            yield f"in vain    {rule.id}: {_excluded(denied[0]) if denied else _state(rule.status)}"
    if owner < 0:
        yield "kept       the line is kept for diagnosis"


def _says(rule: DiagnosisRule, found: dict[str, str], book: RuleBook) -> str:
    """Return a matching rule's claim about a line; with a lookup, by the table row of its capture."""
    claim = rule.verdict
    if claim.outcome:
        return f"outcome {claim.outcome}"
    if not claim.lookup:
        return f"{claim.role} of {claim.reason}" if claim.reason else str(claim.role)
    row = book.knowledge(claim.lookup).get(found.get(claim.lookup, ""))
    return f"{row['role']} of {row['reason']}, by table {claim.lookup}" if row else f"no row of table {claim.lookup}"


def _hit(patterns: tuple[str, ...], status: str, live: set[str], line: str) -> bool:
    """Return whether a rule matches the line; patterns of inactive rules are compiled for this."""
    if status == "active":
        return not live.isdisjoint(patterns)
    return any(_matches(pattern, line) for pattern in patterns)


def _matches(pattern: str, line: str) -> bool:
    return bool(len(_matcher(pattern).scan(line.encode("utf-8", "replace"))[0]))


@lru_cache(_REMEMBERED)
def _matcher(pattern: str) -> Matcher:
    """Return a compiled pattern; cached, because marks and inactive rules are matched line after line."""
    return Matcher([pattern])


def _state(status: str) -> str:
    return "it is in shadow" if status == "shadow" else f"it is {status}"


def _excluded(pattern: str) -> str:
    return f"the line also matches {pattern!r}, which the rule excludes"


def _in_vain(status: str, owned: bool, evident: bool) -> str:
    if status != "active":
        return _state(status)
    if evident:
        return "the line is evidence, which is never removed"
    return (
        "another rule removes the line first"
        if owned
        else "the line looks like an error, and the rule is not `harmless`"
    )
