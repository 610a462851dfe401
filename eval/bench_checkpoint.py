"""How long training waits for a save, and what a save costs it, beside torch's own ways, on this machine.

    python eval/bench_checkpoint.py [--gib 0.1 1 4] [--ranks 1 2] [--rounds 5] [--folder FOLDER] [--json [FILE]]
                                    [--device cuda]

A training loop (matrix products, then every tensor of the state is changed in place) goes on while a save is written. A
step has the work of a small batch: 6 operations for each of 32 tokens and each parameter; a parameter has 12 bytes of
state (the value and two moments of Adam). On a GPU the state is on it, for one rank; a step has the work of 131,072
tokens (16,384 on each of 8 GPUs that share a model) and ends as one whose loss is read; NVRx takes its turn, too, if it
is installed. The ways to save take turns, one save each a round, after a first round that counts for memory alone.
Figures are medians:

    return, staging, back-pressure   seconds for which the loop stood still: in the call, for the copy before the state
                                     may be changed, for the save before it
    extra                            seconds that the loop took longer until the save was on the disk, all included
    of 30 min                        that, of an interval of 30 minutes
    persisted                        seconds until the save was on the disk (torch.save: in the kernel's cache)
    memory                           most MB that the host needed in addition, for one rank
    step                             seconds of a step while nothing is saved

The slowest rank counts. The folder (TMPDIR by default) is emptied again. 4 GiB need about 16 GB of memory. Nothing is
asserted.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from rich.console import Console
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

from logdoctor.checkpoint import Checkpointer, Stall

RESULTS = Path(__file__).resolve().parent / "results" / "bench_checkpoint.json"
TENSORS = 32
BYTES = 12  # of a parameter
TOKENS, WIDTH = {"cpu": 32, "cuda": 1 << 17}, {"cpu": 640, "cuda": 8192}  # per step and rank; of the matrices
INTERVAL = 30 * 60.0  # seconds
WAYS, NVRX = ("ours", "torch.save", "DCP save", "DCP async_save"), "NVRx async_save"
FIGURES = ("return", "staging", "backpressure", "stall", "extra", "persisted", "memory", "step")
console = Console(highlight=False, width=160)


class Begun(NamedTuple):
    """A save in progress: how long the loop stood still, a call before the state changes, and whether it is on the
    disk."""

    stall: Stall
    before_change: Callable[[], object]
    done: Callable[[], bool]


class Loop:
    """A stand-in for training."""

    def __init__(self, gib: float, world: int, device: str) -> None:
        rows = int(gib * (1 << 30) / TENSORS / world / 4 / 1024)
        locals_ = [torch.ones(rows, 1024, device=device) for _ in range(TENSORS)]
        mesh = init_device_mesh("cpu", (world,)) if world > 1 else None
        self.state = {
            f"tensor {place}": DTensor.from_local(each, mesh, [Shard(0)]) if mesh else each
            for place, each in enumerate(locals_)
        }
        kind, width = torch.bfloat16 if device == "cuda" else torch.float32, WIDTH[device]
        self._locals, self._left = locals_, torch.randn(width, width, device=device, dtype=kind)
        self._products = max(1, round(6 * TOKENS[device] * gib * (1 << 30) / BYTES / (2 * width**3)))
        self._read = torch.cuda.synchronize if device == "cuda" else lambda: None

    def step(self, before_change: Callable[[], object] = lambda: None) -> None:
        """Compute, then change the state."""
        for _ in range(self._products):
            self._left = torch.nn.functional.normalize(self._left @ self._left.T)
        before_change()
        for each in self._locals:
            each[:64].add_(1)
        self._read()

    def seconds(self) -> float:
        """Return the seconds of one step while nothing is saved."""
        begin, steps = time.perf_counter(), 0
        while steps < 5 or time.perf_counter() - begin < 2:
            self.step()
            steps += 1
        return (time.perf_counter() - begin) / steps


@contextmanager
def ways(folder: Path, rank: int, device: str) -> Iterator[dict[str, Callable[[dict[str, Any], int], Begun]]]:
    """Yield the ways to save, by name."""
    group = dist.new_group(backend="gloo") if dist.is_initialized() else None
    alone = {"no_dist": True} if group is None else {"process_group": group}
    with Checkpointer(folder / "ours", keep=1) as checkpoints:

        def ours(state: dict[str, Any], step: int) -> Begun:
            save = checkpoints.save(state, step=step)
            return Begun(save.stall, checkpoints.before_optimizer_step, save.done.is_set)

        def plain(state: dict[str, Any], step: int) -> Begun:
            return timed(lambda: torch.save(state, folder / f"{rank}.{step}.pt"))

        def synchronous(state: dict[str, Any], step: int) -> Begun:
            return timed(lambda: dcp.save(state, checkpoint_id=folder / f"dcp-{step}", **alone))

        def asynchronous(state: dict[str, Any], step: int) -> Begun:
            return timed(lambda: dcp.async_save(state, checkpoint_id=folder / f"async-{step}", **alone))

        found = dict(zip(WAYS, (ours, plain, synchronous, asynchronous), strict=True))
        if device == "cuda":
            with suppress(ModuleNotFoundError):
                found[NVRX] = nvrx(folder)
        yield found


def nvrx(folder: Path) -> Callable[[dict[str, Any], int], Begun]:
    """Return the save of nvidia-resiliency-ext's process, which needs CUDA tensors."""
    from nvidia_resiliency_ext.checkpointing.async_ckpt.torch_ckpt import TorchAsyncCheckpoint

    saving = TorchAsyncCheckpoint()

    def done() -> bool:
        saving.finalize_async_save(blocking=False, no_dist=True)
        return saving._get_async_calls_queue().get_num_unfinalized_calls() == 0

    def save(state: dict[str, Any], step: int) -> Begun:
        begun = timed(lambda: saving.async_save(state, folder / f"nvrx.{step}.pt"))
        return begun._replace(done=done)

    return save


def timed(save: Callable[[], Any]) -> Begun:
    """Time a save of torch, whose call is the loop's only wait."""
    begin = time.perf_counter()
    future = save()
    stall = Stall(returned=time.perf_counter() - begin)
    return Begun(stall, lambda: None, future.done if hasattr(future, "done") else lambda: True)


def resident(name: str = "VmHWM") -> float:
    """Return this process's peak memory in MB, or another line of its status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e6


def measured(loop: Loop, save: Callable[[dict[str, Any], int], Begun], number: int) -> dict[str, float]:
    """Return the figures of one save in the loop."""
    usual = loop.seconds()
    Path("/proc/self/clear_refs").write_text("5")
    before, begin, steps, persisted = resident("VmRSS"), time.perf_counter(), 0, 0.0
    begun = save(loop.state, number)
    while not persisted or steps < 5:
        loop.step(begun.before_change)
        steps += 1
        if not persisted and begun.done():
            persisted = time.perf_counter() - begin
    extra = time.perf_counter() - begin - steps * usual
    stall = begun.stall
    waited = (stall.returned, stall.staging, stall.backpressure, stall.total)
    return dict(zip(FIGURES, (*waited, extra, persisted, resident() - before, usual), strict=True))


def work(rank: int, world: int, gib: float, rounds: int, folder: Path, device: str) -> None:
    """Write a rank's figures of each way and round into a file."""
    torch.set_num_threads(1)  # training leaves no core idle; one is left to whatever saves
    if world > 1 or device == "cuda":  # NVRx needs a process group
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    loop, found = Loop(gib, world, device), defaultdict(list)
    with ways(folder, rank, device) as every:
        for number in range(rounds + 1):
            for way, save in every.items():
                if world > 1:
                    dist.barrier()
                found[way].append(measured(loop, save, number))
                if world > 1:
                    dist.barrier()
                if rank == 0:
                    clear(folder)
    (folder / f"{rank}.json").write_text(json.dumps(found))


def clear(folder: Path) -> None:
    """Remove what the others saved; ours removes its own."""
    for path in (*folder.glob("*.pt"), *folder.glob("dcp-*"), *folder.glob("async-*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def run(gib: float, world: int, rounds: int, scratch: Path, device: str) -> list[dict[str, Any]]:
    """Return the medians of each way to save, for the slowest rank."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        command = [sys.executable, __file__, "--folder", str(folder), "--rounds", str(rounds), "--gib", str(gib)]
        command += ["--device", device]
        ranks = [subprocess.Popen([*command, "--work", str(rank), str(world)]) for rank in range(world)]
        assert [process.wait() for process in ranks] == [0] * world
        by_rank = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
    finally:
        shutil.rmtree(folder)
    rows = []
    for way in by_rank[0]:
        worst = [{each: max(of[way][at][each] for of in by_rank) for each in FIGURES} for at in range(rounds + 1)]
        row = {each: statistics.median(one[each] for one in worst[1:]) for each in FIGURES}
        rows.append({"gib": gib, "ranks": world, "way": way} | row | {"memory": worst[0]["memory"]})
    return rows


def disk(folder: Path) -> float:
    """Return MB/s of writing 256 MB to the disk, sync included."""
    data, begin = os.urandom(1 << 20) * 256, time.perf_counter()
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return len(data) / 1e6 / (time.perf_counter() - begin)


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table of one size and number of ranks."""
    slow = next(row["stall"] for row in rows if row["way"] == "DCP save")
    for row in rows:
        parts = " ".join(f"{row[each]:8.3f}" for each in FIGURES[:6])
        share, times = max(row["extra"], 0) / INTERVAL * 100, slow / row["stall"]
        what = f"{row['gib']:5g} GiB {row['ranks']} ranks {row['way']:15}"
        console.print(f"{what}{parts} {share:7.3f} % {row['memory']:8.0f} MB {times:7.1f} x {row['step']:7.3f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, nargs="+", default=[0.1, 1.0, 4.0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", type=Path, nargs="?", const=RESULTS)
    parser.add_argument("--device", choices=WIDTH, default="cpu")
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        return work(*given.work, given.gib[0], given.rounds, given.folder, given.device)
    speed = disk(given.folder)
    console.print(
        f"disk: {speed:.0f} MB/s; seconds of the loop, MB of one rank, stall beside DCP save, seconds of a step"
    )
    console.print(f"{'':30} {' '.join(f'{each:>8.8}' for each in FIGURES[:6])} {'of 30 min':>9} {'memory':>11}")
    rows = []
    for gib in given.gib:
        for world in given.ranks if given.device == "cpu" else [1]:
            rows += (measured_here := run(gib, world, given.rounds, given.folder, given.device))
            show(measured_here)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({"disk MB/s": speed, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
