"""Stories of several ranks over gloo, each in a folder of its own; prints what each rank of each story ended with.

    python -m tests.checkpoint.ranks FOLDER

One process that has torch loaded forks the ranks.
"""

import contextlib
import copy
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import fully_shard

from logdoctor.checkpoint import Checkpointer, TrainingState, load
from logdoctor.checkpoint import checkpointer as checkpointer_module
from logdoctor.checkpoint import staging as staging_module
from logdoctor.checkpoint.hashing import HashedFile
from logdoctor.checkpoint.writing import Folder
from logdoctor.errors import CheckpointError
from tests import waiting
from tests.checkpoint.conftest import Gate
from tests.checkpoint.killing import sharded
from tests.checkpoint.states import steps_in


def parts(sharding: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    """A model, its optimizer and its schedule."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(150, 170), torch.nn.ReLU(), torch.nn.Linear(170, 130))
    if sharding:
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def whole(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """All values of all ranks."""
    return get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def train_and_save(folder: Path, sharding: bool) -> list[str]:
    """Three steps of which the second is saved, with what must be found again."""
    model, optimizer, schedule = parts(sharding)
    saves = []
    with Checkpointer(folder / "checkpoints") as checkpoints:
        for step in range(1, 4):
            model(torch.full((4, 150), float(step))).square().mean().backward()
            optimizer.step()
            schedule.step()
            if step == 2:
                expected = whole(model, optimizer)
                saves.append(checkpoints.save({"all": TrainingState(model, optimizer, schedule=schedule)}, step=step))
                if not dist.is_initialized() or dist.get_rank() == 0:
                    torch.save(expected, folder / "expected.pt")
    return [save.state for save in saves]


def load_and_compare(folder: Path, sharding: bool) -> list[str]:
    model, optimizer, schedule = parts(sharding)
    assert load(folder / "checkpoints", {"all": TrainingState(model, optimizer, schedule=schedule)})
    found = flat(whole(model, optimizer))
    expected = flat(torch.load(folder / "expected.pt", weights_only=True))
    assert schedule.last_epoch == 2 and optimizer.param_groups[0]["lr"] == 0.0025
    if sharding and dist.get_rank():
        return ["equal"]  # the first rank has it all
    assert found.keys() == expected.keys() and len(found) == 4 * (1 + 3)
    return ["equal" if all(torch.equal(found[name], expected[name]) for name in found) else "different"]


def flat(whole: Any) -> dict[str, Any]:
    """The tensors of a model and of its optimizer."""
    model, optimizer = whole
    states = {f"{name} {key}": each for name, of in optimizer.get("state", {}).items() for key, each in of.items()}
    return model | states


def saves_of(folder: Path, *doing: Callable[[], Any], **options: Any) -> list[str]:
    """Save once for each thing to do around it; what became of each save."""
    saves = []
    with Checkpointer(folder / "checkpoints", **options) as checkpoints:
        for step, around in enumerate(doing):
            with around():
                saves.append(checkpoints.save(sharded(step, dist.get_world_size()), step=step))
                saves[-1].copied.wait(600)
            if around is mock.MagicMock:
                saves[-1].wait(600)
    return [f"{save.state}{f': {save.problem}' if save.problem else ''}" for save in saves]


NOTHING = mock.MagicMock


def on_rank(rank: int, owner: Any, name: str, value: Any) -> Callable[[], Any]:
    """Replace something on one rank only."""
    return lambda: mock.patch.object(owner, name, value) if dist.get_rank() == rank else mock.MagicMock()


def short_memory(folder: Path) -> list[str]:
    return saves_of(folder, on_rank(1, staging_module, "available", lambda: 0), NOTHING)


def one_is_behind(folder: Path) -> list[str]:
    """The second rank leaves out the second save and the last one; the first does not know."""
    behind = on_rank(1, Checkpointer, "_wait_for_last", lambda *_: False)
    return saves_of(folder, NOTHING, behind, NOTHING, behind)


def two_steps_at_once(folder: Path) -> list[str]:
    """The second rank saves another step than the first, as with a signal that reaches one a step later; then both the
    same."""
    world = dist.get_world_size()
    with Checkpointer(folder / "checkpoints") as checkpoints:
        first = checkpoints.save(sharded(7, world), step=7 + dist.get_rank())
        first.wait(600)
        second = checkpoints.save(sharded(9, world), step=9)
        second.wait(600)
    return [f"{first.state}: {first.problem}", second.state]


def other_values(folder: Path) -> list[str]:
    """The ranks have other values under some names: said once, and those of the first are saved."""
    rank, reports = dist.get_rank(), []
    own = torch.full((40_000,), float(rank))
    state = {"same": torch.ones(40_000), "own": own, "small": {"draws": (rank, torch.tensor(rank)), "too": "a"}}
    state |= {"form": torch.ones(3, 4) if rank else torch.ones(3), "kind": 7 if rank else torch.ones(3)}
    state |= {"stride": torch.ones(10)[::5][:1]}
    with Checkpointer(folder / "checkpoints", on_report=lambda report: reports.append(report)) as checkpoints:
        for step in (1, 2):
            assert checkpoints.save(state, step=step).wait(600)
        into = copy.deepcopy(state) | {"form": torch.zeros(3), "kind": torch.zeros(3)}
        found = checkpoints.load(into)
    assert into["form"].tolist() == into["kind"].tolist() == [1.0, 1.0, 1.0]
    assert found and into["own"].unique().tolist() == [0.0] and into["small"]["draws"][0] == 0
    return [*(report.sentence for report in reports if report.kind != "saved"), str(found.step)]


def in_a_tuple(folder: Path) -> list[str]:
    """A part of a sharded tensor within what is saved as one value would be that of one rank."""
    with Checkpointer(folder / "checkpoints") as checkpoints:
        save = checkpoints.save({"optimizer": (sharded(1, 2)["sharded"],)}, step=1)
        assert save.wait(600)
    return [f"{save.state}: {save.problem}"]


def ended_before(folder: Path) -> list[str]:
    """The program ends torch.distributed before it closes, once with a save under way."""
    gate, real, met = Gate(), Folder._begin, folder / f"met {dist.get_rank()}"

    def held_up(self: Folder, step: int) -> str:
        gate.wait()
        return real(self, step)

    with on_rank(0, Folder, "_begin", held_up)(), Checkpointer(folder / "checkpoints") as checkpoints:
        save = checkpoints.save(sharded(1, 2), step=1)
        assert save.copied.wait(600) and (dist.get_rank() or gate.reached.wait(600))
        dist.destroy_process_group()
        met.touch()
        waiting.until(lambda: len(list(folder.glob("met *"))) == 2)
        gate.open()
        assert save.wait(600)
    return [f"{save.state}: {save.problem}", str(sorted(each.name for each in folder.glob("*/step-*")))]


def one_never_ends(folder: Path) -> list[str]:
    """The second rank goes on after its last save; the first does not wait for it to close."""
    ended = folder / "ended"
    with mock.patch.object(checkpointer_module, "_PARTING", 0.2):
        checkpoints = Checkpointer(folder / "checkpoints", patience=1000.0)
        assert checkpoints.save(sharded(1, 2), step=1).wait(600)
        if dist.get_rank():
            waiting.until(ended.exists, "the first does not wait for the second to close")
        checkpoints.close()
        ended.touch()
    return [str(checkpoints.stats.last_problem)]


def hanging_storage(folder: Path) -> list[str]:
    gate, real, saves = Gate(), HashedFile.write, []

    def held_up(self: HashedFile, data: bytes) -> int:
        gate.wait()
        return real(self, data)

    with Checkpointer(folder / "checkpoints", patience=0.3) as checkpoints:
        with on_rank(1, HashedFile, "write", held_up)():
            saves.append(checkpoints.save(sharded(0, 2), step=0))
            saves.append(checkpoints.save(sharded(1, 2), step=1))
            gate.open()
            saves[0].wait(600)
        saves.append(checkpoints.save(sharded(2, 2), step=2))
        saves[2].wait(600)
    return [save.state for save in saves]


def damage(folder: Path) -> list[str]:
    """A byte of the second rank's file is flipped: both load the one before."""
    saves_of(folder, NOTHING, NOTHING)
    dist.barrier()
    if dist.get_rank() == 0:
        path = folder / "checkpoints" / "step-1.attempt-1" / "__1_0.distcp"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    dist.barrier()
    state = sharded(9, 2)
    found = load(folder / "checkpoints", state)
    assert found is not None
    values = steps_in(state) | {*state["sharded"].to_local().unique().tolist()}
    return [str(found.step), str(sorted(values)), *found.refused]


def names_of_ranks(rank: int, value: float, **more: Any) -> dict[str, Any]:
    """A state as docs/checkpoints.md gives it: what ranks share, and what each has for itself under a name of its own;
    layers of the shared part have numbers in their names, too."""
    layers = {f"layer{number}.weight": torch.full((3,), value) for number in range(2)}
    own = {f"rng{rank}": torch.full((3,), value + rank), f"loader{rank}": ({"position": value + rank},)}
    return {"model": layers, **own, **more}


def save_names_of_ranks(folder: Path) -> list[str]:
    rank = dist.get_rank() if dist.is_initialized() else 0
    with Checkpointer(folder / "checkpoints") as checkpoints:
        save = checkpoints.save(names_of_ranks(rank, 10.0), step=1)
        assert save.wait(600)
    return [save.state]


def load_names_of_ranks(folder: Path) -> list[str]:
    """What this rank's own parts are afterwards, what was left, and how gaps are refused: a layer that the program has
    no more, one that it has anew, and its own random state that it has no more."""
    rank, reports = dist.get_rank() if dist.is_initialized() else 0, list[str]()
    state = names_of_ranks(rank, 0.0)
    with Checkpointer(folder / "checkpoints", on_report=lambda report: reports.append(report.kind)) as checkpoints:
        found = checkpoints.load(state)
        assert found and state["model"]["layer1.weight"].tolist() == [10.0] * 3
        own = [str(state[f"rng{rank}"].tolist()[0]), str(state[f"loader{rank}"][0]["position"])]
        without, more = names_of_ranks(rank, 0.0), names_of_ranks(rank, 0.0)
        del without["model"]["layer1.weight"]
        more["model"]["layer2.weight"] = torch.zeros(3)
        forgotten = {name: each for name, each in names_of_ranks(rank, 0.0).items() if not name.startswith("rng")}
        for wrong in (without, more, forgotten):
            with contextlib.suppress(CheckpointError):
                checkpoints.load(wrong)
                return ["a gap was not refused"]
    return [*own, *found.left, *reports]


def one_rank_fails(folder: Path) -> list[str]:
    """Training ends by an exception on one rank, which does not wait for the other to end, too."""
    ended, first = folder / "ended", dist.get_rank() == 0
    with (
        mock.patch.object(checkpointer_module, "_AFTER_ERROR", 1000.0),
        contextlib.suppress(ZeroDivisionError),
        Checkpointer(folder / "checkpoints", patience=1000.0) as checkpoints,
    ):
        save = checkpoints.save(sharded(1, 2), step=1)
        if not first:
            raise ZeroDivisionError
        waiting.until(ended.exists, "the rank that fails does not wait for this one to end")
        return [save.state, "ended: True"]
    ended.touch()
    return [save.state, "ended: True"]


STORIES: list[tuple[str, int, Callable[[Path], list[str]], str]] = [
    ("sharded", 2, lambda folder: train_and_save(folder, True), ""),
    ("sharded to two", 2, lambda folder: load_and_compare(folder, True), "sharded"),
    ("sharded to one", 0, lambda folder: load_and_compare(folder, False), "sharded"),
    ("plain", 0, lambda folder: train_and_save(folder, False), ""),
    ("plain to two", 2, lambda folder: load_and_compare(folder, True), "plain"),
    ("short memory", 2, short_memory, ""),
    ("one is behind", 2, one_is_behind, ""),
    ("two steps at once", 2, two_steps_at_once, ""),
    ("other values", 2, other_values, ""),
    ("in a tuple", 2, in_a_tuple, ""),
    ("ended before", 2, ended_before, ""),
    ("one never ends", 2, one_never_ends, ""),
    ("hanging storage", 2, hanging_storage, ""),
    ("damage", 2, damage, ""),
    ("one rank fails", 2, one_rank_fails, ""),
    ("names", 2, save_names_of_ranks, ""),
    ("names to two", 2, load_names_of_ranks, "names"),
    ("names to one", 0, load_names_of_ranks, "names"),
    ("names to three", 3, load_names_of_ranks, "names"),
    ("name", 0, save_names_of_ranks, ""),
    ("name to one", 0, load_names_of_ranks, "name"),
    ("name to two", 2, load_names_of_ranks, "name"),
]
"""Name, ranks (0: no torch.distributed), what each rank does, and whose folder it uses."""


def play(name: str, rank: int, world: int, story: Callable[[Path], list[str]], folder: Path, out: Path) -> None:
    try:
        if world:
            meeting = folder.parent / f"meeting {name}"
            dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
        out.write_text(json.dumps(story(folder)))
    except BaseException:  # noqa: BLE001 - it goes to the process that forked
        out.write_text(json.dumps([traceback.format_exc()]))
    finally:
        os._exit(0)


def main(root: Path) -> None:
    torch.set_num_threads(1)  # threads of OpenMP do not live on in forked processes
    ended: dict[str, list[list[str]]] = {}
    for name, world, story, where in STORIES:
        folder = root / (where or name)
        folder.mkdir(exist_ok=True)
        outs = [root / f"{name}.{rank}.json" for rank in range(world or 1)]
        children = []
        for rank, out in enumerate(outs):
            if not (child := os.fork()):
                play(name, rank, world, story, folder, out)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        ended[name] = [json.loads(out.read_text()) for out in outs]
    print(json.dumps(ended))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
