"""When a model is left alone because it fails.

closed     calls go through; after one that got no answer the next waits a little, longer each time
open       five failures in a row: no call goes through for a while
half-open  the while is over: one trial goes through; an answer closes, a failure opens for longer
"""

from collections.abc import Callable
from typing import Literal, Protocol

OPENS_AFTER = 5
"""Failures in a row that open the breaker."""

SHORTEST_WAIT = 1.0
LONGEST_WAIT = 600.0
"""Seconds that back-off grows from and to; with jitter up to twice as much."""

LONGEST_RETRY_AFTER = 3600.0
"""A server that asks to be left alone for longer is asked again after so many seconds."""

State = Literal["closed", "open", "half-open"]


class SharedPauses(Protocol):
    """Tells other processes when something is to be left alone, as well as that can be told."""

    def leave_alone(self, what: str, seconds: float) -> None:
        """Let all leave it alone for so many seconds; 0 ends that."""
        ...

    def left_alone(self, what: str) -> float:
        """Return the seconds for which it is to be left alone; 0 for none, and when that is not known."""
        ...


class Breaker:
    """Counts failures and says when the next call may be made; one thread at a time. `chance` gives 0 to 1.

    Times are seconds since the epoch. A clock that is set back ends all waiting. One that `bears_nonsense` takes it for
    an answer: the model is up.
    """

    def __init__(self, chance: Callable[[], float], bears_nonsense: bool = False) -> None:
        self.failures = 0
        self._chance = chance
        self._bears_nonsense = bears_nonsense
        self._waits: tuple[float, float] = (0.0, 0.0)
        self._trial = False

    def state(self, now: float) -> State:
        """Return which of the three it is."""
        if self.failures < OPENS_AFTER:
            return "closed"
        since, until = self._waits
        return "open" if since <= now < until else "half-open"

    def wait(self, now: float) -> float | None:
        """Return the seconds for which no call may be made, None when one may."""
        since, until = self._waits
        if since <= now < until or (self.state(now) == "half-open" and self._trial):
            return max(until - now, SHORTEST_WAIT)
        return None

    def begin(self, now: float) -> bool:
        """Note that a call begins; whether it is the trial of a half-open breaker."""
        trial = self.state(now) == "half-open"
        self._trial |= trial
        return trial

    def end(self, now: float, trial: bool, failure: str, retry_after: float | None) -> None:
        """Learns how a call went: `failure` is "" for a good answer, else `unavailable` or `nonsense`."""
        self._trial &= not trial
        if failure == "nonsense" and self._bears_nonsense:
            failure = ""
        self.failures = self.failures + 1 if failure else 0
        if not failure:
            self._waits = (0.0, 0.0)
        elif failure == "unavailable" or self.failures >= OPENS_AFTER:
            # a model that answers nonsense is up, and the next run over the sample may fare better
            self._waits = (now, now + self._pause(retry_after))

    def _pause(self, retry_after: float | None) -> float:
        doubled = SHORTEST_WAIT * 2.0 ** min(self.failures - 1, 30)
        wait = min(doubled, LONGEST_WAIT) * (1 + self._chance())
        return max(wait, min(retry_after or 0.0, LONGEST_RETRY_AFTER))
