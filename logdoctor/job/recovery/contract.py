"""Exit codes that tell a scheduler what to do with a supervised job, and the variables set for the job."""

from logdoctor.job.recovery.judged import Judged

DONE = 0
RESTART = 91
"""Restart it, on the same nodes or others."""
RESTART_ELSEWHERE = 92
"""Restart it without the named nodes."""
FIX_FIRST = 93
"""A restart would fail again: somebody must change the program, its data or its settings."""
ASK = 94
"""The cause is unknown or in doubt, or restarts did not help: a person decides."""
HELD = 95
"""Another supervisor has this job: nothing was started."""

RESUME = "LOGDOCTOR_RESUME"
"""The checkpoint to load. Unset when the program is to choose."""
SKIP = "LOGDOCTOR_SKIP_BATCHES"
"""The global batches to skip, such as `1-200,300-320`, both ends included."""
ATTEMPT_KEY = "LOGDOCTOR_ATTEMPT_KEY"
"""The key of the attempt, for other senders of the same attempt (`logdoctor run` below `srun`)."""
DONE_FILE = "LOGDOCTOR_DONE_FILE"
"""The file that the program may create to say that training is complete."""
STACKS_DIR = "LOGDOCTOR_STACKS_DIR"
"""The folder where ranks leave stacks and flight recorders. Unset unless a supervisor asks for them."""

_CODES = {
    "restart": RESTART,
    "rollback_and_skip": RESTART,
    "isolate_and_restart": RESTART_ELSEWHERE,
    "fix_first": FIX_FIRST,
    "ask_human": ASK,
    "none": ASK,
}


def exit_code(verdict: Judged, doubt: float = 0.0) -> int:
    """Return the exit code for a verdict; one with less confidence than `doubt` is left to a person."""
    if verdict.outcome in ("completed", "recovered"):
        return DONE
    if verdict.outcome != "failed" or verdict.is_unknown or verdict.is_doubtful(doubt):
        return ASK
    return _CODES[verdict.recovery]
