"""How much a reader makes of bytes that anybody may have written: so many times what it reads, and no more.

A few bytes can stand for values that fill any memory: `{},` a million times, a text that is joined with itself. Readers
of such forms count what they make, as it will lie in memory, and stop. It needs the standard library only.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_OF_EACH = 16 << 10  # bytes that may be made of anything, however short
_SPARE = 16 << 20  # bytes that may be made beside what is in proportion
_AT_ONCE = 64 << 10
_MIB = 1 << 20


class Overspent(ValueError):
    """More would be made of some bytes than is; the message continues the name of what is read."""


class _Spare:
    """Bytes that may be made by who needs more than what is in proportion."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _SPARE


_shared: ContextVar[_Spare | None] = ContextVar("shared", default=None)


@contextmanager
def sharing() -> Iterator[None]:
    """Let all that is read inside share the spare bytes that else each has for itself: a folder may hold any number of
    small files. What stays in proportion needs none, whatever was read before it."""
    former = _shared.set(_Spare())
    try:
        yield
    finally:
        _shared.reset(former)


class Budget:
    """Bytes that may still be made of those that were `read`: so many `times` as many, at `most` so many, and some that
    are spare."""

    __slots__ = ("_most", "_own", "_read", "_spare")

    def __init__(self, read: int, times: int, most: int) -> None:
        self._read, self._spare = read, _shared.get() or _Spare()
        self._own = self._most = min(_OF_EACH + times * read, most)

    @property
    def left(self) -> int:
        """Return how many bytes may be made yet."""
        return self._own + self._spare.left

    def spend(self, made: int) -> None:
        """Count bytes that are made; `Overspent` when they are more than may be."""
        self._own -= made
        if self._own < 0:
            self._take()

    def _take(self) -> None:
        """Take some of what is spare."""
        taken = min(max(_AT_ONCE, -self._own), self._spare.left)
        self._spare.left -= taken
        self._most += taken
        self._own += taken
        if self._own < 0:
            size = f"{self._most // _MIB:,} MiB" if self._most >= _MIB else f"{self._most >> 10} KiB"
            raise Overspent(f"would fill more than {size} of memory with its {self._read:,} bytes")


_TIMES, _MOST = 32, 256 << 20
_COSTS = {b"{": 250, b"[": 100, b",": 64}
"""Bytes of memory that each of these takes at most, with the value behind it; texts take their length, too."""


def json_of(data: bytes) -> Any:
    """Return what stands in JSON, NaN allowed; `ValueError` when it is none or is nested too deeply, `Overspent` when
    it holds more values than is in proportion to its length."""
    length = len(data) if data.isascii() else 4 * len(data)
    Budget(len(data), _TIMES, _MOST).spend(length + sum(cost * data.count(mark) for mark, cost in _COSTS.items()))
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
