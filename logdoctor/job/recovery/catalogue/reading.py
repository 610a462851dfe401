"""Reads a checkpoint folder."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from logdoctor.job.recovery.catalogue import dcp, deepspeed, files, lightning, megatron, nemo, ours, transformers
from logdoctor.job.recovery.catalogue.checkpoint import Checkpoint, Found, Framework, Onset
from logdoctor.job.recovery.catalogue.files import entries
from logdoctor.job.recovery.catalogue.health import Points, judged
from logdoctor.job.recovery.catalogue.history import OURS, history_of
from logdoctor.job.recovery.catalogue.ours import UNFINISHED
from logdoctor.job.recovery.catalogue.pins import PINS, pin_of
from logdoctor.job.recovery.catalogue.place import Place
from logdoctor.safe.budget import Overspent, sharing

_READERS: dict[Framework, Callable[[Place], Found | None]] = {
    "logdoctor": ours.look,
    "megatron": megatron.look,
    "deepspeed": deepspeed.look,
    "transformers": transformers.look,
    "nemo": nemo.look,
    "lightning": lightning.look,
    "torch-dcp": dcp.look,
}
"""The surest first: names that only one framework uses, then content."""
_NO_CHECKPOINTS = frozenset((PINS, OURS))


def read(folder: Path | str, losses: Points = (), onset: Onset | None = None) -> list[Checkpoint]:
    """Return the checkpoints in a folder, the oldest first.

    `losses` (step, loss) come from its log, if somebody has read it. What was saved at or after `onset` is suspect.
    Nothing in a checkpoint is executed. `CheckpointError` when the folder cannot be read.
    """
    folder = Path(os.path.abspath(folder))
    listed = entries(folder)
    beside = frozenset(entry.name for entry in listed)
    candidates = [one for one in listed if one.name not in _NO_CHECKPOINTS and not one.name.startswith(UNFINISHED)]
    aliases, elsewhere = _links(folder, [one for one in candidates if one.is_symlink()])
    with sharing():
        here = (Place(folder, one.name, beside) for one in candidates if not one.is_symlink())
        every = [found for place in here if (found := _look(place)) is not None]
        every += _linked(folder, elsewhere, beside)
    noted = [found._replace(checkpoint=_noted(folder, found.checkpoint, aliases)) for found in every]
    return sorted(judged(noted, losses, onset), key=lambda one: one.order)


def _linked(folder: Path, elsewhere: dict[Path, list[str]], beside: frozenset[str]) -> Iterator[Found]:
    """Yield what links lead to, each target once. Of its names the first that is a checkpoint's is used; its own name
    and those with a step come first."""
    left = files.MOST_LINKED
    for target, names in elsewhere.items():
        for name in sorted(names, key=lambda name: (name != target.name, dcp.step_of(name) is None, name)):
            place = Place(folder, name, beside, min(left, files.MOST_FILES))
            found = _look(place)
            left = max(0, left - place.looked_at)
            if found is not None:
                yield found
                break


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
    """Return a checkpoint with its pin, history and links."""
    history = history_of(one)
    return msgspec.structs.replace(
        one,
        pinned=pin_of(folder, one.name),
        tries=history.tries,
        suspect=history.suspect or one.suspect,
        latest=one.latest or one.name in aliases,
        linked=os.path.islink(folder / one.name),
    )


def _links(folder: Path, links: Iterable[os.DirEntry[str]]) -> tuple[set[str], dict[Path, list[str]]]:
    """Return the entries named by links beside them; other links by target, except targets that contain this folder."""
    home = Path(os.path.realpath(folder))
    beside, elsewhere = set[str](), dict[Path, list[str]]()
    for link in links:
        target = Path(os.path.realpath(link.path))
        if target.parent == home:
            beside.add(target.name)
        elif not home.is_relative_to(target) and _is_file_or_folder(target):
            elsewhere.setdefault(target, []).append(link.name)
    return beside, elsewhere


def _is_file_or_folder(path: Path) -> bool:
    try:
        kind = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(kind) or stat.S_ISREG(kind)
