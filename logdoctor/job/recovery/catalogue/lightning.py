"""PyTorch Lightning: `epoch=1-step=10.ckpt`, one torch zip file, or a folder when the state is sharded.

The content gives step and batches; the name is only what somebody chose.
"""

import re
from typing import Any

from logdoctor.job.recovery.catalogue import dcp, deepspeed
from logdoctor.job.recovery.catalogue.archives import cut_off, saved_object
from logdoctor.job.recovery.catalogue.checkpoint import Found
from logdoctor.job.recovery.catalogue.files import Tree, whole_number
from logdoctor.job.recovery.catalogue.pickled import NotRead, got, number
from logdoctor.job.recovery.catalogue.place import Place, first, first_cut_off

_SUFFIX = ".ckpt"
_VALUE = re.compile(r"(\w+)=(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan|inf)(?![\d])", re.ASCII)
_META = "meta.pt"


def look(place: Place) -> Found | None:
    """Return a Lightning checkpoint; None for anything else."""
    if not place.name.endswith(_SUFFIX):
        return None
    named = values(place.name)
    step = whole_number(named.get("step", ""))
    if place.is_folder:
        torn, notes = _examine_folder(place.tree)
        inside = facts_in(place.tree, _META)
    elif "" in place.tree.files:
        torn, notes = cut_off(place.path, place.tree.files[""]), ()
        inside = facts_in(place.tree, "")
    else:
        return None
    told = inside.pop("step", None)
    step = step if told is None else told
    loss = loss_of(named)
    losses = () if loss is None or step is None else ((step, loss),)
    return Found(place.checkpoint("lightning", step, torn=torn, notes=notes, loss=loss, **inside), losses)


def values(name: str) -> dict[str, str]:
    """Return the values in a checkpoint's name, such as `epoch=1-step=10`."""
    return {match[1]: match[2] for match in _VALUE.finditer(name.removesuffix(_SUFFIX)[:1000])}


def loss_of(named: dict[str, str]) -> float | None:
    """Return the loss in a name; None without one."""
    found = next((value for key, value in named.items() if key.endswith("loss")), None)
    return None if found is None else float(found)


def facts_in(tree: Tree, name: str) -> dict[str, Any]:
    """Return the step and batches stored in a file; {} when it cannot be read."""
    try:
        state = saved_object(tree.root / name if name else tree.root)
    except NotRead:
        return {}
    progress = got(state, "loops", "fit_loop", "epoch_loop.batch_progress", "total")
    batches = number(got(progress, "completed"))
    return {
        "step": number(got(state, "global_step")),
        "data_position": batches,
        "data_unit": "" if batches is None else "batches",
    }


def _examine_folder(tree: Tree) -> tuple[str, tuple[str, ...]]:
    if (tag := deepspeed.tag_in(tree)) is not None:
        return deepspeed.examine(tree.below(tag))
    torn, notes = dcp.examine(tree)
    lacking = "" if _META in tree.files else f"{_META} is missing, which is written last: the save did not end"
    return first(torn, lacking, first_cut_off(tree)), notes
