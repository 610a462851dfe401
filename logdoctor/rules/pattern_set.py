"""Matches many patterns on distinct lines: one search for all literals, then only the patterns that a line needs.

Patterns are compiled in parts, some patterns of one rule each, when a line first needs them. So a small log costs only
few parts, a change of a rule costs its parts, and compiled parts are kept for all processes.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import cache as remembered
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from logdoctor.errors import RuleError
from logdoctor.rules.compiling import tell
from logdoctor.rules.literals import Expression, known_expressions, outline, rarity
from logdoctor.rules.match import LINE_START, LINE_STARTS, Compiled, PatternRejected, hyperscan_complaint, sweep
from logdoctor.rules.once import once
from logdoctor.text import SOME_PREFIX

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_TOGETHER = 8  # patterns of a part that is compiled on demand
_ALL = 32  # of a part that is tried on all lines
_WORTH = 200  # requests by lines above which compiling a part is cheaper than checking the other literals first
_FEW = 8  # requests by lines above which trying a compiled part is cheaper
_RARE = 12  # points of a literal that is searched for; rarer ones only
_STARTS = 128  # places of a line at which its message may begin; of more, the first and the last
_PREFIX = 512  # bytes in which a message begins
_COPIED = 1 << 20  # bytes of copies of a line, one per place


class Kind(IntEnum):
    """What a pattern is for."""

    FILTER = 0
    HARMLESS = 1
    SHADOW = 2
    EVIDENCE = 3
    UNLESS = 4
    STRONG = 5
    WEAK = 6


class RulePattern(NamedTuple):
    """A pattern, its purpose, and the rule it belongs to (its index in the book)."""

    source: str
    kind: Kind
    rule: int


class Hits(NamedTuple):
    """Hits in the order of patterns: which line, kind and rule. `patterns` are indexes in the set."""

    lines: Ints
    kinds: npt.NDArray[np.int8]
    rules: npt.NDArray[np.int32]
    patterns: Ints


class Rows:
    """Texts scanned together, each behind a `start`; each belongs to the line at one of the `places`."""

    def __init__(self, texts: Sequence[bytes], places: Sequence[int], start: bytes) -> None:
        self.buffer = start.join((b"", *texts)) + b"\n"
        self._texts, self._places, self._start = texts, places, start

    @once
    def _ends(self) -> Ints:
        return np.cumsum(np.fromiter(map(len, self._texts), np.int64, len(self._texts)) + len(self._start)) + 1

    def lines_at(self, ends: Ints) -> Ints:
        """Return the lines of hits, given their end offsets."""
        return np.array(self._places, np.int64)[np.searchsorted(self._ends, ends - 1, "right")]


class Lines:
    """Distinct lines, with derived forms computed once for all sets."""

    def __init__(self, texts: Sequence[bytes], cache: Path | None = None) -> None:
        self.texts = texts
        self.every = list(range(len(texts)))
        joined = outline(b"\n".join(texts))
        self.outlines, self.lowered = joined.split(b"\n"), joined.lower().split(b"\n")
        self._prefixes = _prefixes(cache)
        self._starts: dict[int, list[int]] = {}
        self._made: dict[tuple[bool, bool], tuple[list[int], Rows]] = {}

    def rows(self, places: list[int], are_outlines: bool, are_messages: bool) -> Rows:
        """Return lines or their outlines, whole or from each message start; cached, because many parts ask for the
        same."""
        before = self._made.get((are_outlines, are_messages))
        if before is not None and before[0] == places:
            return before[1]
        texts, owners = self.outlines if are_outlines else self.texts, places
        rows = [texts[place] for place in places]
        if are_messages:
            starts = self._message_starts(places)
            owners = [place for place, some in zip(places, starts, strict=True) for _ in some]
            rows = [row[at:] for row, some in zip(rows, starts, strict=True) for at in some]
        made = Rows(rows, owners, LINE_START if are_messages else b"\n")
        self._made[are_outlines, are_messages] = places, made
        return made

    def _message_starts(self, places: Sequence[int]) -> list[list[int]]:
        """Return for each line where its message may begin: at 0, and behind each prefix."""
        if not (new := [place for place in places if place not in self._starts]):
            return [self._starts[place] for place in places]
        heads = [self.texts[place][:_PREFIX] for place in new]
        begins = np.cumsum([0, *(len(head) + 1 for head in heads)])
        _, ends = self._prefixes.scan(b"\n".join(heads))
        rows = np.searchsorted(begins, ends - 1, "right") - 1
        found: list[list[int]] = [[] for _ in new]
        for row, at in zip(rows.tolist(), (ends - begins[rows]).tolist(), strict=True):
            found[row].append(at)
        for place, some in zip(new, found, strict=True):
            half = min(_STARTS, _COPIED // (len(self.texts[place]) + 1)) // 2 or 1
            self._starts[place] = [0, *(some if len(some) <= 2 * half else some[:half] + some[-half:])]
        return [self._starts[place] for place in places]


@remembered
def _prefixes(cache: Path | None) -> Compiled:
    return Compiled([f"^{SOME_PREFIX}"], cache)


class PatternSet:
    """Patterns that are tried together. `owner` names a pattern's rule, for errors; compiled parts are kept in the
    folder `cache`. `RuleError` for a pattern that is too large to compile."""

    def __init__(
        self, patterns: Sequence[RulePattern], owner: Callable[[RulePattern], str], cache: Path | None = None
    ) -> None:
        self.patterns = patterns
        self._owner, self._cache = owner, cache
        self._kinds = np.array([pattern.kind for pattern in patterns], np.int8)
        self._rules = np.array([pattern.rule for pattern in patterns], np.int32)
        places, expressions = self._expressions()
        rare = [bool(one.sets) and rarity(one.sets[0])[0] >= _RARE for one in expressions]
        keyed: dict[bytes, list[int]] = {}
        for number, (one, is_rare) in enumerate(zip(expressions, rare, strict=True)):
            for literal in one.sets[0] if is_rare else ():
                keyed.setdefault(literal, []).append(number)
        self._counts = np.array([len(some) for some in keyed.values()], np.int64)
        self._firsts = np.cumsum(self._counts) - self._counts
        self._keyed = np.array([number for some in keyed.values() for number in some], np.int64)
        self._search = Compiled(list(keyed), cache, literal=True)
        self._others = [one.sets[is_rare:] for one, is_rare in zip(expressions, rare, strict=True)]
        self._places = np.array(places, np.int64)
        self._parts: list[Part] = []
        self._unkeyed: list[tuple[int, list[int]]] = []
        """Parts that are tried on all lines, with their expressions."""
        self._part_of = np.zeros(len(expressions), np.int64)

        def partners(number: int) -> tuple[bool, bool, bool, int]:
            pattern, one = patterns[places[number]], expressions[number]
            rule = pattern.rule * len(Kind) + pattern.kind if rare[number] else 0
            return rare[number], pattern.source.startswith("^"), one.blind is not None, rule

        for _, some in groupby(sorted(range(len(expressions)), key=partners), partners):
            numbers = list(some)
            size = _TOGETHER if rare[numbers[0]] else _ALL
            for at in range(0, len(numbers), size):
                together = numbers[at : at + size]
                if not rare[numbers[0]]:
                    self._unkeyed.append((len(self._parts), together))
                self._part_of[together] = len(self._parts)
                part = Part([expressions[number] for number in together], self._places[together], cache)
                self._parts.append(part)
        self._is_ready = np.array([part.first.is_kept() for part in self._parts], np.bool_)

    def _expressions(self) -> tuple[list[int], list[Expression]]:
        """Return the expressions to compile, with the index of each one's pattern."""
        places: list[int] = []
        found: list[Expression] = []
        with known_expressions(self._cache) as known:
            for place, pattern in enumerate(self.patterns):
                try:
                    some = known(pattern.source)
                except RuleError as error:
                    raise self._refusal(pattern, error.cause) from error
                places += [place] * len(some)
                found += some
        return places, found

    def hits(self, lines: Lines, places: Ints, doubts: "Doubts", only: Ints | None = None) -> Hits:
        """Return all hits in some of the lines; hits that other lines of the same outline may lack go to `doubts`. With
        `only`, pairs of a line and a rule, just the patterns of these rules are tried on a line."""
        asks = self._asked(lines, places, only)
        self._make_ready(list(asks), [self._parts[number].first for number in asks])
        found = [_NONE]
        for number, some in asks.items():
            part = self._parts[number]
            if part.blind:
                _, hit = part.scan(part.blind, lines, True, some)
                some = sorted(set(hit.tolist()))
                doubts.ask(part, some)
            if some:
                if part.blind:
                    self._make_ready([number], [part.exact])
                found.append(hits := part.scan(part.exact, lines, False, some))
                if part.blind:
                    doubts.tell(part, *hits)
        patterns, hit = _pairs(*(np.concatenate(column) for column in zip(*found, strict=True)))
        return Hits(hit, self._kinds[patterns], self._rules[patterns], patterns)

    def _asked(self, lines: Lines, places: Ints, only: Ints | None) -> dict[int, list[int]]:
        """Return which parts are tried on which lines: those with the rarest literal that an expression needs. All its
        literals are required where few lines ask for a part that is not compiled yet."""
        texts = [lines.lowered[place] for place in places.tolist()]
        numbers, ends = self._search.scan(b"\n".join(texts))
        rows = np.searchsorted(np.cumsum([len(text) + 1 for text in texts]), ends - 1, "right")
        literals, rows = _pairs(numbers.astype(np.int64), rows)
        counts = self._counts[literals]
        asked = self._keyed[spread(self._firsts[literals], counts)]
        rows = np.repeat(rows, counts)
        asks: dict[int, list[int]] = {}
        for number, expressions in self._unkeyed:
            if only is None and (self._is_ready[number] or len(texts) > _WORTH):
                asks[number] = places.tolist()
                continue
            asked = np.concatenate((asked, np.repeat(expressions, len(texts))))
            rows = np.concatenate((rows, np.tile(np.arange(len(texts)), len(expressions))))
        if only is not None:
            width = len(lines.texts)
            named = np.isin(self._rules[self._places[asked]] * width + places[rows], only[:, 1] * width + only[:, 0])
            asked, rows = asked[named], rows[named]
        parts = self._part_of[asked]
        kept = np.ones(len(rows), np.bool_)
        doubtful = np.bincount(parts, minlength=1)[parts] <= np.where(self._is_ready[parts], _FEW, _WORTH)
        for at in np.flatnonzero(doubtful).tolist():
            text, others = texts[rows[at]], self._others[asked[at]]
            kept[at] = all(any(literal in text for literal in some) for some in others)
        parts, rows = _pairs(parts[kept], rows[kept])
        begins = np.flatnonzero(np.diff(parts, prepend=-1))
        every, bounds = places[rows].tolist(), pairwise([*begins.tolist(), len(rows)])
        return asks | {
            number: every[begin:end] for number, (begin, end) in zip(parts[begins].tolist(), bounds, strict=True)
        }

    def compile_all(self) -> None:
        """Compile all patterns; `RuleError` names the rule of a refused one."""
        self._make_ready(list(range(len(self._parts))), [part.exact for part in self._parts])

    def _make_ready(self, numbers: list[int], needed: list[Compiled]) -> None:
        """Compile what is missing of some parts, reporting progress."""
        missing = [(number, one) for number, one in zip(numbers, needed, strict=True) if not one.ready()]
        self._is_ready[numbers] = True
        if not missing:
            return
        pool = ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), len(missing)))  # Hyperscan compiles without the GIL
        try:
            tell(0, len(missing))
            for done, refused in enumerate(pool.map(lambda one: self._compile(*one), missing), 1):
                if refused:
                    raise refused
                tell(done, len(missing))
        finally:
            pool.shutdown(cancel_futures=True)  # Ctrl-C waits for the parts being compiled
        if self._cache:
            sweep(self._cache)

    def _compile(self, number: int, one: Compiled) -> RuleError | None:
        """Compile a part's database; return the error when a pattern is refused."""
        try:
            one.make_ready()
        except PatternRejected as error:
            every = [self.patterns[place] for place in self._parts[number].places.tolist()]
            bad = next((pattern for pattern in every if hyperscan_complaint(pattern.source)), every[0])
            return self._refusal(bad, str(error))
        return None

    def _refusal(self, pattern: RulePattern, complaint: str) -> RuleError:
        cause = f"its pattern {pattern.source!r} cannot be compiled ({complaint})"
        return RuleError(f"rule {self._owner(pattern)}", cause, "Simplify the pattern.")


class Part:
    """Some expressions, with the `places` of their patterns: all with or all without `^`, all with or all without a
    `blind` form for outlines. `first` is tried on lines first."""

    def __init__(self, expressions: Sequence[Expression], places: Ints, cache: Path | None = None) -> None:
        self.places = places
        self._is_anchored = expressions[0].source.startswith("^(?:")
        self.exact = Compiled([_begun(one.source) for one in expressions], cache)
        blind = [_begun(one.blind) for one in expressions if one.blind is not None]
        self.blind = Compiled(blind, cache) if blind else None
        self.first = self.blind or self.exact

    def scan(self, compiled: Compiled, lines: Lines, are_outlines: bool, places: list[int]) -> tuple[Ints, Ints]:
        """Return pairs (pattern, line) that match among some lines, or among their outlines."""
        rows = lines.rows(places, are_outlines, self._is_anchored)
        numbers, ends = compiled.scan(rows.buffer)
        return (self.places[numbers], rows.lines_at(ends)) if len(numbers) else _NONE


def _begun(source: str) -> str:
    """Return an expression with each row's start in place of a leading `^`: behind `^`, if it begins with a repeat
    followed by many alternatives, Hyperscan misses lines."""
    return f"{LINE_STARTS}{source[1:]}" if source.startswith("^(?:") else source


class Doubts:
    """What distinguishes lines of the same outline: per line, the parts whose patterns may match only some of them, and
    those patterns that match this line."""

    def __init__(self) -> None:
        self.parts: dict[int, list[Part]] = {}
        self._told: dict[int, set[tuple[Part, int]]] = {}

    def ask(self, part: Part, lines: Iterable[int]) -> None:
        """Record a part that distinguishes these lines from others of their outlines."""
        for line in lines:
            self.parts.setdefault(line, []).append(part)

    def tell(self, part: Part, patterns: Ints, lines: Ints) -> None:
        """Record the patterns of a part that match lines."""
        for pattern, line in zip(patterns.tolist(), lines.tolist(), strict=True):
            self._told.setdefault(line, set()).add((part, pattern))

    def told(self, line: int) -> frozenset[tuple[Part, int]]:
        """Return which of the distinguishing patterns match a line."""
        return frozenset(self._told.get(line, ()))


_NONE = (np.empty(0, np.int64), np.empty(0, np.int64))


def spread(firsts: Ints, counts: Ints) -> Ints:
    """Return, in one array, ranges that begin at `firsts` with lengths `counts`."""
    return np.arange(counts.sum()) + np.repeat(firsts - np.cumsum(counts) + counts, counts)


def _pairs(ones: Ints, others: Ints) -> tuple[Ints, Ints]:
    """Return sorted pairs of numbers without duplicates."""
    width = int(others.max(initial=0)) + 1
    found = np.unique(ones * width + others)
    return found // width, found % width
