"""Ranks over gloo of which some hang, for tests of the second witness: `witness_ranks.py WORLD SEED STORE`.

Each rank is a process of its own. After some collectives, over all ranks and over halves of them, one rank waits for
data and never comes to the next.
"""

import os
import random
import sys
import time

import torch
import torch.distributed as dist

from logdoctor import resume


def main() -> None:
    """Run this rank."""
    world, seed, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    rank, chance = int(os.environ["RANK"]), random.Random(seed)
    dist.init_process_group("gloo", f"file://{store}", world_size=world, rank=rank)
    halves = [list(range(part, world, 2)) for part in range(2)] if world > 2 else []
    groups = [dist.new_group(half) for half in halves]
    own = next((group for group, half in zip(groups, halves, strict=True) if rank in half), None)
    resume.bear_witness()
    missing, last = chance.randrange(world), chance.randrange(0, 12)
    tensor = torch.ones(4)
    for step in range(last + 1):
        if step == last:
            print("is there", flush=True)
        if step == last and rank == missing:
            wait_for_data()
        if own is not None:
            dist.all_reduce(tensor, group=own)
        dist.all_reduce(tensor)


def missing_rank(world: int, seed: int) -> int:
    """The rank that hangs with a seed."""
    return random.Random(seed).randrange(world)


def wait_for_data() -> None:
    """Wait for what never comes."""
    while True:
        time.sleep(1.0)


if __name__ == "__main__":
    main()
