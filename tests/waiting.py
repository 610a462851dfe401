"""Waiting in tests: for a condition, never for a time."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_PATIENCE = 300.0  # seconds on a quiet machine; what is waited for comes within a few, or never


def until(look: Callable[[], T], what: str = "") -> T:
    """Return what `look` gives once that is true.

    Fails the test after 300 seconds, longer on a busy machine, and says what was waited for and what `look` gave last.
    """
    begun = time.monotonic()
    pause = 0.002
    while not (seen := look()):
        waited = time.monotonic() - begun
        if waited > _PATIENCE and waited > _patience():
            raise AssertionError(f"it did not happen in {_patience():.0f} s: {what or look}; last seen: {seen!r}")
        time.sleep(pause)
        pause = min(1.5 * pause, 0.1)
    return seen


def _patience() -> float:
    """Return for how many seconds to wait while the machine is as busy as it is now."""
    return _PATIENCE * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
