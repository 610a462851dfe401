"""The lines of an attempt that no rule explains, grouped by shape: what the Log Agent learns from.

They are sampled, never gathered whole: a stream that nothing explains costs a few hundred looks per segment.
"""

import random
import re
from collections.abc import Collection
from hashlib import blake2b

import numpy as np

from logdoctor.compress.filter import Ints, Residual
from logdoctor.text import decode
from logdoctor.types import ShapeGroup

PER_SEGMENT = 256
"""Lines of a segment that are looked at."""
EXAMPLES = 12
"""Lines of a group that are kept."""
LONGEST = 2000
"""Bytes of a line that is learned from; longer ones are left alone."""
_GROUPS = 1000
_FIRST_LOOK = 16
_SEEN = 3  # lines of a group that must have been looked at before more are taken for seen
_WORTH = 10  # lines of a group that make it worth a lesson
_MARKED = 20  # if it looks like trouble: a human will be asked about it
_SHAPELESS = re.compile(
    rb"\|[ #=>\xe2\x80-\xbf-]*\||(?<![A-Za-z_-])[A-Za-z_-]*\d[\w.,:/+%-]*|\d[\w.,:/+%-]*"
    rb"|(?<=[\s='\"(\[:,])/[^\s'\"),\]]+|[ \t]+|\.{4,}"
)


def shape(line: bytes) -> int:
    """A 64-bit number that lines share which differ in words with digits, paths, bars and blanks only; of a bar that is
    redrawn in its line the last state counts."""
    state = line.rstrip(b"\r").rsplit(b"\r", 1)[-1]
    return int.from_bytes(blake2b(_SHAPELESS.sub(b"0", state), digest_size=8).digest(), "big", signed=True)


class Leftovers:
    """The groups of one attempt. Lines whose shape is in `known` were shown before and count for nothing."""

    def __init__(self, known: Collection[int]) -> None:
        self._known = known
        self.taught = bool(known)
        """Whether the agent was shown lines of such jobs before this attempt."""
        self._groups: dict[int, _ShapeSample] = {}
        self._dice = random.Random(1)
        self._next_look = _FIRST_LOOK
        self.lines_in = 0
        """Lines seen since the last sample, explained or not."""
        self.unexplained = 0.0
        """How many of these repeat, no rule explains, no mark is on and no agent was shown; estimated from those looked
        at."""

    def add(self, residual: Residual) -> None:
        """Look at some of the lines of a segment that nothing explains."""
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
        if len(self._groups) > _GROUPS:
            self._drop_the_rare()

    def groups(self) -> list[ShapeGroup]:
        """What was gathered and not shown yet, the largest group first; what looks like trouble only if it repeats."""
        self._groups = {key: one for key, one in self._groups.items() if key not in self._known}
        found = (
            ShapeGroup(key, round(one.count) if one.seen >= _SEEN else one.seen, tuple(one.examples))
            for key, one in self._groups.items()
            if one.count >= _MARKED or not one.marked
        )
        return sorted(found, key=lambda group: (-group.lines, group.shape))

    def is_worth_a_look(self) -> bool:
        """Whether so many forms of lines came, twice as many as the last time, that they may show what job it is."""
        if len(self._groups) < self._next_look:
            return False
        self._next_look = 2 * len(self._groups)
        return True

    def count_anew(self) -> None:
        """Begin to count lines from nought; what was gathered stays until it was shown."""
        self.lines_in, self.unexplained = 0, 0.0

    def _gather(self, where: tuple[str, int], line: bytes, weight: float, marked: bool) -> None:
        key = ~shape(line) if marked else shape(line)  # apart: `3 failed` and `0 failed` have one shape
        if key in self._known:
            return
        group = self._groups.setdefault(key, _ShapeSample(marked))
        group.count += weight
        if not marked and group.count >= _WORTH:
            more = weight if group.count - weight >= _WORTH else group.count
            self.unexplained = min(self.unexplained + more, float(self.lines_in))
        group.seen += 1
        place = len(group.examples) if group.seen <= EXAMPLES else self._dice.randrange(group.seen)
        if place < EXAMPLES:  # each line that was looked at has the same chance to be an example
            group.examples[place : place + 1] = [(*where, decode(line))]

    def _drop_the_rare(self) -> None:
        """Keep the larger half of the groups."""
        kept = sorted(self._groups.items(), key=lambda item: item[1].count, reverse=True)[: _GROUPS // 2]
        self._groups = dict(kept)


class _ShapeSample:
    """Lines of one shape: how many, how many of these were looked at, some of them, and whether they bear a mark."""

    __slots__ = ("count", "examples", "marked", "seen")

    def __init__(self, marked: bool) -> None:
        self.count, self.seen, self.marked = 0.0, 0, marked
        self.examples: list[tuple[str, int, str]] = []


def _unexplained(residual: Residual) -> Ints:
    """Places of the lines that no rule takes, watches or is proven by, and that bear no structure of a failure."""
    scan, count = residual.scan, len(residual.ends)
    if residual.segment.piece is not None:
        return np.empty(0, np.int64)
    widths = residual.ends - residual.starts
    unexplained = (scan.owner[:count] < 0) & (scan.shadow[:count] < 0) & ~scan.strong[:count]
    unexplained &= (widths > 0) & (widths <= LONGEST)
    unexplained[scan.evidence[:, 0]] = False
    return np.flatnonzero(unexplained)
