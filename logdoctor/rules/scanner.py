"""Which lines of a buffer are explained, and which are evidence: one pass for all rules at once.

Evidence wins (law 2): a line that a diagnosis rule matches is never taken by a filter rule, whatever else
stands in it; a line that only looks like trouble is taken by a filter rule marked `harmless`, not by others.
"""

import copy
from collections.abc import Container
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import regex

from logdoctor.errors import RuleError
from logdoctor.rules import marks
from logdoctor.rules.load import RuleBook
from logdoctor.rules.match import Matcher, hyperscan_complaint, size_complaint
from logdoctor.rules.schema import FilterRule

_GENERIC = "filter/generic/"  # the pack of what many programs print: others know their lines better
Ints = npt.NDArray[np.int64]


class Kind(IntEnum):
    """What a pattern is for."""

    FILTER = 0
    HARMLESS = 1
    SHADOW = 2
    EVIDENCE = 3
    UNLESS = 4
    STRONG = 5
    WEAK = 6


class Scan(NamedTuple):
    """What the rules say about the lines of one buffer.

    `owner[i]` is the filter rule (its place in `RuleBook.filters`) that takes line i, or -1.
    `evidence` holds pairs (line, place in `RuleBook.diagnoses`), ordered and without doubles.
    `metric[i]` is the filter rule with metrics that hits line i, taken or not, or -1.
    `strong` and `weak` tell for each line whether it bears such a mark; weak marks are only looked for in
    lines that no rule of the first pass takes. `shadow[i]` is the learned rule that would take line i if it were
    active, or -1.
    """

    owner: npt.NDArray[np.int32]
    metric: npt.NDArray[np.int32]
    evidence: Ints
    strong: npt.NDArray[np.bool_]
    weak: npt.NDArray[np.bool_]
    shadow: npt.NDArray[np.int32]


class Scanner:
    """The rules of a book that are alive, compiled."""

    def __init__(self, book: RuleBook, cache: Path | None = None) -> None:
        self.book, self._cache = book, cache
        general: list[RulePattern] = []
        denial: list[RulePattern] = []
        fallback: list[RulePattern] = []
        for number, rule in enumerate(book.filters):
            if rule.status == "active":
                (fallback if rule.fallback else general).extend(
                    RulePattern(source, _taking(rule), number) for source in rule.patterns
                )
        fallback.sort(key=lambda pattern: book.filters[pattern.rule].id.startswith(_GENERIC))
        for number, diagnosis in enumerate(book.diagnoses):
            if diagnosis.status == "active":
                general += [RulePattern(source, Kind.EVIDENCE, number) for source in diagnosis.when.any]
                denial += [RulePattern(source, Kind.UNLESS, number) for source in diagnosis.when.unless]
        general += [RulePattern(source, Kind.STRONG, 0) for source in marks.STRONG.values()]
        fallback += [RulePattern(source, Kind.WEAK, 0) for source in marks.WEAK.values()]
        self._general, self._denial, self._fallback = (
            self._compiled(patterns, cache) for patterns in (general, denial, fallback)
        )
        self._learned: tuple[_Set, ...] = ()
        self._measures = _measures(book)

    def learning(self, kind: str, learned: tuple[FilterRule, ...], hot: Container[str] = ()) -> "Scanner":
        """This scanner with rules that were learned from jobs of a kind, in place of those it had.

        They are tried last and on what nothing explains: a line that is evidence is never theirs, one that looks
        like trouble only if they are `harmless`. Those in shadow take nothing. `hot` are ids of those that are tried
        before the others: few rules explain nearly all lines of a job, and a small set is quicker than a large one.
        """
        scanner = copy.copy(self)
        scanner.book = self.book.with_learned(kind, learned)
        first = len(scanner.book.filters) - len(learned)
        for rule in learned:
            if rule.status in ("active", "shadow") and any(regex.fullmatch(source, "") for source in rule.patterns):
                raise RuleError(f"rule {rule.id}", "its pattern matches an empty line", "Retire it.")
        alive = ((number, rule) for number, rule in enumerate(learned, first) if rule.status in ("active", "shadow"))
        patterns = [RulePattern(source, _taking(rule), number) for number, rule in alive for source in rule.patterns]
        cache = self._cache / "learned" if self._cache else None  # apart: they come and go, and would push others out
        first_tried = [pattern for pattern in patterns if scanner.book.filters[pattern.rule].id in hot]
        others = [pattern for pattern in patterns if scanner.book.filters[pattern.rule].id not in hot]
        scanner._learned = tuple(scanner._compiled(some, cache) for some in (first_tried, others) if some)
        scanner._measures = _measures(scanner.book)
        return scanner

    def _compiled(self, patterns: list["RulePattern"], cache: Path | None) -> "_Set":
        """Return patterns that are scanned together. Raise `RuleError` with the rule whose pattern is refused."""
        try:
            return _Set(patterns, cache)
        except RuleError as error:
            for complaint_of in (size_complaint, hyperscan_complaint):  # the one costs nothing, the other compiles
                for source, kind, number in patterns:
                    if kind < Kind.STRONG and (complaint := complaint_of(source)):
                        rules = self.book.filters if kind <= Kind.SHADOW else self.book.diagnoses
                        cause = f"its pattern {source!r} cannot be compiled ({complaint})"
                        raise RuleError(f"rule {rules[number].id}", cause, "Simplify the pattern.") from error
            raise

    def scan(self, buffer: bytes, newlines: Ints) -> Scan:
        """Match a buffer whose lines end at the offsets `newlines` (the last line may lack its own)."""
        lines = len(newlines) + 1
        hits = self._general.scan(buffer, newlines)
        evidence = self._evidence(buffer, newlines, hits)
        strong, weak, proven = (np.zeros(lines, np.bool_) for _ in range(3))
        strong[hits.lines[hits.kinds == Kind.STRONG]] = True
        proven[evidence[:, 0]] = True
        owner, metric = np.full(lines, -1, np.int32), np.full(lines, -1, np.int32)
        self._assign(hits, proven, strong, owner, metric)
        rest = np.flatnonzero(owner < 0)
        if len(rest):
            hits = self._fallback.scan_some(buffer, newlines, rest)
            weak[hits.lines[hits.kinds == Kind.WEAK]] = True
            self._assign(hits, proven | (metric >= 0), strong, owner, metric)
        shadow = np.full(lines, -1, np.int32)
        for learned in self._learned:
            if len(rest := np.flatnonzero((owner < 0) & (shadow < 0) & ~proven)):
                hits = learned.scan_some(buffer, newlines, rest)
                self._assign(hits, proven, strong | weak, owner, metric)
                self._foresee(hits, proven, strong | weak, owner, shadow)
        return Scan(owner, metric, evidence, strong, weak, shadow)

    def matching(self, line: str) -> set[str]:
        """The sources of all live patterns that match one line, whatever comes of it."""
        sets = (self._general, self._denial, self._fallback, *self._learned)
        return {part.patterns[number].source for part in sets for number in part.numbers(line.encode())}

    def _assign(
        self,
        hits: "Hits",
        proven: npt.NDArray[np.bool_],
        strong: npt.NDArray[np.bool_],
        owner: npt.NDArray[np.int32],
        metric: npt.NDArray[np.int32],
    ) -> None:
        """Give lines without an owner to the first rule of the book that hit them and may take them."""
        allowed = (hits.kinds == Kind.HARMLESS) | (hits.kinds == Kind.FILTER) & ~strong[hits.lines]
        taking = np.flatnonzero(allowed & ~proven[hits.lines] & (owner[hits.lines] < 0))[::-1]
        owner[hits.lines[taking]] = hits.rules[taking]  # backwards: the first rule of the book is written last
        filtering = hits.kinds <= Kind.HARMLESS
        measured = np.flatnonzero(filtering)[self._measures[hits.rules[filtering]]][::-1]
        measured = measured[metric[hits.lines[measured]] < 0]
        metric[hits.lines[measured]] = hits.rules[measured]

    def _foresee(
        self,
        hits: "Hits",
        proven: npt.NDArray[np.bool_],
        marked: npt.NDArray[np.bool_],
        owner: npt.NDArray[np.int32],
        shadow: npt.NDArray[np.int32],
    ) -> None:
        """Write down for lines without an owner the first rule in shadow that would take them."""
        would = np.flatnonzero((hits.kinds == Kind.SHADOW) & ~proven[hits.lines] & (owner[hits.lines] < 0))[::-1]
        bold = np.array([rule.harmless for rule in self.book.filters] or [False])
        would = would[bold[hits.rules[would]] | ~marked[hits.lines[would]]]
        shadow[hits.lines[would]] = hits.rules[would]

    def _evidence(self, buffer: bytes, newlines: Ints, hits: "Hits") -> Ints:
        """(line, diagnosis rule) pairs whose `any` matched and whose `unless` did not."""
        width = max(len(self.book.diagnoses), 1)
        proof = hits.kinds == Kind.EVIDENCE
        pairs = np.unique(hits.lines[proof] * width + hits.rules[proof])
        if len(pairs):
            denied = self._denial.scan_some(buffer, newlines, np.unique(pairs // width))
            pairs = pairs[~np.isin(pairs, denied.lines * width + denied.rules)]
        return np.stack((pairs // width, pairs % width), axis=1)


def _taking(rule: FilterRule) -> Kind:
    """What the patterns of a filter rule that is alive may do to lines."""
    if rule.status != "active":
        return Kind.SHADOW
    return Kind.HARMLESS if rule.harmless else Kind.FILTER


def _measures(book: RuleBook) -> npt.NDArray[np.bool_]:
    """For each filter rule whether it reads metrics."""
    return np.array([bool(rule.metrics) for rule in book.filters] or [False])


class RulePattern(NamedTuple):
    """A pattern, what it is for, and the rule it belongs to (its place in the book)."""

    source: str
    kind: Kind
    rule: int


class Hits(NamedTuple):
    """Hits of patterns, in the order of the patterns: which line, what kind, which rule."""

    lines: Ints
    kinds: npt.NDArray[np.int8]
    rules: npt.NDArray[np.int32]


class _Set:
    """Patterns that are scanned together."""

    def __init__(self, patterns: list[RulePattern], cache: Path | None) -> None:
        self.patterns = patterns
        self._kinds = np.array([pattern.kind for pattern in patterns], np.int8)
        self._rules = np.array([pattern.rule for pattern in patterns], np.int32)
        self._matcher = Matcher([pattern.source for pattern in patterns], cache)

    def scan(self, buffer: bytes, newlines: Ints) -> Hits:
        """All hits in a buffer."""
        numbers, ends = self._matcher.scan(buffer)
        return Hits(np.searchsorted(newlines, ends - 1), self._kinds[numbers], self._rules[numbers])

    def numbers(self, line: bytes) -> list[int]:
        """The places of the patterns that match a line."""
        numbers, _ = self._matcher.scan(line)
        return [int(number) for number in np.unique(numbers)]

    def scan_some(self, buffer: bytes, newlines: Ints, places: Ints) -> Hits:
        """The hits in some lines of a buffer; lines that are few are copied out first."""
        if len(places) * 4 > len(newlines):
            hits = self.scan(buffer, newlines)
            chosen = np.isin(hits.lines, places)
            return Hits(hits.lines[chosen], hits.kinds[chosen], hits.rules[chosen])
        starts = np.concatenate(([0], newlines + 1))[places]
        ends = np.append(newlines + 1, len(buffer))[places]  # with its newline, which a pattern may ask for
        view = memoryview(buffer)
        joined = b"".join([view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)])
        hits = self.scan(joined, np.cumsum(ends - starts)[:-1] - 1)
        return hits._replace(lines=places[hits.lines])
