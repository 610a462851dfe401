"""Who is told how far the patterns of this process are compiled, which takes seconds on a machine that has not done so
yet."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Is told how many parts of the rules are compiled, and of how many that are needed now."""

_told: list[Progress] = []


def watch(progress: Progress) -> None:
    """Tell a function how far it is, in place of any other."""
    _told[:] = [progress]


def tell(done: int, total: int) -> None:
    """Tell whoever watches."""
    for progress in _told:
        progress(done, total)
