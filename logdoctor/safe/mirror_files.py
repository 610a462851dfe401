"""The files of a mirror of checkpoints: in a folder of this machine, or in a store that fsspec reaches.

Others may write into a mirror, too. In a folder no link is followed: links and whatever else is not what its name
says are `CheckpointDamaged`, so that who meets one can pass it over. All else that a system or an implementation of
fsspec raises is raised here: what may not be read now may be good.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from shutil import copyfileobj
from stat import S_ISREG
from typing import Any, BinaryIO, cast

from fsspec import get_filesystem_class
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import get_protocol

from logdoctor.errors import CheckpointDamaged, CheckpointError
from logdoctor.safe.lasting_files import Folder

_BLOCK = 8 << 20  # bytes that are copied, or asked of a store, at a time
_BAD = {errno.EINVAL, errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.ENXIO}


class InFolder:
    """Files in a folder, by names like `writers/7`."""

    def __init__(self, path: str) -> None:
        self._folder = Folder(path)

    def names(self, inside: str = "") -> list[str]:
        """Return the names in it, or in a folder in it."""
        with self._told(inside):
            return self._folder.names(inside)

    def sizes(self, inside: str) -> dict[str, int]:
        """Return the regular files of a folder in it, with their bytes."""
        found = {}
        with self._told(inside), self._folder.at(f"{inside}/any") as (folder, _):
            for name in self._folder.names(inside):
                with suppress(FileNotFoundError):
                    about = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if S_ISREG(about.st_mode):
                        found[name] = about.st_size
        return found

    def open(self, path: str) -> BinaryIO:
        """Return a file, open for reading."""
        with self._told(path):
            return os.fdopen(self._folder.open(path), "rb")

    def read(self, path: str, most: int) -> bytes:
        """Return what is in a file, up to `most` bytes of it."""
        with self._told(path):
            return self._folder.read(path, most)

    def make(self, inside: str) -> None:
        """Make a folder in it, where none is; what is no folder, as a link, gives way to it."""
        try:
            self._folder.make(inside)
        except NotADirectoryError:
            self._folder.remove(inside)
            self._folder.make(inside)

    def put(self, path: str, file: BinaryIO) -> None:
        """Copy an open file to a place in it."""
        with self._folder.new_file(path) as copy:
            copyfileobj(file, copy, _BLOCK)

    def write(self, path: str, data: bytes, new: bool = False) -> None:
        """Write a file; one that must be `new` is `FileExistsError` when it is there."""
        if not new:
            return self._folder.write(path, data, None)
        # not `new_file`: a mounted bucket has no links, which that takes
        with os.fdopen(self._folder.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(data)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it, if it is there."""
        self._folder.remove_all(path)

    @contextmanager
    def _told(self, inside: str) -> Iterator[None]:
        """Tell what is bad in the mirror itself from other errors."""
        try:
            yield
        except OSError as error:
            if error.errno not in _BAD or not inside:
                raise
            cause = f"cannot be read ({error.strerror})"
            raise CheckpointDamaged(self._folder.path_of(inside), cause, "It is passed over.") from error


class InStore:
    """Files in a store, as `InFolder` has them; links that its server knows are the affair of that."""

    def __init__(self, files: Any, root: str) -> None:
        self._files, self._root = files, root.rstrip("/")

    def names(self, inside: str = "") -> list[str]:
        self._files.invalidate_cache()
        return [_last(path) for path in self._files.ls(self._path(inside), detail=False)]

    def sizes(self, inside: str) -> dict[str, int]:
        self._files.invalidate_cache()
        found = self._files.ls(self._path(inside), detail=True)
        return {_last(one["name"]): int(one["size"] or 0) for one in found if one["type"] == "file"}

    def open(self, path: str) -> BinaryIO:
        self._files.invalidate_cache()
        return cast(BinaryIO, self._files.open(self._path(path), "rb", block_size=_BLOCK, cache_type="none"))

    def read(self, path: str, most: int) -> bytes:
        self._files.invalidate_cache()
        size = min(most, self._files.size(self._path(path)) or 0)  # a range of an empty file is an error to some
        return cast(bytes, self._files.cat_file(self._path(path), start=0, end=size)) if size else b""

    def make(self, inside: str) -> None:
        self._files.makedirs(self._path(inside), exist_ok=True)

    def put(self, path: str, file: BinaryIO) -> None:
        self._files.put_file(f"/dev/fd/{file.fileno()}", self._path(path))

    def write(self, path: str, data: bytes, new: bool = False) -> None:
        """Write a file in one call; only stores that support "create" refuse an existing one that must be `new`."""
        self._files.pipe_file(self._path(path), data, **({"mode": "create"} if new else {}))

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm(self._path(path), recursive=True)

    def _path(self, inside: str) -> str:
        return f"{self._root}/{inside}".rstrip("/")


def check_url(url: str) -> None:
    """Raise `CheckpointError` when nothing is known that reads such URLs."""
    try:
        get_filesystem_class(get_protocol(url))
    except (ImportError, ValueError) as error:
        raise CheckpointError(url, f"cannot be used ({error})", "Install what fsspec names.") from error


def mirror_files(url: str, options: dict[str, Any] | None = None) -> InFolder | InStore:
    """Return the files of a mirror by its URL; `options` are those of its implementation in fsspec."""
    if get_protocol(url) in LocalFileSystem.protocol:
        return InFolder(LocalFileSystem._strip_protocol(url))
    files, root = url_to_fs(url, **options or {})
    inner = files
    while inner := getattr(inner, "fs", None):
        if isinstance(inner, LocalFileSystem):
            raise CheckpointError(url, "leads to a folder by way of another implementation", "Name the folder itself.")
    return InStore(files, str(root))


def chunks(file: BinaryIO, most: int, copy: BinaryIO | None = None) -> Iterator[bytes]:
    """Yield up to `most` bytes of a file in parts, each after it was written to a copy, if there is one."""
    while data := file.read(min(_BLOCK, most)):
        most -= len(data)
        if copy:
            copy.write(data)
        yield data


def _last(path: Any) -> str:
    return str(path).rstrip("/").rpartition("/")[2]
