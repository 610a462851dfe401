"""Object stores for the archive, a folder or a bucket: objects are written once and never changed.

A folder that many machines share is written here, not through a library: its files must survive a loss of power before
the database lists them.
"""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from logdoctor.errors import StoreDamaged, StoreError
from logdoctor.safe.lasting_files import Folder

_TRIES = 100  # tries to write into a folder that others remove when it is empty


class ObjectFacts(NamedTuple):
    """An object: its name, its size in bytes, and when it was written (seconds since the epoch)."""

    name: str
    bytes: int
    at: float


class Objects(Protocol):
    """A store of objects. Names are `/`-separated paths. All methods raise `StoreError` when it fails."""

    def put(self, name: str, data: bytes) -> None:
        """Write an object durably; `StoreError` when the name exists already."""
        ...

    def get(self, name: str, begin: int, end: int) -> bytes:
        """Return bytes [begin, end) of an object; `StoreError` when it is missing or shorter."""
        ...

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes; None when there is none."""
        ...

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        ...

    def walk(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """Yield the objects below a prefix that ends with `/`, or all."""
        ...

    def sweep(self) -> None:
        """Delete what dead writers have left."""
        ...


class FolderObjects:
    """Objects as files. A writer that dies leaves a file with another name, which `walk` does not show.

    With `inside` they are in a subfolder of that name.
    """

    def __init__(self, folder: Path, inside: str = "") -> None:
        self._folder, self._inside = Folder(folder), inside

    def __str__(self) -> str:
        return self._folder.path_of(self._inside).rstrip("/")

    def put(self, name: str, data: bytes) -> None:
        """Write an object durably; `StoreError` when the name exists already."""
        place = self._place(name)
        try:
            for _ in range(_TRIES):
                with suppress(FileNotFoundError):
                    self._folder.make(place.rpartition("/")[0], 0o700, lasting=True)
                    with self._folder.new_file(place, 0o600, over=False) as file:
                        file.write(data)
                    return
            raise FileNotFoundError
        except OSError as error:
            raise _failed(self._folder.path_of(place), error) from error

    def link(self, name: str, to: "FolderObjects") -> bool:
        """Hard-link an object into another folder; return False where that is impossible."""
        place, mine = to._place(name), self._place(name)
        try:
            to._folder.make(place.rpartition("/")[0], 0o700)
            with self._folder.at(mine) as (source, one), to._folder.at(place) as (target, other):
                os.link(one, other, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        except FileNotFoundError as error:
            raise _failed(self._folder.path_of(mine), error) from error
        except OSError:
            return False
        to._folder.sync(place.rpartition("/")[0])
        return True

    def get(self, name: str, begin: int, end: int) -> bytes:
        """Return bytes [begin, end) of an object; `StoreError` when it is missing or shorter."""
        place = self._place(name)
        path = self._folder.path_of(place)
        try:
            with open(self._folder.open(place), "rb", buffering=0) as file:
                data = os.pread(file.fileno(), end - begin, begin)
        except OSError as error:
            raise _failed(path, error) from error
        if len(data) < end - begin:
            raise _cut(path, begin + len(data), end)
        return data

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes; None when there is none."""
        place = self._place(name)
        try:
            with self._folder.at(place) as (folder, last):
                return os.stat(last, dir_fd=folder, follow_symlinks=False).st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(self._folder.path_of(place), error) from error

    def delete(self, name: str) -> None:
        """Delete an object, if it is there, and the folders that this leaves empty."""
        place = self._place(name)
        try:
            self._folder.remove(place)
        except OSError as error:
            raise _failed(self._folder.path_of(place), error) from error
        with suppress(OSError):  # one is not empty
            while (place := place.rpartition("/")[0]) and place != self._inside:
                with self._folder.at(place) as (folder, last):
                    os.rmdir(last, dir_fd=folder)

    def walk(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """Yield the objects below a prefix that ends with `/`, or all."""
        for name, _, facts in self._files(prefix):
            if not name.rpartition("/")[2].startswith("."):
                yield ObjectFacts(name, facts.st_size, facts.st_mtime)

    def sweep(self, older: float = 3600.0) -> None:
        """Delete what dead writers have left, if older than `older` seconds."""
        for name, folder, facts in self._files(""):
            last = name.rpartition("/")[2]
            if last.startswith(".") and facts.st_mtime < time.time() - older:
                with suppress(FileNotFoundError):
                    os.unlink(last, dir_fd=folder)

    def _files(self, prefix: str) -> Iterator[tuple[str, int, os.stat_result]]:
        """Yield the name of each file, its open folder, and its status."""
        root = os.path.join(str(self), prefix)
        if not os.path.isdir(root):
            return
        for path, _, names, folder in os.fwalk(root):
            for name in sorted(names):
                with suppress(FileNotFoundError):
                    facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if stat.S_ISREG(facts.st_mode):
                        yield os.path.relpath(os.path.join(path, name), str(self)), folder, facts

    def _place(self, name: str) -> str:
        """Return the path of an object within the folder."""
        if any(part.startswith(".") or not part or "\0" in part for part in name.split("/")):
            raise StoreError(f"{self}/{name}", "it is no name of an object", "Run `logdoctor doctor`.")
        return f"{self._inside}/{name}" if self._inside else name


def _failed(thing: str, error: OSError) -> StoreError:
    if isinstance(error, FileExistsError):
        return StoreError(thing, "it exists already", "Nothing was written.")
    if isinstance(error, FileNotFoundError):
        return StoreDamaged(thing, "it is missing", "Restore it from a backup, or run `logdoctor doctor`.")
    return StoreError(thing, f"it cannot be used ({error.strerror or error})", "Check the disk and the permissions.")


def _cut(thing: str, has: int, wants: int) -> StoreError:
    return StoreDamaged(thing, f"it ends at byte {has}, not {wants}", "Restore it, or run `logdoctor doctor`.")
