"""A mirror of a checkpoint folder in an object store, or anything else that fsspec reaches.

    URL/step-N.attempt-K/...            as in the folder; manifest.json is put last, by one call, after all other files
                                        were read back and verified
    URL/writers/EPOCH                   the writers; the highest number may write

The folder is authoritative: a save is whole when it is whole there. A store has no lock and no rename, so a fenced
writer may still finish one upload before it notices. That upload has its own name and epoch: it overwrites nothing, and
is never the newest once a later writer has one.
"""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from fsspec import get_filesystem_class
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from logdoctor.checkpoint import folders
from logdoctor.checkpoint.folders import MANIFEST, Manifest
from logdoctor.checkpoint.hashing import File, hash_chunks
from logdoctor.checkpoint.lease import put, signature
from logdoctor.checkpoint.reports import sentence_of
from logdoctor.errors import CheckpointDamaged, CheckpointError, CheckpointFenced
from logdoctor.safe.lasting_files import Folder, synced

_CHUNK = 8 << 20  # bytes read back at a time
_PAUSES = (1.0, 4.0)  # seconds before reading again after an error
_TRIES = 100  # writers that may come at the same moment


class DamagedHere(CheckpointDamaged):
    """A checkpoint of the folder is itself damaged, so no upload of it can be good."""


class Mirror:
    """A place for checkpoints by URL; `options` are those of its fsspec implementation. It connects on first use, and
    errors of the implementation pass through. `CheckpointError` when fsspec has no implementation for the URL."""

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        self.url, self._options, self._owner = url, options or {}, uuid.uuid4().hex
        try:
            get_filesystem_class(url.partition("://")[0].partition("::")[0] if "://" in url else "file")
        except (ImportError, ValueError) as error:
            raise CheckpointError(url, f"cannot be used ({error})", "Install what fsspec names.") from error
        self.epoch = 0
        """This writer's epoch; 0 until it became the writer."""
        self._unread = False

    def take(self, least: int) -> int:
        """Become the writer; return its epoch: at least `least`, and higher than any former writer's."""
        epoch = max(least, folders.following([*self._writers(), *(each.epoch for each in self.complete())]))
        for number in range(epoch, epoch + _TRIES):
            path = f"{self._root}/writers/{number:020}"
            mine = signature(number, self._owner)
            with suppress(FileExistsError):
                self._files.makedirs(f"{self._root}/writers", exist_ok=True)
                self._create(path, mine)
                if self._read(path) == mine:  # a store may not know "create"
                    self.epoch = number
                    return number
        raise CheckpointError(self.url, f"has a new writer for each of {_TRIES} tries", "Let one trainer use it.")

    def names(self) -> list[str]:
        """Return the names of all checkpoints, complete or not."""
        return [name for name in self._listed("") if folders.parsed(name)]

    def complete(self) -> list[Manifest]:
        """Return the manifests of all complete checkpoints, newest first, without invalid ones."""
        found = []
        for name in self.names():
            with suppress(FileNotFoundError, CheckpointDamaged):
                found.append(folders.as_manifest(name, self._read(f"{self._root}/{name}/{MANIFEST}")))
        return sorted(found, key=lambda each: each.order, reverse=True)

    def upload(self, folder: Path, name: str) -> int:
        """Upload a complete checkpoint, and return its bytes (0 if it is already there). `CheckpointDamaged` when what
        arrived does not match its manifest, `DamagedHere` when the local files do not, `CheckpointFenced` after a later
        writer."""
        self._still_writer()
        here = Folder(folder)
        text = here.read(f"{name}/{MANIFEST}")
        manifest, place = folders.as_manifest(name, text), f"{self._root}/{name}"
        with suppress(FileNotFoundError):
            if self._read(f"{place}/{MANIFEST}") == text:
                return 0
            cause = "has a checkpoint of another writer by this name"
            raise CheckpointError(f"{self.url}/{name}", cause, "The next save has a name of its own.")
        self._files.makedirs(place, exist_ok=True)
        for file in manifest.files:
            with os.fdopen(here.open(f"{name}/{file.name}"), "rb") as whole:  # no link: it could lead to any secret
                self._files.put_file(f"/dev/fd/{whole.fileno()}", f"{place}/{file.name}")
        for file in manifest.files:
            if self._hashed(f"{place}/{file.name}", file.name) != file:
                if fault := folders.fault(folder / name, file):
                    raise DamagedHere(f"checkpoint {name}", fault, "It is not uploaded.")
                cause = f"has not arrived as it was saved: {file.name} differs"
                raise CheckpointDamaged(f"{self.url}/{name}", cause, "It is tried again.")
        self._still_writer()
        self._files.pipe_file(f"{place}/{MANIFEST}", text)
        return sum(file.bytes for file in manifest.files)

    def prune(self, keep: int, folder: Path) -> int:
        """Delete unfinished uploads, and all older than the newest `keep` good ones; return how many. Those pinned in
        the folder stay. So do checkpoints of earlier writers if they could not be read when needed: they may be better
        than what training resumed from."""
        self._still_writer()
        found = self.complete()
        good = [each for each in found if each.is_finite]
        last = good[keep - 1].order if len(good) >= keep else None
        whole = {each.name for each in found}
        old = [each for each in found if last is not None and each.order < last]
        doomed = [each.name for each in old if not (self._unread and each.epoch < self.epoch)]
        doomed += [name for name in self.names() if name not in whole and not self._has(f"{name}/{MANIFEST}")]
        doomed = [name for name in doomed if not folders.pinned(folder, name, time.time())]
        for name in doomed:
            self._still_writer()  # checked again: a later writer may have completed it since
            if name not in whole and self._has(f"{name}/{MANIFEST}"):
                continue
            with suppress(FileNotFoundError):
                self._files.rm_file(f"{self._root}/{name}/{MANIFEST}")
            with suppress(FileNotFoundError):
                self._files.rm(f"{self._root}/{name}", recursive=True)
        return len(doomed)

    def fetch(self, folder: Path, step: int | None = None, name: str = "") -> tuple[str, ...]:
        """Fetch the newest good checkpoint, or that of a step or name, if newer than the folder's. Return a sentence
        for each skipped one."""

        def asked_for(found: list[Manifest]) -> list[Manifest]:
            return [each for each in found if step in (None, each.step) and name in ("", each.name)]

        newest = max((each.order for each in asked_for(folders.complete(folder))), default=(-1, -1, -1))
        refused = []
        for manifest in asked_for(self.complete()):
            if manifest.order <= newest or (problem := self._fetch(folder, manifest)) is None:
                break
            refused.append(problem)
        return tuple(refused)

    def brought(self, folder: Path, step: int | None = None, name: str = "") -> tuple[str, ...]:
        """Fetch, retrying twice. If the mirror stays unreadable it is skipped, unless the folder is empty:
        `CheckpointError`, because it may have checkpoints."""
        pauses = iter(_PAUSES)
        while True:
            try:
                return self.fetch(folder, step, name)
            except Exception as error:  # each store has its own
                if (pause := next(pauses, None)) is not None:
                    time.sleep(pause)
                    continue
                self._unread = True
                problem = f"cannot be read ({sentence_of(error)})"
                if not folders.complete(folder):
                    todo = "Try again, or begin without a mirror if it holds nothing."
                    raise CheckpointError(f"mirror {self.url}", problem, todo) from error
                return (f"mirror {self.url} {problem}.",)

    def restore(self, folder: Path, name: str) -> str | None:
        """Replace a damaged checkpoint of a folder by the mirror's copy; return a sentence why that failed, or None."""
        try:
            found = next((each for each in self.complete() if each.name == name), None)
            return self._fetch(folder, found) if found else f"Mirror {self.url} has none."
        except Exception as error:  # noqa: BLE001 - any store's own
            self._unread = True
            return f"Mirror {self.url} cannot be read ({sentence_of(error)})."

    def _fetch(self, folder: Path, manifest: Manifest) -> str | None:
        """Fetch a checkpoint, which appears in the folder whole and at once; return a sentence on what is wrong with
        it, or None."""
        here, name = Folder(folder), folders.unfinished()
        here.make(name)
        place = folder / name
        try:
            for file in manifest.files:
                path = f"{self._root}/{manifest.name}/{file.name}"
                with suppress(FileNotFoundError):
                    if (size := self._files.size(path)) != file.bytes:
                        return f"checkpoint {self.url}/{manifest.name} is torn: {file.name} has {size} bytes."
                    self._files.get_file(path, str(place / file.name))
                    with os.fdopen(here.open(f"{name}/{file.name}"), "rb") as written:
                        os.fsync(written.fileno())
                if fault := folders.fault(place, file):
                    return f"checkpoint {self.url}/{manifest.name} {fault}."
            put(place / MANIFEST, manifest.as_json())
            synced(place)
            _put_in_place(place, folder, manifest)
            synced(folder)
        finally:
            with suppress(OSError):
                here.remove_all(name)
        return None

    @cached_property
    def _reached(self) -> tuple[Any, str]:
        """Return the implementation, and the path in it."""
        files, root = url_to_fs(self.url, **self._options)
        return files, str(root).rstrip("/")

    @property
    def _files(self) -> Any:
        return self._reached[0]

    @property
    def _root(self) -> str:
        return self._reached[1]

    def _create(self, path: str, data: bytes) -> None:
        """Create a file; `FileExistsError` when it exists, as far as the store can tell."""
        if isinstance(self._files, LocalFileSystem):  # its own "create" checks first and writes later
            with open(path, "xb") as file:
                file.write(data)
        else:
            self._files.pipe_file(path, data, mode="create")

    def _still_writer(self) -> None:
        if (newest := max(self._writers(), default=0)) > self.epoch:
            cause = f"has another writer since (number {newest}, this is {self.epoch})"
            raise CheckpointFenced(self.url, cause)

    def _writers(self) -> list[int]:
        listed = self._listed("writers")
        return folders.countable(int(name) for name in listed if name.isascii() and name.isdecimal())

    def _listed(self, inside: str) -> list[str]:
        """Return the names in a folder of the store."""
        self._files.invalidate_cache()
        try:
            found = self._files.ls(f"{self._root}/{inside}".rstrip("/"), detail=False)
        except FileNotFoundError:
            return []
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def _has(self, path: str) -> bool:
        return bool(self._files.exists(f"{self._root}/{path}"))

    def _read(self, path: str) -> bytes:
        if isinstance(self._files, LocalFileSystem):
            return b"".join(self._chunks(path))
        found: bytes = self._files.cat_file(path)
        return found

    def _hashed(self, path: str, name: str) -> File:
        """Read a file back and hash it."""
        self._files.invalidate_cache()
        return hash_chunks(name, self._chunks(path))

    def _chunks(self, path: str) -> Iterator[bytes]:
        with self._opened(path) as file:
            while data := file.read(_CHUNK):
                yield data

    def _opened(self, path: str) -> Any:
        """Open a file of the mirror for reading; in a local folder only a regular one."""
        if isinstance(self._files, LocalFileSystem):
            return os.fdopen(Folder(self._root).open(path.removeprefix(f"{self._root}/")), "rb")
        return self._files.open(path, "rb", block_size=_CHUNK, cache_type="none")


def _put_in_place(place: Path, folder: Path, manifest: Manifest) -> None:
    """Rename a fetched checkpoint into place. An existing one is replaced, unless it is as good, from a faster
    process."""
    here = Folder(folder)
    try:
        here.move(place.name, manifest.name)
    except OSError:
        with suppress(CheckpointDamaged):
            same = folders.read_manifest(folder / manifest.name) == manifest
            if same and not any(folders.fault(folder / manifest.name, file) for file in manifest.files):
                return
        folders.delete(folder, manifest.name)
        here.move(place.name, manifest.name)


def fetch(url: str, folder: str | Path, step: int | None = None, **options: Any) -> tuple[str, ...]:
    """Fetch a mirror's newest good checkpoint, or a step's, if newer than the folder's. For programs that only read.
    Return a sentence for each skipped checkpoint."""
    return Mirror(url, options).fetch(Path(folder), step)
