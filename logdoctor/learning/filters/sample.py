"""Groups of unexplained lines to a sample that an agent can read."""

import random
from collections.abc import Sequence

from logdoctor.learning.filters.proposal import Sample
from logdoctor.types import ShapeGroup

REPEATS = 3
"""Lines that make a fixed form of a group: one of fewer may be a family with others, and will be shown again."""


def sample(
    kind: str, job: str, attempt: int, groups: Sequence[ShapeGroup], room: int, most: int
) -> tuple[Sample, list[int]]:
    """Return (sample of at most `most` groups with at most `room` characters of lines, shapes of its groups that
    repeat).

    Large groups come first; a group is taken with all its examples or, when room ends, not at all.
    """
    lines: list[str] = []
    places: list[tuple[str, int]] = []
    owners: list[int] = []
    chosen: list[ShapeGroup] = []
    for group in groups:
        size = sum(len(text) + 1 for _, _, text in group.examples)
        if size > room:
            continue
        if len(chosen) == most:
            break
        room -= size
        for stream, number, text in group.examples:
            lines.append(text)
            places.append((stream, number))
            owners.append(len(chosen))
        chosen.append(group)
    counts = tuple(group.lines for group in chosen)
    shapes = [group.shape for group in chosen if group.lines >= REPEATS]
    return Sample(kind, job, attempt, tuple(lines), tuple(places), tuple(owners), counts), shapes


def order(sample: Sample, run: int) -> list[int]:
    """Return the places of a sample's lines in the order in which a run sees them: its own, backwards, then
    shuffled."""
    places = list(range(len(sample.lines)))
    if run == 1:
        places.reverse()
    elif run > 1:
        random.Random(run).shuffle(places)
    return places
