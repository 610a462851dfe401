"""Workers of a trial on a Ray cluster: actors with GPUs. Sets are scored as tasks.

Ray places them and restarts none: the coordinator requeues the shard of a lost worker, and asks for another.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Any

from logdoctor.errors import LogdoctorError
from logdoctor.trials.node import Node, sweep
from logdoctor.trials.tasks import Loading, Outcome, Task, Worker, WorkerLost
from logdoctor.trials.trial_file import Trial
from logdoctor.wiring.ray_cluster import RayUnusable, connected

_NAMESPACE = "logdoctor-trials"
_LOOK = 1.0  # seconds between checks whether a worker is still needed
_ENDING = 40.0  # seconds for a worker to end its task
_MOST_SCORERS = 32


@contextmanager
def ray_place(address: str, trial: Trial, workers: int) -> Iterator["RayPlace"]:
    """Yield a Ray cluster as a place for a trial. The address `auto` is that of this machine; `RayUnusable` without a
    cluster, or without room for a worker on any node."""
    with connected(address, _NAMESPACE) as ray:
        yield RayPlace(ray, trial, workers)


class RayPlace:
    """A Ray cluster as a place for a trial."""

    def __init__(self, ray: Any, trial: Trial, workers: int) -> None:
        self._ray, self._trial = ray, trial
        gpus, cores = trial.model.gpus, 0 if trial.model.gpus else 1
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = [_slots(node, gpus, cores) for node in nodes]
        if not any(room):
            cause = f"has no node with {gpus:g} GPUs" if gpus else "has no node with a free core"
            step = "Add nodes, or correct `gpus` in the trial file: 0 is for workers on cores."
            raise RayUnusable("the Ray cluster", cause, step)
        self.workers = workers or trial.workers or sum(room)
        all_cores = int(sum(node.get("CPU", 0) for node in nodes))
        self.scorers = max(1, min(_MOST_SCORERS, all_cores))
        self.host = str(ray.util.get_node_ip_address())
        self._scores = 1 if gpus else 0  # cores per scoring; where workers have all cores, it shares them
        self._needed = {"num_cpus": cores, "num_gpus": gpus}
        self._guard = threading.Lock()
        self._workers: set[_RayWorker] = set()
        self._closed = False

    def worker(self, number: int, over: Callable[[], bool]) -> Worker | None:
        """Return a worker once Ray has placed it and it has the checkpoint."""
        made = _RayWorker(self._ray, self._trial, f"worker {number}", self._needed, self._forget)
        with self._guard:
            self._workers.add(made)
        begun = False
        try:
            begun = made.begin(lambda: over() or self._closed)
            return made if begun else None
        finally:
            if not begun:
                made.kill()

    def score(self, task: Task) -> Outcome:
        """Score wherever there is room."""
        ray = self._ray
        asked = ray.remote(_score).options(num_cpus=self._scores, max_retries=0, scheduling_strategy="SPREAD")
        with _lost(ray):
            running = asked.remote(self._trial, task)
            while not ray.wait([running], timeout=_LOOK)[0]:
                if self._closed:
                    ray.cancel(running, force=True)
                    raise WorkerLost("the trial ends")
            found: Outcome = ray.get(running)
            return found

    def close(self) -> None:
        """End all workers, and remove orphaned files from all nodes."""
        self._closed = True
        ray = self._ray
        with self._guard:
            left = list(self._workers)
        for thread in [threading.Thread(target=worker.close) for worker in left]:
            thread.start()
            thread.join(_ENDING)
        with suppress(ray.exceptions.RayError):
            ray.get([self._sweep(node["NodeID"]) for node in ray.nodes() if node["Alive"]], timeout=_ENDING)

    def _sweep(self, node: str) -> Any:
        there = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        asked = self._ray.remote(sweep).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        return asked.remote(self._trial)

    def _forget(self, worker: "_RayWorker") -> None:
        with self._guard:
            self._workers.discard(worker)


class _RayWorker:
    """A worker on the cluster, seen from this process."""

    def __init__(
        self, ray: Any, trial: Trial, name: str, needed: dict[str, float], ended: Callable[["_RayWorker"], None]
    ) -> None:
        self._ray, self.name, self._ended = ray, name, partial(ended, self)
        self._group = None
        placed: Any = "SPREAD"
        if needed["num_gpus"] > 1:  # all of them on one node, or none
            bundle = {"GPU": needed["num_gpus"], **({"CPU": needed["num_cpus"]} if needed["num_cpus"] else {})}
            self._group = ray.util.placement_group([bundle], strategy="STRICT_PACK")
            placed = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self._group)
        options = {**needed, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 2}
        self._actor = ray.remote(RayNode).options(scheduling_strategy=placed, **options).remote(trial, name)
        self._loading = Loading("")

    @property
    def loading(self) -> Loading:
        """Return how it loaded the checkpoint."""
        return self._loading

    def begin(self, over: Callable[[], bool]) -> bool:
        """Wait until it has loaded the checkpoint; return False if it is `over` before."""
        with _lost(self._ray):
            ready = self._actor.begin.remote(version("logdoctor"))
            while not self._ray.wait([ready], timeout=_LOOK)[0]:
                if over():
                    return False
            self._loading = self._ray.get(ready)
            return True

    def run(self, task: Task) -> Outcome:
        """Return the result of a task."""
        with _lost(self._ray):
            found: Outcome = self._ray.get(self._actor.run.remote(task))
            return found

    def close(self) -> None:
        """End its task and release the checkpoint."""
        with suppress(self._ray.exceptions.RayError):
            self._ray.get(self._actor.close.remote(), timeout=_ENDING)
        self.kill()

    def kill(self) -> None:
        """End its process, and release its resources."""
        self._ended()
        with suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(self._actor)
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)


class RayNode:
    """A worker as an actor, on its node."""

    def __init__(self, trial: Trial, name: str) -> None:
        self._trial, self._name = trial, name
        self._node: Node | None = None

    def begin(self, needed: str) -> Loading:
        """Load the checkpoint on this node."""
        if version("logdoctor") != needed:
            step = "Install the same version on all nodes."
            raise RayUnusable("a node of the Ray cluster", f"has logdoctor {version('logdoctor')}", step)
        self._node = Node(self._trial, self._name)
        return self._node.loading

    def run(self, task: Task) -> Outcome:
        """Return the result of a task."""
        assert self._node is not None
        return self._node.run(task)

    def close(self) -> None:
        """End the running task, and release the checkpoint."""
        if self._node is not None:
            self._node.close()


def _score(trial: Trial, task: Task) -> Outcome:
    """Score, on a node."""
    node = Node(trial, "scoring", model=False)
    try:
        return node.run(task)
    finally:
        node.close()


@contextmanager
def _lost(ray: Any) -> Iterator[None]:
    """Raise `WorkerLost` for whatever Ray lost; errors that a worker raised on purpose pass through."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, LogdoctorError):
            raise error.cause from error
        raise WorkerLost(_said(error.cause)) from error
    except ray.exceptions.RayError as error:
        raise WorkerLost(_said(error)) from error


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]


def _slots(node: dict[str, float], gpus: float, cores: int) -> int:
    """Return how many workers a node has room for."""
    return int(node.get("GPU", 0) / gpus) if gpus else int(node.get("CPU", 0) / cores)
