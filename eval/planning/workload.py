"""Workloads to try policies on, drawn at random around the paper's measurements of evaluation trials.

The paper (section 6.2, figures 13 and 16) gives a 7B model in bf16 of 13.5 GB, loaded in 4.3 s over a NIC of 25 Gb/s
and in about 35 s when the 8 GPUs of a node load at once; HumanEval as 65 s before inference, 114 s of it and 42 s of
metric; and 63 sets. It says nothing of the other sets, so they are drawn, and only those workloads count on which the
paper's own policy performs as the paper says.
"""

import math
import random
from collections.abc import Callable
from typing import NamedTuple

from logdoctor.trials.types import EvalSet, Times

SETS = 63
GPUS = 8
"""GPUs per node."""
LOAD = 13.5 * 8 / 25
"""Seconds to load the model over a node's NIC, alone."""
FROM_MEMORY = 1.4
"""Seconds to load it from a node's memory to a GPU, at about 10 GB/s."""

_BEFORE, _INFERENCE, _METRIC, _PROBLEMS = 65.0, 114.0, 42.0, 164  # HumanEval, when a trial for each set runs on 8 GPUs
_PREPARED = _BEFORE - 8 * LOAD  # of it, the start of the process and the preparation of the set
_SAMPLE = _INFERENCE / _PROBLEMS
_CHOICES = 4  # labels of a set whose answers are compared and not generated
_GENERATED = 20  # times as long as one label, by OpenCompass' rule


class Drawn(NamedTuple):
    """The truth about a set: seconds of preparation per part, per sample, and of the metric; whether its answers are
    generated, and whether they are long, as in mathematics."""

    name: str
    samples: int
    prepare: float
    sample: float
    score: float
    splittable: bool = True
    generated: bool = True
    long: bool = False

    @property
    def inference(self) -> float:
        return self.samples * self.sample


class Workload(NamedTuple):
    """Sets in a person's order, and the seconds that a process needs to start."""

    start: float
    sets: tuple[Drawn, ...]

    def eval_sets(self) -> list[EvalSet]:
        """Return the sets as a planner sees them."""
        return [EvalSet(one.name, one.samples, "", "", splittable=one.splittable) for one in self.sets]

    def times(self, of_process: float) -> dict[str, Times]:
        """Return the sets' times when each shard takes `of_process` seconds besides its preparation."""
        return {one.name: Times(of_process + one.prepare, one.sample, one.score, 1) for one in self.sets}


def draw(seed: int) -> Workload:
    """Return a workload of 63 sets: HumanEval, and others of random length and metric."""
    of = random.Random(seed)
    start = of.uniform(5.0, 20.0)
    median, spread = of.uniform(20.0, 120.0), of.uniform(0.5, 1.4)
    scored, score, score_spread = of.uniform(0.1, 0.4), of.uniform(30.0, 120.0), of.uniform(0.3, 1.0)
    whole = of.uniform(0.2, 0.8)  # of the preparation, what a process has to do for any part of a set
    prepared = _PREPARED - start

    def other(number: int) -> Drawn:
        generated, long = of.random() < 0.6, of.random() < 0.1
        cost = (1.0 if generated else _CHOICES / _GENERATED) * (3.0 if long else 1.0)
        sample = _SAMPLE * cost * of.lognormvariate(0.0, 0.5)
        inference = of.lognormvariate(math.log(median), spread)
        metric = of.lognormvariate(math.log(score), score_spread) if of.random() < scored else of.uniform(0.2, 2.0)
        samples = max(16, round(inference / sample))
        prepare = prepared * of.lognormvariate(0.0, 0.5)
        sample = (inference + prepare * (1 - whole)) / samples
        return Drawn(f"set{number}", samples, prepare * whole, sample, metric, of.random() < 0.9, generated, long)

    sets = [other(number) for number in range(1, SETS)]
    sample = _SAMPLE + prepared * (1 - whole) / _PROBLEMS
    sets.append(Drawn("humaneval", _PROBLEMS, prepared * whole, sample, _METRIC))
    of.shuffle(sets)
    return Workload(start, tuple(sets))


def believed(
    workload: Workload, of_process: float, factor: Callable[[random.Random], float], seed: int
) -> dict[str, Times]:
    """Return the times with each set's preparation, sample and metric off by a random factor."""
    of = random.Random(seed)
    return {
        one.name: Times(of_process + one.prepare * factor(of), one.sample * factor(of), one.score * factor(of), runs=0)
        for one in workload.sets
    }
