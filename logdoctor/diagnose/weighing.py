"""Why one error is the cause and others are not, in words."""

from collections.abc import Sequence

from logdoctor import taxonomy
from logdoctor.diagnose.cause import explains
from logdoctor.diagnose.findings import LogFinding
from logdoctor.types import LEARNED

_ROLES = {
    "cause": "names a cause",
    "proximate": "says what failed, not why",
    "cascade": "usually follows from another failure",
    "teardown": "only says that a process ended",
}


def why_not(cause: LogFinding, others: Sequence[LogFinding]) -> str:
    """Return why errors of one reason, at least one, are not the cause."""
    rival = min(others, key=lambda one: (explains(cause, one), taxonomy.ROLES.index(one.role), one.order))
    if rival.reason == cause.reason:
        return "it is the same failure, said again"
    if rival.role in ("cascade", "teardown"):
        return f"it {_ROLES[rival.role]}"
    if rival.reason in cause.explains:
        return f"{cause.reason} leads to it"
    if rival.is_mild:
        return "such a line rarely ends a job"
    if taxonomy.ROLES.index(rival.role) > taxonomy.ROLES.index(cause.role):
        return f"it {_ROLES[rival.role]}; line {cause.line} {_ROLES[cause.role]}"
    if rival.source.startswith(LEARNED) and not cause.source.startswith(LEARNED):
        return "only a learned rule says so"
    if rival.order > cause.order:
        return f"it came later than line {cause.line}, which {_ROLES[cause.role]}, too"
    return "another error of this log explains it"
