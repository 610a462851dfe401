"""Which shards to make of the sets, and their order in the queue, so that all is made and scored early.

Pure functions: known times go in, shards come out. A set's scoring begins when its last shard is made and needs no
worker, so sets with long scoring come first, then the longest. Each shard costs its `fixed` seconds again, so a set is
split only where no worker has room for all of it; that depends on the intended end, which is found by bisection.
Guessed times may be too short: then shards are shorter, sets that do not split come early, and the measured time of a
set's first shard enters the next plan.
"""

import math
from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

from logdoctor.trials.types import EvalSet, Shard, Times

_URGENT = (0.05, 0.0, 0.15, 0.4, math.inf)  # shares of the total time: a shorter tail counts as none
_CLOSE = 1.002  # ratio to the least, or to the best so far, that is close enough: times are not known better
_EARLY = 0.7  # share of the total time in which long sets start early; after it sets fill the remaining room
_DOUBT = 2.0  # a guess may be too short by this factor: so a shard may take the remaining time divided by it ...
_MULTIPLE = 3.0  # ... or this many times its fixed cost ...
_LEAST = 0.02  # ... or this share of the total time
_NEAR = 1.0002  # relative accuracy of the least time
_STEPS = 24  # bisection steps to find it, at most


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

    @property
    def seconds(self) -> float:
        return self.samples * self.times.sample + len(self.ranges) * self.times.fixed


def plan(
    sets: Sequence[EvalSet],
    times: Mapping[str, Times],
    workers: int,
    load: float,
    done: Collection[Shard] = (),
    free: Sequence[float] | None = None,
) -> list[Shard]:
    """Return the shards still to be made, in the order for workers to pull.

    `load` is the seconds a worker needs before its first shard. What `done` covers is left out; it includes running
    shards, and then `free` has the seconds until each worker takes its next one. A set that is not splittable is one
    shard, whole, unless it is done whole. `KeyError` for a set without times.
    """
    left = [work for one in sets if (work := _left(one, times[one.name], done))]
    starts = _starts(workers, load, free)
    if not left:
        return []
    lowest, _ = _least(left, starts)
    alone = len(starts) == 1  # nobody could help with what takes longer than guessed
    best = _filled(_ordered(left, math.inf, alone), starts, math.inf, math.inf if alone else lowest)
    reached = makespan(schedule(best, times, workers, load, free), times)
    for share in _URGENT:
        ordered = _ordered(left, share * lowest, alone)
        low, high = lowest, reached
        while high > low * _CLOSE:
            end = high / _CLOSE if high == reached else (low + high) / 2
            if not low < end < high:  # floats cannot be closer
                break
            found = _filled(ordered, starts, end, math.inf if alone else end)
            if not found:
                low = end
                continue
            high = end
            if (span := makespan(schedule(found, times, workers, load, free), times)) < reached:
                best, reached = found, span
    return best


def schedule(
    shards: Iterable[Shard],
    times: Mapping[str, Times],
    workers: int,
    load: float,
    free: Sequence[float] | None = None,
) -> list[Placed]:
    """Return when and where each shard is made if workers pull them in this order."""
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
    """Return a lower bound in seconds of any plan, in about a millisecond; `bound.proven` is sharper where sets do not
    split."""
    left = [work for one in sets if (work := _left(one, times[one.name], done))]
    return _least(left, _starts(workers, load, None))[0]


def _starts(workers: int, load: float, free: Sequence[float] | None) -> Sequence[float]:
    starts = [load] * workers if free is None else free
    if not starts:
        raise ValueError("a plan needs at least one worker")
    return starts


def _left(one: EvalSet, times: Times, done: Collection[Shard]) -> _Work | None:
    """Return what `done` does not cover of a set; None when nothing is left."""
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
    """Return a time that is too early and one that is not, close together: the earliest end at which workers have room
    for all, each set in time for its scoring and in as few shards as that allows."""
    if not left:
        return 0.0, 0.0
    ordered = sorted(left, key=lambda work: -work.times.score)
    low, high = 0.0, max(starts) + sum(work.seconds for work in left) + ordered[0].times.score
    for _ in range(_STEPS):
        if high <= low * _NEAR:
            break
        middle = (low + high) / 2
        low, high = (low, middle) if _has_room(ordered, starts, middle) else (middle, high)
    return low, high


def _has_room(ordered: list[_Work], starts: Sequence[float], end: float) -> bool:
    busy = 0.0
    for work in ordered:
        fixed, sample, score, _ = work.times
        longest = max(stop - start for start, stop in work.ranges)
        most = _fitting(work, end - score - min(starts), longest)
        if not most:
            return False
        busy += sum(-(-(stop - start) // most) for start, stop in work.ranges) * fixed + work.samples * sample
        if busy > sum(max(0.0, end - score - start) for start in starts):
            return False
    return True


def _ordered(left: list[_Work], urgent: float, alone: bool) -> list[_Work]:
    """Return the sets, longest tail first, then longest set; a tail of up to `urgent` seconds counts as none. The tail
    is what no other worker can shorten: the scoring, and all of a guessed set that does not split."""

    def tail(work: _Work) -> float:
        whole = not (work.splittable or work.times.runs or alone)
        return work.times.score + (work.seconds if whole else 0.0)

    return sorted(left, key=lambda work: (-max(0.0, tail(work) - urgent), -work.seconds, work.name))


def _filled(ordered: list[_Work], starts: Sequence[float], end: float, horizon: float) -> list[Shard]:
    """Return shards in order of their starts so that all is scored by `end`; [] if that fails. A set goes whole to one
    worker, the first that is free or, later, the one whose room it fills best; if none has room, it fills the one
    with most, and continues elsewhere. Shards of guessed sets are short enough to end by `horizon` even if they take
    longer."""
    free = sorted(starts)
    placed: list[tuple[float, Shard]] = []
    for work in ordered:
        fixed, sample, score, _ = work.times
        due = end - score
        for begin, stop in work.ranges:
            at = begin
            while at < stop:
                most = _prudent(work, horizon - score - free[0], horizon, stop - at)
                samples = _fitting(work, due - free[0], most)
                if not samples:
                    return []
                seconds = fixed + sample * samples
                early = free[0] + seconds <= _EARLY * due
                start = free.pop(0 if early else max(0, bisect_right(free, due - seconds) - 1))
                placed.append((start, Shard(work.name, at, at + samples)))
                insort(free, start + seconds)
                at += samples
    placed.sort(key=lambda one: one[0])
    return [shard for _, shard in placed]


def _prudent(work: _Work, left: float, horizon: float, samples: int) -> int:
    """Return the most of `samples` for a shard that begins `left` seconds before the horizon: fewer than fit while
    times are guesses, but not so few that the set falls to pieces."""
    if work.times.runs or not work.splittable:
        return samples
    seconds = max(left / _DOUBT, _LEAST * horizon, _MULTIPLE * work.times.fixed)
    return max(1, _fitting(work, seconds, samples))


def _fitting(work: _Work, seconds: float, samples: int) -> int:
    """Return how many of `samples` fit into a shard of so many seconds; 0 if none."""
    inference = seconds - work.times.fixed
    if inference >= samples * work.times.sample:
        return samples
    return int(inference // work.times.sample) if work.splittable and inference > 0 else 0
