"""What came of loading a checkpoint: `FOLDER/.logdoctor/history/NAME`.

One that kills whoever loads it must not be given again and again: `tried` before it is loaded, `loaded` when it was.
What is written down is of the checkpoint as it was then: one that is saved anew under the same name begins anew.
"""

import msgspec

from logdoctor.job.recovery.catalogue.checkpoint import Checkpoint
from logdoctor.job.recovery.catalogue.notes import read_note, write_note
from logdoctor.job.recovery.catalogue.pickled import NotRead

OURS = ".logdoctor"
"""The folder in a folder of checkpoints in which logdoctor keeps what it knows."""


class History(msgspec.Struct, frozen=True):
    """Loads without success since the last good one, and why a checkpoint is suspect though its files do not say
    so."""

    saved_at: float | None = None
    bytes: int = 0
    tries: int = 0
    suspect: str = ""


def history_of(checkpoint: Checkpoint) -> History:
    """Return what was written down of a checkpoint; nothing when that cannot be read."""
    fresh = History(checkpoint.saved_at, checkpoint.bytes)
    try:
        found = read_note(checkpoint.folder, _name(checkpoint), History)
    except NotRead:
        return fresh
    same = found is not None and (found.saved_at, found.bytes) == (fresh.saved_at, fresh.bytes)
    return found if found is not None and same else fresh


def tried(checkpoint: Checkpoint) -> int:
    """Write down that a checkpoint is about to be loaded, and return how often that now was without success."""
    before = history_of(checkpoint)
    _write(checkpoint, msgspec.structs.replace(before, tries=before.tries + 1))
    return before.tries + 1


def loaded(checkpoint: Checkpoint) -> None:
    """Write down that a checkpoint was loaded: a step was made from it."""
    before = history_of(checkpoint)
    if before.tries:
        _write(checkpoint, msgspec.structs.replace(before, tries=0))


def suspected(checkpoint: Checkpoint, why: str) -> None:
    """Write down that a checkpoint is suspect, and why; "" takes it back."""
    _write(checkpoint, msgspec.structs.replace(history_of(checkpoint), suspect=why[:1000]))


def _write(checkpoint: Checkpoint, history: History) -> None:
    write_note(checkpoint.folder, _name(checkpoint), history)


def _name(checkpoint: Checkpoint) -> str:
    return f"{OURS}/history/{checkpoint.name}"
