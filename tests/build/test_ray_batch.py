"""`logdoctor batch --ray` on a real Ray cluster of two nodes, one of which is killed: the rows are the same."""

import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from logdoctor.batch import judging
from logdoctor.batch.processes import Died
from logdoctor.batch.rows import Row, read, rows
from logdoctor.batch.shards import Shard
from logdoctor.build import ray_batch
from logdoctor.build.batch import NOTHING, for_judging, judge
from logdoctor.build.ray_batch import _on_cluster, _rows
from logdoctor.build.ray_cluster import RayUnusable
from logdoctor.settings import read_settings, rules_folder
from tests.web.test_ray import ray_cluster

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
    ray_cluster.wait_for_nodes()
    small = sorted(CORPUS.rglob("*.log"), key=lambda log: log.stat().st_size)[:40]
    (tmp_path / "logs").mkdir()
    for number in range(1000):
        (tmp_path / "logs" / f"job-{number}.log").write_bytes(small[number % len(small)].read_bytes())
    logs = str(tmp_path / "logs")
    with begun(tmp_path, logs, "--out", "ray.parquet", "--ray", ray_cluster.address) as process:
        deadline = time.monotonic() + 400
        while not list((tmp_path / "ray.parquet.parts").glob("part-*.parquet")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        ray_cluster.remove_node(nodes[0], allow_graceful=False)
        _, said = process.communicate(timeout=400)
    assert process.returncode == 0, said
    assert f"Diagnosed {1000:,} attempts" in said
    with begun(tmp_path, logs, "--out", "local.parquet") as process:
        process.communicate(timeout=400)
    ours = made(tmp_path / "ray.parquet")
    assert len(ours) == 1000 and ours == made(tmp_path / "local.parquet")


def test_a_node_with_other_rules_or_another_logdoctor_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read_settings()
    digest = judge(settings).digest
    assert _rows((for_judging(settings), NOTHING), digest, Shard((), 0)) == []
    monkeypatch.setattr(ray_batch, "_judges", {})
    shipped = rules_folder(settings)
    one = min((shipped / "filter").rglob("*.yaml")).relative_to(shipped)
    (tmp_path / "rules" / one).parent.mkdir(parents=True)
    shutil.copy(shipped / one, tmp_path / "rules" / one)
    other = msgspec.structs.replace(settings, rules=tmp_path / "rules")
    with pytest.raises(ValueError, match="other rules"):
        _rows((for_judging(other), NOTHING), digest, Shard((), 0))
    monkeypatch.setattr(judging, "LOGDOCTOR", "0.0.1")
    with pytest.raises(ValueError, match="another logdoctor"):
        _rows((for_judging(settings), NOTHING), digest, Shard((), 0))


def test_a_cluster_is_told_no_secrets() -> None:
    settings = read_settings(
        {"LOGDOCTOR_LLM_KEY": "sk-secret", "LOGDOCTOR_DATABASE_URL": "postgresql://u:secret@host/db"}
    )
    assert b"secret" in pickle.dumps(settings) and b"secret" not in pickle.dumps(for_judging(settings))


def test_a_cluster_that_fails_is_no_row() -> None:
    made = logging.getLogRecordFactory()
    import ray

    logging.setLogRecordFactory(made)  # Ray's own adds what other tests of this process must not see

    def on(error: Exception, task: Exception | None = None) -> list[tuple[Shard, list[Row] | Died]]:
        """What comes of a task when the cluster raises this."""

        def failing(*_: object, **__: object) -> Any:
            raise task or error

        class Failing:
            exceptions = ray.exceptions
            get = failing

            def cluster_resources(self) -> dict[str, float]:
                return {"CPU": 1}

            def wait(self, tasks: list[object], **_: object) -> tuple[list[object], list[object]]:
                if task is None:
                    raise error
                return tasks, []

        return list(_on_cluster(Failing(), lambda shard: object(), print, [Shard((), 0)]))

    lost = ray.exceptions
    for error in (
        lost.NodeDiedError("a node died"),
        lost.OutOfDiskError("a disk is full"),
        lost.RaySystemError("gone"),
    ):
        for task in (error, None):
            with pytest.raises(RayUnusable, match=r"the Ray cluster fails .* goes on where it was"):
                on(error, task)
    ((_, died),) = on(lost.WorkerCrashedError(), lost.WorkerCrashedError())
    assert isinstance(died, Died)


def test_what_a_node_fetches_lies_in_a_folder_that_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(ray_batch, "_judges", {})
    settings = read_settings()
    _rows((for_judging(settings), NOTHING), judge(settings).digest, Shard((), 0))
    (made,) = ray_batch._judges.values()
    assert made.folder is not None and made.folder.parent == tmp_path and made.folder.is_dir()
    ray_batch._folders.close()
    assert not made.folder.exists()


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    with begun(tmp_path, str(CORPUS), "--out", "v.parquet", "--ray", "127.0.0.1:1") as process:
        _, said = process.communicate(timeout=400)
    assert process.returncode == 2 and "the Ray cluster 127.0.0.1:1 cannot be reached" in said
    assert "Traceback" not in said


def test_who_waits_for_a_core_is_told_so_and_logs_of_a_service_are_refused(
    ray_cluster: "RayCluster", tmp_path: Path
) -> None:
    (tmp_path / "names").write_text(f"{CORPUS}/failures/inf-004.log\nservice:\n")
    cluster = ["--out", "v.parquet", "--ray", ray_cluster.address]
    with begun(tmp_path, "--files-from", "names", *cluster) as process:
        _, said = process.communicate(timeout=400)
    assert process.returncode == 2 and "cannot be combined with --ray" in said
    with begun(tmp_path, f"{CORPUS}/failures/inf-004.log", *cluster) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("Waiting for the Ray cluster" in line for line in lines)
        ray_cluster.add_node(**_PER_NODE)
        process.communicate(timeout=400)
    assert process.returncode == 0
