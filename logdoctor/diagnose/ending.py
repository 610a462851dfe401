"""Compare the end that a scheduler, launcher or sender reports with what the log says.

How a job ended and why are two questions: an unknown log is not a failure, and a reported failure needs no line in the
log.
"""

import signal
from typing import NamedTuple

import msgspec

from logdoctor import taxonomy
from logdoctor.diagnose.ends import of_report
from logdoctor.types import Verdict

_STOPPED = {"CANCELLED", "PREEMPTED", "TIMEOUT", "DEADLINE", "REVOKED", "SUSPENDED", "REQUEUED", "STOPPED"}
_FAILED = {"FAILED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "LAUNCH_FAILED", "RECONFIG_FAIL"}
"""Slurm's job state codes (squeue): of jobs that were stopped from outside, and of those that failed."""
_REASONS = {"OUT_OF_MEMORY": "Out of Memory Error", "NODE_FAIL": "Node Failure", "BOOT_FAIL": "Node Failure"}
_ALIVE = ("running", "completed", "recovered", "unknown")


class ReportedEnd(NamedTuple):
    """The end of an attempt as a sender, launcher or scheduler reports it. None and "" stand for no report.

    `died` is set when the process, or a part of it, is known to have failed, however it ended.
    """

    exit_code: int | None = None
    signal: int | None = None
    state: str | None = None
    died: bool = False

    @property
    def contradicts_itself(self) -> bool:
        """Whether it reports both a failure and a success."""
        return self.died and self.exit_code == 0

    @property
    def stopped(self) -> bool:
        """Whether the job was stopped from outside."""
        return self._state in _STOPPED

    @property
    def reason(self) -> str:
        """The reason that the scheduler's state names, else ""."""
        return _REASONS.get(self._state, "")

    @property
    def failed(self) -> bool:
        """Whether the job is known to have failed."""
        return bool(self.died or self.exit_code or self.signal or self._state in _FAILED)

    @property
    def was_killed(self) -> bool:
        """Whether the job's command is known to have died of SIGKILL."""
        return signal.SIGKILL in (self.signal, (self.exit_code or 0) - 128)

    @property
    def succeeded(self) -> bool:
        """Whether the job is known to have ended well."""
        return not self.failed and not self.stopped and (self.exit_code == 0 or self._state == "COMPLETED")

    @property
    def _state(self) -> str:
        return (self.state or "").split(" ")[0].rstrip("+").upper()


NOTHING = ReportedEnd()
"""A log without a reported end."""
FAILED = ReportedEnd(died=True)
"""An attempt that is known to have failed, however it ended."""


_LOOK = "Look at the end of the log, and at what the scheduler and the kernel of its nodes logged at that time."
_SILENT = {"empty": "its log is empty", "binary": "what was given is no log: it is binary, not text"}
"""How the log of a failure is described when it has no lines to read."""


def with_ending(verdict: Verdict, reported: ReportedEnd) -> Verdict:
    """Return the verdict updated with the reported end; a failure in the log is kept.

    A process that failed silently is `Unknown`: its exit code is not a line that could be quoted (law 3). One that
    ended with exit code 0 did not fail for an unknown reason.
    """
    if reported.succeeded:
        return _ended_well(verdict, reported)
    if verdict.outcome not in _ALIVE:
        return verdict
    if reported.stopped:
        why = f"The scheduler reports {reported.state}, and the log shows no error."
        return _unsuspicious(verdict, "cancelled", why)
    return _died_silently(verdict, reported) if reported.failed else verdict


def _ended_well(verdict: Verdict, reported: ReportedEnd) -> Verdict:
    how = "exit code 0" if reported.exit_code == 0 else f"the state {reported.state}"
    if verdict.outcome in ("running", "unknown"):
        return _unsuspicious(verdict, "completed", f"It ended with {how}, without an error in the log.")
    if verdict.outcome == "failed" and verdict.reason == "Unknown":
        return _unsuspicious(verdict, "completed", f"It ended with {how}; the errors in the log did not stop it.")
    return verdict


def _unsuspicious(verdict: Verdict, outcome: str, why: str) -> Verdict:
    """Return the verdict on a job that did not fail."""
    reason = verdict.reason if verdict.outcome == "recovered" else "None"
    return msgspec.structs.replace(
        verdict,
        reason=reason,
        category=verdict.category if reason != "None" else "None",
        outcome=outcome,
        fault="nobody",
        recovery="none",
        confidence=max(verdict.confidence, 0.8),
        suggestion="Nothing to do.",
        suspects=(),
        first_rank=None,
        ranks=(),
        why=why,
        detail="",
    )


def _died_silently(verdict: Verdict, reported: ReportedEnd) -> Verdict:
    unknown = taxonomy.REASONS["Unknown"]
    how = (
        f"signal {reported.signal}"
        if reported.signal
        else f"exit code {reported.exit_code}"
        if reported.exit_code
        else "a failure"
    )
    state = f" ({reported.state})" if reported.state else ""
    end = of_report(reported.exit_code, reported.signal)
    was_training = verdict.progress.step is not None or verdict.progress.loss is not None
    passes = end is not None and (end.number == signal.SIGKILL or (end.is_crash and was_training))
    nature = verdict.decided_by.rule if verdict.decided_by.rule in _SILENT else ""
    return msgspec.structs.replace(
        verdict,
        reason="Unknown",
        category=unknown.category,
        fault=unknown.fault,
        recovery="restart" if passes and not reported.reason else unknown.recovery,
        detail=f"the scheduler reports {reported.state}"
        if reported.reason
        else end.detail
        if end and end.number
        else "",
        outcome="failed",
        confidence=0.0,
        suggestion=verdict.suggestion if nature else _LOOK,
        evidence=(),
        suspects=(),
        first_rank=None,
        ranks=(),
        decided_by=msgspec.structs.replace(
            verdict.decided_by, kind="nobody", rule=nature or ("crash" if end and end.is_crash else "")
        ),
        why=f"It ended with {how}{state}, but {_SILENT.get(nature, 'no log line says why')}.",
    )
