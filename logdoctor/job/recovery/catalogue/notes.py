"""Small files of our own beside checkpoints, one each: who pinned it, how often it was tried.

They lie with the checkpoints so that whoever resumes, on whatever node, sees them.
"""

from pathlib import Path
from typing import TypeVar

import msgspec

from logdoctor.errors import CheckpointError
from logdoctor.job.recovery.catalogue.pickled import NotRead, TooLarge
from logdoctor.safe.lasting_files import Folder

Note = TypeVar("Note")
_MOST = 64 << 10


def read_note(folder: Path | str, name: str, kind: type[Note]) -> Note | None:
    """Return a note in a checkpoint folder; None without one, `NotRead` when it cannot be read."""
    try:
        data = Folder(folder).read(name, _MOST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotRead(f"cannot be read ({error.strerror})") from error
    if len(data) > _MOST:
        raise TooLarge(f"has more than {_MOST:,} bytes")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotRead("is no note of logdoctor") from error


def write_note(folder: Path | str, name: str, note: object) -> None:
    """Write a note atomically and durably; `CheckpointError` when it cannot be written."""
    place = Folder(folder)
    try:
        place.make(name.rpartition("/")[0], lasting=True)
        place.write(name, msgspec.json.encode(note), 0o644)
    except OSError as error:
        raise _not_written(place.path_of(name), error) from error


def remove_note(folder: Path | str, name: str) -> bool:
    """Remove a note and return whether it existed; `CheckpointError` when it cannot be removed."""
    place = Folder(folder)
    try:
        return place.remove(name, lasting=True)
    except OSError as error:
        raise _not_written(place.path_of(name), error) from error


def _not_written(path: str, error: OSError) -> CheckpointError:
    cause = f"cannot be written ({error.strerror})"
    step = "Run as a user who may write there, or free some space."
    return CheckpointError(str(error.filename or path), cause, step)
