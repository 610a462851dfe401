"""Removes checkpoints: renamed away first, then deleted, so a half-removed one never looks whole."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from logdoctor.errors import CheckpointError
from logdoctor.job.recovery.catalogue.checkpoint import Checkpoint
from logdoctor.job.recovery.catalogue.history import OURS
from logdoctor.job.recovery.catalogue.pins import pin_of
from logdoctor.safe.lasting_files import Folder

_GOING = f"{OURS}/removing"


def remove(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Remove checkpoints and return those that are gone; one pinned meanwhile stays. Leftovers of interrupted removals
    are deleted, too. `CheckpointError` when something cannot be removed."""
    gone = []
    for one in checkpoints:
        if _removed(one):
            gone.append(one)
    for folder in sorted({one.folder for one in checkpoints}):
        _swept(Folder(folder))
    return gone


def _removed(one: Checkpoint) -> bool:
    folder = Folder(one.folder)
    if pin_of(Path(one.folder), one.name) is not None:
        return False
    if os.path.islink(folder.path_of(one.name)):
        raise CheckpointError(one.path, "is a link to another place", "Remove it by hand, and what it leads to.")
    try:
        folder.make(_GOING)
        folder.move(one.name, f"{_GOING}/{secrets.token_hex(8)}")
        folder.sync()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _stays(folder.path_of(one.name), error) from error
    return True


def _swept(folder: Folder) -> None:
    try:
        for name in folder.names(_GOING):
            folder.remove_all(f"{_GOING}/{name}")
    except FileNotFoundError:
        return
    except OSError as error:
        raise _stays(folder.path_of(_GOING), error) from error


def _stays(path: str, error: OSError) -> CheckpointError:
    cause = f"cannot be removed ({error.strerror})"
    return CheckpointError(str(error.filename or path), cause, "Run as a user who may remove it.")
