"""How others deal sets out to GPUs, by their published rules: the shards of each process, in starting order.

The paper's coordinator is section 6.2. OpenCompass' partitioners are as of its release 0.5.4: sizes are samples times a
factor set by hand, not measured times.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from eval.planning.workload import Drawn, Workload
from logdoctor.trials.types import Shard

_TASK_SIZE = 40_000  # of SizePartitioner
_GENERATED, _LONG, _LABELS = 20, 10, 4  # its factors, and the labels of a set that is not generated
_LEAST = 16  # fewest samples of a part, of NumWorkerPartitioner


class Job(NamedTuple):
    """The shards of one process, one after another."""

    shards: tuple[Shard, ...]


def trial_per_set(workload: Workload) -> list[Job]:
    """Return a process for each set, as listed; OpenCompass' NaivePartitioner with its default does the same."""
    return [Job((_whole(one),)) for one in workload.sets]


def paper(workload: Workload, gpus: int) -> list[Job]:
    """Return one process per GPU, by the paper's rule. Sets longer than an even share are broken into parts that are
    not; the longest metric comes first, then the longest part, and parts are dealt out in turns."""
    share = sum(one.prepare + one.inference for one in workload.sets) / gpus
    parts = [
        (one, shard)
        for one in workload.sets
        for shard in _parts(one, math.ceil(one.inference / share) if one.splittable else 1)
    ]
    metric_first = sorted(parts, key=lambda part: (-part[0].score, -part[1].samples * part[0].sample))
    return _dealt([shard for _, shard in metric_first], gpus)


def size_partitioner(workload: Workload) -> list[Job]:
    """Return OpenCompass' SizePartitioner. Sets over the size of a task are split evenly; smaller parts are packed into
    tasks, largest first."""
    sized: list[tuple[int, Shard]] = []
    for one in sorted(workload.sets, key=lambda one: -_cost(one)):
        if _cost(one) > _TASK_SIZE:
            step = max(1, _TASK_SIZE // _factor(one))
            sized += [(_TASK_SIZE, shard) for shard in _parts(one, math.ceil(one.samples / step))]
        else:
            sized.append((_cost(one), _whole(one)))
    jobs: list[Job] = []
    together: list[Shard] = []
    filled = 0
    for size, shard in sorted(sized, key=lambda part: -part[0]):
        if together and filled + size > _TASK_SIZE:
            jobs.append(Job(tuple(together)))
            together, filled = [], 0
        together.append(shard)
        filled += size
    return [*jobs, Job(tuple(together))]


def worker_partitioner(workload: Workload, gpus: int) -> list[Job]:
    """Return OpenCompass' NumWorkerPartitioner. Each set is split for all GPUs, in parts of at least 16 samples, dealt
    out in turns as listed."""
    shards: list[Shard] = []
    for one in workload.sets:
        step = max(math.ceil(one.samples / gpus), _LEAST)
        shards += _cut(one, range(0, one.samples, step)) if one.samples > _LEAST else [_whole(one)]
    return _dealt(shards, gpus)


def _dealt(shards: Sequence[Shard], gpus: int) -> list[Job]:
    return [Job(tuple(shards[gpu::gpus])) for gpu in range(gpus) if shards[gpu::gpus]]


def _whole(one: Drawn) -> Shard:
    return Shard(one.name, 0, one.samples)


def _parts(one: Drawn, parts: int) -> list[Shard]:
    step = math.ceil(one.samples / parts)
    return _cut(one, range(0, one.samples, step))


def _cut(one: Drawn, starts: range) -> list[Shard]:
    return [Shard(one.name, start, end) for start, end in pairwise((*starts, one.samples))]


def _factor(one: Drawn) -> int:
    return (_GENERATED if one.generated else _LABELS) * (_LONG if one.long else 1)


def _cost(one: Drawn) -> int:
    return one.samples * _factor(one)
