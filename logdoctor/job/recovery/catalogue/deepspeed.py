"""DeepSpeed: `global_step10/` (or any tag) with files per rank, and `latest`, written after all ranks have saved.

`mp_rank_00_model_states.pt` holds steps, samples and ranks; ZeRO adds `zero_pp_rank_D_mp_rank_MM_optim_states.pt` per
data-parallel rank, and at stage 3 model states per rank, too.
"""

import re
from typing import Any

from logdoctor.job.recovery.catalogue.archives import saved_object
from logdoctor.job.recovery.catalogue.checkpoint import Found
from logdoctor.job.recovery.catalogue.files import Tree, whole_number, word
from logdoctor.job.recovery.catalogue.pickled import NotRead, got, number
from logdoctor.job.recovery.catalogue.place import Place, first, first_cut_off

LATEST = "latest"
_TAG = re.compile(r"global_step(\d+)")
_MODEL = re.compile(r"(?:zero_pp_rank_(?P<data>\d+)_)?mp_rank_(?P<model>\d+)_model_states\.pt")
_OPTIMIZER = re.compile(r"(?:[a-z0-9]+_)?zero_pp_rank_(?P<data>\d+)_mp_rank_(?P<model>\d+)_?optim_states\.pt")


def look(place: Place) -> Found | None:
    """Return a DeepSpeed checkpoint; None for anything else."""
    named = _TAG.fullmatch(place.name)
    if not place.is_folder or not (named or any(_MODEL.fullmatch(name) for name in place.names)):
        return None
    facts = facts_in(place.tree)
    step = whole_number(named[1]) if named else facts.get("step")
    told = word(place.folder / LATEST)
    torn, notes = examine(place.tree, facts)
    if not torn:
        torn = _not_ended(step, place.name, told)
    if told is None:
        notes += (f"there is no {LATEST}, so nothing tells that the save ended",)
    known = {name: value for name, value in facts.items() if name in ("data_position", "data_unit", "world_size")}
    latest = told == place.name
    return Found(place.checkpoint("deepspeed", step, torn=torn, notes=notes, latest=latest, **known))


def facts_in(tree: Tree) -> dict[str, Any]:
    """Return the facts in the first model states: steps, global samples, ranks; {} when unreadable."""
    names = list(tree.matching(_MODEL))
    if not names:
        return {}
    try:
        state = saved_object(tree.root / names[0])
    except NotRead:
        return {}
    keys = ("global_steps", "global_samples", "dp_world_size", "mp_world_size")
    steps, samples, data, model = (number(got(state, key)) for key in keys)
    return {
        "step": steps,
        "data_position": samples,
        "data_unit": "" if samples is None else "samples",
        "world_size": data * model if data and model else None,
        "data": data,
        "model": model,
    }


def tag_in(tree: Tree) -> str | None:
    """Return the tag of the folder that DeepSpeed wrote inside another framework's checkpoint; None without one."""
    tag = word(tree.root / LATEST) if LATEST in tree.files else None
    return tag if tag and "/" not in tag else None


def examine(tree: Tree, facts: dict[str, Any] | None = None) -> tuple[str, tuple[str, ...]]:
    """Return why a folder cannot be loaded, "" when it can; and what was not checked."""
    facts = facts_in(tree) if facts is None else facts
    models, optimizers = tree.matching(_MODEL), tree.matching(_OPTIMIZER)
    if not models:
        return "it holds no model states: the save did not end", ()
    data, model = facts.get("data"), facts.get("model")
    lacking = first(
        _lacking("model states", models, data, model), _lacking("optimizer states", optimizers, data, model)
    )
    notes = () if data and model else ("its model states do not tell how many ranks there were",)
    return first(first_cut_off(tree), lacking), notes


def _lacking(what: str, found: dict[str, "re.Match[str]"], data: int | None, model: int | None) -> str:
    """Return how many rank files are missing: one per model-parallel rank, or with ZeRO one per rank."""
    if not found:
        return ""
    split = any(match["data"] is not None for match in found.values())
    ranks = {(int(match["data"] or 0), int(match["model"])) for match in found.values()}
    data = data or max(rank for rank, _ in ranks) + 1
    model = model or max(rank for _, rank in ranks) + 1
    wanted = (data if split else 1) * model
    return f"{wanted - len(ranks):,} of {wanted:,} {what} are missing" if len(ranks) < wanted else ""


def _not_ended(step: int | None, name: str, told: str | None) -> str:
    if told is None or told == name:
        return ""
    last = _TAG.fullmatch(told)
    number_of_last = whole_number(last[1]) if last else None
    if step is None or number_of_last is None or step <= number_of_last:
        return ""
    return f"{LATEST} names {told[:60]}: this save did not end"
