"""The run of a job as a timeline: its attempts in order, and lost time.

Time is lost in four ways: until a verdict is published (detection), from then until the next attempt began (restart),
in steps repeated because the next attempt began before them (lost steps), and by people who fixed something in between,
which counts as restart here, because a log does not show it.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from logdoctor.types import Point, Verdict


class RunAttempt(msgspec.Struct, frozen=True):
    """One attempt of a run. Times are seconds since the epoch, spans are seconds; None means unknown.

    `first_step` and `last_step` are read from its log. `lost_steps` are those that the next attempt repeated,
    `lost_seconds` the time that they took here, `detection` is from its end until its verdict, `restart` from its end
    until the next attempt began, without the detection. `verdict` is the id of its verdict.
    """

    number: int
    started: float | None
    ended: float | None
    outcome: str
    reason: str
    recovery: str
    first_step: int | None = None
    last_step: int | None = None
    judged: float | None = None
    verdict: int | None = None
    lost_steps: int | None = None
    lost_seconds: float | None = None
    detection: float | None = None
    restart: float | None = None


class Run(msgspec.Struct, frozen=True):
    """The run of a job until now. Spans are seconds.

    `wall` is from the start of the first attempt to the end of the last one, or to now while that runs. `effective` is
    the share of it spent on steps that were not lost: the start-up of an attempt counts as effective, because a log
    does not tell it apart. It is an upper bound while the last attempt is one that failed: what that lost shows when
    another begins.
    None while there is no attempt with a start, the only one failed, or the time that was lost is not known.
    """

    job: str
    attempts: list[RunAttempt]
    wall: float | None
    detection: float
    restart: float
    lost: float
    lost_steps: int
    effective: float | None


class Judgement(NamedTuple):
    """The current verdict on an attempt: its id, when it was published, and its content."""

    id: int
    at: float
    verdict: Verdict


def attempt_of(number: int, started: float | None, ended: float | None, said: Judgement | None) -> RunAttempt:
    """Return one attempt without its losses, which depend on the next one."""
    if said is None:
        return RunAttempt(number, started, ended, "running" if ended is None else "unknown", "None", "none")
    verdict, last = said.verdict, said.verdict.progress.step
    first = min(_steps(verdict.progress.curve), default=None)
    what = verdict.outcome, verdict.reason, verdict.recovery
    return RunAttempt(number, started, ended, *what, first, last, said.at, said.id)


def run_of(job: str, attempts: Sequence[RunAttempt], now: float) -> Run:
    """Return the run that consists of attempts in order."""
    whole = [_with_losses(one, after) for one, after in zip_longest(attempts, attempts[1:])]
    begun = [one.started for one in whole if one.started is not None]
    wall = None
    if begun:
        wall = max(_end(whole[-1], now) - min(begun), 0.0)
    lost = sum(one.lost_seconds or 0.0 for one in whole)
    detection, restart = (sum(getattr(one, name) or 0.0 for one in whole) for name in ("detection", "restart"))
    unknown = [one for one in whole if one.lost_steps and one.lost_seconds is None]
    if len(whole) == 1 and whole[0].outcome == "failed":
        unknown = whole
    effective = max(1 - (lost + detection + restart) / wall, 0.0) if wall and not unknown else None
    return Run(job, whole, wall, detection, restart, lost, sum(one.lost_steps or 0 for one in whole), effective)


def _with_losses(one: RunAttempt, after: RunAttempt | None) -> RunAttempt:
    """Return an attempt with the losses up to the next one."""
    if after is None:
        return one
    between = _span(one.ended, after.started)
    detection = _span(one.ended, one.judged)
    if between is not None and detection is not None:
        detection = min(detection, between)
    restart = None if between is None else between - (detection or 0.0)
    steps, seconds = _lost(one, after)
    return msgspec.structs.replace(
        one, lost_steps=steps, lost_seconds=seconds, detection=None if between is None else detection, restart=restart
    )


def _lost(one: RunAttempt, after: RunAttempt) -> tuple[int | None, float | None]:
    """Return how many steps the next attempt repeated, and the seconds that they took."""
    if one.last_step is None or after.first_step is None:
        return None, None
    steps = max(one.last_step - after.first_step + 1, 0)
    seconds = _span(one.started, one.ended)
    if not steps or seconds is None or one.first_step is None:
        return steps, None if steps else 0.0
    made = max(one.last_step - one.first_step + 1, 1)
    return steps, seconds * min(steps / made, 1.0)


def _span(begin: float | None, end: float | None) -> float | None:
    """Return the seconds between two times, 0 where clocks disagree; None where one is unknown."""
    return None if begin is None or end is None else max(end - begin, 0.0)


def _end(last: RunAttempt, now: float) -> float:
    if last.ended is not None:
        return last.ended
    return now if last.outcome == "running" or last.judged is None else last.judged


def _steps(curve: Sequence[Point]) -> list[int]:
    return [point.step for point in curve if point.step is not None]
