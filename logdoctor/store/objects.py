"""Where the archive lies: objects that are written once and never changed, in a folder or in a bucket of S3's kind.

A folder that processes of many machines share is written here, not through a library: its files must outlive a loss of
power before the database says that they are there.
"""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from logdoctor.errors import StoreDamaged, StoreError
from logdoctor.lasting_files import synced

_TRIES = 100  # to write into a folder that others remove when it is empty


class ObjectFacts(NamedTuple):
    """An object: its name, how many bytes it has, and when it was written (seconds since the epoch)."""

    name: str
    bytes: int
    at: float


class Objects(Protocol):
    """A place for objects. Names have parts that `/` parts. All raise `StoreError` when the place fails."""

    def put(self, name: str, data: bytes) -> None:
        """Write an object durably; `StoreError` when there is one of this name already."""
        ...

    def get(self, name: str, begin: int, end: int) -> bytes:
        """Return bytes [begin, end) of an object; `StoreError` when it is missing or shorter."""
        ...

    def size(self, name: str) -> int | None:
        """Return how many bytes an object has; None when there is none."""
        ...

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        ...

    def walk(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """Yield the objects below a prefix that ends with `/`, or all."""
        ...

    def sweep(self) -> None:
        """Delete what writers that died have left."""
        ...


class FolderObjects:
    """Objects as files. Whoever dies while writing one leaves a file with another name, which `walk` does not show."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def put(self, name: str, data: bytes) -> None:
        """Write an object durably; `StoreError` when there is one of this name already."""
        path = self._path(name)
        fresh = path.with_name(f".{secrets.token_hex(8)}")  # whatever the length of the name
        try:
            made = [parent for parent in path.parents if not parent.exists()]
            descriptor = _created(fresh)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.link(fresh, path)  # unlike a renaming it does not replace what is there
            for folder in {path.parent, *(parent.parent for parent in made)}:
                synced(folder)
        except OSError as error:
            raise _failed(str(path), error) from error
        finally:
            with suppress(OSError):
                fresh.unlink()

    def link(self, name: str, to: "FolderObjects") -> bool:
        """Let another folder have an object as a link to the same file; False where that cannot be."""
        path = to._path(name)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.link(self._path(name), path)
        except FileNotFoundError as error:
            raise _failed(str(self._path(name)), error) from error
        except OSError:
            return False
        synced(path.parent)
        return True

    def get(self, name: str, begin: int, end: int) -> bytes:
        """Return bytes [begin, end) of an object; `StoreError` when it is missing or shorter."""
        path = self._path(name)
        try:
            with open(path, "rb", buffering=0) as file:
                data = os.pread(file.fileno(), end - begin, begin)
        except OSError as error:
            raise _failed(str(path), error) from error
        if len(data) < end - begin:
            raise _cut(str(path), begin + len(data), end)
        return data

    def size(self, name: str) -> int | None:
        """Return how many bytes an object has; None when there is none."""
        try:
            return self._path(name).stat().st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(str(self._path(name)), error) from error

    def delete(self, name: str) -> None:
        """Delete an object, if it is there, and the folders that are empty then."""
        path = self._path(name)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _failed(str(path), error) from error
        for parent in path.parents:
            if parent == self._folder:
                return
            try:
                parent.rmdir()
            except OSError:  # it is not empty
                return

    def walk(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """Yield the objects below a prefix that ends with `/`, or all."""
        for folder, _, names in os.walk(self._folder / prefix):
            for name in sorted(names):
                path = Path(folder, name)
                if name.startswith("."):
                    continue
                with suppress(FileNotFoundError):
                    facts = path.stat()
                    yield ObjectFacts(path.relative_to(self._folder).as_posix(), facts.st_size, facts.st_mtime)

    def sweep(self, older: float = 3600.0) -> None:
        """Delete what writers that died have left."""
        for folder, _, names in os.walk(self._folder):
            for name in names:
                path = Path(folder, name)
                with suppress(FileNotFoundError):
                    if name.startswith(".") and path.stat().st_mtime < time.time() - older:
                        path.unlink()

    def _path(self, name: str) -> Path:
        parts = name.split("/")
        if any(part.startswith(".") or not part or "\0" in part for part in parts):
            raise StoreError(f"{self._folder}/{name}", "it is no name of an object", "Run `logdoctor doctor`.")
        return self._folder.joinpath(*parts)


def _created(path: Path) -> int:
    """A new file, and its folders, which others may be about to remove because they are empty."""
    for tries in range(_TRIES, 0, -1):
        try:
            for folder in reversed([parent for parent in path.parents if not parent.exists()]):
                with suppress(FileExistsError):
                    folder.mkdir(mode=0o700)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            if tries == 1:
                raise
    raise AssertionError


def _failed(thing: str, error: OSError) -> StoreError:
    if isinstance(error, FileExistsError):
        return StoreError(thing, "it exists already", "Nothing was written.")
    if isinstance(error, FileNotFoundError):
        return StoreDamaged(thing, "it is missing", "Restore it from a backup, or run `logdoctor doctor`.")
    return StoreError(thing, f"it cannot be used ({error.strerror or error})", "Check the disk and the permissions.")


def _cut(thing: str, has: int, wants: int) -> StoreError:
    return StoreDamaged(thing, f"it ends at byte {has}, not {wants}", "Restore it, or run `logdoctor doctor`.")
