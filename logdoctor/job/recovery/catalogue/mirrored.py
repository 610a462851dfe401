"""Reads a mirror of our own checkpoints, in an object store or anything else that fsspec reaches.

Only manifests are downloaded, into a temporary folder. Sizes of other files come from the store, and `verify` reads
them there. Pins and load history stay in the mirrored folder.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from logdoctor.errors import CheckpointError, ExtraMissing
from logdoctor.job.recovery.catalogue import ours
from logdoctor.job.recovery.catalogue.checkpoint import Checkpoint, Found, Onset
from logdoctor.job.recovery.catalogue.files import MOST_ENTRIES, Stat, Tree, opened
from logdoctor.job.recovery.catalogue.health import judged
from logdoctor.job.recovery.catalogue.pickled import NotRead
from logdoctor.job.recovery.catalogue.place import Place
from logdoctor.job.recovery.catalogue.verifying import Verified, compared
from logdoctor.safe.budget import sharing

_LARGEST = (64 << 20) + 1  # bytes of a manifest that are downloaded: one more than are read
_BLOCK = 4 << 20
_TODO = "Check the URL, and what the environment tells fsspec about access to it."


def read(url: str, onset: Onset | None = None) -> list[Checkpoint]:
    """Return the checkpoints of a mirror, the oldest first; each path is a URL. Those saved at or after `onset` are
    suspect. `CheckpointError` when the mirror cannot be read."""
    with _store(url) as store, sharing():
        every = [found for name in store.names() if (found := _looked(store, name)) is not None]
    return sorted(judged([_there(url, found) for found in every], (), onset), key=lambda one: one.order)


def verify(checkpoint: Checkpoint) -> Verified:
    """Read a mirrored checkpoint whole and return the result; `CheckpointError` when the mirror cannot be read."""
    with _store(checkpoint.folder) as store, tempfile.TemporaryDirectory() as here:
        tree = store.place(Path(here), checkpoint.name).tree
        if checkpoint.torn:
            return Verified(checkpoint.torn, 0, len(tree.files))
        try:
            return compared(tree, lambda name: store.opened(checkpoint.name, name))
        except NotRead as error:
            return Verified(f"{checkpoint.name} {error}", 0, len(tree.files))
        except FileNotFoundError:
            return Verified("a file of it is gone", 0, len(tree.files))


def _looked(store: "_Store", name: str) -> Found | None:
    with tempfile.TemporaryDirectory() as here:
        return ours.look(store.place(Path(here), name))


class _Store:
    """The content of a mirror. Exceptions of its fsspec implementation pass through."""

    def __init__(self, files: Any, root: str) -> None:
        self._files, self._root = files, root.rstrip("/")

    def names(self) -> list[str]:
        """Return the names of its checkpoints, complete or not."""
        self._files.invalidate_cache()
        listed = self._files.ls(self._root, detail=False)
        names = [str(path).rstrip("/").rpartition("/")[2] for path in listed[: MOST_ENTRIES + 1]]
        if len(names) > MOST_ENTRIES:
            cause = f"holds more than {MOST_ENTRIES:,} entries, more than a folder of checkpoints has"
            raise CheckpointError(self._root, cause, "Name the folder in which the checkpoints are.")
        return [name for name in names if ours.named(name)]

    def place(self, here: Path, name: str) -> Place:
        """Return a checkpoint as readers want it: its manifest in a local folder, and the sizes of all its files."""
        (here / name).mkdir(exist_ok=True)
        start = f"{self._root}/{name}/"
        found = self._files.find(start, detail=True)
        files = {path.rpartition(f"/{name}/")[2]: Stat(int(known["size"] or 0), 0.0) for path, known in found.items()}
        with suppress(FileNotFoundError):  # deleted since it was listed: reported as torn
            if ours.MANIFEST in files:
                most = min(files[ours.MANIFEST].bytes, _LARGEST)
                text = self._files.cat_file(start + ours.MANIFEST, start=0, end=most) if most else b""
                (here / name / ours.MANIFEST).write_bytes(text)
        place = Place(here, name, frozenset())
        place.tree = Tree(here / name, files)
        return place

    def opened(self, name: str, file: str) -> Any:
        """Open a file of a checkpoint for sequential reading; `NotRead` for a pipe or device of this machine."""
        from fsspec.implementations.local import LocalFileSystem

        if isinstance(self._files, LocalFileSystem):
            return opened(Path(self._root) / name / file)
        return self._files.open(f"{self._root}/{name}/{file}", "rb", block_size=_BLOCK, cache_type="none")


def _there(url: str, found: Found) -> Found:
    """Return a checkpoint with its place in the mirror; upload times say nothing about its age."""
    one = found.checkpoint
    path = f"{url.rstrip('/')}/{one.name}"
    saved = one.saved_at or None
    return found._replace(checkpoint=msgspec.structs.replace(one, folder=url, path=path, saved_at=saved))


@contextmanager
def _store(url: str) -> Iterator[_Store]:
    try:
        from fsspec.core import url_to_fs
    except ModuleNotFoundError as error:
        raise ExtraMissing("fsspec", "checkpoint") from error
    try:
        yield _Store(*url_to_fs(url))
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise CheckpointError(url, "does not exist", _TODO) from error
    except Exception as error:  # each implementation has its own errors
        cause = f"cannot be read ({type(error).__name__}: {str(error)[:300] or 'no more is known'})"
        raise CheckpointError(url, cause, _TODO) from error
