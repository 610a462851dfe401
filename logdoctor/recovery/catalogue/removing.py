"""Removes checkpoints: out of sight in one step, then away. A half-removed one is never seen as whole."""

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from logdoctor.errors import CheckpointError
from logdoctor.recovery.catalogue.checkpoint import Checkpoint
from logdoctor.recovery.catalogue.history import OURS
from logdoctor.recovery.catalogue.notes import durable
from logdoctor.recovery.catalogue.pins import pin_of

_GOING = "removing"


def remove(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Remove checkpoints and return those that are gone; one that was pinned meanwhile stays. What an earlier removal
    left behind when it was broken off goes, too. `CheckpointError` when something cannot be removed."""
    gone = []
    for one in checkpoints:
        if _removed(one):
            gone.append(one)
    for folder in sorted({one.folder for one in checkpoints}):
        _swept(Path(folder) / OURS / _GOING)
    return gone


def _removed(one: Checkpoint) -> bool:
    folder, path = Path(one.folder), Path(one.folder) / one.name
    if pin_of(folder, one.name) is not None:
        return False
    if path.is_symlink():
        raise CheckpointError(str(path), "is a link to another place", "Remove it by hand, and what it leads to.")
    going = folder / OURS / _GOING
    try:
        going.mkdir(parents=True, exist_ok=True)
        os.rename(path, going / secrets.token_hex(8))
        durable(folder)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _stays(path, error) from error
    return True


def _swept(going: Path) -> None:
    if not going.is_dir():
        return
    for entry in list(os.scandir(going)):
        try:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _stays(Path(entry.path), error) from error


def _stays(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(str(path), f"cannot be removed ({error.strerror})", "Run as a user who may remove it.")
