"""Which process runs a test of nodes: a keeper per data folder, and a lock per running test."""

import fcntl
import os
import secrets
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from logdoctor.store.nodes.records import StoredTest

_TAKEN_UP = 3600.0
"""Seconds after its start within which an interrupted test is resumed."""


class Keeper:
    """The keeper of the tests of one data folder; thread-safe once open.

    It is identified by an id in the folder, not by the host name, which a pod loses when it is created again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "node-tests"
        self.id = ""

    def open(self) -> None:
        """Read the id of the folder, creating it if there is none."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / "keeper"
        if not path.exists():
            new = self._folder / f"keeper.{secrets.token_hex(8)}"
            new.write_text(secrets.token_hex(16))
            with suppress(FileExistsError):
                os.link(new, path)  # if several processes start at once one wins, and nobody reads a partial id
            new.unlink()
        self.id = path.read_text()

    def is_ours(self, test: StoredTest) -> bool:
        """Return whether a process of this folder began a test."""
        return test.options.get("keeper") == self.id

    def may_go_on(self, test: StoredTest) -> bool:
        """Return whether an interrupted test is recent enough to be resumed."""
        return time.time() - test.at < _TAKEN_UP

    def is_dead(self, test: StoredTest, silent: Collection[int]) -> bool:
        """Return whether no process runs a test any longer: by its lock if it is ours, else by the `silent` ones."""
        if not self.is_ours(test):
            return test.id in silent
        if (lock := self.lock(test.id)) is None:
            return False
        os.close(lock)
        return True

    def lock(self, test: int) -> int | None:
        """Lock a test as run by this process, for `release`; None when another process holds it."""
        descriptor = os.open(self._folder / str(test), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def release(self, test: int, lock: int, ended: bool) -> None:
        """Release a lock; remove its file once the test has ended."""
        if ended:
            with suppress(OSError):
                (self._folder / str(test)).unlink()
        os.close(lock)


def name_of(test: int, keeper: str) -> str:
    """Return the name under which a keeper's test is launched: unique among logdoctors, and only letters and digits,
    which every launcher accepts."""
    return f"t{test}x{keeper[:8]}"
