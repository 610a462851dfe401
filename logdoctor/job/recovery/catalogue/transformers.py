"""Hugging Face Trainer: `checkpoint-10/` with model, optimizer and, written last, `trainer_state.json`.

With DeepSpeed or FSDP their folders are inside (`transformers/trainer.py`, `_save_checkpoint`)."""

import re
from bisect import bisect
from functools import lru_cache
from typing import Any

from logdoctor.job.recovery.catalogue import dcp, deepspeed
from logdoctor.job.recovery.catalogue.checkpoint import Found
from logdoctor.job.recovery.catalogue.files import Tree, json_in, real, whole_number
from logdoctor.job.recovery.catalogue.pickled import NotRead, number
from logdoctor.job.recovery.catalogue.place import Place, first, first_cut_off

STATE = "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d+)")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WEIGHTS = re.compile(r"(?:model|pytorch_model|adapter_model)\S*\.(?:safetensors|bin)")
_FSDP = re.compile(r"(?:pytorch_model|optimizer)_fsdp\S*|(?:pytorch_model|optimizer)_\d+")
_OPTIMIZER = ("optimizer.pt", "optimizer.bin")
_TO_GO_ON = ("optimizer.pt", "scheduler.pt")
_MOST_BESIDE = 20  # nearest checkpoints by step that one is compared with
_RNG = re.compile(r"rng_state_(\d+)\.pth")


def look(place: Place) -> Found | None:
    """Return a checkpoint of the Trainer; None for anything else."""
    named = _NAME.fullmatch(place.name)
    if named is None or not place.is_folder or dcp.is_one(place.names):
        return None
    step, tree = whole_number(named[1]), place.tree
    try:
        state = _state(tree)
    except NotRead as error:
        return Found(place.checkpoint("transformers", step, torn=f"{STATE} {error}"))
    told = number(state.get("global_step"))
    torn = "" if told == step else f"{STATE} is of step {told}: it was moved here"
    problem, notes = _examine(tree)
    problem = first(problem, _beside_have_it(place, step))
    losses = _losses(state)
    own = next((loss for at, loss in reversed(losses) if step is not None and at <= step), None)
    ranks = [int(match[1]) for match in tree.matching(_RNG).values()]
    size = max(ranks) + 1 if ranks else None
    known: dict[str, Any] = {"torn": first(torn, problem), "notes": notes, "loss": own, "world_size": size}
    return Found(place.checkpoint("transformers", step, **known), losses)


def _state(tree: Tree) -> dict[str, Any]:
    if STATE not in tree.files:
        raise NotRead("is missing, which is written after the model: the save did not end")
    found = json_in(tree.root / STATE)
    if not isinstance(found, dict):
        raise NotRead("is no state of a Trainer")
    return found


def _losses(state: dict[str, Any]) -> tuple[tuple[int, float], ...]:
    """Return the training losses of its history, in order."""
    history = state.get("log_history")
    found: list[tuple[int, float]] = []
    for row in history if isinstance(history, list) else ():
        step, loss = (number(row.get("step")), real(row.get("loss"))) if isinstance(row, dict) else (None, None)
        if step is not None and loss is not None:
            found.append((step, loss))
    return tuple(found)


def _examine(tree: Tree) -> tuple[str, tuple[str, ...]]:
    """Return why it cannot be loaded ("" when it can), and what was not checked."""
    notes: tuple[str, ...] = ()
    parts = _parts(tree)
    for part, examine in parts:
        torn, more = examine(tree.below(part))
        notes += more
        if torn:
            return f"{part}: {torn}", notes
    if not parts and not tree.matching(_WEIGHTS):
        return "it holds no weights", notes
    if not parts and not any(name.endswith(_OPTIMIZER) for name in tree.files):
        notes += ("it holds no optimizer states: only the model can be loaded",)
    return first(_shard_missing(tree), _generator_missing(tree), first_cut_off(tree)), notes


def _beside_have_it(place: Place, step: int | None) -> str:
    """Return which file needed to resume is missing here but present in most neighbouring checkpoints. If none has it,
    the Trainer saves only the model."""
    every = _by_step(place.beside)
    at = bisect(every, (step or 0, ""))
    near = every[max(0, at - _MOST_BESIDE) : at + _MOST_BESIDE + 1]
    near.sort(key=lambda one: abs(one[0] - (step or 0)))
    beside = [name for _, name in near if name != place.name][:_MOST_BESIDE]
    for file in _TO_GO_ON:
        have = sum((place.folder / name / file).is_file() for name in beside) if file not in place.tree.files else 0
        if 2 * have > len(beside):
            return f"{file} is missing, which {have:,} of {len(beside):,} checkpoints beside it have"
    return ""


@lru_cache(maxsize=1)
def _by_step(names: frozenset[str]) -> list[tuple[int, str]]:
    """Return the names of checkpoints, sorted by step."""
    return sorted((whole_number(match[1]) or 0, name) for name in names if (match := _NAME.fullmatch(name)))


def _parts(tree: Tree) -> list[tuple[str, Any]]:
    """Return its DeepSpeed and FSDP folders, each with its examining function."""
    tag = deepspeed.tag_in(tree)
    found: list[tuple[str, Any]] = [] if tag is None else [(tag, deepspeed.examine)]
    return found + [(name, dcp.examine) for name in tree.folders if _FSDP.fullmatch(name)]


def _shard_missing(tree: Tree) -> str:
    """Return which file named by a weight index is missing; "" when none."""
    for index in _INDEXES:
        if index not in tree.files:
            continue
        try:
            named = json_in(tree.root / index)["weight_map"].values()
            missing = sorted({str(name) for name in named} - set(tree.files))
        except NotRead as error:
            return f"{index} {error}"
        except (KeyError, TypeError, AttributeError):
            return f"{index} names no weights"
        if missing:
            return f"{missing[0][:200]} is missing, which {index} names"
    return ""


def _generator_missing(tree: Tree) -> str:
    """Return how many ranks lack their random generator state; other ranks write it last."""
    ranks = {int(match[1]) for match in tree.matching(_RNG).values()}
    wanted = max(ranks) + 1 if ranks else 0
    return (
        f"{wanted - len(ranks):,} of {wanted:,} states of random generators are missing" if wanted > len(ranks) else ""
    )
