"""Who may write into a checkpoint folder: the writer that came last.

A restarted trainer must never wait for a dead one, so taking the lease always succeeds, and the former holder can
commit nothing from then on. The order of operations alone ensures that: the new writer first puts its name into the
lease and then deletes every checkpoint without a manifest, so a manifest of the old writer either existed before the
new one looked for the latest checkpoint, or its rename fails because its folder is gone. The lock closes the remaining
gap: between reading the lease and renaming, nobody else takes it.
"""

import errno
import fcntl
import fnmatch
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from logdoctor.checkpoint import folders
from logdoctor.errors import CheckpointFenced
from logdoctor.safe.lasting_files import Folder, synced

LEASE, LOCK = "writer.lease", "writer.lock"
_LARGEST = 64 << 10  # bytes of a lease
_PATIENCE = 10.0  # seconds for a lock that is held for milliseconds; a longer holder was stopped
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_log = logging.getLogger("logdoctor.checkpoint")
_in_process: defaultdict[Path, AbstractContextManager[Any]] = defaultdict(threading.Lock)
"""Locks of folders between threads of this process, which POSIX locks do not separate."""


class Lease:
    """The right to write into a folder; `epoch` counts its writers."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._owner = folder, uuid.uuid4().hex
        self.epoch = 0
        """This writer's epoch; 0 until it took the lease."""
        self.first_attempt = 1
        """Earlier writers, even those not yet aware of being fenced, use only attempts below this."""
        self._least = 0  # the lowest epoch allowed, once the folder can be written

    def take(self) -> None:
        """Become the writer, and delete what earlier ones left unfinished; `OSError` when the folder cannot be used."""
        place = Folder(self._folder)
        place.make(lasting=True)
        with _locked(self._folder):
            written = [each.epoch for each in folders.complete(self._folder)]
            epoch = max(self._least, folders.following([*written, self._read().get("epoch", 0)]))
            self._write(epoch)
            self.epoch = epoch
            found = (folders.parsed(name) for name in folders.names(self._folder))
            attempts = folders.following(each[1] for each in found if each)
            self.first_attempt = max(self.first_attempt, epoch, attempts)
            folders.sweep(self._folder)
            for name in fnmatch.filter(place.names(), f"{LEASE}.*.tmp"):  # of writers killed here
                place.remove(name)
            for name in folders.torn(self._folder):
                if not folders.pinned(self._folder, name, time.time()):
                    folders.delete(self._folder, name)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep others from taking the lease within the block; `CheckpointFenced` when somebody has."""
        with _locked(self._folder):
            found = self._read()
            if found and found["owner"] != self._owner:
                who = f"process {found.get('pid')} on {found.get('host')}"
                raise CheckpointFenced(str(self._folder), f"{who} writes there since {found.get('taken_at')}")
            if not found or self.epoch < self._least:  # deleted by hand, or not written when it rose
                self._write(max(self.epoch, self._least))
                self.epoch = max(self.epoch, self._least)
            yield

    def _read(self) -> dict[str, Any]:
        """Return the content of the lease; {} when it is missing or invalid."""
        with suppress(FileNotFoundError, ValueError, RecursionError):
            found = json.loads(Folder(self._folder).read(LEASE, _LARGEST))
            if isinstance(found, dict) and isinstance(found.get("owner"), str) and type(found.get("epoch")) is int:
                return found
        return {}

    def rise(self, epoch: int, first_attempt: int) -> None:
        """Raise epoch and attempts of later saves to at least these. That holds even if the folder cannot be written
        now: the error is raised, and the next save makes up for it. `CheckpointFenced` as `held`."""
        self._least = max(self._least, epoch)
        self.first_attempt = max(self.first_attempt, first_attempt, epoch)
        if self.epoch:
            with self.held():
                pass

    def _write(self, epoch: int) -> None:
        put(self._folder / LEASE, signature(epoch, self._owner))
        synced(self._folder)


def signature(epoch: int, owner: str) -> bytes:
    """Return what a writer stores about itself."""
    said = {"format": "logdoctor-lease/1", "epoch": epoch, "owner": owner, "host": socket.gethostname()}
    said |= {"pid": os.getpid(), "taken_at": folders.timestamp(time.time())}
    return json.dumps(said).encode() + b"\n"


def put(path: Path, data: bytes, meanwhile: AbstractContextManager[None] | None = None) -> None:
    """Replace a file atomically, renaming it within the context `meanwhile`."""
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with unfinished.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with meanwhile or nullcontext():
            unfinished.rename(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock; go without if locks are unsupported or a stopped process holds it."""
    with _in_process[folder.absolute()]:
        descriptor = Folder(folder).open(LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor, folder)
            yield
        finally:
            os.close(descriptor)  # releases the lock


def _lock(descriptor: int, folder: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return _log.debug("%s has no locks: the lease is kept without", folder)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
        if time.monotonic() > end:
            return _log.warning("a stopped process holds %s: the lease is kept without", folder / LOCK)
        time.sleep(0.02)
