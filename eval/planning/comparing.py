"""Policies compared on workloads on which the paper's own performs as the paper says."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from eval.planning import bound, rivals
from eval.planning.rivals import Job
from eval.planning.simulation import Policy, Scoring, queue, simulate
from eval.planning.workload import FROM_MEMORY, GPUS, LOAD, Workload, believed, draw
from logdoctor.trials import planning
from logdoctor.trials.coordinator import corrected, is_news
from logdoctor.trials.types import Shard, Times

CLAIMED = {1: 1.3, 4: 1.8}
"""By nodes: how many times shorter than a trial for each set the paper's makespan is."""
TOLERANCE = 0.05
"""Largest deviation of a workload from that: equal when rounded."""
SIGMA = 0.5
"""Sigma of the log-normal factors by which each set's times are misjudged."""

_ALONE = Policy(shared_model=False, stays=False, scoring=Scoring.ON_GPU)
_STAGES = Policy(shared_model=False, stays=False, scoring=Scoring.AFTER)
_APART = Policy(shared_model=True, stays=False, scoring=Scoring.BESIDE)
_SERVED = Policy(shared_model=True, stays=True, scoring=Scoring.BESIDE)


class Planned(NamedTuple):
    """Makespans of the plan of `logdoctor trials`, in seconds: with the right times, with each half too short or half
    too long, with log-normal errors; and its proven bound."""

    right: float
    half_off: float
    wrong: float
    bound: float


class Compared(NamedTuple):
    """Makespans of one workload on `nodes` nodes, in seconds. A plan runs each shard in its own process, or in one that
    stays on its GPU and serves."""

    nodes: int
    trial_per_set: float
    paper: float
    stages: float
    workers: float
    sizes: float
    commands: Planned
    served: Planned


def calibrated(seed: int = 0) -> Iterator[tuple[int, Workload]]:
    """Yield, without end, workloads on which the paper's policy does as claimed on 1 and 4 nodes. Each comes with the
    number of workloads drawn so far."""
    drawn = 0
    while True:
        workload = draw(seed + drawn)
        drawn += 1
        if all(abs(_claim(workload, nodes) - ratio) <= TOLERANCE for nodes, ratio in CLAIMED.items()):
            yield drawn, workload


def compare(workload: Workload, nodes: int, seed: int = 0) -> Compared:
    """Return the makespans of all policies on a workload."""
    gpus = nodes * GPUS
    alone = rivals.trial_per_set(workload)
    return Compared(
        nodes,
        trial_per_set=simulate(workload, nodes, _ALONE, queue(alone)),
        paper=simulate(workload, nodes, _APART, queue(rivals.paper(workload, gpus))),
        stages=simulate(workload, nodes, _STAGES, queue(alone)),
        workers=simulate(workload, nodes, _STAGES, queue(rivals.worker_partitioner(workload, gpus))),
        sizes=simulate(workload, nodes, _STAGES, queue(rivals.size_partitioner(workload))),
        commands=_planned(workload, nodes, _APART, seed),
        served=_planned(workload, nodes, _SERVED, seed),
    )


def _claim(workload: Workload, nodes: int) -> float:
    alone = simulate(workload, nodes, _ALONE, queue(rivals.trial_per_set(workload)))
    return alone / simulate(workload, nodes, _APART, queue(rivals.paper(workload, nodes * GPUS)))


def _planned(workload: Workload, nodes: int, policy: Policy, seed: int) -> Planned:
    of_process = 0.0 if policy.stays else workload.start + FROM_MEMORY
    load = max(LOAD, workload.start) + FROM_MEMORY if policy.stays else LOAD
    times = workload.times(of_process)

    def made(known: Mapping[str, Times]) -> float:
        replanned = Replanned(workload, known, nodes * GPUS, load)
        return simulate(workload, nodes, policy, replanned.take, replanned.made)

    return Planned(
        right=made(times),
        half_off=made(believed(workload, of_process, lambda of: of.choice((0.5, 1.5)), seed)),
        wrong=made(believed(workload, of_process, lambda of: of.lognormvariate(0.0, SIGMA), seed)),
        bound=bound.proven(workload.eval_sets(), times, nodes * GPUS, load).seconds,
    )


class Replanned:
    """A plan that is made again when a shard took another time than expected."""

    def __init__(self, workload: Workload, times: Mapping[str, Times], gpus: int, load: float) -> None:
        self._sets = workload.eval_sets()
        self._believed = times
        self._times = dict(times)
        self._free = [load] * gpus  # when each GPU takes its next shard
        self._taken: list[Shard] = []
        self._measured: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self._left = planning.plan(self._sets, self._times, gpus, load)
        self._stale = False

    def take(self, now: float, gpu: int) -> Job | None:
        """Return the next shard of the plan; None when all are taken."""
        self._free[gpu] = now
        if self._stale:
            free = [max(0.0, at - now) for at in self._free]
            self._left = planning.plan(self._sets, self._times, len(free), 0.0, self._taken, free)
            self._stale = False
        if not self._left:
            return None
        shard = self._left.pop(0)
        self._taken.append(shard)
        self._free[gpu] = now + self._times[shard.set].inference(shard.samples)
        return Job((shard,))

    def made(self, now: float, gpu: int, shard: Shard, seconds: float) -> None:
        """Record how long a shard took."""
        self._stale = self._stale or is_news(self._times[shard.set], shard, seconds)
        measured = self._measured[shard.set]
        measured.append((shard.samples, seconds))
        self._times[shard.set] = corrected(self._believed[shard.set], measured)
