"""What the supervisor needs to know about a job's checkpoints, from whoever can read their folder."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from logdoctor.errors import LogdoctorError

T = TypeVar("T")
Aside = Callable[[Callable[[], str]], str]
"""Runs slow work where a signal can end it; returns its result, or "" when it was ended."""


class Chosen(NamedTuple):
    """A checkpoint to load: its path, its step, and the global batches that it has seen (None when unknown)."""

    path: str
    step: int
    position: int | None = None


class Checkpoints(Protocol):
    """The checkpoints of one job."""

    def complete(self) -> Mapping[str, int]:
        """Return the steps of complete checkpoints by path."""

    def best(self, before_step: int | None = None) -> Chosen | None:
        """Return the one to load: complete, healthy, before a step if given; None without one."""

    def suspect(self, step: int) -> None:
        """Mark those from a step on as not to be loaded: they were saved after the loss had spiked."""

    def not_loaded(self, path: str) -> None:
        """Record that an attempt was told to load one and ended without a further step."""

    def loaded(self, path: str) -> None:
        """Record that an attempt loaded one and made steps."""

    def unreadable(self, path: str, noted: bool, aside: Aside) -> str:
        """Return which checkpoint an attempt could not load, and why; "" if none.

        It begins a sentence. The checkpoint is the one at `path` or, where the program chose (""), the newest. It is
        read whole `aside` and checked against its checksums, because a log can say anything. From then on `best` skips
        it; later supervisors do, too, if `noted`.
        """


class NoCheckpoints:
    """Nothing is known about the checkpoints: the program chooses which one to load."""

    def complete(self) -> Mapping[str, int]:
        """Return none."""
        return {}

    def best(self, before_step: int | None = None) -> Chosen | None:
        """Return None."""
        return None

    def suspect(self, step: int) -> None:
        """Do nothing."""

    def not_loaded(self, path: str) -> None:
        """Do nothing."""

    def loaded(self, path: str) -> None:
        """Do nothing."""

    def unreadable(self, path: str, noted: bool, aside: Aside) -> str:
        """Return ""."""
        return ""


class FaultTolerantCheckpoints:
    """Checkpoints whose folder may fail: that is reported, and the job continues as if without checkpoints."""

    def __init__(self, checkpoints: Checkpoints, say: Callable[[str], None]) -> None:
        self._checkpoints, self._say = checkpoints, say

    def complete(self) -> Mapping[str, int]:
        """Return the steps of complete checkpoints by path."""
        return self._or({}, self._checkpoints.complete)

    def best(self, before_step: int | None = None) -> Chosen | None:
        """Return the one to load; None without one."""
        return self._or(None, lambda: self._checkpoints.best(before_step))

    def suspect(self, step: int) -> None:
        """Mark those from a step on as not to be loaded."""
        self._or(None, lambda: self._checkpoints.suspect(step))

    def not_loaded(self, path: str) -> None:
        """Record that an attempt was told to load one and ended without a further step."""
        self._or(None, lambda: self._checkpoints.not_loaded(path))

    def loaded(self, path: str) -> None:
        """Record that an attempt loaded one and made steps."""
        self._or(None, lambda: self._checkpoints.loaded(path))

    def unreadable(self, path: str, noted: bool, aside: Aside) -> str:
        """Return which checkpoint an attempt could not load and why."""
        return self._or("", lambda: self._checkpoints.unreadable(path, noted, aside))

    def _or(self, default: T, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except LogdoctorError as error:
            self._say(f"the checkpoints are left alone: {error}")
            return default
