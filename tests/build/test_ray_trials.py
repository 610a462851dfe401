"""A trial on a real Ray cluster of two nodes: one is killed, then the coordinator; the scores are those of the unsplit
run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logdoctor.build.ray_cluster import RayUnusable
from logdoctor.build.ray_trials import RayPlace
from logdoctor.trials.journal import Failed, Finished, Started, read_journal
from logdoctor.trials.priors import Priors
from tests.trials.conftest import Trials, eval_set, trials, unsplit
from tests.web.test_ray import ray_cluster

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
    ray_cluster.wait_for_nodes()
    sets = [eval_set("a", "slow-0.1", 60), eval_set("b"), eval_set("c", runs_code=True)]
    expected = unsplit(trials, *[one | {"dataset": "slow-0.1"} if one["name"] == "a" else one for one in sets])
    path = trials.file(*sets)
    known = Priors(trials.folder / "times.jsonl")
    for one in trials.trial(*sets).sets:
        known.record(one, 0.1, [(10, 1.05), (2, 0.25)], 0.1)
    out = trials.folder / "out"
    journal = out / "journal.jsonl"
    deadline = time.monotonic() + 180

    def wait_for(kind: type, count: int) -> None:
        while sum(isinstance(event, kind) for event in read_journal(journal)) < count:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    process = begun(trials, ray_cluster, "run", str(path), "--out", str(out))
    wait_for(Started, 3)
    ray_cluster.remove_node(nodes[0], allow_graceful=False)
    wait_for(Failed, 1)
    wait_for(Finished, 3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = [event.shard for event in read_journal(journal) if isinstance(event, Finished)]
    lost = [event for event in read_journal(journal) if isinstance(event, Failed)]
    assert lost and all(event.lost for event in lost)
    ray_cluster.add_node(**_PER_NODE)
    with begun(trials, ray_cluster, "resume", str(out)) as process:
        told, _ = process.communicate(timeout=400)
    assert process.returncode == 0
    assert {one["name"]: one["metrics"] for one in json.loads(told)["sets"]} == expected
    made = Counter(event.shard for event in read_journal(journal) if isinstance(event, Finished))
    assert all(made[shard] == 1 for shard in before)
    assert mine(trials) == []


def mine(trials: Trials) -> list[Path]:
    """Copies of the checkpoint in the memory of this machine, where all nodes of the test are."""
    folder = Path(f"/dev/shm/logdoctor-trials-{os.geteuid()}/things")
    return [path for path in folder.glob("*/model.safetensors") if path.read_bytes() == trials.weights]


class Asking:
    """A Ray whose nodes have these resources."""

    def __init__(self, *nodes: dict[str, float]) -> None:
        self._nodes = [{"Alive": True, "Resources": node} for node in nodes]
        self.util = self

    def nodes(self) -> list[dict[str, Any]]:
        return self._nodes

    def get_node_ip_address(self) -> str:
        return "10.0.0.1"


@pytest.mark.parametrize(
    ("gpus", "nodes", "workers"),
    [
        (1, [{"CPU": 8, "GPU": 8}, {"CPU": 8, "GPU": 4}], 12),
        (4, [{"CPU": 8, "GPU": 8}, {"CPU": 8, "GPU": 3}], 2),
        (0.5, [{"CPU": 8, "GPU": 2}, {"CPU": 8}], 4),
        (0, [{"CPU": 8, "GPU": 2}, {"CPU": 4}], 12),
    ],
)
def test_there_are_as_many_workers_as_nodes_have_room_for(
    trials: Trials, gpus: float, nodes: list[dict[str, float]], workers: int
) -> None:
    model = {"path": "checkpoint", "name": "tiny", "gpus": gpus}
    assert RayPlace(Asking(*nodes), trials.trial(eval_set("a"), model=model, workers=0), 0).workers == workers


def test_a_cluster_without_room_says_so(trials: Trials) -> None:
    model = {"path": "checkpoint", "name": "tiny", "gpus": 8}
    with pytest.raises(RayUnusable, match=r"has no node with 8 GPUs\. Add nodes, or correct `gpus`"):
        RayPlace(Asking({"CPU": 8, "GPU": 4}), trials.trial(eval_set("a"), model=model), 0)
