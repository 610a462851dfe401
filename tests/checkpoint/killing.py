"""Kills writers of checkpoints again and again, and says what was found in their folder each time.

    python -m tests.checkpoint.killing FOLDER KILLS SEED RANKS

One process that has torch loaded forks the writers, one for each rank, waits, kills one of them with signal 9, and
loads what is there. With two ranks every other round is one of a single rank, which loads what two have saved, and the
other way round; when one of two is killed, the other must go on, without saving.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

from logdoctor.checkpoint import Checkpointer, Report, load
from logdoctor.checkpoint.folders import complete, fault, names
from tests import waiting
from tests.checkpoint.states import set_to, state_of, steps_in

ROWS = 40_000


def sharded(step: int, world: int) -> dict[str, Any]:
    """A state with a tensor that each rank has a part of."""
    local = torch.full((ROWS // world, 2), float(step))
    return state_of(step) | {"sharded": DTensor.from_local(local, init_device_mesh("cpu", (world,)), [Shard(0)])}


def train(folder: Path, rank: int, world: int, meeting: Path | None, told: int) -> None:
    """Save as often as can be, and tell what became of it: `saved 7`."""

    def tell(report: Report) -> None:
        os.write(told, f"{report.kind.replace(' ', '-')} {report.step}\n".encode())

    if meeting:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    state = sharded(-1, world) if meeting else state_of(-1)
    with Checkpointer(folder, keep=2, patience=5, on_report=tell) as checkpoints:
        found = checkpoints.load(state)
        step = found.step if found else -1
        values = steps_in(state) | ({*state["sharded"].to_local().unique().tolist()} if meeting else set())
        assert values == {step}, f"{step} was loaded with values of {values}"
        while True:
            step += 1
            checkpoints.before_optimizer_step()
            set_to(state, step)
            if meeting:
                state["sharded"].to_local().fill_(step)
            checkpoints.save(state, step=step, data_position=3 * step)


def start(*arguments: Any) -> int:
    """Fork a writer."""
    if child := os.fork():
        return child
    end(train, *arguments)


def end(work: Any, *arguments: Any) -> NoReturn:
    try:
        work(*arguments)
    except BaseException as error:  # noqa: BLE001 - it goes to the process that forked
        os.write(arguments[-1], f"wrong {error!r}\n".encode())
    finally:
        os._exit(1)


class Told:
    """What the writers told, line by line."""

    def __init__(self) -> None:
        self._read, self.write = os.pipe()
        os.set_blocking(self._read, False)
        self._text = b""

    def lines(self) -> list[list[str]]:
        try:
            while data := os.read(self._read, 1 << 16):
                self._text += data
        except BlockingIOError:
            pass
        return [line.split(None, 1) for line in self._text.decode().splitlines()]

    def wait(self, kinds: tuple[str, ...], count: int) -> None:
        """Wait until there are so many lines of these kinds."""

        def they_came() -> bool:
            lines = self.lines()
            assert not any(line[0] == "wrong" for line in lines), lines
            return sum(line[0] in kinds for line in lines) >= count

        waiting.until(they_came, " or ".join(kinds))

    def close(self) -> None:
        os.close(self._read)
        os.close(self.write)


def kill_one(folder: Path, dice: random.Random, world: int, meeting: Path | None) -> int:
    """Let writers work for a while and kill one of them; the last step that was told to be saved."""
    told = Told()
    children = [start(folder, rank, world, meeting, told.write) for rank in range(world)]
    try:
        least = 0 if world == 1 else 1  # before, the other waits for it in torch.distributed
        told.wait(("saved",), world * dice.choice((least, 1, 1, 2)))
        time.sleep(dice.uniform(0, 0.15))
        os.kill(children[dice.randrange(world)], signal.SIGKILL)
        if world > 1:
            told.wait(("failed", "left-out"), 2)
        saved = [int(line[1]) for line in told.lines() if line[0] == "saved"]
        return max(saved, default=-1)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        told.close()


def check(folder: Path, acknowledged: int, with_shards: bool) -> dict[str, int]:
    """Load what is there; counts of what is wrong with it."""
    found = complete(folder)
    newest = max([each.step for each in found], default=-1)
    wrong = {"unreadable": 0, "wrong values": 0, "lost": int(newest < acknowledged)}
    for manifest in found:
        wrong["unreadable"] += any(fault(folder / manifest.name, file) is not None for file in manifest.files)
        state = state_of(-1) | ({"sharded": torch.zeros(ROWS, 2)} if with_shards else {})
        loaded = load(folder, state, manifest.step)
        values = steps_in(state) | ({*state["sharded"].unique().tolist()} if with_shards else set())
        positions = loaded and (loaded.step, loaded.data_position)
        wrong["wrong values"] += values != {manifest.step} or positions != (manifest.step, 3 * manifest.step)
    return wrong


def main(folder: Path, kills: int, seed: int, ranks: int) -> None:
    torch.set_num_threads(1)  # threads of OpenMP do not live on in forked processes
    dice = random.Random(seed)
    counts = {"kills": 0, "torn": 0, "loads": 0, "steps": 0}
    for kill in range(kills):
        world = ranks if kill % 2 == 0 else 1
        acknowledged = kill_one(folder, dice, world, folder.parent / f"meeting-{kill}" if ranks > 1 else None)
        whole = complete(folder)
        counts["kills"] += 1
        counts["torn"] += len(names(folder)) - len(whole)
        counts["loads"] += len(whole)
        counts["steps"] = max([counts["steps"], *(each.step for each in whole)])
        for what, count in check(folder, acknowledged, ranks > 1).items():
            counts[what] = counts.get(what, 0) + count
    print(json.dumps(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
