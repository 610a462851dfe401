"""Reports the progress of compiling patterns, which takes seconds on a machine without a cache."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with the number of compiled parts, and of parts needed now."""

_told: list[Progress] = []


def watch(progress: Progress) -> None:
    """Report progress to a function, replacing any other."""
    _told[:] = [progress]


def tell(done: int, total: int) -> None:
    """Report progress to the watcher, if any."""
    for progress in _told:
        progress(done, total)
