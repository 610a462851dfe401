"""A folder of this node that trials share, in which each thing belongs to living processes and goes with the last one.

Things whose names differ only in what follows an `@` have the same owners.

A process that dies of SIGKILL cleans up nothing: so every thing names its owners, by process number and start, and
whoever comes next, or sweeps, removes what has no living one. Owners in another namespace of process numbers (another
container with the same folder) are not seen: they touch their mark while they live, and are gone some time after the
last touch.
"""

import fcntl
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from logdoctor.errors import TrialError

LIVES = 600.0
"""Seconds after the last touch of its mark until an owner that cannot be seen is gone."""
_TOUCH = 60.0
_OWNERS, _THINGS = "owners", "things"


def shared_folder(root: Path) -> Path:
    """Return the folder of trials of this user below a folder such as /dev/shm."""
    return root / f"logdoctor-trials-{os.geteuid()}"


class NodeFolder:
    """The folder. Nothing of it exists while nobody owns anything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Have the folder to oneself, among the processes of this node. What has no living owner is removed before and
        after; at last, the folder itself. `TrialError` when it belongs to somebody else or cannot be made."""
        handle = self._lock()
        try:
            self._sweep()
            yield
        finally:
            self._sweep()
            for path in (self.folder / _OWNERS, self.folder / _THINGS, self.folder):
                with suppress(OSError):
                    path.rmdir()
            os.close(handle)

    def thing(self, name: str) -> Path:
        """Return where a thing is, or would be."""
        return self.folder / _THINGS / name

    def named(self, ending: str) -> list[str]:
        """Return what comes before an ending in the names of things."""
        return [path.name.removesuffix(ending) for path in _listed(self.folder / _THINGS) if path.name.endswith(ending)]

    def own(self, name: str) -> "Owned":
        """Own a thing until `Owned.release`; to be called while locked, before the thing is made."""
        owners = self.folder / _OWNERS / name
        owners.mkdir(parents=True, exist_ok=True)
        mark = owners / f"{_namespace()}-{os.getpid()}-{_start_of(os.getpid())}-{secrets.token_hex(4)}"
        mark.touch()
        (self.folder / _THINGS).mkdir(exist_ok=True)
        return Owned(self, self.thing(name), mark)

    def sweep(self) -> None:
        """Remove what has no living owner; nothing is made for it."""
        if self.folder.exists():
            with self.locked():
                pass

    def _lock(self) -> int:
        while True:
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # its last owner removed it just now
            except OSError as error:
                step = "Remove it, or give another folder in `cache`."
                raise TrialError(str(self.folder), f"cannot be used ({error.strerror})", step) from error
            found = os.fstat(handle)
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
                os.close(handle)
                raise TrialError(
                    str(self.folder), "can be written by other users", "Remove it, and find out who made it."
                )
            fcntl.flock(handle, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.stat(self.folder).st_ino == found.st_ino:
                    return handle
            os.close(handle)

    def _sweep(self) -> None:
        owned = set()
        for owners in _listed(self.folder / _OWNERS):
            for mark in _listed(owners):
                if not _lives(mark):
                    with suppress(OSError):
                        mark.unlink()
            try:
                owners.rmdir()
            except OSError:
                owned.add(owners.name)
        for thing in _listed(self.folder / _THINGS):
            if thing.name.partition("@")[0] not in owned:
                _remove(thing)


class Owned:
    """The right to a thing of a node's folder; it ends with this process at the latest."""

    def __init__(self, folder: NodeFolder, path: Path, mark: Path) -> None:
        self.path = path
        self._folder, self._mark = folder, mark
        self._ended = threading.Event()
        threading.Thread(target=self._touch, name="logdoctor-owner", daemon=True).start()

    def release(self) -> None:
        """Give it up; it is removed when it was the last owner's."""
        with self._folder.locked():
            self.disown()

    def disown(self) -> None:
        """Give it up while the folder is locked."""
        self._ended.set()
        self._mark.unlink(missing_ok=True)

    def _touch(self) -> None:
        while not self._ended.wait(_TOUCH):
            with suppress(OSError):
                os.utime(self._mark)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _lives(mark: Path) -> bool:
    """Return whether the owner that a mark names is alive, as far as can be seen."""
    try:
        namespace, pid, start, _ = mark.name.split("-")
        if namespace == _namespace():
            return _start_of(int(pid)) == start
        return time.time() - mark.stat().st_mtime < LIVES
    except (OSError, ValueError):
        return False


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def _start_of(pid: int) -> str:
    """Return when a process was started, in ticks of the clock since the boot; "" of one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
