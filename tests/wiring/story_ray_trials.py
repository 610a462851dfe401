"""A trial on a real Ray cluster of two nodes: one is killed, then the coordinator; the scores are those of the unsplit
run."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from logdoctor.trials.journal import Failed, Finished, Started, read_journal
from logdoctor.trials.priors import Priors
from tests import waiting
from tests.trials.conftest import Trials, eval_set, trials, unsplit
from tests.web.story_ray import ray_cluster

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster as RayCluster

__all__ = ["ray_cluster", "trials"]  # fixtures
_PER_NODE: dict[str, Any] = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20}


def begun(trials: Trials, cluster: "RayCluster", *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "logdoctor.cli", "trials", *arguments, "--json", "--ray", cluster.address]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOGDOCTOR_")}
    return subprocess.Popen(
        [*command, "--priors", str(trials.folder / "times.jsonl")],
        env=kept | {"RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_a_killed_node_and_a_killed_coordinator_cost_no_finished_shard(
    trials: Trials, ray_cluster: "RayCluster"
) -> None:
    nodes: list[Any] = [ray_cluster.add_node(**_PER_NODE) for _ in range(2)]
    ray_cluster.wait_for_nodes(timeout=600)
    opened = trials.folder / "opened"
    sets = [eval_set("a", "slow-0.1", 60), eval_set("b"), eval_set("c", runs_code=True)]
    expected = unsplit(trials, *sets)
    sets = [one | {"dataset": f"{one['dataset']}@{opened}"} for one in sets]  # no shard ends before it is there
    path = trials.file(*sets)
    known = Priors(trials.folder / "times.jsonl")
    for one in trials.trial(*sets).sets:
        known.record(one, 0.1, [(10, 1.05), (2, 0.25)], 0.1)
    out = trials.folder / "out"
    journal = out / "journal.jsonl"

    def wait_for(kind: type, count: int) -> None:
        waiting.until(lambda: sum(isinstance(event, kind) for event in read_journal(journal)) >= count, kind.__name__)

    process = begun(trials, ray_cluster, "run", str(path), "--out", str(out))
    wait_for(Started, 2)  # one on each node
    ray_cluster.remove_node(nodes[0], allow_graceful=False)
    wait_for(Failed, 1)
    opened.touch()
    wait_for(Finished, 3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = [event.shard for event in read_journal(journal) if isinstance(event, Finished)]
    lost = [event for event in read_journal(journal) if isinstance(event, Failed)]
    assert lost and all(event.lost for event in lost)
    ray_cluster.add_node(**_PER_NODE)
    with begun(trials, ray_cluster, "resume", str(out)) as process:
        told, _ = process.communicate()
    assert process.returncode == 0
    assert {one["name"]: one["metrics"] for one in json.loads(told)["sets"]} == expected
    made = Counter(event.shard for event in read_journal(journal) if isinstance(event, Finished))
    assert all(made[shard] == 1 for shard in before)
    assert list(trials.memory.iterdir()) == []
