"""A mirror of a checkpoint folder in an object store, or anything else that fsspec reaches.

    URL/step-N.attempt-K/...            as in the folder; manifest.json is put last, by one call, after all other files
                                        were read back and verified
    URL/writers/EPOCH                   the writers; the highest number may write

The folder is authoritative: a save is whole when it is whole there. A store has no lock and no rename, so a fenced
writer may still finish one upload before it notices. That upload has its own name and epoch: it overwrites nothing, and
is never the newest once a later writer has one.
"""

import logging
import os
import stat
import time
import uuid
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from logdoctor.checkpoint import folders
from logdoctor.checkpoint.folders import MANIFEST, Manifest
from logdoctor.checkpoint.hashing import File, hash_chunks
from logdoctor.checkpoint.lease import signature
from logdoctor.checkpoint.reports import sentence_of
from logdoctor.errors import CheckpointDamaged, CheckpointError, CheckpointFenced
from logdoctor.safe.lasting_files import Folder
from logdoctor.safe.mirror_files import InFolder, InStore, check_url, chunks, mirror_files

_PAUSES = (1.0, 4.0)  # seconds until what could not be read is read again
_TRIES = 100  # writers that may come at the same moment
_log = logging.getLogger("logdoctor.checkpoint")


class DamagedHere(CheckpointDamaged):
    """A checkpoint of the folder is itself damaged, so no upload of it can be good."""


class Mirror:
    """A place for checkpoints by URL; `options` are those of its fsspec implementation. It connects on first use, and
    errors of the implementation pass through. `CheckpointError` when fsspec has no implementation for the URL."""

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        self.url, self._options, self._owner = url, options or {}, uuid.uuid4().hex
        check_url(url)
        self.epoch = 0
        """This writer's epoch; 0 until it became the writer."""
        self._unread = False

    def take(self, least: int) -> int:
        """Become the writer; return its epoch: at least `least`, and higher than any former writer's."""
        epoch = max(least, folders.following([*self._writers(), *(each.epoch for each in self.complete())]))
        for number in range(epoch, epoch + _TRIES):
            path = f"writers/{number:020}"
            mine = signature(number, self._owner)
            with suppress(FileExistsError):
                self._files.make("writers")
                self._files.write(path, mine, new=True)
                if self._files.read(path, len(mine) + 1) == mine:  # a store may know no "create"
                    self.epoch = number
                    return number
        raise CheckpointError(self.url, f"has a new writer for each of {_TRIES} tries", "Let one trainer use it.")

    def names(self) -> list[str]:
        """Return the names of all checkpoints, complete or not."""
        return [name for name in self._listed("") if folders.parsed(name)]

    def complete(self) -> list[Manifest]:
        """Return the manifests of all complete checkpoints, the newest first; those that are none are left out."""
        return self._looked_at()[0]

    def _looked_at(self) -> tuple[list[Manifest], dict[str, str]]:
        """Return the manifests of all complete checkpoints, the newest first, and by its name what is wrong with each
        other one that has a manifest or cannot be looked into, as a sentence."""
        found, bad = [], {}
        for name in self.names():
            try:
                found.append(folders.as_manifest(name, self._files.read(f"{name}/{MANIFEST}", folders.LARGEST + 1)))
            except FileNotFoundError:
                continue
            except CheckpointDamaged as error:
                bad[name] = f"checkpoint {self.url}/{name} {error.cause}."
                _say(bad[name])
        return sorted(found, key=lambda each: each.order, reverse=True), bad

    def upload(self, folder: Path, name: str) -> int:
        """Upload a complete checkpoint, and return its bytes (0 if it is already there). `CheckpointDamaged` when what
        arrived does not match its manifest, `DamagedHere` when the local files do not, `CheckpointFenced` after a later
        writer."""
        self._still_writer()
        here = Folder(folder)
        text = here.read(f"{name}/{MANIFEST}", folders.LARGEST + 1)
        manifest = folders.as_manifest(name, text)
        with suppress(FileNotFoundError):
            if self._files.read(f"{name}/{MANIFEST}", len(text) + 1) == text:
                return 0
            cause = "has a checkpoint of another writer by this name"
            raise CheckpointError(f"{self.url}/{name}", cause, "The next save has a name of its own.")
        self._files.make(name)
        for file in manifest.files:
            with os.fdopen(here.open(f"{name}/{file.name}"), "rb") as whole:  # no link: it could lead to any secret
                self._files.put(f"{name}/{file.name}", whole)
        for file in manifest.files:
            with self._files.open(f"{name}/{file.name}") as arrived:
                if hash_chunks(file.name, chunks(arrived, file.bytes + 1)) == file:
                    continue
            if fault := folders.fault(folder / name, file):
                raise DamagedHere(f"checkpoint {name}", fault, "It is not uploaded.")
            cause = f"has not arrived as it was saved: {file.name} differs"
            raise CheckpointDamaged(f"{self.url}/{name}", cause, "It is tried again.")
        self._still_writer()
        self._files.write(f"{name}/{MANIFEST}", text)
        return sum(file.bytes for file in manifest.files)

    def prune(self, keep: int, folder: Path) -> int:
        """Delete unfinished uploads, and all older than the newest `keep` good ones; return how many. Those pinned in
        the folder stay. So do checkpoints of earlier writers if they could not be read when needed: they may be better
        than what training resumed from."""
        self._still_writer()
        found, bad = self._looked_at()
        good = [each for each in found if each.is_finite]
        last = good[keep - 1].order if len(good) >= keep else None
        whole = {each.name for each in found}
        old = [each for each in found if last is not None and each.order < last]
        doomed = [each.name for each in old if not (self._unread and each.epoch < self.epoch)]
        doomed += [name for name in self.names() if name not in whole and name not in bad]
        doomed = [name for name in doomed if not folders.pinned(folder, name, time.time())]
        for name in doomed:
            self._still_writer()  # looked at again: a later writer may have made it whole since
            if name not in whole and MANIFEST in self._listed(name):
                continue
            self._files.remove(f"{name}/{MANIFEST}")
            self._files.remove(name)
        return len(doomed)

    def fetch(self, folder: Path, step: int | None = None, name: str = "") -> tuple[str, ...]:
        """Fetch the newest good checkpoint, or that of a step or name, if newer than the folder's. Return a sentence
        for each skipped one."""

        def asked_for(other: str) -> bool:
            return step in (None, (folders.parsed(other) or (None,))[0]) and name in ("", other)

        have = (each.order for each in folders.complete(folder) if asked_for(each.name))
        newest = max(have, default=(-1, -1, -1))
        found, bad = self._looked_at()
        refused = [problem for other, problem in bad.items() if asked_for(other)]
        for manifest in (each for each in found if asked_for(each.name)):
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
        """Copy a checkpoint into a folder, where it appears at once and whole; or return what is wrong with it. Until
        then only this user may read it: nobody knows yet what came."""
        here, name = Folder(folder), folders.unfinished()
        here.make(name)
        try:
            with here.at(f"{name}/{MANIFEST}") as (inside, _):
                usual = stat.S_IMODE(os.stat(".", dir_fd=inside).st_mode)
                os.chmod(".", 0o700, dir_fd=inside)
                for file in manifest.files:
                    if fault := self._copy(f"{manifest.name}/{file.name}", file, here, name):
                        return f"checkpoint {self.url}/{manifest.name} {fault}."
                here.write(f"{name}/{MANIFEST}", manifest.as_json())
                for each in (*(file.name for file in manifest.files), MANIFEST):
                    os.chmod(each, usual & 0o666, dir_fd=inside)
                os.chmod(".", usual, dir_fd=inside)
            _put_in_place(folder / name, folder, manifest)
            here.sync()
        finally:
            with suppress(OSError):
                here.remove_all(name)
        return None

    def _copy(self, path: str, file: File, here: Folder, name: str) -> str | None:
        """Copy a file into a folder in a folder; return what is wrong with it, as the end of a sentence."""
        try:
            with self._files.open(path) as there:
                if (size := there.seek(0, os.SEEK_END)) != file.bytes:
                    return f"is torn: {file.name} has {size} bytes"
                there.seek(0)
                with here.new_file(f"{name}/{file.name}", 0o600) as copy:
                    arrived = hash_chunks(file.name, chunks(there, file.bytes, copy))
        except FileNotFoundError:
            return f"has no file {file.name}"
        except CheckpointDamaged as error:
            return f"{error.cause}: {file.name}"
        return None if arrived == file else f"was changed: {file.name} has not the bytes that were written"

    @cached_property
    def _files(self) -> InFolder | InStore:
        return mirror_files(self.url, self._options)

    def _still_writer(self) -> None:
        if (newest := max(self._writers(), default=0)) > self.epoch:
            cause = f"has another writer since (number {newest}, this is {self.epoch})"
            raise CheckpointFenced(self.url, cause)

    def _writers(self) -> list[int]:
        try:
            listed = self._listed("writers")
        except CheckpointDamaged as error:
            _say(f"{self.url}/writers {error.cause}.")
            return []
        return folders.countable(int(name) for name in listed if name.isascii() and name.isdecimal())

    def _listed(self, inside: str) -> list[str]:
        """Return the names in a folder of the mirror."""
        try:
            return self._files.names(inside)
        except FileNotFoundError:
            return []


@lru_cache(1000)
def _say(problem: str) -> None:
    """Say once what is passed over."""
    _log.warning("%s It is passed over.", problem)


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
