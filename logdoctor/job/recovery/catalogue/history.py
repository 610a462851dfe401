"""The load history of checkpoints: `FOLDER/.logdoctor/history/NAME`.

A checkpoint that kills whoever loads it must not be offered again and again: call `tried` before loading it, `loaded`
after. A checkpoint saved again under the same name starts a new history.
"""

import msgspec

from logdoctor.job.recovery.catalogue.checkpoint import Checkpoint
from logdoctor.job.recovery.catalogue.notes import read_note, write_note
from logdoctor.job.recovery.catalogue.pickled import NotRead

OURS = ".logdoctor"
"""The folder in a checkpoint folder where logdoctor keeps its notes."""


class History(msgspec.Struct, frozen=True):
    """Failed loads since the last good one, and why a checkpoint is suspect although its files do not say so."""

    saved_at: float | None = None
    bytes: int = 0
    tries: int = 0
    suspect: str = ""


def history_of(checkpoint: Checkpoint) -> History:
    """Return the history of a checkpoint; an empty one when it cannot be read."""
    fresh = History(checkpoint.saved_at, checkpoint.bytes)
    try:
        found = read_note(checkpoint.folder, _name(checkpoint), History)
    except NotRead:
        return fresh
    same = found is not None and (found.saved_at, found.bytes) == (fresh.saved_at, fresh.bytes)
    return found if found is not None and same else fresh


def tried(checkpoint: Checkpoint) -> int:
    """Record an attempt to load a checkpoint; return the tries without success, this one included."""
    before = history_of(checkpoint)
    _write(checkpoint, msgspec.structs.replace(before, tries=before.tries + 1))
    return before.tries + 1


def loaded(checkpoint: Checkpoint) -> None:
    """Record that a checkpoint was loaded: a step was made from it."""
    before = history_of(checkpoint)
    if before.tries:
        _write(checkpoint, msgspec.structs.replace(before, tries=0))


def suspected(checkpoint: Checkpoint, why: str) -> None:
    """Record why a checkpoint is suspect; "" withdraws that."""
    _write(checkpoint, msgspec.structs.replace(history_of(checkpoint), suspect=why[:1000]))


def _write(checkpoint: Checkpoint, history: History) -> None:
    write_note(checkpoint.folder, _name(checkpoint), history)


def _name(checkpoint: Checkpoint) -> str:
    return f"{OURS}/history/{checkpoint.name}"
