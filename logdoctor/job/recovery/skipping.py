"""Ranges of global batches that are left out: `1-200,300-320`, counted from 1, both ends included. Pure."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_RANGE = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?", re.ASCII)

WIDENED = 2
"""How often a skip is widened after another spike, before a person decides."""
_NEAR = 10
"""A spike that begins within so many times the usual skip after the one before it is the same trouble again."""


class Batches(NamedTuple):
    """Batches from the first to the last, both included."""

    first: int
    last: int


def read_ranges(text: str) -> tuple[Batches, ...]:
    """Return the ranges, merged and in order; `ValueError` naming the part that is none."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last:
            raise ValueError(f"{part[:40]!r} is no range of batches; write 1-200,300-320")
        found.append(Batches(first, last))
    return merged(found)


def shown_ranges(ranges: Iterable[Batches]) -> str:
    """Return ranges as text; "" for none."""
    return ",".join(f"{one.first}-{one.last}" for one in ranges)


def merged(ranges: Iterable[Batches]) -> tuple[Batches, ...]:
    """Return ranges in order, with those that touch joined."""
    found: list[Batches] = []
    for one in sorted(ranges):
        if found and one.first <= found[-1].last + 1:
            found[-1] = Batches(found[-1].first, max(found[-1].last, one.last))
        else:
            found.append(one)
    return tuple(found)


def batches_seen(step: int, before: Sequence[Batches]) -> int:
    """Return how many batches of the data a job has passed that made so many steps, one of each batch that was not left
    out."""
    position = step
    for one in before:  # in order
        if one.first <= position:
            position += one.last - one.first + 1
    return position


def spikes_before(onset: int, earlier: Sequence[int], batches: int) -> int:
    """Return how many spikes came before the one that begins at the step `onset` and belong to the same trouble;
    `earlier` are their onsets in order, `batches` is how many are left out after a first one."""
    count, last = 0, onset
    for one in reversed(earlier):
        if last - one > _NEAR * batches:
            break
        count, last = count + 1, one
    return count


def batches_to_skip(
    position: int, saved_step: int, onset: int, batches: int, spikes: int, before: Sequence[Batches]
) -> tuple[Batches, ...]:
    """Return what to leave out after a loss spike that began at the step `onset`, beside what was left out `before`.

    A checkpoint of `saved_step` has seen the first `position` batches of the data (the two differ once batches were
    left out). Everything from there to the onset and `batches` more is left out; with each spike before this one
    (`spikes`) twice as many.
    """
    last = position + (onset - saved_step) + batches * 2**spikes
    return merged((*before, Batches(position + 1, last)))
