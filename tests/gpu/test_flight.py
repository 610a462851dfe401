"""The flight recorder of NCCL names the rank that a collective waits for."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from logdoctor.job.recovery.contract import STACKS_DIR
from logdoctor.job.recovery.witness import flight
from logdoctor.job.recovery.witness.hook import stacks_file

ROOT = Path(__file__).parents[2]
TRAINER = """
import datetime, os, time
import torch, torch.distributed as dist
from logdoctor.job.recovery.witness.hook import bear_witness

rank = int(os.environ["RANK"])
os.environ["NCCL_HOSTID"] = f"host {rank}"
assert bear_witness()
torch.cuda.set_device(0)
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
for step in range(6):
    if rank == 1 and step == 5:
        time.sleep(600)
    dist.all_reduce(torch.ones(1 << 20, device="cuda"))
    torch.cuda.synchronize()
    print(f"step {step}", flush=True)
"""


def test_the_rank_that_did_not_come_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "stacks"
    folder.mkdir()
    (tmp_path / "trainer.py").write_text(TRAINER)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = os.environ | {
        STACKS_DIR: str(folder),
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "PYTHONPATH": str(ROOT),
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "200",
    }
    command = [*launcher, str(tmp_path / "trainer.py")]
    job = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
    end = threading.Timer(120, os.killpg, (job.pid, signal.SIGKILL))
    end.start()
    try:
        assert job.stdout and any("step 4" in line for line in job.stdout)
        lines: list[str] = []
        while not lines:  # rank 0 may not have come to the next one yet
            assert end.is_alive()
            traces = flight.ask(str(folder), {})
            lines = flight.shown(traces)
        assert sorted(traces) == [0, 1] and (folder / stacks_file(1)).exists()
        assert lines[0].startswith("flight recorder: missing ranks: 1: did not enqueue #6 nccl:all_reduce"), lines
    finally:
        end.cancel()
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
