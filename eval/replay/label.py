"""The truth about a failure, whatever its log looks like this time."""

import random
from typing import NamedTuple, Protocol

from eval.labels import FailureCase
from logdoctor import taxonomy


class FailureLabel(NamedTuple):
    """The truth about a kind of failure; fields that end in `also` hold acceptable alternatives."""

    reason: str
    recovery: str
    user_fault: bool
    reason_also: tuple[str, ...] = ()
    recovery_also: tuple[str, ...] = ()

    @property
    def categories(self) -> set[str]:
        """The categories of the acceptable reasons."""
        return {taxonomy.REASONS[reason].category for reason in (self.reason, *self.reason_also)}

    @property
    def recoveries(self) -> tuple[str, ...]:
        """The recoveries that are right."""
        return (self.recovery, *self.recovery_also)

    @property
    def fault(self) -> str:
        """Who is at fault, in the taxonomy's words."""
        usual = taxonomy.REASONS[self.reason].fault
        return "user" if self.user_fault else usual if usual != "user" else "infrastructure"


def label_of(case: FailureCase) -> FailureLabel:
    """Return the label of a corpus log."""
    return FailureLabel(case.reason, case.recovery, case.user_fault, case.also_acceptable, case.recovery_also)


class ReplayLog(NamedTuple):
    """A log, and the numbers of the lines that prove the label."""

    data: bytes
    evidence: tuple[int, ...]


class FailureKind(Protocol):
    """A kind of failure: the same event with a new log each time."""

    @property
    def id(self) -> str:
        """Its name."""

    @property
    def label(self) -> FailureLabel:
        """The label of all its logs."""

    def log(self, rng: random.Random) -> ReplayLog:
        """Return one of its logs; the same generator gives the same bytes."""
