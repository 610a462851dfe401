"""A simulated cluster that runs evaluation trials (SimPy): NICs shared by loads, GPUs, and metrics on CPUs.

Scoring has as many CPUs as it wants.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from enum import Enum
from heapq import heappop, heappush
from typing import Any, NamedTuple

import simpy

from eval.planning.rivals import Job
from eval.planning.workload import FROM_MEMORY, GPUS, LOAD, Workload
from logdoctor.trials.types import Shard

_Steps = Generator[simpy.Event, Any, None]


class Scoring(Enum):
    """When a set's metric is computed."""

    ON_GPU = "by the trial, which keeps its GPU"
    BESIDE = "on CPUs, as soon as the set's outputs are there"
    AFTER = "on CPUs, once all outputs of all sets are there"


class Policy(NamedTuple):
    """How a cluster works: whether the model is loaded once per node into its memory or by each process from storage;
    whether one process stays on each GPU for all jobs; when metrics are computed."""

    shared_model: bool
    stays: bool
    scoring: Scoring


Take = Callable[[float, int], Job | None]
"""Gives a GPU its next job, by the time and its number."""
Made = Callable[[float, int, Shard, float], None]
"""Called after a shard with the time, the GPU, the shard, and its seconds, its process included."""


def simulate(workload: Workload, nodes: int, policy: Policy, take: Take, made: Made | None = None) -> float:
    """Return the seconds until all sets are scored, when GPUs ask `take` for their jobs."""
    cluster = _Cluster(workload, policy, take, made)
    for node in range(nodes):
        nic = Nic(cluster.env, LOAD)
        copied = nic.load() if policy.shared_model else cluster.env.event().succeed()
        for gpu in range(GPUS):
            cluster.env.process(cluster.gpu(node * GPUS + gpu, nic, copied))
    cluster.env.run()
    return cluster.ended()


def queue(jobs: list[Job]) -> Take:
    """Return jobs as one queue, from which the first free GPU takes the first."""
    left: Iterator[Job] = iter(jobs)
    return lambda now, gpu: next(left, None)


class Nic:
    """A node's network card, whose bandwidth concurrent loads of the model share evenly."""

    def __init__(self, env: simpy.Environment, alone: float) -> None:
        self._env = env
        self._alone = alone
        self._loads: list[tuple[float, int, simpy.Event]] = []  # by the value of `_shared` at which each load ends
        self._shared = 0.0  # seconds at full bandwidth that each load has had
        self._at = 0.0
        self._turn = 0

    def load(self) -> simpy.Event:
        """Return the event of the model's arrival."""
        self._advance()
        done = self._env.event()
        heappush(self._loads, (self._shared + self._alone, self._turn, done))
        self._next()
        return done

    def _advance(self) -> None:
        if self._loads:
            self._shared += (self._env.now - self._at) / len(self._loads)
        self._at = self._env.now

    def _next(self) -> None:
        self._turn += 1
        if self._loads:
            wait = max(0.0, self._loads[0][0] - self._shared) * len(self._loads)
            turn = self._turn
            self._env.timeout(wait).callbacks.append(lambda event: self._end_first(turn))

    def _end_first(self, turn: int) -> None:
        if turn == self._turn:  # no load has begun since
            self._advance()
            heappop(self._loads)[2].succeed()
            self._next()


class _Cluster:
    def __init__(self, workload: Workload, policy: Policy, take: Take, made: Made | None) -> None:
        self.env = simpy.Environment()
        self._sets = {one.name: one for one in workload.sets}
        self._start = workload.start
        self._policy = policy
        self._take = take
        self._made = made
        self._samples: Counter[str] = Counter()
        self._metrics = {one.name: one.score for one in workload.sets}
        self._last = 0.0

    def ended(self) -> float:
        after = self._policy.scoring is Scoring.AFTER
        lacking = [name for name, one in self._sets.items() if self._samples[name] != one.samples]
        if lacking:
            raise AssertionError(f"not made as a whole: {lacking}")
        return self._last + (max(self._metrics.values()) if after else 0.0)

    def gpu(self, number: int, nic: Nic, copied: simpy.Event) -> _Steps:
        """Run jobs until there are none."""
        if self._policy.stays:
            yield self.env.timeout(self._start)
            yield from self._loaded(nic, copied)
        else:
            yield copied
        while job := self._take(self.env.now, number):
            began = self.env.now
            if not self._policy.stays:
                yield self.env.timeout(self._start)
                yield from self._loaded(nic, copied)
            for shard in job.shards:
                yield from self._make(shard)
                if self._made:
                    self._made(self.env.now, number, shard, self.env.now - began)
                began = self.env.now

    def _loaded(self, nic: Nic, copied: simpy.Event) -> _Steps:
        if self._policy.shared_model:
            yield copied
            yield self.env.timeout(FROM_MEMORY)
        else:
            yield nic.load()

    def _make(self, shard: Shard) -> _Steps:
        one = self._sets[shard.set]
        yield self.env.timeout(one.prepare + one.sample * shard.samples)
        self._samples[one.name] += shard.samples
        if self._samples[one.name] == one.samples:
            if self._policy.scoring is Scoring.ON_GPU:
                yield self.env.timeout(one.score)
            elif self._policy.scoring is Scoring.BESIDE:
                self._last = max(self._last, self.env.now + one.score)
        self._last = max(self._last, self.env.now)
