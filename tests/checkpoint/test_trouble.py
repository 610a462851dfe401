"""Nothing that goes wrong with a save ends training, and saving goes on when it can."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from logdoctor.checkpoint import Checkpointer, Report, folders, load, memory, staging
from logdoctor.checkpoint.hashing import HashedFile
from logdoctor.checkpoint.writing import Folder
from logdoctor.errors import CheckpointError
from tests.checkpoint.conftest import Gate
from tests.checkpoint.states import empty, state_of, steps_in

ROOT = Path(__file__).parents[2]


def test_storage_that_hangs_leaves_saves_out(tmp_path: Path, storage: Gate) -> None:
    reports: list[Report] = []
    with Checkpointer(tmp_path, patience=0.2, on_report=reports.append) as checkpoints:
        first = checkpoints.save(state_of(1), step=1)
        assert storage.reached.wait(60)
        second = checkpoints.save(state_of(2), step=2)
        assert second.done.is_set() and second.state == "left out"
        assert second.problem == "the one before is not written after 0.2 seconds"
        storage.open()
        assert first.wait(60) and first.state == "verified"
        assert checkpoints.save(state_of(3), step=3).wait(60)
        assert [report.kind for report in reports] == ["left out", "saved", "saved"]
        assert (checkpoints.stats.left_out, checkpoints.stats.saved) == (1, 2)


def test_a_save_that_is_stuck_is_waited_for_once(tmp_path: Path, storage: Gate) -> None:
    with Checkpointer(tmp_path, patience=0.5) as checkpoints:
        checkpoints.save(state_of(1), step=1)
        assert storage.reached.wait(60)
        waited = [checkpoints.save(state_of(step), step=step).stall.backpressure for step in (2, 3, 4)]
        assert waited[0] >= 0.5 and max(waited[1:]) < 0.3
        storage.open()
        assert checkpoints.wait(60)
        assert checkpoints.save(state_of(5), step=5).wait(60)
    assert (checkpoints.stats.saved, checkpoints.stats.left_out) == (2, 3)


def test_the_end_does_not_wait_for_ever(tmp_path: Path, storage: Gate) -> None:
    with Checkpointer(tmp_path, patience=0.2) as checkpoints:
        checkpoints.save(state_of(1), step=1)
        assert storage.reached.wait(60)
    assert checkpoints.stats.last_problem == "the last save is not written at the end, and is given up"
    late = checkpoints.save(state_of(2), step=2)
    assert late.wait(0) and late.problem == "the Checkpointer was closed before"


def test_storage_that_vanishes_and_comes_back(tmp_path: Path) -> None:
    mount, away = tmp_path / "mount", tmp_path / "away"
    with Checkpointer(mount) as checkpoints:
        assert checkpoints.save(state_of(1), step=1).wait(60)
        mount.rename(away)
        lost = checkpoints.save(state_of(2), step=2)
        assert lost.wait(60) and lost.problem and "No such file or directory" in lost.problem
        away.rename(mount)
        assert checkpoints.save(state_of(3), step=3).wait(60)
        assert (checkpoints.stats.saved, checkpoints.stats.failed) == (2, 1)
    assert load(mount, empty(), 3)


def test_storage_that_is_not_there_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "mount").write_text("no folder")
    reports: list[Report] = []
    with Checkpointer(tmp_path / "mount", on_report=reports.append) as checkpoints:
        assert checkpoints.save(state_of(1), step=1).wait(60)
        (tmp_path / "mount").unlink()
        assert checkpoints.save(state_of(2), step=2).wait(60)
    assert [report.kind for report in reports] == ["lease", "failed", "saved"]
    assert "File exists" in reports[0].sentence


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A disk of 2 MB; None for who may not mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)], capture_output=True)
    yield place if mounted.returncode == 0 else None
    if mounted.returncode == 0:
        subprocess.run(["umount", str(place)], check=True)


FULL = """
import os, resource, sys
from pathlib import Path
from logdoctor.checkpoint import Checkpointer
from tests.checkpoint.states import state_of
folder, disk = Path(sys.argv[1]), len(sys.argv) > 2
room = lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, -1))
with Checkpointer(folder, keep=2) as checkpoints:
    assert checkpoints.save(state_of(1), step=1).wait(60)
    if disk: (folder / "other").write_bytes(bytes(1_200_000))
    else: room(100_000)
    lost = checkpoints.save(state_of(2), step=2)
    assert lost.wait(60)
    print(lost.problem, sorted(p.name for p in folder.glob("step-*")), sep="|")
    if disk: (folder / "other").unlink()
    else: room(-1)
    saved = checkpoints.save(state_of(3), step=3)
    assert saved.wait(60)
    print(saved.state)
"""


def test_a_full_disk(tmp_path: Path, small_disk: Path | None) -> None:
    """A small one, or where none can be mounted files that may not grow."""
    folder = small_disk or tmp_path / "files"
    arguments = [sys.executable, "-c", FULL, str(folder), *(["disk"] if small_disk else [])]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    problem, state = done.stdout.splitlines()
    assert ("No space left on device" if small_disk else "File too large") in problem
    assert problem.endswith("|['step-1.attempt-1']") and state == "verified"
    into = empty()
    found = load(folder, into)
    assert found and steps_in(into) == {3} and len(folders.names(folder)) == 2


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
                assert save.wait(60) and save.state == "failed"
        good = checkpoints.save(state_of(2), step=2)
        assert good.wait(60) and good.state == "verified"
        assert checkpoints.stats.failed == 4 and checkpoints.stats.writers_replaced == 0


def test_a_dead_writer_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpointer(tmp_path) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr(Checkpointer, "_work", lambda *_: None)
            lost = checkpoints.save(state_of(1), step=1)
            checkpoints.before_optimizer_step()
        assert lost.problem == "the writer's thread has died; the next save begins another"
        good = checkpoints.save(state_of(2), step=2)
        assert good.wait(60) and good.state == "verified"
        assert checkpoints.stats.writers_replaced == 1


def test_a_hook_that_fails(tmp_path: Path) -> None:
    def hook(_: Report) -> None:
        raise ValueError("no connection")

    with Checkpointer(tmp_path, on_report=hook) as checkpoints:
        save = checkpoints.save(state_of(1), step=1)
        assert save.wait(60) and save.state == "verified"
    assert checkpoints.stats.hook_failures == 1


def test_an_old_one_that_cannot_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError(13, "Permission denied", "old")

    with Checkpointer(tmp_path, keep=1) as checkpoints:
        assert checkpoints.save(state_of(1), step=1).wait(60)
        monkeypatch.setattr(folders, "delete", refused)
        save = checkpoints.save(state_of(2), step=2)
        assert save.wait(60) and save.state == "verified"
        assert checkpoints.stats.last_problem and "could not be deleted" in checkpoints.stats.last_problem


def test_training_that_ends_by_an_exception_is_not_held_up(
    tmp_path: Path, storage: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logdoctor.checkpoint.checkpointer._AFTER_ERROR", 0.1)
    with pytest.raises(ZeroDivisionError), Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(state_of(1), step=1)
        assert storage.reached.wait(60)
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
        assert storage.reached.wait(60)
        assert children() == before
        storage.open()


def test_a_program_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys, torch\n"
        "from logdoctor.checkpoint import Checkpointer\n"
        "print('begun', flush=True)\n"
        "with Checkpointer(sys.argv[1]) as checkpoints:\n"
        "    checkpoints.save({'weight': torch.ones(40_000)}, step=1)\n"
        "print(checkpoints.stats.saved)\n"
    )
    command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "folder")]
    path = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.split()) == (0, ["begun", "1"]), done.stderr


ENDING = """
import os, sys, torch
from logdoctor.checkpoint import Checkpointer, checkpointer, hashing
slow, how = float(sys.argv[2]), sys.argv[3]
checkpointer._AFTER_ERROR = 0.1 if slow else 30.0
write = os.write
def slowly(file, data):
    import time
    time.sleep(slow)
    return write(file, data)
os.write = slowly
checkpoints = Checkpointer(sys.argv[1], patience=0.1 if slow else 300.0)
checkpoints.save({"weight": torch.ones(30 << 20)}, step=1)
if how == "closed": checkpoints.close()
if how == "raised": raise KeyError("x")
"""


@pytest.mark.parametrize("how", ["left", "closed", "raised"])
@pytest.mark.parametrize("slow", ["0", "0.5"])
def test_a_program_ends_as_it_wants_to(tmp_path: Path, how: str, slow: str) -> None:
    """With a save under way: what is written soon is written, and the interpreter's end aborts nothing."""
    command = [sys.executable, "-c", ENDING, str(tmp_path / "folder"), slow, how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == (how == "raised"), done.stderr
    assert [each.step for each in folders.complete(tmp_path / "folder")] == ([] if float(slow) else [1])


SEVERAL = """
import sys, time, torch
from pathlib import Path
from logdoctor.checkpoint import Checkpointer, checkpointer
from logdoctor.checkpoint.hashing import HashedFile
checkpointer._STOPPING = 0.1
write, slow = HashedFile.write, float(sys.argv[2])
def slowly(file, data):
    time.sleep(60 if file._path.parents[1].name == "stuck" else slow)
    return write(file, data)
HashedFile.write = slowly
good = Checkpointer(Path(sys.argv[1]) / "good")
stuck = Checkpointer(Path(sys.argv[1]) / "stuck", patience=0.1)
stuck.save({"weight": torch.ones(3)}, step=1)
good.save({"weight": torch.ones(3)}, step=1)
"""


def test_one_that_is_stuck_at_the_end_does_not_break_off_another(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SEVERAL, str(tmp_path), "0.02"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [len(folders.complete(tmp_path / name)) for name in ("good", "stuck")] == [1, 0]


FORKED = """
import os, sys, torch
from logdoctor.checkpoint import Checkpointer
from logdoctor.checkpoint.hashing import HashedFile
import threading, warnings
warnings.simplefilter("ignore")
write, reached, go = HashedFile.write, threading.Event(), threading.Event()
def held_up(file, data):
    reached.set(); go.wait()
    return write(file, data)
HashedFile.write = held_up
tell = lambda report: print(report.kind, flush=True)
checkpoints = Checkpointer(sys.argv[1], on_report=tell, metrics_file=sys.argv[1] + ".prom")
checkpoints.save({"weight": torch.ones(3)}, step=1)
reached.wait()
if not (child := os.fork()):
    sys.exit()
print(os.waitpid(child, 0)[1], os.path.exists(sys.argv[1] + ".prom"), flush=True)
go.set()
"""


def test_the_end_of_a_forked_process_is_not_that_of_training(tmp_path: Path) -> None:
    """Before, it said that the save had failed, and wrote its counts over those of the trainer."""
    command = [sys.executable, "-c", FORKED, str(tmp_path / "folder")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["0 False", "saved"]), done.stderr


def test_what_load_refused_does_not_count_among_those_to_keep(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpoints:
        for step in (1, 2, 3):
            assert checkpoints.save(state_of(step), step=step).wait(60)
    for step in (2, 3):
        path = tmp_path / f"step-{step}.attempt-1/__0_0.distcp"
        path.write_bytes(path.read_bytes()[:-1])
    reports: list[Report] = []
    with Checkpointer(tmp_path, keep=2, on_report=reports.append) as checkpoints:
        found = checkpoints.load(empty())
        assert found and found.step == 1 and [report.kind for report in reports] == ["damaged", "damaged"]
        assert checkpoints.save(state_of(4), step=4).wait(60)
        assert "step-1.attempt-1" in folders.names(tmp_path)
        assert checkpoints.save(state_of(5), step=5).wait(60)
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
        assert checkpoints.save(state_of(1), step=1).wait(60), "a folder that is not there stops no save"
        assert "metrics are not written: [Errno 2]" in caplog.text
        file.parent.mkdir()
        assert checkpoints.save(state_of(5), step=5).wait(60)
    samples = [each for family in text_string_to_metric_families(file.read_text()) for each in family.samples]
    found = {each.name: each.value for each in samples if each.labels.get("outcome", "saved") == "saved"}
    assert found["logdoctor_checkpoint_saves_total"] == 2 and found["logdoctor_checkpoint_last_saved_step"] == 5
    assert abs(found["logdoctor_checkpoint_last_saved_timestamp_seconds"] - time.time()) < 60
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
