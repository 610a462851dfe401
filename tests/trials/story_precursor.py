"""A checkpoint on a node belongs to all processes that hold it, and goes with the last one, even a killed one."""

import subprocess
import sys
from pathlib import Path

from logdoctor.trials.node_folder import NodeFolder, shared_folder
from tests.trials.test_precursor import checkpoint, root

__all__ = ["checkpoint", "root"]  # fixtures

HOLDER = """
import os, sys, time
from pathlib import Path
from logdoctor.trials.precursor import hold
held = hold(Path(sys.argv[1]), [Path(sys.argv[2])])
print(held.path, held.copied, flush=True)
sys.stdin.read()
held.release()
"""


def holder(checkpoint: Path, root: Path) -> "subprocess.Popen[str]":
    """A process that holds a checkpoint until its input ends."""
    command = [sys.executable, "-c", HOLDER, str(checkpoint), str(root)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_many_processes_share_one_copy(checkpoint: Path, root: Path) -> None:
    processes = [holder(checkpoint, root) for _ in range(4)]
    told = [process.stdout.readline().split() for process in processes if process.stdout]
    assert len({path for path, _ in told}) == 1
    assert sorted(copied for _, copied in told) == ["False", "False", "False", "True"]
    path = Path(told[0][0])
    assert (path / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    assert (path / "sub" / "config.json").read_text() == "{}"
    for process in processes[:3]:
        process.communicate("")
    assert path.exists()
    processes[3].communicate("")
    assert list(root.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_whoever_comes_next(checkpoint: Path, root: Path) -> None:
    process = holder(checkpoint, root)
    assert process.stdout is not None
    path = Path(process.stdout.readline().split()[0])
    process.kill()
    process.communicate()
    assert path.exists()
    NodeFolder(shared_folder(root)).sweep()
    assert list(root.iterdir()) == []
