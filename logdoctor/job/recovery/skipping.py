"""Ranges of global batches to skip: `1-200,300-320`, counted from 1, both ends included. Pure."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_RANGE = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?", re.ASCII)

WIDENED = 2
"""How often a skip is widened after further spikes before a person decides."""
_NEAR = 10
"""A spike within this many times the usual skip after the last one counts as the same trouble."""


class Batches(NamedTuple):
    """Batches from `first` to `last`, both included."""

    first: int
    last: int


def read_ranges(text: str) -> tuple[Batches, ...]:
    """Parse ranges, merged and in order; `ValueError` names the invalid part."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last:
            raise ValueError(f"{part[:40]!r} is no range of batches; write 1-200,300-320")
        found.append(Batches(first, last))
    return merged(found)


def shown_ranges(ranges: Iterable[Batches]) -> str:
    """Format ranges as text; "" for none."""
    return ",".join(f"{one.first}-{one.last}" for one in ranges)


def merged(ranges: Iterable[Batches]) -> tuple[Batches, ...]:
    """Return ranges in order, joining those that touch."""
    found: list[Batches] = []
    for one in sorted(ranges):
        if found and one.first <= found[-1].last + 1:
            found[-1] = Batches(found[-1].first, max(found[-1].last, one.last))
        else:
            found.append(one)
    return tuple(found)


def batches_seen(step: int, before: Sequence[Batches]) -> int:
    """Return how many batches a job has passed after `step` steps: one per step, plus those skipped."""
    position = step
    for one in before:  # in order
        if one.first <= position:
            position += one.last - one.first + 1
    return position


def spikes_before(onset: int, earlier: Sequence[int], batches: int) -> int:
    """Count the earlier spikes of the same trouble as the one at step `onset`. `earlier` are their onsets in order,
    `batches` is the size of a first skip."""
    count, last = 0, onset
    for one in reversed(earlier):
        if last - one > _NEAR * batches:
            break
        count, last = count + 1, one
    return count


def batches_to_skip(
    position: int, saved_step: int, onset: int, batches: int, spikes: int, before: Sequence[Batches]
) -> tuple[Batches, ...]:
    """Return all batches to skip after a loss spike at step `onset`, with those `before`.

    A checkpoint of `saved_step` has seen the first `position` batches (the two differ after a skip). Everything from
    there to the onset is skipped, and `batches` more, doubled for each of the earlier `spikes`.
    """
    last = position + (onset - saved_step) + batches * 2**spikes
    return merged((*before, Batches(position + 1, last)))
