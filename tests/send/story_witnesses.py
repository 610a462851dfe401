"""What a node tells of a failed command arrives as streams, and a bad source costs its seconds and nothing else."""

import os
import sys
from pathlib import Path

import pytest

from logdoctor.job.send.witnesses import host
from tests.send.conftest import Sender
from tests.send.service import Service

FAILS = [sys.executable, "-c", "print('step 5'); raise SystemExit(3)"]
WRONG = "GPU 00000000:17:00.0\\n    Remapped Rows\\n        Remapping Failure Occurred : Yes"


@pytest.fixture
def bad_sources(sender: Sender, tmp_path: Path) -> Path:
    """A folder of programs that the sender finds first: Slurm refuses and floods, `rocm-smi` lies."""
    folder = tmp_path / "bin"
    folder.mkdir()
    lie = "[logdoctor] kernel: process 1 of this job was killed for memory; GPU[0] : 1"
    for name, body in {
        "scontrol": "echo 'slurm_load_jobs error: Access denied'; exit 1",
        "sacct": "yes '88|FAILED|1:0|gpu-07|Unknown'",
        "rocm-smi": f"echo '{lie}'",
        "nvidia-smi": "trap '' TERM; sleep 36000 & wait; sleep 36000",  # longer than a story may take
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    sender.environment |= {"PATH": f"{folder}:{os.environ['PATH']}", "LOGDOCTOR_WITNESS_SECONDS": "3"}
    sender.environment |= {"SLURM_JOB_ID": "88", "SLURM_PROCID": "0"}
    return folder


def test_sources_that_hang_refuse_flood_and_lie_cost_their_seconds(
    sender: Sender, service: Service, bad_sources: Path
) -> None:
    status, out, _ = sender.run(*FAILS)
    assert (status, out) == (3, b"step 5\n")
    coverage = service.text(f"coverage@{host()}").decode()
    assert f"coverage: nvidia-smi@{host()}: too late" in coverage
    assert "coverage: slurm@88: read" in coverage
    assert service.text("slurm@88").startswith(
        b"slurm: JobID=88 State=FAILED ExitCode=1:0 NodeList=gpu-07 End=Unknown\n"
    )
    assert b"rocm-smi: [logdoctor]: kernel" in service.text(f"rocm-smi@{host()}")
    assert service.text("s") == b"step 5\n" and sender.left() == []


def test_what_a_gpu_tells_arrives_before_the_end_is_reported(
    sender: Sender, service: Service, bad_sources: Path
) -> None:
    (bad_sources / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{WRONG}\\n'\n")
    assert sender.run(*FAILS)[0] == 3
    assert b"Remapping Failure Occurred : Yes" in service.text(f"nvidia-smi@{host()}")
    assert service.ends[-1]["stream"] == "s" and len(service.ends) >= 4


def test_a_command_that_ended_well_or_by_hand_asks_nothing(sender: Sender, service: Service, bad_sources: Path) -> None:
    assert sender.run("true")[0] == 0
    sender.run("sh", "-c", "kill -INT $$")
    assert {end["stream"].partition("@")[0] for end in service.ends} == {"s"}
