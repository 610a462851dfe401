"""How much a reader makes of bytes that anybody may have written: so many times what it reads, and no more.

A few bytes can stand for values that fill any memory: `{},` a million times, a text that is joined with itself. Readers
of such forms count what they make, as it will lie in memory, and stop. It needs the standard library only.
"""

import json
from typing import Any

_LEAST = 16 << 20  # bytes that may be made of however few
_MIB = 1 << 20


class Overspent(ValueError):
    """More would be made of some bytes than is; the message continues the name of what is read."""


class Budget:
    """Bytes that may still be made of those that were `read`: so many `times` as many, at `most` so many."""

    __slots__ = ("_cause", "left")

    def __init__(self, read: int, times: int, most: int) -> None:
        self.left = min(_LEAST + times * read, most)
        self._cause = f"would fill more than {self.left // _MIB:,} MiB of memory with its {read:,} bytes"

    def spend(self, made: int) -> None:
        """Count bytes that are made; `Overspent` when they are more than may be."""
        self.left -= made
        if self.left < 0:
            raise Overspent(self._cause)


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
