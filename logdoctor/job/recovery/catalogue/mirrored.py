"""Reads a mirror of our own checkpoints, in an object store or anything else that fsspec reaches.

Only manifests are brought here, into a folder that is gone afterwards. Of other files the mirror tells the sizes, and
`verify` reads them where they are. Pins and what is known of loads lie in the folder that is mirrored. In a mirror that
is a folder no link is followed.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from logdoctor.errors import CheckpointDamaged, CheckpointError, ExtraMissing
from logdoctor.job.recovery.catalogue import ours
from logdoctor.job.recovery.catalogue.checkpoint import Checkpoint, Found, Onset
from logdoctor.job.recovery.catalogue.files import MOST_ENTRIES, Stat, Tree
from logdoctor.job.recovery.catalogue.health import judged
from logdoctor.job.recovery.catalogue.pickled import NotRead
from logdoctor.job.recovery.catalogue.place import Place
from logdoctor.job.recovery.catalogue.verifying import Verified, compared
from logdoctor.safe.budget import sharing

if TYPE_CHECKING:
    from logdoctor.safe.mirror_files import InFolder, InStore

_LARGEST = (64 << 20) + 1  # bytes of a manifest that are brought: one more than are read
_TODO = "Check the URL, and what the environment tells fsspec about access to it."


def read(url: str, onset: Onset | None = None) -> list[Checkpoint]:
    """Return the checkpoints of a mirror, the oldest first; each path is the URL of one. What was saved at or after the
    `onset` of a failure is suspect. `CheckpointError` when the mirror cannot be read."""
    with _reached(url) as files, sharing():
        every = [found for name in _names(url, files) if (found := _looked(files, name)) is not None]
    return sorted(judged([_there(url, found) for found in every], (), onset), key=lambda one: one.order)


def verify(checkpoint: Checkpoint) -> Verified:
    """Read all bytes of a mirrored checkpoint; return the result. `CheckpointError` for an unreadable mirror."""
    with _reached(checkpoint.folder) as files, tempfile.TemporaryDirectory() as here:
        tree = Tree(Path(here), {})
        try:
            tree = _place(files, Path(here), checkpoint.name).tree
            if checkpoint.torn:
                return Verified(checkpoint.torn, 0, len(tree.files))
            return compared(tree, lambda name: files.open(f"{checkpoint.name}/{name}"))
        except NotRead as error:
            return Verified(f"{checkpoint.name} {error}", 0, len(tree.files))
        except CheckpointDamaged as error:
            return Verified(f"{checkpoint.name} {error.cause}", 0, len(tree.files))
        except FileNotFoundError:
            return Verified("a file of it is gone", 0, len(tree.files))


def _names(url: str, files: "InFolder | InStore") -> list[str]:
    """Return the names of its checkpoints, complete or not."""
    names = files.names()
    if len(names) > MOST_ENTRIES:
        cause = f"holds more than {MOST_ENTRIES:,} entries, more than a folder of checkpoints has"
        raise CheckpointError(url, cause, "Name the folder in which the checkpoints are.")
    return [name for name in names if ours.named(name)]


def _looked(files: "InFolder | InStore", name: str) -> Found | None:
    with tempfile.TemporaryDirectory() as here:
        try:
            return ours.look(_place(files, Path(here), name))
        except CheckpointDamaged as error:  # the others are looked at
            step, attempt = ours.named(name) or (None, None)
            nothing = Place(Path(here), name, frozenset())
            nothing.tree = Tree(nothing.path, {})
            return Found(nothing.checkpoint("logdoctor", step, attempt=attempt, torn=error.cause))


def _place(files: "InFolder | InStore", here: Path, name: str) -> Place:
    """Return a checkpoint as readers want it: its manifest in a folder here, and the sizes of all its files."""
    (here / name).mkdir(exist_ok=True)
    found: dict[str, Stat] = {}
    with suppress(FileNotFoundError):  # deleted since it was listed: then it cannot be read here, and is torn
        found = {file: Stat(size, 0.0) for file, size in files.sizes(name).items()}
        if ours.MANIFEST in found:
            (here / name / ours.MANIFEST).write_bytes(files.read(f"{name}/{ours.MANIFEST}", _LARGEST))
    place = Place(here, name, frozenset())
    place.tree = Tree(here / name, found)
    return place


def _there(url: str, found: Found) -> Found:
    """Return a checkpoint with its place in the mirror; upload times say nothing about its age."""
    one = found.checkpoint
    path = f"{url.rstrip('/')}/{one.name}"
    saved = one.saved_at or None
    return found._replace(checkpoint=msgspec.structs.replace(one, folder=url, path=path, saved_at=saved))


@contextmanager
def _reached(url: str) -> Iterator["InFolder | InStore"]:
    """Yield the files of a mirror. Whatever its implementation in fsspec raises is `CheckpointError`."""
    try:
        from logdoctor.safe.mirror_files import mirror_files  # slow to import, and needs fsspec
    except ModuleNotFoundError as error:
        raise ExtraMissing("fsspec", "checkpoint") from error
    try:
        yield mirror_files(url)
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise CheckpointError(url, "does not exist", _TODO) from error
    except Exception as error:  # each implementation has its own errors
        cause = f"cannot be read ({type(error).__name__}: {str(error)[:300] or 'no more is known'})"
        raise CheckpointError(url, cause, _TODO) from error
