"""Axes of charts: positions of values, and round marks."""

import math
from collections.abc import Sequence
from typing import NamedTuple

_PARTS = 3  # of a y axis, about
_TINY = 1e-300  # a span too small for arithmetic
_FINEST = 1e6  # marks of an axis from 0 on, so that neighbours differ
_THOUSANDS, _FINE = 1e6, 1e-6  # numbers written with powers of ten


class Scale(NamedTuple):
    """The span of an axis."""

    least: float
    most: float

    @classmethod
    def over(cls, values: Sequence[float]) -> "Scale":
        """Return the span of the values."""
        return cls(min(values), max(values))

    def share(self, value: float) -> float:
        """Return a value's position between the ends, 0 to 1, or 0.5 for equal ends."""
        if self.most <= self.least:
            return 0.5
        least, most = self.least / 4, self.most / 4  # the span of two floats may overflow
        return min(max((value / 4 - least) / (most - least), 0.0), 1.0) if most > least else 0.5


class Axis(NamedTuple):
    """A y axis: its ends, and the step between its marks."""

    least: float
    most: float
    step: float

    @classmethod
    def over(cls, values: Sequence[float], whole: bool = False) -> "Axis":
        """Return an axis with round marks around the values. It begins at 0, unless the values lie so far from it that
        their differences would not be visible."""
        least, most = min(values), max(values)
        if 0 <= least <= most / 2:
            least = 0.0
        if not _TINY < most - least < 1 / _TINY:
            return cls(least, most, 0.0)
        step = _round_step((most - least) / _PARTS)
        step = max(step, 1.0) if whole else step
        if not max(abs(least), abs(most)) / step < _FINEST:
            return cls(least, most, 0.0)
        return cls(step * math.floor(least / step), step * math.ceil(most / step), step)

    def share(self, value: float) -> float:
        """Return a value's position between the ends, 0 to 1, or 0.5 for equal ends."""
        return Scale(self.least, self.most).share(value)

    @property
    def marks(self) -> list[float]:
        """Return the values at its marks, in ascending order."""
        count = round((self.most - self.least) / self.step) if self.step else 0
        return [self.least + at * self.step for at in range(count + 1)] if count else sorted({self.least, self.most})

    def said(self, mark: float) -> str:
        """Return the label of a mark, with enough digits to differ from the next one."""
        if not self.step or abs(mark) >= _THOUSANDS or self.step < _FINE:
            return f"{mark:.6g}"
        return f"{mark:,.{max(0, -math.floor(math.log10(self.step) + 1e-9))}f}"


def _round_step(size: float) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten >= `size`."""
    power = 10.0 ** math.floor(math.log10(size))
    return next((times * power for times in (1, 2, 5) if times * power >= size), 10 * power)
