"""Acts that happen at once, each in a thread of its own."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

T = TypeVar("T")


def at_once(act: Callable[..., T], *given: Iterable[Any]) -> list[T]:
    """Call `act` with the first of each of `given`, with the second of each, ... in threads that begin together.

    Returns what they return, in order; what one raises is raised.
    """
    calls = list(zip(*given, strict=True))
    together = Barrier(len(calls))

    def begin(call: tuple[Any, ...]) -> T:
        together.wait()
        return act(*call)

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(begin, calls))
