"""The run of a job from its supervisor's record, for people without a service."""

import os

from logdoctor.job.recovery.deciding import Attempt
from logdoctor.job.recovery.record import RECORD, Record, attempt_of
from logdoctor.jobs.timeline import Run, RunAttempt, run_of


def recorded_run(states: str, job: str, now: float) -> Run | None:
    """Return the run of a job until now from its record; None without one. `SendError` when it cannot be read."""
    folder = os.path.join(states, job)
    if not os.path.isfile(os.path.join(folder, RECORD)):
        return None
    found: dict[int, RunAttempt] = {}
    for event in Record(folder, job).events():
        number, at = event.get("number"), event.get("at")
        if not isinstance(number, int) or not isinstance(at, int | float):
            continue
        if event["event"] == "started":
            found[number] = RunAttempt(number, at, None, "running", "None", "none")
        elif event["event"] == "ended" and (attempt := attempt_of(event)) is not None:
            found[number] = _ended(attempt, found.get(number), at)
    return run_of(job, [found[number] for number in sorted(found)], now)


def _ended(attempt: Attempt, begun: RunAttempt | None, at: float) -> RunAttempt:
    """Return an attempt whose end was recorded `at` a time. Its command ended before its output was sent and judged."""
    ended = at - attempt.judging - attempt.sending
    started = begun.started if begun else ended - attempt.seconds
    if attempt.judged is None:
        outcome = "cancelled" if attempt.interrupted else "unknown" if attempt.status else "completed"
        return RunAttempt(attempt.number, started, ended, outcome, "None", "none", judged=at)
    said = attempt.judged
    what = said.outcome, said.reason, said.recovery
    return RunAttempt(attempt.number, started, ended, *what, said.first, said.step, at)
