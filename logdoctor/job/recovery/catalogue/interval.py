"""How often to save: what a save costs against what a failure costs.

J. W. Young, *A first order approximation to the optimum checkpoint interval* (CACM 17(9), 1974); J. T. Daly, *A higher
order estimate of the optimum checkpoint interval for restart dumps* (FGCS 22(3), 2006), equations 20 and 37.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import msgspec

from logdoctor.job.recovery.catalogue import Checkpoint

_DAY = 86_400.0
_LAST = 50  # saves and intervals that are measured, the newest


class Loss(msgspec.Struct, frozen=True):
    """What an interval costs, in seconds of each day of a running job: saves, steps made again and restarts, and all
    of it together."""

    interval: float
    saving: float
    failing: float
    total: float


class Advice(msgspec.Struct, frozen=True):
    """How often to save, and from what it was reckoned; all in seconds. `young` and `daly` are what the two formulas
    give, `best` the loss at Daly's, `present` that at the interval of today, None when that is not known."""

    save: float
    mtbf: float
    restart: float
    young: float
    daly: float
    best: Loss
    present: Loss | None


class Measured(msgspec.Struct, frozen=True):
    """What the checkpoints in a folder tell: the median seconds of a save and of the interval between two, and of how
    many; None when they tell nothing. `steps` are the steps between two."""

    save: float | None
    saves: int
    interval: float | None
    intervals: int
    steps: float | None


def advise(save: float, mtbf: float, present: float | None = None, restart: float = 0.0) -> Advice:
    """Return the interval that loses the least time: `save` is what a save takes from training, `mtbf` the mean time
    between two failures, `restart` from a failure to the first new step."""
    young = math.sqrt(2 * save * mtbf)
    ratio = save / (2 * mtbf)
    daly = young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save if ratio < 1 else mtbf
    now = None if present is None else loss(present, save, mtbf, restart)
    return Advice(save, mtbf, restart, young, daly, loss(daly, save, mtbf, restart), now)


def loss(interval: float, save: float, mtbf: float, restart: float = 0.0) -> Loss:
    """Return what an interval costs each day, when failures come at random (Daly's complete model)."""
    exponent = (interval + save + restart) / mtbf
    if exponent > 700:  # more than a float holds: nothing gets done
        return Loss(interval, 0.0, _DAY, _DAY)
    wall = mtbf * math.exp(restart / mtbf) * math.expm1((interval + save) / mtbf)
    total = _DAY * (1 - interval / wall)
    saving = _DAY * save / wall
    return Loss(interval, saving, total - saving, total)


def measured(checkpoints: Sequence[Checkpoint]) -> Measured:
    """Return what the newest complete checkpoints tell. An interval is one between two of the same run."""
    complete = [one for one in sorted(checkpoints, key=lambda one: one.order) if one.complete]
    saves = [one.seconds for one in complete if one.seconds is not None][-_LAST:]
    pairs = [
        (after.saved_at - before.saved_at, (after.step or 0) - (before.step or 0))
        for before, after in pairwise(complete)
        if before.run == after.run
        and before.saved_at is not None
        and after.saved_at is not None
        and after.saved_at > before.saved_at
    ][-_LAST:]
    return Measured(
        median(saves) if saves else None,
        len(saves),
        median(seconds for seconds, _ in pairs) if pairs else None,
        len(pairs),
        median(steps for _, steps in pairs) if pairs else None,
    )


class Failures(msgspec.Struct, frozen=True):
    """How often a job failed: seconds that its attempts ran in all, how many they were, and how many of them ended in
    a failure after which it can go on."""

    ran: float
    attempts: int
    failures: int

    @property
    def mtbf(self) -> float | None:
        """Return the mean time between failures, in seconds; None when none is known."""
        return self.ran / self.failures if self.failures and self.ran > 0 else None


class Span(msgspec.Struct, frozen=True):
    """How long an attempt ran, in seconds, and whether it ended in a failure after which the job can go on."""

    ran: float
    failed: bool


def counted(spans: Sequence[Span]) -> Failures:
    """Return how often jobs failed whose attempts these are."""
    return Failures(sum(max(span.ran, 0.0) for span in spans), len(spans), sum(span.failed for span in spans))
