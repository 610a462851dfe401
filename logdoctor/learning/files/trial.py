"""Lines that somebody pastes, held against all rules: what each does to them, and what verdict would follow."""

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
    """What rules do to a line of jobs of a kind ("" for all kinds of which no learned rule matches it), with what the
    groups of diagnosis rules capture, by their ids."""

    kind: str
    findings: list[LineFinding]
    captured: dict[str, dict[str, str]]


class RuleTrial(NamedTuple):
    """A line and what is said of it; None when there was no time left for it."""

    line: str
    explained: list[Explained] | None


def tried(
    scanner: Scanner,
    rules: Sequence[Learned],
    lines: Sequence[str],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[RuleTrial]:
    """Return what the shipped rules and some learned ones do to each line; those that come after so many seconds are
    left."""
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
    """Return the verdict on a log that holds just these lines, with those learned diagnosis rules that are active, by
    the rules of the scanner or as some of them are `overruled`.

    Learned filter rules are left out: they take no line on which a verdict rests.
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
