"""When silence becomes a Hang, an end, or a reason to unload an attempt.

- Its loss has gone bad, or good again (`live/losses.py`): it is judged as it runs.
- Nothing came for `quiet` seconds: it is judged as it runs, which gives a provisional verdict.
- It made no step for as long as its pace allows (`live/pace.py`: `least` seconds or more, and `hang` or more while
  too little is known), whatever else was printed: it is judged as a Hang (`idle_seconds` go to `diagnose.decide`, which
  says so unless it finds a cause), and again four times in that time.
- Nothing came for that long and twice `quiet` seconds: it is unloaded, and resumes from its snapshots.
- Nothing came for `abandon` seconds, or, when a part of it has failed, for five times `quiet`: it counts as ended.
- It is settled, and nothing came for `linger` seconds: it is unloaded for good.

A log that has ended shows a Hang by its own times: `diagnose.progress.stall`.
"""

from typing import Literal, NamedTuple

from logdoctor.service.streams import LiveAttempt

_LOOKS = 4  # checks of an attempt without steps during the time that makes a hang
_WAKE = 5  # times the quiet seconds to wait for the rest of an attempt after a part has failed


class Timing(NamedTuple):
    """Seconds before few bytes are compressed, before a silent attempt is judged, before one without steps hangs,
    before a settled one leaves memory, and before a silent one is abandoned; `least` before any hangs."""

    scan: float
    quiet: float
    hang: float
    linger: float
    abandon: float
    least: float


Step = Literal["wait", "forget", "judge", "abandon", "look", "unload"]
"""What to do with an attempt: nothing, drop it, judge it for good, mark it as ended, judge it as it runs, or keep its
snapshots and drop it until more comes."""


def step(attempt: LiveAttempt, timing: Timing, now: float) -> Step:
    """Return what to do with an attempt now; the caller holds the lock of `Holding`."""
    if attempt.asked:
        return "wait"
    if attempt.settled:
        return "forget" if now - attempt.changed_at > timing.linger else "wait"
    if attempt.over:
        return "judge"
    if now - max(attempt.changed_at, attempt.told_at) > end_patience(attempt, timing):
        return "abandon"
    patience = max(timing.hang, _patience(attempt, timing))
    gone = now - attempt.changed_at - 2 * timing.quiet > patience
    if gone and attempt.looked_at - attempt.changed_at > patience:  # it was judged as a hang
        return "unload"
    if _wants_a_look(attempt, timing, now):
        return "look"
    return "unload" if gone else "wait"


def idle_seconds(attempt: LiveAttempt, timing: Timing, now: float) -> float | None:
    """Return the seconds without a step if the attempt hangs; else None.

    What waits for compression may hold a step, so only the time before it arrived counts.
    """
    streams = list(attempt.streams.values())
    last = max((stream.progress_at for stream in streams), default=now)
    known = min([now, *(stream.waiting_since for stream in streams if stream.waiting_since is not None)])
    if known - last <= min(timing.least, timing.hang):
        return None
    return known - last if known - last > _patience(attempt, timing) else None


def _patience(attempt: LiveAttempt, timing: Timing) -> float:
    return attempt.pace.patience(min(timing.least, timing.hang), timing.hang)


def end_patience(attempt: LiveAttempt, timing: Timing) -> float:
    """Return the seconds of silence after which an attempt counts as ended: few once a part of it has failed, as the
    rest may have died silently."""
    return min(_WAKE * timing.quiet, timing.abandon) if attempt.died else timing.abandon


def _wants_a_look(attempt: LiveAttempt, timing: Timing, now: float) -> bool:
    """Return whether a running attempt must be judged: silent since, without steps, or its loss turned."""
    if not attempt.streams or not all(stream.ready for stream in attempt.streams.values()):
        return False
    if attempt.loss_turned:
        return True
    if attempt.looked_at <= attempt.changed_at:
        since = attempt.looked_at if attempt.provisional else attempt.changed_at
        if now - since > timing.quiet:
            return True
    if idle_seconds(attempt, timing, now) is None:
        return False
    return now - attempt.looked_at > _patience(attempt, timing) / _LOOKS
