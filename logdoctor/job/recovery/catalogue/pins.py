"""Pins: `FOLDER/pins/NAME` keeps the checkpoint NAME from being removed."""

import time
from pathlib import Path

import msgspec

from logdoctor.errors import CheckpointError
from logdoctor.job.recovery.catalogue.checkpoint import Checkpoint, Pin
from logdoctor.job.recovery.catalogue.notes import read_note, remove_note, write_note
from logdoctor.job.recovery.catalogue.pickled import NotRead
from logdoctor.job.recovery.catalogue.times import seconds_of, timestamp

PINS = "pins"


class _Pinned(msgspec.Struct):
    """A stored pin: times in ISO 8601, as in manifests."""

    by: str
    why: str = ""
    at: str = ""
    until: str | None = None


def pin_of(folder: Path, name: str, now: float | None = None) -> Pin | None:
    """Return the pin of a checkpoint; None without one or once it has expired. An unreadable pin holds."""
    try:
        found = read_note(folder, f"{PINS}/{name}", _Pinned)
    except NotRead as error:
        return Pin("?", f"its pin {error}")
    if found is None:
        return None
    until = None if found.until is None else seconds_of(found.until)
    over = until is not None and until <= (time.time() if now is None else now)
    return None if over else Pin(found.by, found.why, seconds_of(found.at), until)


def pin(checkpoint: Checkpoint, by: str, why: str = "", until: float | None = None) -> Pin:
    """Pin a checkpoint, replacing a former pin, and return the pin; `CheckpointError` when it cannot be written."""
    made = Pin(by, why, time.time(), until)
    written = _Pinned(by, why, timestamp(time.time()), None if until is None else timestamp(until))
    write_note(checkpoint.folder, f"{PINS}/{checkpoint.name}", written)
    return made


def unpin(folder: Path | str, name: str) -> bool:
    """Remove a pin and return whether it existed; the checkpoint may be gone."""
    return remove_note(folder, f"{PINS}/{checked(name)}")


def checked(name: str) -> str:
    """Return a valid file name unchanged; `CheckpointError` for any other."""
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise CheckpointError(
            f"checkpoint {name[:200]!r}", "is no name in the folder", "Names: logdoctor checkpoints list"
        )
    return name
