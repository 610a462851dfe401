"""A rank that trains with FSDP2 and NCCL, all ranks on one GPU: `torchrun ... -m tests.gpu.fsdp FOLDER STEPS`.

It goes on from the newest checkpoint, saves each step, and leaves the sum of each part of its model after the last one.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from logdoctor.checkpoint import Checkpointer, TrainingState


def main(folder: Path, steps: int) -> None:
    """Train up to a step."""
    rank = int(os.environ["RANK"])
    os.environ["NCCL_HOSTID"] = f"host {rank}"  # else NCCL refuses that ranks share a GPU
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = {"training": TrainingState(model, optimizer)}
    with Checkpointer(folder / "checkpoints", keep=20) as checkpoints:
        loaded = checkpoints.load(state)
        for step in range(loaded.step + 1 if loaded else 1, steps + 1):
            torch.manual_seed(step)  # all ranks have the same samples, so their number changes nothing but rounding
            model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            checkpoints.save(state, step=step)
        checkpoints.wait()
        problem = checkpoints.stats.last_problem
    whole = [parameter.full_tensor().double().cpu() for parameter in model.parameters()]
    found = {"loaded": loaded.step if loaded else 0, "problem": problem, "sums": [float(each.sum()) for each in whole]}
    if rank == 0:
        (folder / f"{dist.get_world_size()}-{steps}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
