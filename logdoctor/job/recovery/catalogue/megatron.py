"""Megatron-LM: `iter_0000010/` or `release/`; `latest_checkpointed_iteration.txt` names the last finished save.

In the `torch_dist` format a folder holds a torch.distributed checkpoint, `common.pt` and, written last,
`metadata.json`. In the older format each model-parallel rank has a folder `mp_rank_TT[_PPP[_EEE]]`.
"""

import re
from typing import Any

from logdoctor.job.recovery.catalogue import dcp
from logdoctor.job.recovery.catalogue.archives import saved_object
from logdoctor.job.recovery.catalogue.checkpoint import Found
from logdoctor.job.recovery.catalogue.files import Tree, json_in, whole_number, word
from logdoctor.job.recovery.catalogue.pickled import NotRead, got, number
from logdoctor.job.recovery.catalogue.place import Place, first, first_cut_off

TRACKER = "latest_checkpointed_iteration.txt"
_ITERATION = re.compile(r"iter_(\d+)")
_RANK = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?")
_MODEL = ("model_optim_rng.pt", "model_rng.pt")
_SHARDED = "distrib_optim.pt"
_COMMON, _CONFIG = "common.pt", "metadata.json"


def look(place: Place) -> Found | None:
    """Return a Megatron-LM checkpoint; None for anything else."""
    named = _ITERATION.fullmatch(place.name)
    release = place.name == "release" and (_is_distributed(place.names) or any(map(_RANK.fullmatch, place.names)))
    if not place.is_folder or not (named or release):
        return None
    step = whole_number(named[1]) if named else 0
    told = word(place.folder / TRACKER)
    if _is_distributed(place.names):
        torn, notes = examine_distributed(place.tree)
        facts = facts_in(place.tree, _COMMON)
    else:
        torn, notes = first(_incomplete(place.tree), _not_ended(step, told), first_cut_off(place.tree)), ()
        facts = facts_in(place.tree, *_models(place.tree))
    latest = told is not None and _told(told) == step
    return Found(place.checkpoint("megatron", step, torn=torn, notes=notes, latest=latest, **facts))


def _is_distributed(names: frozenset[str]) -> bool:
    return bool({_COMMON, _CONFIG} & names) or dcp.is_one(names)


def examine_distributed(tree: Tree) -> tuple[str, tuple[str, ...]]:
    """Return why a dist_checkpointing folder cannot be loaded, "" when it can; and what was not checked."""
    if _CONFIG not in tree.files:
        return f"{_CONFIG} is missing, which is written last: the save did not end", ()
    try:
        backend = json_in(tree.root / _CONFIG)["sharded_backend"]
    except NotRead as error:
        return f"{_CONFIG} {error}", ()
    except (KeyError, TypeError):
        return f"{_CONFIG} names no sharded_backend", ()
    if backend == "zarr":
        return first_cut_off(tree), ("the chunks of zarr were not checked",)
    torn, notes = dcp.examine(tree)
    return first(torn, first_cut_off(tree)), notes


def facts_in(tree: Tree, *names: str) -> dict[str, Any]:
    """Return global samples consumed and world size from the first file with Megatron's arguments; {} without one."""
    for name in names:
        try:
            arguments = got(saved_object(tree.root / name), "args")
        except NotRead:
            continue
        position, size = (number(got(arguments, key)) for key in ("consumed_train_samples", "world_size"))
        unit = "" if position is None else "samples"
        return {"data_position": position, "data_unit": unit, "world_size": size}
    return {}


def _models(tree: Tree) -> list[str]:
    return [f"{folder}/{name}" for folder in tree.folders for name in _MODEL if f"{folder}/{name}" in tree.files][:1]


def _incomplete(tree: Tree) -> str:
    """Return which rank's files are missing: ranks form a grid, and all have the same files."""
    ranks = {folder: match for folder in tree.folders if (match := _RANK.fullmatch(folder))}
    if not ranks:
        return "it holds no files of ranks: the save did not begin, or was removed"
    whole = {tuple(int(part) for part in match.groups() if part is not None) for match in ranks.values()}
    if len({len(place) for place in whole}) > 1:
        return "its folders name ranks in two ways: two saves are mixed"
    wanted = 1
    for axis in zip(*whole, strict=True):
        wanted *= max(axis) + 1
    if wanted != len(whole):
        return f"{wanted - len(whole):,} of {wanted:,} folders of ranks are missing"
    for kind, needed in ((_MODEL, True), ((_SHARDED,), False)):
        having = [folder for folder in ranks if any(f"{folder}/{name}" in tree.files for name in kind)]
        if len(having) < len(ranks) and (needed or having):
            return f"{min(set(ranks) - set(having))}/{kind[0]} is missing"
    return ""


def _told(text: str) -> int | None:
    return 0 if text == "release" else whole_number(text)


def _not_ended(step: int | None, told: str | None) -> str:
    """Return why the save of this step is not known to have ended: only the tracker file tells."""
    if told is None:
        return f"{TRACKER} is missing, which is written when a save has ended"
    last = _told(told)
    if last is None:
        return f"{TRACKER} names no iteration"
    return f"{TRACKER} names {told}: this save did not end" if step is not None and step > last else ""
