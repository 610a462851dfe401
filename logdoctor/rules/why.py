"""Why a line is taken, kept or evidence: for people who write rules."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from logdoctor.rules import marks
from logdoctor.rules.captures import captures
from logdoctor.rules.match import Matcher
from logdoctor.rules.priority import priority
from logdoctor.rules.scanner import Scanner

_REMEMBERED = 500  # patterns


def why(scanner: Scanner, line: str) -> Iterator[str]:
    """Sentences about one line: who takes it, what it is evidence of, and who matches it in vain."""
    book = scanner.book
    live = scanner.matching(line)
    scan = scanner.scan(line.encode(), np.empty(0, np.int64))
    owner = int(scan.owner[0])
    evidence = sorted((book.diagnoses[int(number)] for number in scan.evidence[:, 1]), key=priority)
    for rule in evidence:
        claim = rule.verdict
        says = f"outcome {claim.outcome}" if claim.outcome else f"{claim.role} of {claim.reason or claim.lookup}"
        yield f"evidence   {rule.id}: {says} {captures(rule, line) or ''}".rstrip()
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
            yield f"in vain    {rule.id}: {f'unless {denied[0]!r}' if denied else f'it is {rule.status}'}"
    if owner < 0:
        yield "kept       the line stays in the residual"


def _hit(patterns: tuple[str, ...], status: str, live: set[str], line: str) -> bool:
    """Whether a rule matches the line; one that is not alive is compiled for the purpose."""
    if status == "active":
        return not live.isdisjoint(patterns)
    return any(_matches(pattern, line) for pattern in patterns)


def _matches(pattern: str, line: str) -> bool:
    return bool(len(_matcher(pattern).scan(line.encode("utf-8", "replace"))[0]))


@lru_cache(_REMEMBERED)
def _matcher(pattern: str) -> Matcher:
    """A pattern compiled: marks and rules that are not alive are asked about line after line."""
    return Matcher([pattern])


def _in_vain(status: str, owned: bool, evident: bool) -> str:
    if status != "active":
        return f"it is {status}"
    if evident:
        return "the line is evidence, which wins"
    return (
        "another rule removes the line first"
        if owned
        else "the line has a strong error mark and the rule is not `harmless`"
    )
