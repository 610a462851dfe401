"""Which lines of a buffer are explained, and which are evidence.

Evidence wins (law 2): a line that a diagnosis rule matches is never taken by a filter rule, whatever else is in it; a
line that only looks like trouble is taken by filter rules marked `harmless`, not by others.

Lines of one outline (each digit as `0`) are matched once: a million lines of a training log have some ten thousand.
Where a pattern that tells digits apart might match, the lines themselves are matched, each different one once.
"""

import copy
import os
import threading
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import regex

from logdoctor.errors import RuleError
from logdoctor.rules import marks
from logdoctor.rules.literals import outline
from logdoctor.rules.load import RuleBook
from logdoctor.rules.pattern_set import Doubts, Hits, Ints, Kind, Lines, Part, PatternSet, RulePattern, spread
from logdoctor.rules.schema import FilterRule

_GENERIC = "filter/generic/"  # rules for output of many programs; more specific ones go first
_TOGETHER = 4000  # lines matched at once
_ENTRY = 150  # bytes for remembering a line, besides its own
_ROOM, _ROOM_OF_TEXTS = 20 << 20, 8 << 20  # bytes of remembered outlines, and of lines of varying outlines


class Scan(NamedTuple):
    """What the rules say about the lines of one buffer.

    `owner[i]` is the filter rule (index in `RuleBook.filters`) that takes line i, or -1. `evidence` holds sorted,
    unique pairs (line, index in `RuleBook.diagnoses`). `metric[i]` is the filter rule with metrics that hits line i,
    taken or not, or -1. `strong` and `weak` tell whether each line has such a mark; weak marks are only looked for in
    lines that no rule of the first pass takes. `shadow[i]` is the learned rule that would take line i if it were
    active, or -1. Lines of one of the `classes` differ only in digits.
    """

    owner: npt.NDArray[np.int32]
    metric: npt.NDArray[np.int32]
    evidence: Ints
    strong: npt.NDArray[np.bool_]
    weak: npt.NDArray[np.bool_]
    shadow: npt.NDArray[np.int32]
    classes: Ints


_scanners: "WeakSet[Scanner]" = WeakSet()


def _begin_anew() -> None:
    """Give a forked process new memories and locks for scanners that other threads were using."""
    for scanner in list(_scanners):
        if scanner._one_at_a_time.locked():
            scanner._memory, scanner._one_at_a_time = _Memory(), threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)


class Scanner:
    """The live rules of a book. Nothing is compiled before a line needs it; compiled parts are kept in `cache`."""

    def __init__(self, book: RuleBook, cache: Path | None = None) -> None:
        self.book, self.cache = book, cache
        general, denial, fallback = _sets_of(book)
        self._general, self._denial, self._fallback = (self._set(some) for some in (general, denial, fallback))
        self._learned: PatternSet | None = None
        self._measures = _measures(book)
        self._memory = _Memory()
        self._one_at_a_time = threading.Lock()
        _scanners.add(self)

    def learning(self, kind: str, learned: tuple[FilterRule, ...]) -> "Scanner":
        """Return this scanner with other learned rules, from jobs of a kind.

        They are tried last, on lines that nothing explains: never on evidence, and on lines that look like trouble only
        if they are `harmless`. Those in shadow take nothing. They are compiled here: `RuleError` names a refused one.
        """
        scanner = copy.copy(self)
        scanner.book = self.book.with_learned(kind, learned)
        first = scanner.book.shipped_filters
        for rule in learned:
            if rule.status in ("active", "shadow") and any(regex.fullmatch(source, "") for source in rule.patterns):
                raise RuleError(f"rule {rule.id}", "its pattern matches an empty line", "Retire it.")
        alive = ((number, rule) for number, rule in enumerate(learned, first) if rule.status in ("active", "shadow"))
        patterns = [RulePattern(source, _taking(rule), number) for number, rule in alive for source in rule.patterns]
        cache = self.cache / "learned" if self.cache else None  # separate: they come and go, and would evict others
        scanner._learned = PatternSet(patterns, scanner._owner, cache)
        scanner._learned.compile_all()
        scanner._measures = _measures(scanner.book)
        scanner._memory, scanner._one_at_a_time = _Memory(), threading.Lock()
        _scanners.add(scanner)
        return scanner

    def _set(self, patterns: Sequence[RulePattern]) -> PatternSet:
        return PatternSet(patterns, self._owner, self.cache)

    def _owner(self, pattern: RulePattern) -> str:
        """Return the id of a pattern's rule."""
        if pattern.kind >= Kind.STRONG:
            return "of marks"
        return (self.book.filters if pattern.kind <= Kind.SHADOW else self.book.diagnoses)[pattern.rule].id

    def scan(self, buffer: bytes, newlines: Ints) -> Scan:
        """Match a buffer with lines that end at `newlines` (the last line may lack its own)."""
        outlines = outline(buffer).split(b"\n")
        begins, ends = np.concatenate(([0], newlines + 1)), np.append(newlines, len(buffer))

        def texts(places: Ints) -> list[bytes]:
            spans = zip(begins[places].tolist(), ends[places].tolist(), strict=True)
            return [buffer[begin:end] for begin, end in spans]

        memory = self._roomy_memory()
        classes = _of(memory.outlines, outlines)
        if buffer.endswith(b"\n") or not buffer:
            classes[-1] = _NOTHING  # what follows the last newline is no line
        if len(some := np.flatnonzero(classes == _NEW)):
            lines = [outlines[place] for place in some.tolist()]
            with self._one_at_a_time:
                self._learn_outlines(memory, dict(zip(lines, texts(some), strict=True)))
            classes[some] = _of(memory.outlines, lines)
        if len(some := np.flatnonzero(classes == _VARIES)):
            lines = texts(some)
            with self._one_at_a_time:
                self._learn_texts(memory, lines)
                classes[some] = _of(memory.texts, lines)
                memory.forget_texts(_ROOM_OF_TEXTS)
        return memory.scan(classes)

    def matching(self, lines: Sequence[str]) -> list[set[str]]:
        """Return for each line the sources of all live patterns that match it."""
        found: list[set[str]] = [set() for _ in lines]
        for pattern, line in self._matches(lines):
            found[line].add(pattern.source)
        return found

    def compile_denials(self) -> None:
        """Compile the patterns that deny evidence; `RuleError` names a rule with a refused one."""
        self._denial.compile_all()

    def touched(self, lines: Sequence[str]) -> set[int]:
        """Return the indexes of lines that a live pattern of any rule matches."""
        return {line for pattern, line in self._matches(lines) if pattern.kind < Kind.STRONG}

    def _matches(self, lines: Sequence[str]) -> Iterator[tuple[RulePattern, int]]:
        different = Lines([line.replace("\n", " ").encode("utf-8", "replace") for line in lines], self.cache)
        for some in (self._general, self._denial, self._fallback, *([self._learned] if self._learned else [])):
            hits = some.hits(different, np.arange(len(lines)), Doubts())
            for place, line in zip(hits.patterns.tolist(), hits.lines.tolist(), strict=True):
                yield some.patterns[place], line

    def _roomy_memory(self) -> "_Memory":
        if self._memory.size > _ROOM:
            self._memory = _Memory()
        return self._memory

    def _learn_outlines(self, memory: "_Memory", lines: dict[bytes, bytes]) -> None:
        """Match lines with new outlines, given by outline."""
        new = {one: text for one, text in lines.items() if one not in memory.outlines}
        for some in _batches(list(new)):
            found, doubts = self._matched([new[one] for one in some])
            for place, (one, its) in enumerate(zip(some, memory.add(found), strict=True)):
                if place in doubts.parts:
                    memory.tell_apart(one, new[one], its, doubts, place)
                else:
                    memory.outlines[one] = its
            memory.size += sum(map(len, some)) + _ENTRY * len(some)

    def _learn_texts(self, memory: "_Memory", texts: list[bytes]) -> None:
        """Classify new lines of varying outlines. A line gets the class of another one whose distinguishing patterns
        answer alike; without such a line it is matched."""
        left = [text for text in dict.fromkeys(texts) if text not in memory.texts]
        memory.texts_size += sum(map(len, left)) + _ENTRY * len(left)
        for alike in (True, False):
            if not left:
                return
            told = self._told(memory, left)
            memory.texts.update((text, memory.answers[key]) for text, key in told.items() if key in memory.answers)
            left = [text for text in left if text not in memory.texts]
            firsts = list({told[text]: text for text in left}.values()) if alike else left
            if firsts:
                for some in _batches(firsts):
                    found, doubts = self._matched(some)
                    for place, (text, its) in enumerate(zip(some, memory.add(found), strict=True)):
                        if set(doubts.parts.get(place, ())) <= set(memory.questions[told[text][0]]):
                            memory.answers[told[text]] = its
                        memory.tell_apart(told[text][0], text, its, doubts, place)

    def _told(self, memory: "_Memory", texts: list[bytes]) -> "dict[bytes, _Answered]":
        """Return for each line its outline, and which distinguishing patterns match it."""
        lines, doubts = Lines(texts, self.cache), Doubts()
        asked: dict[Part, list[int]] = {}
        for place, one in enumerate(lines.outlines):
            for part in memory.questions[one]:
                asked.setdefault(part, []).append(place)
        for part, places in asked.items():
            doubts.tell(part, *part.scan(part.exact, lines, False, places))
        return {text: (lines.outlines[place], doubts.told(place)) for place, text in enumerate(texts)}

    def _matched(self, texts: list[bytes]) -> tuple[Scan, Doubts]:
        """Match distinct lines; also return what other lines of the same outlines may differ in."""
        lines, count, doubts = Lines(texts, self.cache), len(texts), Doubts()
        strong, weak, proven = (np.zeros(count, np.bool_) for _ in range(3))
        owner, metric, shadow = (np.full(count, -1, np.int32) for _ in range(3))
        hits = self._general.hits(lines, np.arange(count), doubts)
        evidence = self._evidence(lines, hits, doubts)
        strong[hits.lines[hits.kinds == Kind.STRONG]] = True
        proven[evidence[:, 0]] = True
        self._assign(hits, proven, strong, owner, metric)
        if len(rest := np.flatnonzero(owner < 0)):
            hits = self._fallback.hits(lines, rest, doubts)
            weak[hits.lines[hits.kinds == Kind.WEAK]] = True
            self._assign(hits, proven | (metric >= 0), strong, owner, metric)
        if self._learned and len(rest := np.flatnonzero((owner < 0) & ~proven)):
            hits = self._learned.hits(lines, rest, doubts)
            self._assign(hits, proven, strong | weak, owner, metric)
            self._foresee(hits, proven, strong | weak, owner, shadow)
        return Scan(owner, metric, evidence, strong, weak, shadow, np.arange(count)), doubts

    def _assign(
        self,
        hits: "Hits",
        proven: npt.NDArray[np.bool_],
        strong: npt.NDArray[np.bool_],
        owner: npt.NDArray[np.int32],
        metric: npt.NDArray[np.int32],
    ) -> None:
        """Assign unowned lines to the book's first rule that hit and may take them."""
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
        """Record for lines without an owner the first rule in shadow that would take them."""
        would = np.flatnonzero((hits.kinds == Kind.SHADOW) & ~proven[hits.lines] & (owner[hits.lines] < 0))[::-1]
        bold = np.array([rule.harmless for rule in self.book.filters] or [False])
        would = would[bold[hits.rules[would]] | ~marked[hits.lines[would]]]
        shadow[hits.lines[would]] = hits.rules[would]

    def _evidence(self, lines: Lines, hits: Hits, doubts: Doubts) -> Ints:
        """Return (line, diagnosis rule) pairs whose `any` matched and whose `unless` did not."""
        width = max(len(self.book.diagnoses), 1)
        proof = hits.kinds == Kind.EVIDENCE
        pairs = np.unique(hits.lines[proof] * width + hits.rules[proof])
        claims = np.stack((pairs // width, pairs % width), axis=1)
        denied = self._denial.hits(lines, np.unique(claims[:, 0]), doubts, claims)
        return claims[~np.isin(pairs, denied.lines * width + denied.rules)]


_NEW, _VARIES, _NOTHING = -2, -1, 0
"""Classes of lines: not seen yet; different within one outline; without any hit."""


def _batches(lines: list[bytes]) -> Iterator[list[bytes]]:
    """Yield lines in batches that are matched together."""
    for at in range(0, len(lines), _TOGETHER):
        yield lines[at : at + _TOGETHER]


def _of(table: dict[bytes, int], keys: list[bytes]) -> Ints:
    """Look up the classes of lines in a table."""
    return np.fromiter(map(table.get, keys, repeat(_NEW)), np.int64, len(keys))


_Answered = tuple[bytes, frozenset[tuple[Part, int]]]
"""An outline, and which of its distinguishing patterns match a line."""


class _Memory:
    """Results of matched lines, by class. All lines of an outline have one class, or they vary, and the outline's
    `questions` (parts of the rules) determine each line's. Threads may read while one adds: classes never change their
    meaning."""

    def __init__(self) -> None:
        self.outlines: dict[bytes, int] = {}
        self.texts: dict[bytes, int] = {}
        self.questions: dict[bytes, tuple[Part, ...]] = {}
        self.answers: dict[_Answered, int] = {}
        self.size = self.texts_size = 0
        """Bytes of outlines, and of lines."""
        self._numbers = np.full((3, 1), -1, np.int32)  # owner, metric, shadow
        self._marks = np.zeros((2, 1), np.bool_)  # strong, weak
        self._firsts, self._counts, self._rules = (np.zeros(1, np.int64) for _ in range(3))

    def add(self, found: Scan) -> range:
        """Add results, and return the new classes, one per line."""
        before, lines = len(self._firsts), len(found.owner)
        counts = np.bincount(found.evidence[:, 0], minlength=lines)
        firsts = len(self._rules) + np.cumsum(counts) - counts
        self._rules = np.concatenate((self._rules, found.evidence[:, 1]))
        self._firsts, self._counts = np.concatenate((self._firsts, firsts)), np.concatenate((self._counts, counts))
        self._numbers = np.hstack((self._numbers, np.stack((found.owner, found.metric, found.shadow))))
        self._marks = np.hstack((self._marks, np.stack((found.strong, found.weak))))
        return range(before, before + lines)

    def forget_texts(self, most: int) -> None:
        """Forget lines of varying outlines beyond `most` bytes; `answers` can classify them again."""
        if self.texts_size > most:
            self.texts, self.texts_size = {}, 0

    def tell_apart(self, outline: bytes, text: bytes, its: int, doubts: Doubts, place: int) -> None:
        """Record the class of a line of a varying outline, by its answers. Lines with the same answers get the same
        class."""
        known = self.questions.get(outline, ())
        self.questions[outline] = tuple(dict.fromkeys((*known, *doubts.parts.get(place, ()))))
        self.answers[outline, doubts.told(place)] = its
        self.texts[text], self.outlines[outline] = its, _VARIES

    def scan(self, classes: Ints) -> Scan:
        """Return the results for lines of these classes."""
        owner, metric, shadow = self._numbers[:, classes]
        strong, weak = self._marks[:, classes]
        counts = self._counts[classes]
        lines = np.flatnonzero(counts)
        counts = counts[lines]
        rules = self._rules[spread(self._firsts[classes[lines]], counts)]
        evidence = np.stack((np.repeat(lines, counts), rules), axis=1)
        return Scan(owner, metric, evidence, strong, weak, shadow, classes)


def _taking(rule: FilterRule) -> Kind:
    """Return what the patterns of a live filter rule may do to lines."""
    if rule.status != "active":
        return Kind.SHADOW
    return Kind.HARMLESS if rule.harmless else Kind.FILTER


def _measures(book: RuleBook) -> npt.NDArray[np.bool_]:
    """Return for each filter rule whether it reads metrics."""
    return np.array([bool(rule.metrics) for rule in book.filters] or [False])


def _sets_of(book: RuleBook) -> tuple[list[RulePattern], list[RulePattern], list[RulePattern]]:
    """Return a book's live patterns by set, in scanning order: the first pass over all lines, what denies evidence, and
    what is tried on lines left by the first pass."""
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
