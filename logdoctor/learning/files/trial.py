"""Tries all rules on pasted lines: what each does to them, and which verdict would follow."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from logdoctor.compress.cut import cut
from logdoctor.compress.excerpt import Recorder, excerpt
from logdoctor.compress.filter import compress
from logdoctor.diagnose.decide import diagnose
from logdoctor.diagnose.taught import Taught
from logdoctor.errors import RuleError
from logdoctor.learning.files.why import LineFinding, finding, telling, why_learned
from logdoctor.learning.form import as_diagnosis
from logdoctor.rules.captures import captures
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import DiagnosisRule
from logdoctor.store.learning.learned import Learned
from logdoctor.types import Verdict

_STREAM = "pasted"
_BLOCK = 1 << 20


class Explained(NamedTuple):
    """What rules do to a line of jobs of a kind ("": kinds without a learned rule that matches it), with the captures
    of diagnosis rules by id."""

    kind: str
    findings: list[LineFinding]
    captured: dict[str, dict[str, str]]


class RuleTrial(NamedTuple):
    """A line and its explanations; None when time ran out."""

    line: str
    explained: list[Explained] | None


def tried(
    scanner: Scanner,
    rules: Sequence[Learned],
    lines: Sequence[str],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[RuleTrial]:
    """Return what shipped and learned rules do to each line; lines after `seconds` are left out."""
    until = clock() + seconds
    shipped = {rule.id: rule for rule in scanner.book.diagnoses}
    found: list[RuleTrial] = []
    for line in lines:
        if found and clock() >= until:
            found.append(RuleTrial(line, None))
            continue
        said = why_learned(scanner, rules, line)
        found.append(RuleTrial(line, [_explained(one.kind, one.findings, shipped, line) for one in said]))
    return found


def verdict(
    scanner: Scanner, rules: Sequence[Learned], lines: Sequence[str], overruled: RuleBook | None = None
) -> Verdict:
    """Return the verdict on a log of just these lines, with active learned diagnosis rules.

    `overruled` replaces the scanner's rules in judging. Learned filter rules are left out: they take no line that a
    verdict rests on.
    """
    recorder = Recorder(_STREAM, _STREAM, scanner)
    for segment in cut(_STREAM, iter(["\n".join(lines).encode("utf-8", "replace") + b"\n"]), _BLOCK):
        recorder.add(excerpt(compress(segment, scanner), scanner), 0)
    active = [rule for rule in rules if rule.status == "active" and rule.claim is not None]
    matching = {rule.id: rule for line in lines for rule in telling(active, line)}
    record, book = [recorder.record()], overruled or scanner.book
    with suppress(RuleError):
        record, book = Taught([as_diagnosis(rule) for rule in matching.values()]).applied(record, book)
    return diagnose(record, book)


def _explained(kind: str, sentences: Sequence[str], shipped: dict[str, DiagnosisRule], line: str) -> Explained:
    findings = [finding(one) for one in sentences]
    captured = {
        one.rule: captures(shipped[one.rule], line)
        for one in findings
        if one.word == "evidence" and one.rule in shipped
    }
    shown = [
        one._replace(text=one.text.removesuffix(f" {caught}")) if (caught := captured.get(one.rule)) else one
        for one in findings
    ]
    return Explained(kind, shown, captured)
