"""Nothing that goes wrong with a save ends training, and saving goes on when it can."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from logdoctor.checkpoint import Checkpointer, Report, folders, load, memory, staging
from logdoctor.checkpoint.hashing import HashedFile
from logdoctor.checkpoint.writing import Folder
from logdoctor.errors import CheckpointError
from tests.checkpoint.conftest import Gate, opening
from tests.checkpoint.states import empty, state_of

ROOT = Path(__file__).parents[2]


def test_storage_that_hangs_leaves_saves_out(tmp_path: Path, storage: Gate) -> None:
    reports: list[Report] = []
    with Checkpointer(tmp_path, patience=0.2, on_report=reports.append) as checkpoints:
        first = checkpoints.save(state_of(1), step=1)
        assert storage.reached.wait(600)
        second = checkpoints.save(state_of(2), step=2)
        assert second.done.is_set() and second.state == "left out"
        assert second.problem == "the one before is not written after 0.2 seconds"
        storage.open()
        assert first.wait(600) and first.state == "verified"
        assert checkpoints.save(state_of(3), step=3).wait(600)
        assert [report.kind for report in reports] == ["left out", "saved", "saved"]
        assert (checkpoints.stats.left_out, checkpoints.stats.saved) == (1, 2)


def test_a_save_that_is_stuck_is_waited_for_once(
    tmp_path: Path, storage: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpointer(tmp_path, patience=0.5) as checkpoints:
        checkpoints.save(state_of(1), step=1)
        assert storage.reached.wait(600)
        with monkeypatch.context() as patched:
            waited = opening(checkpoints, Gate(), patched)
            for step in (2, 3, 4):
                checkpoints.save(state_of(step), step=step)
        assert waited == [0.5, 0.0, 0.0]
        storage.open()
        assert checkpoints.wait(600)
        assert checkpoints.save(state_of(5), step=5).wait(600)
    assert (checkpoints.stats.saved, checkpoints.stats.left_out) == (2, 3)


def test_the_end_does_not_wait_for_ever(tmp_path: Path, storage: Gate) -> None:
    with Checkpointer(tmp_path, patience=0.2) as checkpoints:
        checkpoints.save(state_of(1), step=1)
        assert storage.reached.wait(600)
    assert checkpoints.stats.last_problem == "the last save is not written at the end, and is given up"
    late = checkpoints.save(state_of(2), step=2)
    assert late.wait(0) and late.problem == "the Checkpointer was closed before"


def test_storage_that_vanishes_and_comes_back(tmp_path: Path) -> None:
    mount, away = tmp_path / "mount", tmp_path / "away"
    with Checkpointer(mount) as checkpoints:
        assert checkpoints.save(state_of(1), step=1).wait(600)
        mount.rename(away)
        lost = checkpoints.save(state_of(2), step=2)
        assert lost.wait(600) and lost.problem and "No such file or directory" in lost.problem
        away.rename(mount)
        assert checkpoints.save(state_of(3), step=3).wait(600)
        assert (checkpoints.stats.saved, checkpoints.stats.failed) == (2, 1)
    assert load(mount, empty(), 3)


def test_storage_that_is_not_there_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "mount").write_text("no folder")
    reports: list[Report] = []
    with Checkpointer(tmp_path / "mount", on_report=reports.append) as checkpoints:
        assert checkpoints.save(state_of(1), step=1).wait(600)
        (tmp_path / "mount").unlink()
        assert checkpoints.save(state_of(2), step=2).wait(600)
    assert [report.kind for report in reports] == ["lease", "failed", "saved"]
    assert "File exists" in reports[0].sentence


@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), MemoryError(), SystemExit(1), KeyError("x")], ids=repr
)
def test_an_exception_in_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fails(*_: Any) -> None:
        raise error

    with Checkpointer(tmp_path) as checkpoints:
        for owner, name in ((Folder, "_begin"), (HashedFile, "write"), (Folder, "_commit"), (Folder, "verify")):
            with monkeypatch.context() as patched:
                patched.setattr(owner, name, fails)
                save = checkpoints.save(state_of(1), step=1)
                assert save.wait(600) and save.state == "failed"
        good = checkpoints.save(state_of(2), step=2)
        assert good.wait(600) and good.state == "verified"
        assert checkpoints.stats.failed == 4 and checkpoints.stats.writers_replaced == 0


def test_a_dead_writer_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpointer(tmp_path) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr(Checkpointer, "_work", lambda *_: None)
            lost = checkpoints.save(state_of(1), step=1)
            checkpoints.before_optimizer_step()
        assert lost.problem == "the writer's thread has died; the next save begins another"
        good = checkpoints.save(state_of(2), step=2)
        assert good.wait(600) and good.state == "verified"
        assert checkpoints.stats.writers_replaced == 1


def test_a_hook_that_fails(tmp_path: Path) -> None:
    def hook(_: Report) -> None:
        raise ValueError("no connection")

    with Checkpointer(tmp_path, on_report=hook) as checkpoints:
        save = checkpoints.save(state_of(1), step=1)
        assert save.wait(600) and save.state == "verified"
    assert checkpoints.stats.hook_failures == 1


def test_an_old_one_that_cannot_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError(13, "Permission denied", "old")

    with Checkpointer(tmp_path, keep=1) as checkpoints:
        assert checkpoints.save(state_of(1), step=1).wait(600)
        monkeypatch.setattr(folders, "delete", refused)
        save = checkpoints.save(state_of(2), step=2)
        assert save.wait(600) and save.state == "verified"
        assert checkpoints.stats.last_problem and "could not be deleted" in checkpoints.stats.last_problem


def test_training_that_ends_by_an_exception_is_not_held_up(
    tmp_path: Path, storage: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logdoctor.checkpoint.checkpointer._AFTER_ERROR", 0.1)
    with pytest.raises(ZeroDivisionError), Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(state_of(1), step=1)
        assert storage.reached.wait(600)
        raise ZeroDivisionError
    assert checkpoints.stats.last_problem


@pytest.mark.parametrize(
    "wrong", [{"step": -1}, {"step": 1.5}, {"step": 1, "loss": "x"}, {"step": 1, "data_position": 0.5}], ids=str
)
def test_a_step_that_is_none_is_an_error_of_the_program(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with Checkpointer(tmp_path) as checkpoints, pytest.raises((TypeError, ValueError)):
        checkpoints.save(state_of(1), **wrong)


def test_no_process_is_begun(tmp_path: Path, storage: Gate) -> None:
    """So none outlives the trainer, dies before it, or runs the program a second time."""

    def children() -> list[str]:
        return sorted(
            child for task in Path("/proc/self/task").glob("*/children") for child in task.read_text().split()
        )

    before = children()
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(state_of(1), step=1)
        assert storage.reached.wait(600)
        assert children() == before
        storage.open()


def test_what_load_refused_does_not_count_among_those_to_keep(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpoints:
        for step in (1, 2, 3):
            assert checkpoints.save(state_of(step), step=step).wait(600)
    for step in (2, 3):
        path = tmp_path / f"step-{step}.attempt-1/__0_0.distcp"
        path.write_bytes(path.read_bytes()[:-1])
    reports: list[Report] = []
    with Checkpointer(tmp_path, keep=2, on_report=reports.append) as checkpoints:
        found = checkpoints.load(empty())
        assert found and found.step == 1 and [report.kind for report in reports] == ["damaged", "damaged"]
        assert checkpoints.save(state_of(4), step=4).wait(600)
        assert "step-1.attempt-1" in folders.names(tmp_path)
        assert checkpoints.save(state_of(5), step=5).wait(600)
    assert sorted(folders.names(tmp_path)) == ["step-4.attempt-2", "step-5.attempt-2"]


def test_ranks_of_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"weight": torch.ones(1 << 20)}
    monkeypatch.setattr(staging, "available", lambda: (256 + 20) << 20)
    staging.Stager(ranks=5).begin(state)
    with pytest.raises(CheckpointError, match="short of 1 MiB for a copy of the state, which 8 ranks of this machine"):
        staging.Stager(ranks=8).begin(state)


def test_counts_are_kept_in_a_file_for_prometheus(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "metrics" / "checkpoints.prom"
    with Checkpointer(tmp_path / "a", metrics_file=file) as checkpoints:
        assert checkpoints.save(state_of(1), step=1).wait(600), "a folder that is not there stops no save"
        assert "metrics are not written: [Errno 2]" in caplog.text
        file.parent.mkdir()
        assert checkpoints.save(state_of(5), step=5).wait(600)
    samples = [each for family in text_string_to_metric_families(file.read_text()) for each in family.samples]
    found = {each.name: each.value for each in samples if each.labels.get("outcome", "saved") == "saved"}
    assert found["logdoctor_checkpoint_saves_total"] == 2 and found["logdoctor_checkpoint_last_saved_step"] == 5
    assert found["logdoctor_checkpoint_last_saved_timestamp_seconds"] == checkpoints.stats.last_saved_at
    assert "logdoctor_checkpoint_last_mirrored_step" not in found
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_no_thread_and_no_hook_are_left(tmp_path: Path) -> None:
    from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks

    before = len(hooks)
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(state_of(1), step=1)
        assert len(hooks) == before + 1
    assert len(hooks) == before
    assert "checkpoint-writer" not in {thread.name for thread in threading.enumerate()}


def test_memory_is_what_the_tightest_limit_leaves(tmp_path: Path) -> None:
    assert memory.available(tmp_path) == 1 << 60
    group = tmp_path / "sys/fs/cgroup/job/task"
    for path, text in {
        tmp_path / "proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 4000 kB\n",
        tmp_path / "proc/self/cgroup": "0::/job/task\n",
        group / "memory.max": "max\n",
        group.parent / "memory.max": "3000000\n",
        group.parent / "memory.current": "2000000\n",
        group.parent / "memory.stat": "anon 5\ninactive_file 500000\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory.available(tmp_path) == 1_500_000
    (group.parent / "memory.max").write_text("max\n")
    assert memory.available(tmp_path) == 4_096_000
    old = tmp_path / "sys/fs/cgroup/memory/job"
    old.mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:cpu:/\n3:memory:/job\n0::/job/task\n")
    for name, text in (("limit_in_bytes", "900"), ("usage_in_bytes", "800"), ("stat", "total_inactive_file 100")):
        (old / f"memory.{name}").write_text(text)
    assert memory.available(tmp_path) == 200
    assert 0 < memory.available() < 1 << 60 and os.path.exists("/proc/meminfo")
