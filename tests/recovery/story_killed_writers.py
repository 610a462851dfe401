"""A real writer that is killed while it saves: what is called complete can be loaded, with the values of its step."""

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from logdoctor.job.recovery import catalogue
from tests import waiting

WRITER = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch, torch.distributed.checkpoint as dcp
step = 0
while True:
    step += 1
    state = {"w": torch.full((256, 1024), float(step)), "step": step}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(Path(sys.argv[1], f"step-{step}"), thread_count=2))
"""


def loaded(path: str) -> dict[str, Any]:
    """The state in a checkpoint."""
    state = {"w": torch.zeros(256, 1024), "step": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=path)
    return state


def killed_after(folder: Path, begun: int) -> None:
    """Let a writer begin so many checkpoints in a new folder, and kill it."""
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", WRITER, str(folder)]) as writer:
        try:
            waiting.until(lambda: len(os.listdir(folder)) >= begun)
        finally:
            writer.send_signal(signal.SIGKILL)


def test_what_is_complete_loads_after_the_writer_was_killed(tmp_path: Path) -> None:
    for kill in range(2):
        folder = tmp_path / str(kill)
        killed_after(folder, 4 + kill)
        found = catalogue.read(folder)
        complete = [one for one in found if one.complete]
        assert len(complete) >= len(found) - 1 >= 2
        for one in complete:
            state = loaded(one.path)
            assert state["step"] == one.step and bool((state["w"] == float(one.step or 0)).all())
        best = catalogue.best(found)
        assert isinstance(best, catalogue.Checkpoint) and best == complete[-1]
