"""A checkpoint that is evaluated is pinned in its catalogue, so that nobody removes it meanwhile."""

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

_LIVES = 900.0  # seconds that a pin holds after it was last renewed: longer than any pause of a coordinator
_RENEW = 60.0
_ABOVE = 3  # folders above the model in which a catalogue is looked for


class PinnedCheckpoint:
    """The pin, until `release`. Pins of others are left as they are; ours takes their place when they end."""

    def __init__(self, path: Path, why: str, say: Callable[[str], None]) -> None:
        """Pin the checkpoint that is at a path, or around it; tell `say` where that cannot be done."""
        self._by = f"trials {os.uname().nodename} {os.getpid()}"
        self._why, self._say = why, say
        self._ended = threading.Event()
        self._checkpoint = _checkpoint_at(path)
        self._renews: threading.Thread | None = None
        if self._checkpoint is not None and self._pin():
            self._renews = threading.Thread(target=self._renew, name="logdoctor-pin", daemon=True)
            self._renews.start()

    def release(self) -> None:
        """Take the pin away, if it is ours."""
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
    """Return the checkpoint of a catalogue that is at a path, or that the path leads into; None where there is none."""
    path = Path(os.path.abspath(path))
    for folder in path.parents[:_ABOVE]:
        with suppress(CheckpointError):
            for one in catalogue.read(folder):
                if path == folder / one.name or path.is_relative_to(folder / one.name):
                    return one
    return None
