"""The precursor of a trial: copies a checkpoint once from storage into a node's memory, for all its workers.

Files are stored under the digest of their content, in /dev/shm, where readers map them; without room there (containers
have 64 MB), in a folder on a disk of the node, which the kernel caches as well as it can.
"""

import errno
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from logdoctor.errors import TrialError
from logdoctor.trials.node_folder import NodeFolder, Owned, shared_folder

MEMORY = Path("/dev/shm")
_BLOCK = 8 << 20
_SPARE = 0.05  # share of a file system that stays free
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)


class Held(NamedTuple):
    """A checkpoint on this node: the `path` for a harness, the `digest` of its content, the `seconds` it took to get
    here, and whether this process `copied` it."""

    path: Path
    digest: str
    seconds: float
    copied: bool
    owned: Owned

    def release(self) -> None:
        """Release it; the last owner on this node removes it."""
        self.owned.release()


class _File(NamedTuple):
    name: str
    size: int
    written: int


def hold(source: Path, roots: Sequence[Path]) -> Held:
    """Hold a checkpoint (file or folder) on this node until `Held.release`. It is in the first of the `roots` that has
    it or has room. Only the first process of a node copies; others wait. `TrialError` when it cannot be read,
    changes meanwhile, or fits nowhere."""
    begun = time.monotonic()
    files = _files(source)
    key, size = _key(source, files), sum(file.size for file in files)
    lacking = []
    for root in [root for root in roots if shared_folder(root).exists()]:
        folder = NodeFolder(shared_folder(root))
        with folder.locked():
            if (found := _found(folder, key)) is not None:
                return _held(source, found, begun, False)
    for root in roots:
        folder = NodeFolder(shared_folder(root))
        with folder.locked():
            if (found := _found(folder, key)) is not None:
                return _held(source, found, begun, False)
            if size > (room := _room(root)):
                lacking.append(f"{root} has {room / 1e9:.2f} GB")
            elif (made := _copied(folder, key, source, files)) is not None:
                return _held(source, made, begun, True)
            else:
                lacking.append(f"{root} became full")
    cause = f"has no room on this node: {size / 1e9:.2f} GB are needed, {', '.join(lacking)}"
    raise TrialError(str(source), cause, "Name a folder with room in `cache`, or set `share_model: false`.")


def _held(source: Path, owned: Owned, begun: float, copied: bool) -> Held:
    path = owned.path if source.is_dir() else owned.path / source.name
    return Held(path, owned.path.name, time.monotonic() - begun, copied, owned)


def _files(source: Path) -> list[_File]:
    """Return the files of a checkpoint, including links to files; other links, devices and the like are refused."""
    try:
        if not source.is_dir():
            return [_file(source, source.name)]
        found = []
        for root, folders, names in os.walk(source, onerror=_raise):
            folders.sort()
            for name in folders:
                if os.path.islink(os.path.join(root, name)):
                    raise TrialError(os.path.join(root, name), "is a link to a folder", "Name the folder itself.")
            found += [
                _file(path, str(path.relative_to(source))) for name in sorted(names) if (path := Path(root, name))
            ]
    except OSError as error:
        raise _unreadable(source, error) from error
    if not found:
        raise TrialError(str(source), "holds no files", "Name a checkpoint.")
    return found


def _raise(error: OSError) -> None:
    raise error


def _file(path: Path, name: str) -> _File:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise TrialError(str(path), "is no file", "Take it out of the checkpoint.")
    return _File(name, found.st_size, found.st_mtime_ns)


def _key(source: Path, files: Sequence[_File]) -> str:
    """Return a key that identifies a checkpoint without reading it."""
    said = "\0".join([os.path.realpath(source), *(f"{file.name}\0{file.size}\0{file.written}" for file in files)])
    return hashlib.blake2b(os.fsencode(said), digest_size=16).hexdigest()


def _found(folder: NodeFolder, key: str) -> Owned | None:
    """Return ownership of a checkpoint that is there already; None if it is not."""
    for digest in folder.named(f"@{key}"):
        if folder.thing(digest).is_dir():
            return folder.own(digest)
    return None


def _room(root: Path) -> int:
    """Return the free bytes of a folder; 0 if it does not exist. Files in memory take it from others."""
    try:
        found = os.statvfs(root)
    except OSError:
        return 0
    room = int(found.f_bavail * found.f_frsize - _SPARE * found.f_blocks * found.f_frsize)
    return max(min(room, _memory()) if root == MEMORY else room, 0)


def _memory() -> int:
    """Return the bytes of memory that are free or reclaimable on this machine."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _copied(folder: NodeFolder, key: str, source: Path, files: Sequence[_File]) -> Owned | None:
    """Copy the checkpoint and own the copy; None when it did not fit. It becomes visible once complete."""
    part = folder.own(f"part-{secrets.token_hex(8)}")
    try:
        digest = _copy(source, part.path, files)
        if _files(source) != list(files):
            raise TrialError(str(source), "was changed while it was copied", "Evaluate it once it is written.")
        owned = folder.own(digest)
        if not owned.path.exists():  # else the same content was saved in two places
            part.path.rename(owned.path)
        folder.thing(f"{digest}@{key}").touch()
        return owned
    except OSError as error:
        if error.errno not in _FULL:
            raise _unreadable(source, error) from error
        return None
    finally:
        part.disown()


def _copy(source: Path, target: Path, files: Sequence[_File]) -> str:
    """Copy files and return the digest of their names and bytes."""
    whole = hashlib.blake2b(digest_size=20)
    for file in files:
        place = target / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        one = hashlib.blake2b(digest_size=20)
        with (source / file.name if source.is_dir() else source).open("rb") as given, place.open("xb") as copy:
            while block := given.read(_BLOCK):
                one.update(block)
                copy.write(block)
        whole.update(os.fsencode(file.name) + b"\0" + one.digest())
    return whole.hexdigest()


def _unreadable(source: Path, error: OSError) -> TrialError:
    return TrialError(str(error.filename or source), f"cannot be copied ({error.strerror})", "Check the path.")
