"""What the supervisor has to know of a job's checkpoints. Whoever can read their folder says it."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from logdoctor.errors import LogdoctorError

T = TypeVar("T")
Aside = Callable[[Callable[[], str]], str]
"""Does what takes long where a signal can end it; returns its answer, or "" when it was ended."""


class Chosen(NamedTuple):
    """A checkpoint to load: its path, its step, and how many global batches of the data it has seen, None where that is
    not known."""

    path: str
    step: int
    position: int | None = None


class Checkpoints(Protocol):
    """The checkpoints of one job."""

    def complete(self) -> Mapping[str, int]:
        """Return the paths of those that are complete, each with its step."""

    def best(self, before_step: int | None = None) -> Chosen | None:
        """Return the one to load: complete, healthy, before a step if one is given; None when there is none."""

    def suspect(self, step: int) -> None:
        """Note that those from a step on are not to be loaded: they were saved after the loss had spiked."""

    def not_loaded(self, path: str) -> None:
        """Note that an attempt was told to load one, and ended without a step after that."""

    def loaded(self, path: str) -> None:
        """Note that an attempt made steps after it loaded one."""

    def unreadable(self, path: str, noted: bool, aside: Aside) -> str:
        """Return which checkpoint an attempt could not load and why, as the beginning of a sentence; "" when nothing
        speaks against it.

        It is the one with a path or, where the program chose ("") the newest. It is read whole `aside`, and compared
        with what is known of it: a log can say anything. `best` passes it over from then on, and later supervisors,
        too, if it is to be `noted`.
        """


class NoCheckpoints:
    """Nothing is known of the checkpoints: the program chooses the one that it loads."""

    def complete(self) -> Mapping[str, int]:
        """Return none."""
        return {}

    def best(self, before_step: int | None = None) -> Chosen | None:
        """Return None."""
        return None

    def suspect(self, step: int) -> None:
        """Note nothing."""

    def not_loaded(self, path: str) -> None:
        """Note nothing."""

    def loaded(self, path: str) -> None:
        """Note nothing."""

    def unreadable(self, path: str, noted: bool, aside: Aside) -> str:
        """Return ""."""
        return ""


class Forgiving:
    """Checkpoints whose folder may fail: then it is said, and the job goes on as without them."""

    def __init__(self, checkpoints: Checkpoints, say: Callable[[str], None]) -> None:
        self._checkpoints, self._say = checkpoints, say

    def complete(self) -> Mapping[str, int]:
        """Return the paths of those that are complete, each with its step."""
        return self._or({}, self._checkpoints.complete)

    def best(self, before_step: int | None = None) -> Chosen | None:
        """Return the one to load; None when there is none."""
        return self._or(None, lambda: self._checkpoints.best(before_step))

    def suspect(self, step: int) -> None:
        """Note that those from a step on are not to be loaded."""
        self._or(None, lambda: self._checkpoints.suspect(step))

    def not_loaded(self, path: str) -> None:
        """Note that an attempt was told to load one, and ended without a step after that."""
        self._or(None, lambda: self._checkpoints.not_loaded(path))

    def loaded(self, path: str) -> None:
        """Note that an attempt made steps after it loaded one."""
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
