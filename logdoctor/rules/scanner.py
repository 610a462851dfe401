"""Which lines of a buffer are explained, and which are evidence: one pass for all rules at once.

Evidence wins (law 2): a line that a diagnosis rule matches is never taken by a filter rule, whatever else
stands in it; a line that only looks like trouble is taken by a filter rule marked `harmless`, not by others.
"""

from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from logdoctor.rules import marks
from logdoctor.rules.load import RuleBook
from logdoctor.rules.match import Matcher

Ints = npt.NDArray[np.int64]


class Kind(IntEnum):
    """What a pattern is for."""

    FILTER = 0
    HARMLESS = 1
    EVIDENCE = 2
    UNLESS = 3
    STRONG = 4
    WEAK = 5


class Scan(NamedTuple):
    """What the rules say about the lines of one buffer.

    `owner[i]` is the filter rule (its place in `RuleBook.filters`) that takes line i, or -1.
    `evidence` holds pairs (line, place in `RuleBook.diagnoses`), ordered and without doubles.
    `metric[i]` is the filter rule with metrics that hits line i, taken or not, or -1.
    `strong` and `weak` tell for each line whether it bears such a mark.
    """

    owner: npt.NDArray[np.int32]
    metric: npt.NDArray[np.int32]
    evidence: Ints
    strong: npt.NDArray[np.bool_]
    weak: npt.NDArray[np.bool_]


class Scanner:
    """The rules of a book that are alive, compiled."""

    def __init__(self, book: RuleBook, cache: Path | None = None) -> None:
        self.book = book
        patterns: list[tuple[str, Kind, int]] = []
        for number, rule in enumerate(book.filters):
            if rule.status == "active":
                kind = Kind.HARMLESS if rule.harmless else Kind.FILTER
                patterns += [(pattern, kind, number) for pattern in rule.patterns]
        for number, diagnosis in enumerate(book.diagnoses):
            if diagnosis.status == "active":
                patterns += [(pattern, Kind.EVIDENCE, number) for pattern in diagnosis.when.any]
                patterns += [(pattern, Kind.UNLESS, number) for pattern in diagnosis.when.unless]
        patterns += [(pattern, Kind.STRONG, 0) for pattern in marks.STRONG.values()]
        patterns += [(pattern, Kind.WEAK, 0) for pattern in marks.WEAK.values()]
        self._kinds = np.array([kind for _, kind, _ in patterns], np.int8)
        self._measures = np.array([kind <= Kind.HARMLESS and bool(book.filters[rule].metrics) for _, kind, rule in patterns])
        self._rules = np.array([rule for _, _, rule in patterns], np.int32)
        self._matcher = Matcher([pattern for pattern, _, _ in patterns], cache)

    def scan(self, buffer: bytes | bytearray | memoryview, newlines: Ints) -> Scan:
        """Match a buffer whose lines end at the offsets `newlines` (the last line may lack its own)."""
        lines = len(newlines) + 1
        numbers, ends = self._matcher.scan(buffer)
        kinds, rules = self._kinds[numbers], self._rules[numbers]
        at = np.searchsorted(newlines, ends - 1)
        evidence = self._evidence(kinds, rules, at)
        strong, weak, proven = (np.zeros(lines, np.bool_) for _ in range(3))
        strong[at[kinds == Kind.STRONG]] = True
        weak[at[kinds == Kind.WEAK]] = True
        proven[evidence[:, 0]] = True
        owner = np.full(lines, -1, np.int32)
        for kind, veto in ((Kind.FILTER, proven | strong), (Kind.HARMLESS, proven)):
            hit = np.flatnonzero((kinds == kind) & ~veto[at])[::-1]  # backwards: the first hit is written last
            owner[at[hit]] = rules[hit]
        metric = np.full(lines, -1, np.int32)
        measured = np.flatnonzero(self._measures[numbers])[::-1]
        metric[at[measured]] = rules[measured]
        return Scan(owner, metric, evidence, strong, weak)

    def _evidence(self, kinds: npt.NDArray[np.int8], rules: npt.NDArray[np.int32], at: Ints) -> Ints:
        """(line, diagnosis rule) pairs whose `any` matched and whose `unless` did not."""
        width = max(len(self.book.diagnoses), 1)
        keys = at * width + rules
        hits = np.unique(keys[kinds == Kind.EVIDENCE])
        hits = hits[~np.isin(hits, keys[kinds == Kind.UNLESS])]
        return np.stack((hits // width, hits % width), axis=1)
