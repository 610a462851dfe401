"""Workers on a real Ray cluster of two nodes, one of which is killed: every job has its verdict, once."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.schema import workers
from tests import waiting
from tests.web.story_roles import Cluster, failing, make
from tests.web.story_service_process import final

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster as RayCluster

__all__ = ["make"]
_PER_NODE = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 80 << 20}


@pytest.fixture
def ray_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator["RayCluster"]:
    from ray.cluster_utils import Cluster as RayCluster  # here, because it changes how all of a process logs

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_health_check_period_ms", "500")
    monkeypatch.setenv("RAY_health_check_failure_threshold", "4")
    cluster = RayCluster(initialize_head=True, head_node_args={**_PER_NODE, "num_cpus": 0})
    yield cluster
    cluster.shutdown()


def scaled(cluster: Cluster, ray_cluster: "RayCluster", count: int, **settings: str) -> dict[str, str]:
    """Let so many workers run; the node that each is on."""
    process = cluster._new(settings)
    program = str(Path(sys.executable).with_name("logdoctor"))
    command = [program, "worker", "--ray", ray_cluster.address, "--workers", str(count)]
    environment = dict(process.environment) | {
        "LOGDOCTOR_DATA_DIR": str(process.folder),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    made = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")
    assert made.returncode == 0, made.stderr
    return dict(re.findall(r"^(worker-\d+) runs on node (\w+)$", made.stdout, re.MULTILINE))


def alive(cluster: Cluster) -> set[str]:
    """The ids of the workers that hold a lease."""
    with closing(Database(cluster.database_url)) as database, database.reading() as connection:
        return set(connection.scalars(sa.select(workers.c.worker).where(workers.c.until > database.now(connection))))


def test_a_killed_node_costs_no_verdict(make: Callable[..., Cluster], ray_cluster: "RayCluster") -> None:
    cluster = make(LOGDOCTOR_LEASE_SECONDS="5")
    nodes: list[Any] = [ray_cluster.add_node(**_PER_NODE) for _ in range(2)]
    ray_cluster.wait_for_nodes()
    web = cluster.web()
    before = scaled(cluster, ray_cluster, 2)
    assert len(before) == 2
    for number in range(12):
        failing(web, f"before-{number}")
    lost = next(node for node in nodes if any(node.node_id.startswith(place) for place in before.values()))
    ray_cluster.remove_node(lost, allow_graceful=False)
    for number in range(12):
        failing(web, f"after-{number}")
    for job in (f"{when}-{number}" for when in ("before", "after") for number in range(12)):
        found = waiting.until(lambda job=job: final(web, job))  # type: ignore[misc]
        assert found["verdict"]["reason"] == "Out of Memory Error" and not found["verdict"]["problems"]
    again = waiting.until(lambda: scaled(cluster, ray_cluster, 2))
    assert len(again) == 2 and not any(lost.node_id.startswith(place) for place in again.values())
    assert scaled(cluster, ray_cluster, 0) == {}
    failing(web, "nobody")
    assert final(web, "nobody") is None
    scaled(cluster, ray_cluster, 1)
    waiting.until(lambda: final(web, "nobody"))
    first = waiting.until(lambda: len(now := alive(cluster)) == 1 and now)
    scaled(cluster, ray_cluster, 1)
    assert waiting.until(lambda: alive(cluster)) == first, "nothing has changed"
    scaled(cluster, ray_cluster, 1, LOGDOCTOR_SCAN_SECONDS="0.5")
    waiting.until(lambda: (now := alive(cluster)) and not now & first)


def test_a_cluster_that_is_not_there_is_named(make: Callable[..., Cluster]) -> None:
    program = str(Path(sys.executable).with_name("logdoctor"))
    command = [program, "worker", "--ray", "127.0.0.1:1", "--workers", "1"]
    environment = os.environ | {"LOGDOCTOR_DATABASE_URL": make().database_url}
    made = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")
    assert made.returncode != 0 and "LOGDOCTOR_ARCHIVE_URL" in made.stderr, "each would archive for itself"
    environment["LOGDOCTOR_ARCHIVE_URL"] = "s3://logs/logdoctor"
    made = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")
    assert made.returncode != 0 and "the Ray cluster 127.0.0.1:1" in made.stderr and "Traceback" not in made.stderr
