"""Learned diagnosis rules, matched when an attempt is judged.

They read the lines that compression kept as remarkable and the last ones, never a whole log. So the scan is as fast as
without them, running streams use them at once, and trying one over the stored lines of past attempts shows exactly what
it would have done.
"""

from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path
from zlib import crc32

import msgspec

from logdoctor.rules.lines import hits, joined
from logdoctor.rules.load import RuleBook
from logdoctor.rules.match import Matcher
from logdoctor.rules.schema import DiagnosisRule
from logdoctor.text import shown
from logdoctor.types import Line, Record

_TOGETHER = 50  # most rules that are compiled as one part
_PARTS = 48  # parts into which more rules are divided

LONGEST = 2000
"""Characters of a line that learned diagnosis rules read: a cause is named at the beginning."""


class Taught:
    """The learned diagnosis rules in use: active ones take part in judging, shadow ones are only counted.

    Compiled patterns are stored in the folder `cache`, if given. Raises `RuleError` for a pattern that does not
    compile.
    """

    def __init__(self, rules: Sequence[DiagnosisRule], cache: Path | None = None) -> None:
        self.rules = tuple(rules)
        self._active = tuple(rule for rule in self.rules if rule.status == "active")
        self._matchers = [
            (_matcher(tuple(pattern for pattern, _ in some), cache), tuple(place for _, place in some))
            for some in _parted(self.rules)
        ]

    def applied(self, records: Sequence[Record], book: RuleBook) -> tuple[list[Record], RuleBook]:
        """Return the records with the active rules that match, and the book with these appended."""
        if not self._active:
            return list(records), book
        number = {rule.id: len(book.diagnoses) + place for place, rule in enumerate(self._active)}
        return [self._marked(record, number) for record in records], book.with_taught(self._active)

    def withholding(self, may_tell: Callable[[str], bool]) -> "Taught":
        """Return the rules for readers who may not see every job. A rule that was learned from a hidden job loses its
        suggestion, which people wrote about that job; the taxonomy's takes its place."""
        told = copy(self)
        told._active = tuple(
            rule if may_tell(_learned_from(rule)) else msgspec.structs.replace(rule, suggestion="")
            for rule in self._active
        )
        return told

    def hits(self, records: Sequence[Record]) -> dict[str, tuple[tuple[str, int], ...]]:
        """Return the lines that each rule matches, in shadow too, as (stream, number) in order."""
        found: dict[str, list[tuple[str, int]]] = {}
        for record in records:
            for line, rules in self._rules_of(record):
                for place in sorted(rules):
                    found.setdefault(self.rules[place].id, []).append((record.stream, line.number))
        return {rule: tuple(lines) for rule, lines in found.items()}

    def _marked(self, record: Record, number: dict[str, int]) -> Record:
        kept = {line.number for line in record.lines}
        lines: list[Line] = []
        for line, rules in self._rules_of(record):
            more = tuple(sorted(number[rule.id] for place in rules if (rule := self.rules[place]).status == "active"))
            if more or line.number in kept:
                lines.append(line._replace(rules=(*line.rules, *more)) if more else line)
        return msgspec.structs.replace(record, lines=lines)

    def _rules_of(self, record: Record) -> list[tuple[Line, set[int]]]:
        """Return the lines that rules read, each with the indexes of the rules that match."""
        lines = nameable(record)
        found: list[set[int]] = [set() for _ in lines]
        if lines and self.rules:
            texts = joined(shown(line.text)[:LONGEST] for line in lines)
            for matcher, rules in self._matchers:
                for rule, places in zip(rules, hits(matcher, texts), strict=True):
                    for place in places:
                        found[place].add(rule)
        return list(zip(lines, found, strict=True))


def nameable(record: Record) -> list[Line]:
    """Return the lines that may identify a failure, in order: the kept ones and the last."""
    kept = {line.number for line in record.lines}
    return sorted((*record.lines, *(line for line in record.last if line.number not in kept)), key=_number)


def _number(line: Line) -> int:
    return line.number


def _learned_from(rule: DiagnosisRule) -> str:
    """Return the job that a rule was learned from; "" if it was imported for all."""
    return rule.origin.source.rpartition("/")[0]


def _parted(rules: Sequence[DiagnosisRule]) -> list[list[tuple[str, int]]]:
    """Return (pattern, rule index) pairs in parts, which rule names determine. A pattern takes some 20 ms to compile,
    and a change of one rule must not recompile all others."""
    parts: dict[int, list[tuple[str, int]]] = {}
    number = _PARTS if len(rules) > _TOGETHER else 1
    for place, rule in enumerate(rules):
        part = parts.setdefault(crc32(rule.id.encode()) % number, [])
        part += [(pattern, place) for pattern in rule.when.any]
    return list(parts.values())


@lru_cache(maxsize=4 * 48)
def _matcher(patterns: tuple[str, ...], cache: Path | None) -> Matcher:
    """Compile patterns; equal ones only once, even when their rules change."""
    return Matcher(patterns, cache)


def line_matches(pattern: str, lines: Sequence[str]) -> list[int]:
    """Return the indexes of the lines that a pattern matches, as a learned rule would. Raises `RuleError` when it does
    not compile."""
    return sorted(hits(_matcher((pattern,), None), joined(shown(line)[:LONGEST] for line in lines))[0])
