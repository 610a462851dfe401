"""A folder of this node that trials share; each thing in it is owned by processes and goes with the last one.

Things whose names differ only in what follows an `@` have the same owners.

A process that dies of SIGKILL cleans up nothing: so every thing names its owners, by process id and start time, and the
next process, or a sweep, removes those without a living one. Owners in another PID namespace (another container with
the same folder) cannot be seen: they touch their mark while they live, and count as dead some time after the last
touch.
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
"""Seconds after the last touch of its mark before an invisible owner counts as dead."""
_TOUCH = 60.0
_OWNERS, _THINGS = "owners", "things"


def shared_folder(root: Path) -> Path:
    """Return this user's folder of trials below a folder such as /dev/shm."""
    return root / f"logdoctor-trials-{os.geteuid()}"


class NodeFolder:
    """The folder. It does not exist while nobody owns anything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other processes of this node. Before and after, things without a living owner are
        removed; in the end, the empty folder too. `TrialError` when it belongs to another user or cannot be made."""
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
        """Return the path of a thing, existing or not."""
        return self.folder / _THINGS / name

    def named(self, ending: str) -> list[str]:
        """Return the names of things with an ending, without it."""
        return [path.name.removesuffix(ending) for path in _listed(self.folder / _THINGS) if path.name.endswith(ending)]

    def own(self, name: str) -> "Owned":
        """Own a thing until `Owned.release`; call it while locked, before the thing is made."""
        owners = self.folder / _OWNERS / name
        owners.mkdir(parents=True, exist_ok=True)
        mark = owners / f"{_namespace()}-{os.getpid()}-{_start_of(os.getpid())}-{secrets.token_hex(4)}"
        mark.touch()
        (self.folder / _THINGS).mkdir(exist_ok=True)
        return Owned(self, self.thing(name), mark)

    def sweep(self) -> None:
        """Remove things without a living owner; creates nothing."""
        if self.folder.exists():
            with self.locked():
                pass

    def _lock(self) -> int:
        while True:
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # its last owner has just removed it
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
    """Ownership of a thing in a node's folder; it ends with this process at the latest."""

    def __init__(self, folder: NodeFolder, path: Path, mark: Path) -> None:
        self.path = path
        self._folder, self._mark = folder, mark
        self._ended = threading.Event()
        threading.Thread(target=self._touch, name="logdoctor-owner", daemon=True).start()

    def release(self) -> None:
        """Release it; the last owner removes the thing."""
        with self._folder.locked():
            self.disown()

    def disown(self) -> None:
        """Release it while the folder is locked."""
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
    """Return whether the owner named by a mark is alive, as far as visible."""
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
    """Return a process's start time in clock ticks since boot; "" if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
