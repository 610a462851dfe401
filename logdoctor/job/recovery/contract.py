"""The exit codes by which a supervised job tells a scheduler what to do with it, and the variables it is told in.

No shell, signal or common tool uses these codes: they are below 126 and above those of sysexits.h.
"""

from logdoctor.job.recovery.judged import Judged

DONE = 0
RESTART = 91
"""Start it again, on the same nodes or others."""
RESTART_ELSEWHERE = 92
"""Start it again without the nodes that are named."""
FIX_FIRST = 93
"""A restart fails again: somebody has to change the program, its data or its settings."""
ASK = 94
"""The cause is unknown or in doubt, or restarts did not help: a person decides."""
HELD = 95
"""Another supervisor has this job: nothing was started."""

RESUME = "LOGDOCTOR_RESUME"
"""The checkpoint to load. Not set where the program is to choose."""
SKIP = "LOGDOCTOR_SKIP_BATCHES"
"""The global batches to leave out, such as `1-200,300-320`, both ends included."""
ATTEMPT_KEY = "LOGDOCTOR_ATTEMPT_KEY"
"""The key of the attempt, for other senders of the same attempt (`logdoctor run` below `srun`)."""
DONE_FILE = "LOGDOCTOR_DONE_FILE"
"""The file that says that training is complete, once the program has made it."""
STACKS_DIR = "LOGDOCTOR_STACKS_DIR"
"""The folder in which ranks leave their stacks and flight recorders. Not set where a supervisor does not ask for
them."""

_CODES = {
    "restart": RESTART,
    "rollback_and_skip": RESTART,
    "isolate_and_restart": RESTART_ELSEWHERE,
    "fix_first": FIX_FIRST,
    "ask_human": ASK,
    "none": ASK,
}


def exit_code(verdict: Judged, doubt: float = 0.0) -> int:
    """Return the code for a verdict; one that is less sure than `doubt` is for a person to judge."""
    if verdict.outcome in ("completed", "recovered"):
        return DONE
    if verdict.outcome != "failed" or verdict.is_unknown or verdict.is_doubtful(doubt):
        return ASK
    return _CODES[verdict.recovery]
