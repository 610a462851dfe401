"""NeMo: names ending in `-step=10-consumed_samples=320.0`, maybe with `-last`; a folder, or a Lightning file.

While a save runs, `NAME-unfinished` lies beside it. A folder holds a checkpoint of Megatron's dist_checkpointing,
directly or in `weights/`.
"""

from logdoctor.job.recovery.catalogue import lightning, megatron
from logdoctor.job.recovery.catalogue.archives import cut_off
from logdoctor.job.recovery.catalogue.checkpoint import Found
from logdoctor.job.recovery.catalogue.files import whole_number
from logdoctor.job.recovery.catalogue.place import Place, first

MARKER = "-unfinished"
_SAMPLES = "consumed_samples"
_WEIGHTS = "weights"


def look(place: Place) -> Found | None:
    """Return a NeMo checkpoint; None for anything else."""
    named = lightning.values(place.name)
    if place.name.endswith(MARKER) or not (_SAMPLES in named or _is_folder(place)):
        return None
    if place.is_folder:
        tree = place.tree.below(_WEIGHTS) if _WEIGHTS in place.names else place.tree
        torn, notes = megatron.examine_distributed(tree)
        inside = megatron.facts_in(tree, "common.pt")
    elif "" in place.tree.files:
        torn, notes, inside = cut_off(place.path, place.tree.files[""]), (), {}
    else:
        return None
    step = whole_number(named.get("step", ""))
    samples = float(named[_SAMPLES]) if _SAMPLES in named else None
    if samples is not None and 0 <= samples < 1 << 62:
        inside |= {"data_position": int(samples), "data_unit": "samples"}
    loss = lightning.loss_of(named)
    losses = () if loss is None or step is None else ((step, loss),)
    torn = first(_unfinished(place), torn)
    return Found(place.checkpoint("nemo", step, torn=torn, notes=notes, loss=loss, **inside), losses)


def _is_folder(place: Place) -> bool:
    """Return whether the content of a folder is NeMo's, whatever its name."""
    return place.is_folder and {_WEIGHTS, "context"} <= place.names


def marker_of(name: str) -> str:
    """Return the name of the marker beside a checkpoint that is being saved."""
    return f"{name.removesuffix('.ckpt').removesuffix('-EMA')}{MARKER}"


def _unfinished(place: Place) -> str:
    marker = marker_of(place.name)
    return f"{marker} lies beside it: the save did not end" if marker in place.beside else ""
