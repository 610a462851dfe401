"""Programs that end with a save under way, and disks that are full."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from logdoctor.checkpoint import folders, load
from tests.checkpoint.states import empty, steps_in

ROOT = Path(__file__).parents[2]


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
    assert checkpoints.save(state_of(1), step=1).wait(600)
    if disk: (folder / "other").write_bytes(bytes(1_200_000))
    else: room(100_000)
    lost = checkpoints.save(state_of(2), step=2)
    assert lost.wait(600)
    print(lost.problem, sorted(p.name for p in folder.glob("step-*")), sep="|")
    if disk: (folder / "other").unlink()
    else: room(-1)
    saved = checkpoints.save(state_of(3), step=3)
    assert saved.wait(600)
    print(saved.state)
"""


def test_a_full_disk(tmp_path: Path, small_disk: Path | None) -> None:
    """A small one, or where none can be mounted files that may not grow."""
    folder = small_disk or tmp_path / "files"
    arguments = [sys.executable, "-c", FULL, str(folder), *(["disk"] if small_disk else [])]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    problem, state = done.stdout.splitlines()
    assert ("No space left on device" if small_disk else "File too large") in problem
    assert problem.endswith("|['step-1.attempt-1']") and state == "verified"
    into = empty()
    found = load(folder, into)
    assert found and steps_in(into) == {3} and len(folders.names(folder)) == 2


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
    done = subprocess.run(command, env=path, capture_output=True, text=True)
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
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
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
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
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
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["0 False", "saved"]), done.stderr
