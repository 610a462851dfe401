"""Files that are whole whenever they exist, even after a crash, and that lie where their names say.

Others may write into many folders, too: a team's checkpoints, state or spools on a shared disk, a copied backup, /tmp.
A link planted there must not cause a file elsewhere to be written, read or removed.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import BinaryIO

StrPath = str | os.PathLike[str]
_ENTER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC  # it need not be readable
_LINK = "is a link to another place, which is not followed: remove it"


class Folder:
    """A folder, and the one way to what lies in it: names like `pins/step-7` lead through no link.

    The path of the folder itself may contain links: whoever named it meant their target. A `private` folder is no link,
    belongs to this user, and nobody else may write into it. All of that is checked again on each call, so one object
    may live long. All methods raise `OSError` with the path and the cause.
    """

    def __init__(self, path: StrPath, private: bool = False) -> None:
        self.path = os.fspath(path).rstrip("/") or "/" if os.fspath(path) else "."
        self._private = private

    @contextmanager
    def at(self, inside: str) -> Iterator[tuple[int, str]]:
        """Yield a name's open parent folder and last part, for calls with a `dir_fd`."""
        above, _, name = inside.rpartition("/")
        _parts(self.path, name)
        with self._folder(above) as folder:
            try:
                yield folder, name
            except OSError as error:
                if name not in (error.filename, error.filename2):
                    raise
                raise OSError(error.errno, _cause(error, name, folder), self.path_of(inside)) from error

    def path_of(self, inside: str) -> str:
        """Return the path of a name, for messages."""
        return os.path.join(self.path, inside)

    def make(self, inside: str = "", mode: int = 0o777, lasting: bool = False) -> None:
        """Create the folder, and folders in it, where missing; `lasting` ones survive a power loss."""
        made = _missing(self.path)
        os.makedirs(self.path, mode, exist_ok=True)
        for path in made if lasting else ():
            synced(os.path.dirname(path) or ".")
        parts = _parts(self.path, inside)
        for depth in range(len(parts)):
            with suppress(FileExistsError), self.at("/".join(parts[: depth + 1])) as (folder, name):
                os.mkdir(name, mode, dir_fd=folder)
                if lasting:
                    _synced(folder)
        with self._folder(inside):
            pass

    def open(self, inside: str, flags: int = os.O_RDONLY, mode: int = 0o600, ours: bool = False) -> int:
        """Open a regular file and return its descriptor, never waiting for a pipe. With `ours` it must belong to this
        user or root."""
        with self.at(inside) as (folder, name):
            how = flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(name, how, mode, dir_fd=folder)
        about, path = os.fstat(file), self.path_of(inside)
        try:
            if not stat.S_ISREG(about.st_mode):
                raise OSError(errno.EINVAL, "is no regular file: remove it", path)
            if ours and about.st_uid not in (os.getuid(), 0):
                raise _of_others(about.st_uid, path)
        except OSError:
            os.close(file)
            raise
        return file

    def read(self, inside: str, most: int = -1, ours: bool = False) -> bytes:
        """Return up to `most` bytes of a file."""
        with os.fdopen(self.open(inside, ours=ours), "rb") as file:
            return file.read(most)

    @contextmanager
    def new_file(
        self,
        inside: str,
        mode: int | None = None,
        over: bool = True,
        lasting: bool = True,
        meanwhile: AbstractContextManager[None] | None = None,
    ) -> Iterator[BinaryIO]:
        """Yield a file that is put in place once it is whole and durable; an exception leaves everything unchanged.

        It replaces an existing file, unless `over` is False: then `FileExistsError`. The replacement happens within the
        context `meanwhile`. `mode` are its permissions, by default those of the umask. Without `lasting` it may be
        empty after a power loss, and is faster to write.
        """
        fresh = f".{os.urandom(8).hex()}"  # short, whatever the length of the name
        with self.at(inside) as (folder, name):
            how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                descriptor = os.open(fresh, how, 0o666 if mode is None else mode, dir_fd=folder)
                with os.fdopen(descriptor, "wb") as file:
                    if mode is not None:
                        os.fchmod(descriptor, mode)
                    yield file
                    if lasting:
                        file.flush()
                        os.fsync(descriptor)
                with meanwhile or nullcontext():
                    if over:
                        os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
                    else:
                        os.link(fresh, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                if lasting:
                    _synced(folder)
            finally:
                with suppress(OSError):
                    os.unlink(fresh, dir_fd=folder)

    def write(self, inside: str, data: bytes, mode: int | None = 0o600, lasting: bool = True) -> None:
        """Write a whole file, replacing an existing one."""
        with self.new_file(inside, mode, lasting=lasting) as file:
            file.write(data)

    def move(self, inside: str, to: str) -> None:
        """Rename a file or folder within this folder, atomically; a link itself is moved."""
        with self.at(inside) as (folder, name), self.at(to) as (new_folder, new_name):
            os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=new_folder)

    def remove(self, inside: str, lasting: bool = False) -> bool:
        """Remove a file or a link (never its target); return whether it existed."""
        try:
            with self.at(inside) as (folder, name):
                os.unlink(name, dir_fd=folder)
                if lasting:
                    _synced(folder)
        except FileNotFoundError:
            return False
        return True

    def remove_all(self, inside: str) -> None:
        """Remove a folder and its content, or a file, if it exists; targets of links stay."""
        from shutil import rmtree  # slow to import, and seldom needed

        with suppress(FileNotFoundError), self.at(inside) as (folder, name):
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                rmtree(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)

    def names(self, inside: str = "") -> list[str]:
        """Return the sorted names in it, or in a folder in it."""
        with self._folder(inside) as folder, _readable(folder) as listed:
            return sorted(os.listdir(listed))

    def sync(self, inside: str = "") -> None:
        """Make the names in it, or in a folder in it, durable."""
        with self._folder(inside) as folder:
            _synced(folder)

    @contextmanager
    def _folder(self, inside: str) -> Iterator[int]:
        folder = self._entered(_parts(self.path, inside))
        try:
            yield folder
        finally:
            os.close(folder)

    def _entered(self, parts: list[str]) -> int:
        """Return a descriptor of this folder, or of one in it."""
        path = self.path
        folder = _entered(path, path, None, follow=not self._private)
        try:
            if self._private:
                _check_private(folder, path)
            for part in parts:
                path = os.path.join(path, part)
                above, folder = folder, _entered(path, part, folder)
                os.close(above)
        except OSError:
            os.close(folder)
            raise
        return folder


def new_file(
    place: StrPath, mode: int | None = None, over: bool = True, lasting: bool = True
) -> AbstractContextManager[BinaryIO]:
    """Yield a file that is put in place once it is whole, as `Folder.new_file`."""
    folder, name = os.path.split(os.fspath(place))
    return Folder(folder).new_file(name, mode, over, lasting)


def synced(path: StrPath) -> None:
    """Make the bytes of a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _readable(folder: int) -> Iterator[int]:
    """Yield an entered folder, opened for reading."""
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _synced(folder: int) -> None:
    with _readable(folder) as descriptor:
        os.fsync(descriptor)


def _parts(path: str, inside: str) -> list[str]:
    parts = inside.split("/") if inside else []
    if "\0" in inside or {"", ".", ".."} & set(parts):
        raise OSError(errno.EINVAL, "is no name in a folder", os.path.join(path, inside[:200].replace("\0", "?")))
    return parts


def _missing(path: str) -> list[str]:
    """Return a folder and its parents that are missing."""
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


def _entered(path: str, name: str, above: int | None, follow: bool = False) -> int:
    try:
        return os.open(name, _ENTER | (0 if follow else os.O_NOFOLLOW), dir_fd=above)
    except OSError as error:
        raise OSError(error.errno, _cause(error, name, above), path) from error


def _check_private(folder: int, path: str) -> None:
    about = os.fstat(folder)
    if about.st_uid != os.getuid():
        raise _of_others(about.st_uid, path)
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, "can be written by others: take that right from them", path)


def _of_others(user: int, path: str) -> PermissionError:
    return PermissionError(errno.EPERM, f"belongs to uid {user}: remove it, or use another folder", path)


def _cause(error: OSError, name: str, folder: int | None) -> str:
    """Return why a name cannot be used; systems differ in the error for a link that is not followed."""
    with suppress(OSError):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) and stat.S_ISLNK(found.st_mode):
            return _LINK
    return error.strerror or str(error)
