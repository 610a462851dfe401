"""Small files of our own beside checkpoints, one for each: who pinned it, how often it was tried.

They lie with the checkpoints, because whoever goes on from them, on whatever node, must see them.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from logdoctor.errors import CheckpointError
from logdoctor.recovery.catalogue.files import content
from logdoctor.recovery.catalogue.pickled import NotRead

Note = TypeVar("Note")
_MOST = 64 << 10


def read_note(path: Path, kind: type[Note]) -> Note | None:
    """Return a note; None when there is none, `NotRead` when it cannot be read."""
    if not os.path.lexists(path):
        return None
    try:
        return msgspec.json.decode(content(path, _MOST), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotRead("is no note of logdoctor") from error


def write_note(path: Path, note: object) -> None:
    """Write a note so that it is there whole or not at all, even when the power fails; `CheckpointError` when it
    cannot be written."""
    beside = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(note))
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(beside)
        durable(path.parent)
        durable(path.parent.parent)
    except OSError as error:
        raise _not_written(path, error) from error


def remove_note(path: Path) -> bool:
    """Remove a note, and return whether there was one; `CheckpointError` when it cannot be removed."""
    try:
        path.unlink()
        durable(path.parent)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _not_written(path, error) from error
    return True


def durable(folder: Path) -> None:
    """Let what a folder lists survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _not_written(path: Path, error: OSError) -> CheckpointError:
    cause = f"cannot be written ({error.strerror})"
    return CheckpointError(str(path), cause, "Run as a user who may write there, or free some space.")
