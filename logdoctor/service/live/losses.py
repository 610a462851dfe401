"""Whether the loss of a running stream is bad, checked with each segment on the last metric lines.

The verdict itself is made by `diagnose.progress.spike`, which sees the whole log; this only says when to look.
"""

import numpy as np
import numpy.typing as npt

from logdoctor.compress.progress import RECENT, Meter
from logdoctor.diagnose.progress import LASTING, departure
from logdoctor.types import Readings

_BACK = 3  # the last losses, which must be low again

Floats = npt.NDArray[np.float64]


class Losses:
    """The last losses of one stream, by the rule that read them."""

    def __init__(self) -> None:
        self._last: dict[int, Readings] = {}
        self._base: dict[int, float] = {}  # base lines of the bad ones, from before
        self._said = 0  # consecutive lines whose loss is not a number

    @property
    def is_bad(self) -> bool:
        """Whether one of them has left its base line and not come back."""
        return bool(self._base) or self._said >= LASTING

    def add(self, meter: Meter) -> bool:
        """Add the losses of the next segment; return whether `is_bad` has changed."""
        before = self.is_bad
        for number in meter.readings.keys() | meter.recent.keys():
            self._take(number, meter)
        self._said += meter.bad
        return self.is_bad != before

    def _take(self, number: int, meter: Meter) -> None:
        """Add what one rule read."""
        parts = [meter.readings[number]] if number in meter.readings else []
        parts += [meter.recent[number].readings] if number in meter.recent else []
        new = [part.at(~np.isnan(part.losses)) for part in parts]
        if not sum(len(part.lines) for part in new):
            return
        if any(np.isfinite(part.losses).any() for part in new):
            self._said = 0
        every = _in_order([self._last[number], *new] if number in self._last else new)
        if number not in self._base:
            if (base := _left(every)) is not None:
                self._base[number] = base
        elif float(np.median(every.losses[-_BACK:])) <= 2 * self._base[number]:
            del self._base[number]
        self._last[number] = every.at(slice(-RECENT, None))


def _in_order(parts: list[Readings]) -> Readings:
    lines = np.concatenate([part.lines for part in parts])
    columns = (np.concatenate([part[place] for part in parts]) for place in (1, 2, 3))
    return Readings(lines, *columns).at(np.argsort(lines, kind="stable"))


def _left(every: Readings) -> float | None:
    """Return the base line that losses have left for good; None when they have not."""
    losses = every.losses
    if len(losses) <= LASTING or float(losses[-LASTING:].min()) <= float(losses[:-LASTING].min()):
        return None
    found = departure(0, every.lines, losses)
    return found.base if found is not None and found.is_lasting else None
