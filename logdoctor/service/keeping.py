"""Who runs a test of nodes: the keeper, which is a data folder, and a lock for each test that some process runs."""

import fcntl
import os
import secrets
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from logdoctor.store.nodes.records import StoredTest

_TAKEN_UP = 3600.0
"""Seconds after its beginning within which a test that broke off goes on."""


class Keeper:
    """The keeper of the tests of one data folder. Any thread may call, once it is open.

    It is known by an id in the folder, and not by the name of the machine, which a pod loses when it is made anew.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "node-tests"
        self.id = ""

    def open(self) -> None:
        """Read the id of the folder, which is made up when it has none yet."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / "keeper"
        if not path.exists():
            new = self._folder / f"keeper.{secrets.token_hex(8)}"
            new.write_text(secrets.token_hex(16))
            with suppress(FileExistsError):
                os.link(new, path)  # of several processes that begin at once one wins, and nobody reads half of it
            new.unlink()
        self.id = path.read_text()

    def is_ours(self, test: StoredTest) -> bool:
        """Whether a process over this folder began a test."""
        return test.options.get("keeper") == self.id

    def may_go_on(self, test: StoredTest) -> bool:
        """Whether a test that broke off is young enough to be gone on with."""
        return time.time() - test.at < _TAKEN_UP

    def is_dead(self, test: StoredTest, silent: Collection[int]) -> bool:
        """Whether no process runs a test any more: of ours its lock says so; of what others keep, that it is among the
        `silent` ones."""
        if not self.is_ours(test):
            return test.id in silent
        if (lock := self.lock(test.id)) is None:
            return False
        os.close(lock)
        return True

    def lock(self, test: int) -> int | None:
        """A lock that says that this process runs a test, to be given to `release`; None when another holds it."""
        descriptor = os.open(self._folder / str(test), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def release(self, test: int, lock: int, ended: bool) -> None:
        """Let go of a lock; of a test that has ended nothing is left in the folder."""
        if ended:
            with suppress(OSError):
                (self._folder / str(test)).unlink()
        os.close(lock)


def name_of(test: int, keeper: str) -> str:
    """What a test of a keeper is called wherever something of it is launched; no test of another logdoctor is called
    so, and letters and digits alone fit every launcher."""
    return f"t{test}x{keeper[:8]}"
