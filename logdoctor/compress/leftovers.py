"""Unexplained lines of an attempt, grouped by shape: what the Log Agent learns from.

They are sampled, never collected whole: a stream without any explanation costs a few hundred matches per segment.
"""

import random
import re
from collections import Counter
from collections.abc import Collection
from hashlib import blake2b

import numpy as np

from logdoctor.compress.filter import Ints, Residual
from logdoctor.text import decode, origin
from logdoctor.types import ShapeGroup

PER_SEGMENT = 256
"""Lines sampled per segment."""
EXAMPLES = 12
"""Example lines kept per shape."""
LONGEST = 2000
"""The longest line, in bytes, that is learned from."""
_GROUPS = 1000
_FIRST_LOOK = 16
_SEEN = 3  # sampled lines of a shape before its further lines count as seen
_WORTH = 10  # lines of a shape that make it worth learning
_MARKED = 20  # the same for lines that look like trouble, which a person will be asked about
_OPENING, _OPENED = 3, 20
"""Words of a message's opening, and lines with one opening that deserve a look though no two are alike."""
_SHAPELESS = re.compile(
    rb"\|[ #=>\xe2\x80-\xbf-]*\||(?<![A-Za-z_-])[A-Za-z_-]*\d[\w.,:/+%-]*|\d[\w.,:/+%-]*"
    rb"|(?<=[\s='\"(\[:,])/[^\s'\"),\]]+|[ \t]+|\.{4,}"
)


def shape(line: bytes) -> int:
    """Return a 64-bit number, equal for lines of one shape. These differ only in words with digits, paths, bars and
    blanks. Of a redrawn progress bar only the last state counts."""
    state = line.rstrip(b"\r").rsplit(b"\r", 1)[-1]
    return int.from_bytes(blake2b(_SHAPELESS.sub(b"0", state), digest_size=8).digest(), "big", signed=True)


def _opening(line: bytes) -> bytes:
    """Return the opening of a line's message, normalised as in `shape`."""
    words = origin(decode(line)).message.encode().split(None, _OPENING)[:_OPENING]
    return _SHAPELESS.sub(b"0", b" ".join(words))


class Leftovers:
    """The unexplained lines of one attempt by shape, without the shapes in `known`, which were shown before."""

    def __init__(self, known: Collection[int]) -> None:
        self._known = known
        self.taught = bool(known)
        """Whether the agent was shown lines of such jobs before this attempt."""
        self._groups: dict[int, _ShapeSample] = {}
        self._openings: Counter[bytes] = Counter()
        self._dice = random.Random(1)
        self._next_look = _FIRST_LOOK
        self.lines_in = 0
        """Lines seen since the last sample, explained or not."""
        self.unexplained = 0.0
        """Estimated number of these that repeat, have no rule or mark, and were shown to no agent."""

    def add(self, residual: Residual) -> None:
        """Sample the unexplained lines of a segment."""
        self.lines_in += residual.segment.lines
        places = _unexplained(residual)
        if len(places) > PER_SEGMENT:
            chosen = np.random.default_rng(residual.segment.offset).choice(len(places), PER_SEGMENT, replace=False)
            weight, places = len(places) / PER_SEGMENT, places[np.sort(chosen)]
        else:
            weight = 1.0
        marked = residual.scan.weak
        for place in places.tolist():
            where = (residual.segment.stream, residual.segment.line + place)
            self._gather(where, residual.line(place), weight, bool(marked[place]))
        if len(self._openings) > _GROUPS:
            self._openings.clear()
        if len(self._groups) > _GROUPS:
            self._drop_the_rare()

    def groups(self) -> list[ShapeGroup]:
        """Return the shapes not shown yet, the most frequent first; those that look like trouble only if they
        repeat."""
        self._groups = {key: one for key, one in self._groups.items() if key not in self._known}
        found = (
            ShapeGroup(key, round(one.count) if one.seen >= _SEEN else one.seen, tuple(one.examples))
            for key, one in self._groups.items()
            if one.count >= _MARKED or not one.marked
        )
        return sorted(found, key=lambda group: (-group.lines, group.shape))

    def is_worth_a_look(self) -> bool:
        """Return whether enough new shapes came to recognise the job: twice as many as last time."""
        if len(self._groups) < self._next_look:
            return False
        self._next_look = 2 * len(self._groups)
        return True

    def count_anew(self) -> None:
        """Restart counting lines at 0; collected shapes are kept until shown."""
        self.lines_in, self.unexplained = 0, 0.0

    def _gather(self, where: tuple[str, int], line: bytes, weight: float, marked: bool) -> None:
        key = ~shape(line) if marked else shape(line)  # separately: `3 failed` and `0 failed` have one shape
        if key in self._known:
            return
        group = self._groups.setdefault(key, _ShapeSample(marked))
        group.count += weight
        if not marked and (group.count >= _WORTH or self._opens_many(line)):
            more = weight if group.count - weight >= _WORTH else group.count
            self.unexplained = min(self.unexplained + more, float(self.lines_in))
        group.seen += 1
        place = len(group.examples) if group.seen <= EXAMPLES else self._dice.randrange(group.seen)
        if place < EXAMPLES:  # each sampled line has the same chance
            group.examples[place : place + 1] = [(*where, decode(line))]

    def _opens_many(self, line: bytes) -> bool:
        """Return whether many lines began like this one; always False for jobs already known to the agent."""
        if self.taught:
            return False
        self._openings[opening := _opening(line)] += 1
        return self._openings[opening] >= _OPENED

    def _drop_the_rare(self) -> None:
        """Keep the larger half of the groups."""
        kept = sorted(self._groups.items(), key=lambda item: item[1].count, reverse=True)[: _GROUPS // 2]
        self._groups = dict(kept)


class _ShapeSample:
    """Lines of one shape: how many, how many were sampled, some examples, and whether they have a mark."""

    __slots__ = ("count", "examples", "marked", "seen")

    def __init__(self, marked: bool) -> None:
        self.count, self.seen, self.marked = 0.0, 0, marked
        self.examples: list[tuple[str, int, str]] = []


def _unexplained(residual: Residual) -> Ints:
    """Return the lines that no rule takes, watches or cites, without strong marks."""
    scan, count = residual.scan, len(residual.ends)
    if residual.segment.piece is not None:
        return np.empty(0, np.int64)
    widths = residual.ends - residual.starts
    unexplained = (scan.owner[:count] < 0) & (scan.shadow[:count] < 0) & ~scan.strong[:count]
    unexplained &= (widths > 0) & (widths <= LONGEST)
    unexplained[scan.evidence[:, 0]] = False
    return np.flatnonzero(unexplained)
