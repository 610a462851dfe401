"""A small real training job over gloo, with faults on demand: `torchrun ... gloo.py FOLDER PLAN.json`.

A linear model learns a function of numbered samples. Its checkpoints are ours, it is told by `logdoctor.resume` where
to begin and what to leave out, and each rank writes which samples it saw, step by step, to FOLDER/samples-ATTEMPT-RANK.
The plan has one entry for each attempt, the last one for all further ones:

    {"fault": "exit" | "quit" | "kill" | "memory" | "disk" | "hang" | "none", "at": STEP, "rank": RANK,
     "say": "what the exit says"}

Beside the attempts `"poison": [FIRST, LAST]` names global batches that ruin the model, with `"poison_by"` "nan" or
"size"; `step_seconds` and `save_seconds` are how long steps and saves take.
"""

import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from logdoctor import resume
from logdoctor.checkpoint import Checkpointer, TrainingState
from logdoctor.resume import SkippingBatches

STEPS, GLOBAL_BATCH, FEATURES, SAVE_EVERY = 300, 16, 8, 20


class Batches:
    """The samples of one rank: batch after batch, each dealt out to the ranks in turn."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._size = rank, GLOBAL_BATCH // ranks

    def __iter__(self) -> Iterator[list[int]]:
        for batch in range(100_000):
            begin = batch * GLOBAL_BATCH + self._rank * self._size
            yield list(range(begin, begin + self._size))


def sample(number: int, plan: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The sample with a number; one of a poisoned batch (counted from 1) is far off."""
    first, last = plan.get("poison", (0, 0))
    chance = torch.Generator().manual_seed(number)
    x = torch.randn(FEATURES, generator=chance)
    y = x.cumsum(0).sum() / FEATURES + 0.5 * torch.randn((), generator=chance)
    if not first <= number // GLOBAL_BATCH + 1 <= last:
        return x, y
    return (x, y * math.nan) if plan["poison_by"] == "nan" else (x, y * 100 + 1000)


def main() -> None:
    """Train as the plan says for this attempt."""
    folder, plan = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    number = attempt_number(folder, rank)
    fault: dict[str, Any] = plan["attempts"][min(number, len(plan["attempts"]) - 1)]
    resume.bear_witness()
    torch.manual_seed(7)
    model = torch.nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    told = resume.announced()
    batches = SkippingBatches(Batches(rank, ranks), told.skip)
    state = {"training": TrainingState(model, optimizer, batches=batches)}
    with Checkpointer(folder / "ckpt", keep=100) as checkpoints:
        loaded = checkpoints.load(state, path=told.checkpoint)
        begin = loaded.step if loaded else 0
        with (folder / f"samples-{number}-{rank}").open("w") as seen:
            for step, batch in zip(range(begin + 1, STEPS + 1), batches, strict=False):
                misbehave(fault, step, rank)
                loss = train(model, optimizer, [sample(number, plan) for number in batch], ranks)
                seen.write(json.dumps([step, batch]) + "\n")
                seen.flush()
                if rank == 0:
                    print(f"step: {step} | loss: {loss:.6f}", flush=True)
                time.sleep(plan.get("step_seconds", 0.0))
                if step % SAVE_EVERY == 0:
                    if rank == 0:
                        print("saving checkpoint", flush=True)
                    checkpoints.save(state, step=step, data_position=told.position(step), loss=loss)
                    time.sleep(plan.get("save_seconds", 0.0))
    if rank == 0:
        torch.save(model.state_dict(), folder / "final.pt")
        print(f"training finished, final loss {loss:.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def attempt_number(folder: Path, rank: int) -> int:
    """How many attempts there were before, the same for all ranks."""
    count = len(list(folder.glob("samples-*-0"))) if rank == 0 else 0
    box = [count]
    dist.broadcast_object_list(box, src=0)
    return box[0]


Pair = tuple[torch.Tensor, torch.Tensor]


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, pairs: list[Pair], ranks: int) -> float:
    """Make one step; the loss over all ranks."""
    x, y = torch.stack([pair[0] for pair in pairs]), torch.stack([pair[1] for pair in pairs])
    loss = (model(x).squeeze(1) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= ranks
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return float(total / ranks)


def misbehave(fault: dict[str, Any], step: int, rank: int) -> None:
    """Do what the plan says at this step, before anything is exchanged."""
    if step != fault.get("at") or rank != fault.get("rank", 0):
        return
    match fault["fault"]:
        case "quit":
            print(fault["say"], flush=True)
            os._exit(3)
        case "exit":
            raise RuntimeError(fault.get("say", "CUDA error: uncorrectable ECC error encountered"))
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "memory":
            outgrow_memory()
        case "disk":
            with open("/dev/full", "w") as full:
                full.write("no room")
        case "hang":
            wait_for_data()


def wait_for_data() -> None:
    """Wait for what never comes."""
    while True:
        time.sleep(1.0)


def outgrow_memory() -> None:
    """Grow until the kernel ends this process for want of memory, in a group of its own."""
    group = Path(f"/sys/fs/cgroup/memory/logdoctor-{os.getpid()}")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(64 << 20))
    (group / "tasks").write_text(str(os.getpid()))
    grown = [bytearray(os.urandom(1 << 20)) * 8 for _ in range(64)]
    raise AssertionError(f"{len(grown)} pieces fitted")


if __name__ == "__main__":
    main()
