"""Turns groups of unexplained lines into a sample that an agent can read."""

import random
from collections.abc import Sequence

from logdoctor.learning.filters.proposal import Sample
from logdoctor.types import ShapeGroup

REPEATS = 3
"""Lines that make a group a fixed form; one with fewer may belong to a family, and will be shown again."""


def sample(
    kind: str, job: str, attempt: int, groups: Sequence[ShapeGroup], room: int, most: int
) -> tuple[Sample, list[int]]:
    """Return (sample within `most` groups and `room` characters, shapes of its repeating groups).

    Large groups come first; a group that does not fit with all its examples is left out.
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
    """Return the indexes of a sample's lines in a run's order: as they are, reversed, then shuffled."""
    places = list(range(len(sample.lines)))
    if run == 1:
        places.reverse()
    elif run > 1:
        random.Random(run).shuffle(places)
    return places
