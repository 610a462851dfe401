"""Workers on this machine: each has a share of its GPUs or of its cores."""

import itertools
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from logdoctor.job.send.environment import variable
from logdoctor.trials.node import Node, sweep
from logdoctor.trials.tasks import Outcome, Task, Worker
from logdoctor.trials.trial_file import Trial

_NVIDIA = Path("/proc/driver/nvidia/gpus")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class LocalPlace:
    """This machine."""

    host = "127.0.0.1"

    def __init__(self, trial: Trial, workers: int = 0) -> None:
        self._trial = trial
        self._gpus = visible_gpus()
        self._cores = len(os.sched_getaffinity(0))
        self.workers = workers or trial.workers or self._most()
        self.scorers = self._cores
        self._numbers = itertools.count(1)
        self._guard = threading.Lock()
        self._nodes: set[Node] = set()

    def worker(self, number: int, over: Callable[[], bool]) -> Worker | None:
        """Return a worker with its share of the GPUs."""
        node = Node(self._trial, f"worker {number}", self._share(number))
        with self._guard:
            self._nodes.add(node)
        return node

    def score(self, task: Task) -> Outcome:
        """Score on this machine."""
        node = Node(self._trial, "scoring", model=False)
        with self._guard:
            self._nodes.add(node)
        try:
            return node.run(task)
        finally:
            with self._guard:
                self._nodes.discard(node)
            node.close()

    def close(self) -> None:
        """End what runs, and remove what no process owns from this machine."""
        with self._guard:
            nodes = list(self._nodes)
        for node in nodes:
            node.stop()
        sweep(self._trial)

    def _most(self) -> int:
        needed = self._trial.model.gpus
        return max(1, int(len(self._gpus) / needed)) if needed and self._gpus else self._cores

    def _share(self, number: int) -> Mapping[str, str]:
        """Return the variables that give a worker its GPUs; with more workers they share in turn."""
        needed = self._trial.model.gpus
        if not self._gpus or not needed:
            return {}
        count = max(1, round(needed))
        first = int(number * needed) if needed < 1 else number * count
        mine = [self._gpus[(first + at) % len(self._gpus)] for at in range(count)]
        return {_VISIBLE: ",".join(dict.fromkeys(mine))}


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES."""
    if named := variable(_VISIBLE):
        return [name.strip() for name in named.split(",") if name.strip()]
    return [str(number) for number in range(len(list(_NVIDIA.iterdir())))] if _NVIDIA.is_dir() else []
