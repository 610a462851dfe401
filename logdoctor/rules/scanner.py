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
        self._general, self._denial, self._fallback = (self._compiled(patterns, cache) for patterns in _sets_of(book))
        self._learned: tuple[_Set, ...] = ()
        self._measures = _measures(book)

    def of_fewer(self, book: RuleBook) -> "Scanner":
        """The scanner of a book that has some of the rules of this one and no others, in the same order.

        It hits what a scanner of its own would hit, and nothing is compiled, which takes long: the sets of this scanner
        run, and what their other patterns hit is left out.
        """
        scanner = copy.copy(self)
        scanner.book = book
        scanner._general, scanner._denial, scanner._fallback = (
            whole.part(patterns, _places(self.book, whole.patterns, book, patterns))
            for whole, patterns in zip((self._general, self._denial, self._fallback), _sets_of(book), strict=True)
        )
        scanner._learned = ()
        scanner._measures = _measures(book)
        return scanner

    def learning(self, kind: str, learned: tuple[FilterRule, ...], hot: Container[str] = ()) -> "Scanner":
        """Return this scanner with rules that were learned from jobs of a kind, in place of those it had.

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
        """Return the sources of all live patterns that match one line, whatever comes of it."""
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
        """Return (line, diagnosis rule) pairs whose `any` matched and whose `unless` did not."""
        width = max(len(self.book.diagnoses), 1)
        proof = hits.kinds == Kind.EVIDENCE
        pairs = np.unique(hits.lines[proof] * width + hits.rules[proof])
        if len(pairs):
            denied = self._denial.scan_some(buffer, newlines, np.unique(pairs // width))
            pairs = pairs[~np.isin(pairs, denied.lines * width + denied.rules)]
        return np.stack((pairs // width, pairs % width), axis=1)


def _taking(rule: FilterRule) -> Kind:
    """Return what the patterns of a filter rule that is alive may do to lines."""
    if rule.status != "active":
        return Kind.SHADOW
    return Kind.HARMLESS if rule.harmless else Kind.FILTER


def _measures(book: RuleBook) -> npt.NDArray[np.bool_]:
    """Return for each filter rule whether it reads metrics."""
    return np.array([bool(rule.metrics) for rule in book.filters] or [False])


class RulePattern(NamedTuple):
    """A pattern, what it is for, and the rule it belongs to (its place in the book)."""

    source: str
    kind: Kind
    rule: int


def _sets_of(book: RuleBook) -> tuple[list[RulePattern], list[RulePattern], list[RulePattern]]:
    """The live patterns of a book, by the sets that are scanned one after the other: the first pass over all lines,
    what denies evidence, and what is tried on lines that the first pass leaves."""
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
    return general, denial, fallback


def _places(whole: RuleBook, patterns: list[RulePattern], part: RuleBook, some: list[RulePattern]) -> Ints:
    """The place among the patterns of a book of each of some patterns of another one, whose rules are all in the first;
    `ValueError` for a pattern that is not there, or not in this order."""
    left = enumerate(_named(whole, pattern) for pattern in patterns)
    places = [next((place for place, known in left if known == _named(part, one)), -1) for one in some]
    if -1 in places:
        raise ValueError(f"{some[places.index(-1)].source!r} is no pattern of the whole book")
    return np.array(places, np.int64)


def _named(book: RuleBook, pattern: RulePattern) -> tuple[str, Kind, str]:
    """A pattern with the id of its rule in place of the rule's place in a book."""
    source, kind, number = pattern
    if kind >= Kind.STRONG:
        return source, kind, ""
    return source, kind, (book.filters if kind <= Kind.SHADOW else book.diagnoses)[number].id


class Hits(NamedTuple):
    """Hits of patterns, in the order of the patterns: which line, what kind, which rule."""

    lines: Ints
    kinds: npt.NDArray[np.int8]
    rules: npt.NDArray[np.int32]


class _Set:
    """Patterns that are scanned together."""

    def __init__(self, patterns: list[RulePattern], cache: Path | None) -> None:
        self._matcher = Matcher([pattern.source for pattern in patterns], cache)
        self._numbers: npt.NDArray[np.int32] | None = None
        self._describe(patterns)

    def _describe(self, patterns: list[RulePattern]) -> None:
        self.patterns = patterns
        self._kinds = np.array([pattern.kind for pattern in patterns], np.int8)
        self._rules = np.array([pattern.rule for pattern in patterns], np.int32)

    def part(self, patterns: list[RulePattern], places: Ints) -> "_Set":
        """Some of these patterns, which stand at `places` here, as a set of their own."""
        part = copy.copy(self)
        numbers = np.full(len(self.patterns) + 1, -1, np.int32)  # the last one for those that are left out already
        numbers[places] = np.arange(len(places))
        part._numbers = numbers[:-1] if self._numbers is None else numbers[self._numbers]
        part._describe(patterns)
        return part

    def scan(self, buffer: bytes, newlines: Ints) -> Hits:
        """Return all hits in a buffer."""
        numbers, ends = self._found(buffer)
        return Hits(np.searchsorted(newlines, ends - 1), self._kinds[numbers], self._rules[numbers])

    def numbers(self, line: bytes) -> list[int]:
        """Return the places of the patterns that match a line."""
        numbers, _ = self._found(line)
        return [int(number) for number in np.unique(numbers)]

    def _found(self, buffer: bytes) -> tuple[npt.NDArray[np.int32], Ints]:
        """The hits of these patterns, by their places, and where they end."""
        numbers, ends = self._matcher.scan(buffer)
        if self._numbers is None:
            return numbers, ends
        numbers = self._numbers[numbers]
        ours = numbers >= 0
        return numbers[ours], ends[ours]

    def scan_some(self, buffer: bytes, newlines: Ints, places: Ints) -> Hits:
        """Return the hits in some lines of a buffer; lines that are few are copied out first."""
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
