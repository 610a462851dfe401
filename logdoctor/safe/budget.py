"""Expansion limits for readers of untrusted bytes: memory in proportion to what they read.

A few bytes can stand for values that fill any memory: `{},` a million times, a text joined with itself. Readers of such
formats count what they create, as it will lie in memory, and stop. Standard library only.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_OF_EACH = 16 << 10  # bytes always allowed, however short the input
_SPARE = 16 << 20  # bytes allowed beyond proportion
_AT_ONCE = 64 << 10
_MIB = 1 << 20


class Overspent(ValueError):
    """A reader would create too much from its input; the message continues the input's name."""


class _Spare:
    """Bytes allowed to readers that need more than their proportion."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _SPARE


_shared: ContextVar[_Spare | None] = ContextVar("shared", default=None)


@contextmanager
def sharing() -> Iterator[None]:
    """Share one spare allowance among all reads inside: a folder may hold any number of small files. Input within its
    proportion needs none, whatever was read before."""
    former = _shared.set(_Spare())
    try:
        yield
    finally:
        _shared.reset(former)


class Budget:
    """Bytes that may still be created from `read` bytes: `times` as many, at most `most`, plus spare ones."""

    __slots__ = ("_most", "_own", "_read", "_spare")

    def __init__(self, read: int, times: int, most: int) -> None:
        self._read, self._spare = read, _shared.get() or _Spare()
        self._own = self._most = min(_OF_EACH + times * read, most)

    @property
    def left(self) -> int:
        """Return how many bytes may still be created."""
        return self._own + self._spare.left

    def spend(self, made: int) -> None:
        """Count created bytes; `Overspent` when they exceed the budget."""
        self._own -= made
        if self._own < 0:
            self._take()

    def _take(self) -> None:
        """Take from the spare bytes; `Overspent` when they do not suffice."""
        taken = min(max(_AT_ONCE, -self._own), self._spare.left)
        self._spare.left -= taken
        self._most += taken
        self._own += taken
        if self._own < 0:
            size = f"{self._most // _MIB:,} MiB" if self._most >= _MIB else f"{self._most >> 10} KiB"
            raise Overspent(f"would fill more than {size} of memory with its {self._read:,} bytes")


_TIMES, _MOST = 32, 256 << 20
_COSTS = {b"{": 250, b"[": 100, b",": 64}
"""Most bytes of memory per mark, with the value that follows; texts also take their length."""


def json_of(data: bytes) -> Any:
    """Parse JSON, NaN allowed; `ValueError` when it is invalid or nested too deeply, `Overspent` when it holds too many
    values for its length."""
    length = len(data) if data.isascii() else 4 * len(data)
    Budget(len(data), _TIMES, _MOST).spend(length + sum(cost * data.count(mark) for mark, cost in _COSTS.items()))
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
