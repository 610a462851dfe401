"""Pins a checkpoint in its catalogue while it is evaluated, so that nobody removes it."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from logdoctor.errors import CheckpointError
from logdoctor.job.recovery import catalogue
from logdoctor.job.recovery.catalogue.checkpoint import Checkpoint
from logdoctor.job.recovery.catalogue.pins import pin_of

_LIVES = 900.0  # seconds that a pin holds after its last renewal: longer than any pause of a coordinator
_RENEW = 60.0
_ABOVE = 3  # folders above the model in which a catalogue is searched


class PinnedCheckpoint:
    """The pin, until `release`. Pins of others are left alone; ours replaces them when they end."""

    def __init__(self, path: Path, why: str, say: Callable[[str], None]) -> None:
        """Pin the checkpoint at a path, or the one that contains it; call `say` if that fails."""
        self._by = f"trials {os.uname().nodename} {os.getpid()}"
        self._why, self._say = why, say
        self._ended = threading.Event()
        self._checkpoint = _checkpoint_at(path)
        self._renews: threading.Thread | None = None
        if self._checkpoint is not None and self._pin():
            self._renews = threading.Thread(target=self._renew, name="logdoctor-pin", daemon=True)
            self._renews.start()

    def release(self) -> None:
        """Remove the pin, if it is ours."""
        self._ended.set()
        if self._checkpoint is not None and self._renews is not None:
            self._renews.join()
            with suppress(CheckpointError):
                if self._is_ours():
                    catalogue.unpin(self._checkpoint.folder, self._checkpoint.name)

    def _renew(self) -> None:
        while not self._ended.wait(_RENEW):
            self._pin()

    def _pin(self) -> bool:
        assert self._checkpoint is not None
        try:
            there = pin_of(Path(self._checkpoint.folder), self._checkpoint.name)
            if there is None or there.by == self._by:
                catalogue.pin(self._checkpoint, self._by, self._why, time.time() + _LIVES)
        except CheckpointError as error:
            self._say(f"The checkpoint is not pinned while it is evaluated: {error}")
            return False
        return True

    def _is_ours(self) -> bool:
        assert self._checkpoint is not None
        there = pin_of(Path(self._checkpoint.folder), self._checkpoint.name)
        return there is not None and there.by == self._by


def _checkpoint_at(path: Path) -> Checkpoint | None:
    """Return the catalogue's checkpoint at a path, or the one that contains it; None if there is none."""
    path = Path(os.path.abspath(path))
    for folder in path.parents[:_ABOVE]:
        with suppress(CheckpointError):
            for one in catalogue.read(folder):
                if path == folder / one.name or path.is_relative_to(folder / one.name):
                    return one
    return None
