"""Which shards to make of the sets, and the order in which workers pull them, so that all is done and scored early.

Pure: what is known of the times goes in, shards come out. A set's scoring begins when its last shard is made and needs
no worker, so sets that are scored for long come first, and long shards before short ones, which fill the ends up.
Each shard costs its `fixed` seconds again, so a set is split only as far as that pays.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import NamedTuple

from logdoctor.trials.types import EvalSet, Shard, Times

_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of the makespan, that a shard is tried to be
_FIXED = (8.0, 3.0, 1.0, 0.0)  # least inference of a shard that is tried, in multiples of its fixed cost
_URGENT = (0.0, 0.05, 0.15, 0.4, math.inf)  # of the makespan: scoring that is shorter does not count in the order
_ENOUGH = 1.002  # times the bound; nobody measures times better than that
_STEPS = 24  # of halving, that find the bound


class Placed(NamedTuple):
    """A shard on its worker, from `start` to `end` in seconds."""

    shard: Shard
    worker: int
    start: float
    end: float


class _Work(NamedTuple):
    """What is left of a set: ranges of samples, and the times."""

    name: str
    ranges: list[tuple[int, int]]
    splittable: bool
    times: Times

    @property
    def samples(self) -> int:
        return sum(end - start for start, end in self.ranges)

    def pieces(self, most: int) -> int:
        """Return how many shards of so many samples at most it makes."""
        return sum(-(-(end - start) // most) for start, end in self.ranges)

    def shards(self, most: int) -> Iterator[Shard]:
        for start, end in self.ranges:
            pieces = -(-(end - start) // most)
            cuts = [start + (end - start) * piece // pieces for piece in range(pieces + 1)]
            yield from (Shard(self.name, *cut) for cut in pairwise(cuts))


def plan(
    sets: Sequence[EvalSet],
    times: Mapping[str, Times],
    workers: int,
    load: float,
    done: Collection[Shard] = (),
    free: Sequence[float] | None = None,
) -> list[Shard]:
    """Return the shards that are still to be made, in the order in which workers should pull them.

    `load` is how many seconds a worker needs before its first shard. What `done` covers is left out; shards that are
    being made belong to it, too, and then `free` says in how many seconds each worker takes its next one. A set that
    is not splittable is one shard, whole, unless it is done whole. `KeyError` for a set without times.
    """
    left = [work for one in sets if (work := _left(one, times[one.name], done))]
    starts = _starts(workers, load, free)
    if not left:
        return []
    _, least = _least(left, starts)
    best: list[Shard] = []
    reached = math.inf
    for shards in _splits(left, starts, least):
        if _floor(shards, times, starts) >= reached:
            continue
        for share in _URGENT:
            ordered = _ordered(shards, times, share * least)
            if (span := makespan(schedule(ordered, times, workers, load, free), times)) < reached:
                best, reached = ordered, span
        if reached <= least * _ENOUGH:
            break
    return best


def schedule(
    shards: Iterable[Shard],
    times: Mapping[str, Times],
    workers: int,
    load: float,
    free: Sequence[float] | None = None,
) -> list[Placed]:
    """Return when and where each shard is made when workers pull them in this order, as `times` has it."""
    queue = [(start, worker) for worker, start in enumerate(_starts(workers, load, free))]
    heapify(queue)
    placed = []
    for shard in shards:
        start, worker = queue[0]
        end = start + times[shard.set].inference(shard.samples)
        heapreplace(queue, (end, worker))
        placed.append(Placed(shard, worker, start, end))
    return placed


def makespan(placed: Iterable[Placed], times: Mapping[str, Times]) -> float:
    """Return the seconds until every set is scored; 0 for nothing."""
    return max((one.end + times[one.shard.set].score for one in placed), default=0.0)


def least(
    sets: Sequence[EvalSet], times: Mapping[str, Times], workers: int, load: float, done: Collection[Shard] = ()
) -> float:
    """Return seconds that no plan stays below, found in a millisecond; `bound.proven` is sharper where sets do not
    split."""
    left = [work for one in sets if (work := _left(one, times[one.name], done))]
    return _least(left, _starts(workers, load, None))[0]


def _starts(workers: int, load: float, free: Sequence[float] | None) -> Sequence[float]:
    starts = [load] * workers if free is None else free
    if not starts:
        raise ValueError("a plan needs at least one worker")
    return starts


def _left(one: EvalSet, times: Times, done: Collection[Shard]) -> _Work | None:
    """Return what of a set is not covered by `done`; None when nothing is left."""
    ranges, at = [], 0
    for start, end in sorted((shard.start, shard.end) for shard in done if shard.set == one.name):
        if start > at:
            ranges.append((at, min(start, one.samples)))
        at = max(at, end)
    if at < one.samples:
        ranges.append((at, one.samples))
    ranges = [(start, end) for start, end in ranges if start < end]
    if ranges and not one.splittable:
        ranges = [(0, one.samples)]
    return _Work(one.name, ranges, one.splittable, times) if ranges else None


def _least(left: list[_Work], starts: Sequence[float]) -> tuple[float, float]:
    """Return the earliest time by which workers have room for all, each set in time for its scoring and in as few
    shards as that allows: a time that is too early and one that is not, close together."""
    if not left:
        return 0.0, 0.0
    ordered = sorted(left, key=lambda work: -work.times.score)
    whole = sum(work.times.inference(work.samples) + work.times.fixed * len(work.ranges) for work in left)
    low, high = 0.0, max(starts) + whole + ordered[0].times.score
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if _has_room(ordered, starts, middle) else (middle, high)
    return low, high


def _has_room(ordered: list[_Work], starts: Sequence[float], end: float) -> bool:
    busy = 0.0
    for work in ordered:
        fixed, sample, score, _ = work.times
        most = _fitting(work, end - score - min(starts))
        if not most:
            return False
        busy += work.pieces(most) * fixed + work.samples * sample
        if busy > sum(max(0.0, end - score - start) for start in starts):
            return False
    return True


def _fitting(work: _Work, seconds: float) -> int:
    """Return how many samples at most a shard has that takes so many seconds at most; 0 where none fits."""
    longest = max(end - start for start, end in work.ranges)
    inference = seconds - work.times.fixed
    if inference >= longest * work.times.sample:
        return longest
    return int(inference // work.times.sample) if work.splittable and inference > 0 else 0


def _splits(left: list[_Work], starts: Sequence[float], least: float) -> Iterator[list[Shard]]:
    """Yield ways to split the sets, coarse ones first; each set at least so far that its scoring ends in time."""
    needed = [_fitting(work, least - work.times.score - min(starts)) for work in left]
    seen = set()
    for part in _PARTS:
        for multiple in _FIXED:
            most = tuple(
                min(fitting, _piece(work, max(least / part, multiple * work.times.fixed)))
                for work, fitting in zip(left, needed, strict=True)
            )
            if most not in seen:
                seen.add(most)
                yield [shard for work, size in zip(left, most, strict=True) for shard in work.shards(size)]


def _piece(work: _Work, inference: float) -> int:
    longest = max(end - start for start, end in work.ranges)
    if not work.splittable or inference >= longest * work.times.sample:
        return longest
    return max(1, int(inference // work.times.sample))


def _floor(shards: list[Shard], times: Mapping[str, Times], starts: Sequence[float]) -> float:
    """Return seconds below which no order of these shards ends."""
    return (sum(starts) + sum(times[shard.set].inference(shard.samples) for shard in shards)) / len(starts)


def _ordered(shards: list[Shard], times: Mapping[str, Times], urgent: float) -> list[Shard]:
    """Return the shards with the longest metric and the longest set first; scoring of up to `urgent` seconds is as good
    as none."""

    def key(shard: Shard) -> tuple[float, float, str, int]:
        of_set = times[shard.set]
        return -max(0.0, of_set.score - urgent), -of_set.inference(shard.samples), shard.set, shard.start

    return sorted(shards, key=key)
