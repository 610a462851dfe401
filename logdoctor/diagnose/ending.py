"""What the launcher or scheduler says of the end of an attempt, held against what its log says."""

import msgspec

from logdoctor import taxonomy
from logdoctor.types import Verdict

_STOPPED = {"CANCELLED", "PREEMPTED", "TIMEOUT", "DEADLINE"}
"""States of Slurm (squeue, JOB STATE CODES) of jobs that were ended from outside."""
_ALIVE = ("running", "completed", "recovered")


def with_ending(verdict: Verdict, exit_code: int | None, signal: int | None, state: str | None) -> Verdict:
    """The verdict that also accounts for how the process ended; the log's own report of a failure stands.

    A process that failed without a word is `Unknown`: its exit code is no line that could be quoted (law 3).
    """
    if verdict.outcome not in _ALIVE:
        return verdict
    if (state or "").split(" ")[0].rstrip("+").upper() in _STOPPED:
        why = f"The scheduler reports {state}, and the log no error."
        return msgspec.structs.replace(verdict, outcome="cancelled", why=why)
    if exit_code or signal:
        return _died_silently(verdict, f"signal {signal}" if signal else f"exit code {exit_code}", state)
    if exit_code == 0 and verdict.outcome == "running":
        return msgspec.structs.replace(verdict, outcome="completed", why="It ended with exit code 0, without an error.")
    return verdict


def _died_silently(verdict: Verdict, how: str, state: str | None) -> Verdict:
    unknown = taxonomy.REASONS["Unknown"]
    said = f" ({state})" if state else ""
    return msgspec.structs.replace(
        verdict,
        reason="Unknown",
        category=unknown.category,
        fault=unknown.fault,
        recovery=unknown.recovery,
        outcome="failed",
        confidence=0.0,
        suggestion=unknown.next_step,
        evidence=(),
        suspects=(),
        why=f"It ended with {how}{said}, but no line says why.",
    )
