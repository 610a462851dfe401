"""How often to save: the cost of a save against the cost of a failure.

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
_LAST = 50  # newest saves and intervals that are measured


class Loss(msgspec.Struct, frozen=True):
    """What an interval costs, in seconds per day of a running job: saves, repeated steps with restarts, their sum."""

    interval: float
    saving: float
    failing: float
    total: float


class Advice(msgspec.Struct, frozen=True):
    """How often to save, and the inputs of the estimate, all in seconds. `young` and `daly` are the intervals of the
    two formulas, `best` the loss at Daly's, `present` the loss at the current interval, None when that is unknown."""

    save: float
    mtbf: float
    restart: float
    young: float
    daly: float
    best: Loss
    present: Loss | None


class Measured(msgspec.Struct, frozen=True):
    """Median seconds of a save and of the interval between two, with their counts; None when unknown. `steps` are the
    median steps between two."""

    save: float | None
    saves: int
    interval: float | None
    intervals: int
    steps: float | None


def advise(save: float, mtbf: float, present: float | None = None, restart: float = 0.0) -> Advice:
    """Return the interval that loses the least time, all in seconds. `save` is the time that a save takes from
    training, `mtbf` the mean time between failures, `restart` the time from a failure to the first new step."""
    young = math.sqrt(2 * save * mtbf)
    ratio = save / (2 * mtbf)
    daly = young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save if ratio < 1 else mtbf
    now = None if present is None else loss(present, save, mtbf, restart)
    return Advice(save, mtbf, restart, young, daly, loss(daly, save, mtbf, restart), now)


def loss(interval: float, save: float, mtbf: float, restart: float = 0.0) -> Loss:
    """Return what an interval costs per day when failures come at random (Daly's complete model)."""
    exponent = (interval + save + restart) / mtbf
    if exponent > 700:  # exceeds a float: nothing gets done
        return Loss(interval, 0.0, _DAY, _DAY)
    wall = mtbf * math.exp(restart / mtbf) * math.expm1((interval + save) / mtbf)
    total = _DAY * (1 - interval / wall)
    saving = _DAY * save / wall
    return Loss(interval, saving, total - saving, total)


def measured(checkpoints: Sequence[Checkpoint]) -> Measured:
    """Measure the newest complete checkpoints; an interval lies between two of the same run."""
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
    """How often a job failed: total seconds run, number of attempts, and those that ended in a recoverable failure."""

    ran: float
    attempts: int
    failures: int

    @property
    def mtbf(self) -> float | None:
        """Return the mean time between failures in seconds; None when unknown."""
        return self.ran / self.failures if self.failures and self.ran > 0 else None


class Span(msgspec.Struct, frozen=True):
    """How long an attempt ran, in seconds, and whether it ended in a recoverable failure."""

    ran: float
    failed: bool


def counted(spans: Sequence[Span]) -> Failures:
    """Return the failure statistics of these attempts."""
    return Failures(sum(max(span.ran, 0.0) for span in spans), len(spans), sum(span.failed for span in spans))
