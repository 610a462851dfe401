"""Which checkpoints may be poisoned: by their own loss, by the loss afterwards, or by a known onset."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

import msgspec
import numpy as np

from logdoctor.diagnose.progress import departure
from logdoctor.job.recovery.catalogue.checkpoint import Checkpoint, Found, Onset

_BASE = 40
"""Losses that a jump is measured against; a level that held for as many is not a jump."""
_RECENT, _LEAST = 8, 4  # losses that the newest one is compared with
_ALONE = 0.5  # how far it may exceed the last three, as a share
_UNUSUAL = 4.0  # times the usual change from one loss to the next

Points = Sequence[tuple[int, float]]


def judged(found: Iterable[Found], losses: Points = (), onset: Onset | None = None) -> list[Checkpoint]:
    """Return the checkpoints with their health.

    Each run of the job has its own loss curve, which continues earlier ones from where it began; `losses` (step, loss)
    of a log belong to the newest run.
    """
    every = list(found)
    runs = sorted({one.checkpoint.run or 0 for one in every})
    courses = {run: _course(every, run) for run in runs}
    if losses and runs:
        courses[runs[-1]] |= dict(losses)
    jumps = {run: _jump(sorted(course.items())) for run, course in courses.items()}
    return [_with_health(one.checkpoint, courses, jumps, onset) for one in every]


def _course(every: list[Found], run: int) -> dict[int, float]:
    """Return the losses of a run by step; before its beginning those of earlier runs."""
    mine = [one for one in every if (one.checkpoint.run or 0) == run]
    begin = min((step for one in mine for step, _ in one.losses), default=0)
    course: dict[int, float] = {}
    for one in sorted(every, key=lambda one: (one.checkpoint.run or 0, one.checkpoint.saved_at or 0.0)):
        its = one.checkpoint.run or 0
        if its < run:
            course |= {step: loss for step, loss in one.losses if step < begin}
        elif its == run:
            course |= dict(one.losses)
    return course


def _jump(points: Points) -> tuple[int, str] | None:
    """Return the step from which the loss stays too high, and a description; None without one."""
    points = points[-2 * _BASE :]
    values = np.array([loss for _, loss in points], dtype=np.float64)
    bad = ~np.isfinite(values)
    found = departure(0, np.array([step for step, _ in points], dtype=np.int64), np.where(bad, np.inf, values))
    if found is not None:
        after = sum(step >= found.jump for step, _ in points)
        if after <= _BASE or not math.isfinite(found.peak):
            return found.jump, f"the loss rose from {found.base:.4g} to {_said(found.peak)} at step {found.jump}"
    return _jump_at_the_end(points)


def _jump_at_the_end(points: Points) -> tuple[int, str] | None:
    """Judge the newest loss alone, which nothing confirms yet. It is compared with the last few only, because the loss
    may have been falling before them."""
    before = [loss for _, loss in points[:-1] if math.isfinite(loss)][-_RECENT:]
    if len(before) < _LEAST:
        return None
    step, loss = points[-1]
    base, top = median(before[-3:]), max(before[-3:])
    usual = median(abs(after - ahead) for ahead, after in pairwise(before))
    if not math.isfinite(loss) or (loss > top + _ALONE * abs(top) and loss > base + _UNUSUAL * usual):
        return step, f"the loss is {_said(loss)} at step {step}, after {base:.4g}"
    return None


def _said(loss: float) -> str:
    return f"{loss:.4g}" if math.isfinite(loss) else "NaN" if math.isnan(loss) else "infinite"


def _with_health(
    one: Checkpoint,
    courses: dict[int, dict[int, float]],
    jumps: dict[int, tuple[int, str] | None],
    onset: Onset | None,
) -> Checkpoint:
    loss = one.loss if one.loss is None or math.isfinite(one.loss) else None
    why = one.suspect or (f"its loss is {_said(one.loss)}" if one.loss is not None and loss is None else "")
    jump = jumps.get(one.run or 0)
    if not why and jump is not None and one.step is not None and one.step >= jump[0]:
        why = jump[1]
    if not why and onset is not None:
        why = not_before(one, onset)
    seen = any(one.step is not None and step >= one.step for step in courses.get(one.run or 0, ()))
    health = "suspect" if why else "healthy" if loss is not None or seen else "unknown"
    return msgspec.structs.replace(one, loss=loss, suspect=why, health=health)


def not_before(one: Checkpoint, onset: Onset) -> str:
    """Return why a checkpoint may be affected: saved at or after the onset, or at an unknown step or time."""
    if onset.step is not None and (one.step is None or one.step >= onset.step):
        what = "its step is not known" if one.step is None else f"it is of step {one.step}"
        return f"{what}, and the run went wrong at step {onset.step}"
    if onset.time is not None and (one.saved_at is None or one.saved_at >= onset.time):
        return "it was saved at or after the time when the run went wrong"
    return ""
