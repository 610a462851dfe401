"""What a node of a Ray cluster is given, refuses and fetches for a batch, and what comes of the faults of a cluster."""

import logging
import pickle
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from logdoctor.pipeline.batch import judging
from logdoctor.pipeline.batch.processes import Died
from logdoctor.pipeline.batch.rows import Row
from logdoctor.pipeline.batch.shards import Shard
from logdoctor.settings import read_settings, rules_folder
from logdoctor.wiring import ray_batch
from logdoctor.wiring.batch import NOTHING, for_judging, judge
from logdoctor.wiring.ray_batch import _on_cluster, _rows
from logdoctor.wiring.ray_cluster import RayUnusable

if TYPE_CHECKING:
    pass


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
