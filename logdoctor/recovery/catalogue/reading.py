"""Reads a folder of checkpoints."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from logdoctor.budget import Overspent, sharing
from logdoctor.recovery.catalogue import dcp, deepspeed, lightning, megatron, nemo, ours, transformers
from logdoctor.recovery.catalogue.checkpoint import Checkpoint, Found, Framework, Onset
from logdoctor.recovery.catalogue.files import entries
from logdoctor.recovery.catalogue.health import Points, judged
from logdoctor.recovery.catalogue.history import OURS, history_of
from logdoctor.recovery.catalogue.ours import UNFINISHED
from logdoctor.recovery.catalogue.pins import PINS, pin_of
from logdoctor.recovery.catalogue.place import Place

_READERS: dict[Framework, Callable[[Place], Found | None]] = {
    "logdoctor": ours.look,
    "megatron": megatron.look,
    "deepspeed": deepspeed.look,
    "transformers": transformers.look,
    "nemo": nemo.look,
    "lightning": lightning.look,
    "torch-dcp": dcp.look,
}
"""The surest first: names that only one framework gives, then what lies inside."""
_NO_CHECKPOINTS = frozenset((PINS, OURS))


def read(folder: Path | str, losses: Points = (), onset: Onset | None = None) -> list[Checkpoint]:
    """Return the checkpoints in a folder, the oldest first.

    `losses` (step, loss) are those of its log, when somebody has read it. What was saved at or after the `onset` of a
    failure is suspect. Nothing in a checkpoint is executed. `CheckpointError` when the folder cannot be read.
    """
    folder = Path(os.path.abspath(folder))
    listed = entries(folder)
    beside = frozenset(entry.name for entry in listed)
    aliases = {target for entry in listed if (target := _alias(folder, entry))}
    with sharing():
        every = [
            found
            for entry in listed
            if entry.name not in _NO_CHECKPOINTS
            and not entry.name.startswith(UNFINISHED)
            and (not entry.is_symlink() or _leads_elsewhere(folder, entry))
            and (found := _look(Place(folder, entry.name, beside))) is not None
        ]
    noted = [found._replace(checkpoint=_noted(folder, found.checkpoint, aliases)) for found in every]
    return sorted(judged(noted, losses, onset), key=lambda one: one.order)


def _look(place: Place) -> Found | None:
    for framework, look in _READERS.items():
        try:
            found = look(place)
        except Overspent as error:
            return Found(place.checkpoint(framework, dcp.step_of(place.name), torn=f"it is unreadable: {error}"))
        if found is not None:
            return found
    return None


def _noted(folder: Path, one: Checkpoint, aliases: set[str]) -> Checkpoint:
    """Return a checkpoint with what was written down of it."""
    history = history_of(one)
    return msgspec.structs.replace(
        one,
        pinned=pin_of(folder, one.name),
        tries=history.tries,
        suspect=history.suspect or one.suspect,
        latest=one.latest or one.name in aliases,
        linked=os.path.islink(folder / one.name),
    )


def _alias(folder: Path, entry: os.DirEntry[str]) -> str | None:
    """Return the name of the checkpoint beside it that a link leads to."""
    if not entry.is_symlink():
        return None
    target = Path(os.path.realpath(entry.path))
    return target.name if target.parent == Path(os.path.realpath(folder)) else None


def _leads_elsewhere(folder: Path, entry: os.DirEntry[str]) -> bool:
    """Return whether a link leads to something that is not listed beside it, and to no folder around it."""
    try:
        target = Path(os.path.realpath(entry.path, strict=True))
        kind = os.stat(entry.path).st_mode
    except (OSError, ValueError):
        return False
    home = Path(os.path.realpath(folder))
    return (stat.S_ISDIR(kind) or stat.S_ISREG(kind)) and target.parent != home and not home.is_relative_to(target)
