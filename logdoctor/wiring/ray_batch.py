"""Shards on a Ray cluster, one task each. Ray repeats tasks of a lost node; the rows come back here."""

import atexit
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from logdoctor.errors import LogdoctorError
from logdoctor.pipeline.batch.judging import Judge, Learned, Refused
from logdoctor.pipeline.batch.processes import Died
from logdoctor.pipeline.batch.rows import Row
from logdoctor.pipeline.batch.run import Engine, Made
from logdoctor.pipeline.batch.scratch import scratch
from logdoctor.pipeline.batch.shards import Shard
from logdoctor.settings import Settings
from logdoctor.wiring.batch import for_judging, judge
from logdoctor.wiring.ray_cluster import RayUnusable, connected

_NAMESPACE = "logdoctor-batch"
_TRIES = 3  # more, for a task whose process or node was lost
_PATIENCE = 30.0  # seconds without a result until a message, once
_AHEAD = 2.0  # tasks per core that wait or run, so that no core waits for this process


@contextmanager
def cluster(settings: Settings, made_here: Judge, address: str, say: Callable[[str], None]) -> Iterator[Engine]:
    """Yield the engine of a Ray cluster, whose nodes diagnose as this machine does. It calls `say` when it has to wait.
    `RayUnusable` without such a cluster, when it is lost, or a node has another logdoctor or other rules."""
    with connected(address, _NAMESPACE) as ray:
        options = {"num_cpus": 1, "max_retries": _TRIES, "scheduling_strategy": "SPREAD"}
        task = ray.remote(_rows).options(**options)
        known = ray.put((for_judging(settings), made_here.learned))
        yield partial(_on_cluster, ray, partial(task.remote, known, made_here.digest), say)


def _on_cluster(
    ray: Any, begin: Any, say: Callable[[str], None], shards: Iterable[Shard]
) -> Iterator[tuple[Shard, Made]]:
    try:
        yield from _done(ray, begin, say, iter(shards))
    except ray.exceptions.RayError as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        step = "Look at `ray status`, then give the same command again: it goes on where it was."
        raise RayUnusable("the Ray cluster", f"fails ({said[0][:200]})", step) from error


def _done(ray: Any, begin: Any, say: Callable[[str], None], given: Iterator[Shard]) -> Iterator[tuple[Shard, Made]]:
    patience: float | None = _PATIENCE
    under_way: dict[Any, Shard] = {}
    while True:
        most = max(2, int(_AHEAD * ray.cluster_resources().get("CPU", 0)))
        while len(under_way) < most and (shard := next(given, None)) is not None:
            under_way[begin(shard)] = shard
        if not under_way:
            return
        ready, _ = ray.wait(list(under_way), timeout=patience, fetch_local=True)
        if not ready:
            say(f"Waiting for the Ray cluster: nothing came back for {patience:g} s. `ray status` shows its cores.")
            patience = None
        for done in ready:
            yield under_way.pop(done), _result(ray, done)


def _result(ray: Any, done: Any) -> Made:
    """Return the result of a task. Raise an exception of Ray for failures that are not about its logs."""
    failures = ray.exceptions
    try:
        made: list[Row] | Refused = ray.get(done)
        return made
    except failures.RayTaskError as error:
        if isinstance(error.cause, LogdoctorError):
            raise error.cause from error
        said = str(error.cause).strip().splitlines() or [type(error.cause).__name__]
        next_step = "Install the same version of logdoctor, with the same rules, on all nodes."
        raise RayUnusable("a node of the Ray cluster", f"cannot diagnose ({said[-1][:300]})", next_step) from error
    except (failures.WorkerCrashedError, failures.OutOfMemoryError) as error:
        return Died.process(str(error).splitlines()[0][:200])


_judges: dict[str, Judge] = {}  # of this process, which runs many tasks
_folders = ExitStack()  # for fetched logs
atexit.register(_folders.close)


def _rows(known: tuple[Settings, Learned], digest: str, shard: Shard) -> list[Row] | Refused:
    """Return the rows of a shard, on a node."""
    if digest not in _judges:
        made = judge(*known)
        if made.digest != digest:
            raise ValueError("it has another logdoctor or other rules than the machine where the command runs")
        _judges[digest] = made.unpacking_in(_folders.enter_context(scratch()))
    return _judges[digest](shard)
