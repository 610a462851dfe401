"""Checkpoints of ranks that talk over NCCL."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def trained(folder: Path, ranks: int, steps: int) -> dict[str, Any]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    env = os.environ | {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "PYTHONPATH": str(ROOT)}
    command = [*launcher, "-m", "tests.gpu.fsdp", str(folder), str(steps)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads((folder / f"{ranks}-{steps}.json").read_text())
    return found


def test_training_goes_on_with_more_ranks_and_with_fewer(tmp_path: Path) -> None:
    (tmp_path / "straight").mkdir()
    straight = trained(tmp_path / "straight", 2, 8)
    assert straight["loaded"] == 0 and straight["problem"] is None
    found = [trained(tmp_path, ranks, steps) for ranks, steps in ((1, 3), (2, 6), (1, 8))]
    assert [one["loaded"] for one in found] == [0, 3, 6] and [one["problem"] for one in found] == [None] * 3
    assert found[-1]["sums"] == pytest.approx(straight["sums"], rel=1e-3, abs=0.05)
