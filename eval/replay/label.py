"""What a failure is, whatever its log looks like this time."""

import random
from typing import NamedTuple, Protocol

from eval.labels import FailureCase
from logdoctor import taxonomy


class FailureLabel(NamedTuple):
    """The truth about a kind of failure; what else is acceptable is in the fields that end in `also`."""

    reason: str
    recovery: str
    user_fault: bool
    reason_also: tuple[str, ...] = ()
    recovery_also: tuple[str, ...] = ()

    @property
    def categories(self) -> set[str]:
        """The categories of the reasons that may be said."""
        return {taxonomy.REASONS[reason].category for reason in (self.reason, *self.reason_also)}

    @property
    def recoveries(self) -> tuple[str, ...]:
        """The recoveries that are right."""
        return (self.recovery, *self.recovery_also)

    @property
    def fault(self) -> str:
        """Whose fault it is, in the words of the taxonomy."""
        usual = taxonomy.REASONS[self.reason].fault
        return "user" if self.user_fault else usual if usual != "user" else "infrastructure"


def label_of(case: FailureCase) -> FailureLabel:
    """Return the label of a log of the corpus."""
    return FailureLabel(case.reason, case.recovery, case.user_fault, case.also_acceptable, case.recovery_also)


class ReplayLog(NamedTuple):
    """A log, and the numbers of its lines that prove the label."""

    data: bytes
    evidence: tuple[int, ...]


class FailureKind(Protocol):
    """A kind of failure: what happens is always the same, the log never is."""

    @property
    def id(self) -> str:
        """Its name."""

    @property
    def label(self) -> FailureLabel:
        """The label of all its logs."""

    def log(self, rng: random.Random) -> ReplayLog:
        """Return one log of it; the same generator gives the same bytes."""
