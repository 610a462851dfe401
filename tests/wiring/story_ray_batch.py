"""`logdoctor batch --ray` on a real Ray cluster of two nodes, one of which is killed: the rows are the same."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdoctor.pipeline.batch.rows import Row, read, rows
from tests import waiting
from tests.web.story_ray import ray_cluster

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster as RayCluster

__all__ = ["ray_cluster"]  # a fixture
CORPUS = Path(__file__).parents[2] / "eval" / "corpus"
_PER_NODE = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20}


def begun(tmp_path: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [str(Path(sys.executable).with_name("logdoctor")), "batch", *arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOGDOCTOR_")}
    environment = kept | {"LOGDOCTOR_DATA_DIR": str(tmp_path / "data"), "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)


def made(place: Path) -> list[tuple[object, ...]]:
    """The rows of a table without what differs each time."""

    def timeless(row: Row) -> tuple[object, ...]:
        verdict = json.loads(row.verdict or "{}") | {"seconds": 0}
        return row.source, row.reason, row.quote, row.error, verdict

    return [timeless(row) for row in rows(read(place))]


def test_a_killed_node_costs_no_row(ray_cluster: "RayCluster", tmp_path: Path) -> None:
    nodes: list[Any] = [ray_cluster.add_node(**_PER_NODE) for _ in range(2)]
    ray_cluster.wait_for_nodes(timeout=600)
    small = sorted(CORPUS.rglob("*.log"), key=lambda log: log.stat().st_size)[:40]
    (tmp_path / "logs").mkdir()
    for number in range(1000):
        (tmp_path / "logs" / f"job-{number}.log").write_bytes(small[number % len(small)].read_bytes())
    logs = str(tmp_path / "logs")
    with begun(tmp_path, logs, "--out", "ray.parquet", "--ray", ray_cluster.address) as process:
        parts = tmp_path / "ray.parquet.parts"
        waiting.until(lambda: list(parts.glob("part-*.parquet")) or process.poll() is not None)
        assert process.poll() is None
        ray_cluster.remove_node(nodes[0], allow_graceful=False)
        _, said = process.communicate()
    assert process.returncode == 0, said
    assert f"Diagnosed {1000:,} attempts" in said
    with begun(tmp_path, logs, "--out", "local.parquet") as process:
        process.communicate()
    ours = made(tmp_path / "ray.parquet")
    assert len(ours) == 1000 and ours == made(tmp_path / "local.parquet")


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    with begun(tmp_path, str(CORPUS), "--out", "v.parquet", "--ray", "127.0.0.1:1") as process:
        _, said = process.communicate()
    assert process.returncode == 2 and "the Ray cluster 127.0.0.1:1 cannot be reached" in said
    assert "Traceback" not in said


def test_who_waits_for_a_core_is_told_so_and_logs_of_a_service_are_refused(
    ray_cluster: "RayCluster", tmp_path: Path
) -> None:
    (tmp_path / "names").write_text(f"{CORPUS}/failures/inf-004.log\nservice:\n")
    cluster = ["--out", "v.parquet", "--ray", ray_cluster.address]
    with begun(tmp_path, "--files-from", "names", *cluster) as process:
        _, said = process.communicate()
    assert process.returncode == 2 and "cannot be combined with --ray" in said
    with begun(tmp_path, f"{CORPUS}/failures/inf-004.log", *cluster) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("Waiting for the Ray cluster" in line for line in lines)
        ray_cluster.add_node(**_PER_NODE)
        process.communicate()
    assert process.returncode == 0
