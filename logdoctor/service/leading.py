"""Whether this process is the leader, which does the work that only one process of a database may do."""

import time
from collections.abc import Callable

import structlog

from logdoctor.errors import LogdoctorError
from logdoctor.service.turns import Turns
from logdoctor.store.keeping.leader import LeaderLease

log = structlog.get_logger()

_BEATS = 4  # per lease


def alone() -> bool:
    """Return True: a process without others leads."""
    return True


class Leading:
    """A thread that holds the leader's lease while it can; calls `taken` when this process begins to lead.

    A process that cannot reach the database for the length of the lease must assume that another leads.
    """

    def __init__(
        self, lease: LeaderLease, taken: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lease, self._taken, self._clock = lease, taken, clock
        self._until, self._has_taken = 0.0, False
        self._turns = Turns("leader", self._beat_safely)

    def __call__(self) -> bool:
        """Return whether this process leads now; thread-safe."""
        return self._clock() < self._until

    def clear(self) -> None:
        """End the lease of a process that is known to be dead."""
        self._lease.clear()

    def start(self) -> None:
        """Lead if nobody does, and keep the lease."""
        self._beat()
        self._turns.start()

    def stop(self) -> None:
        """Release the lease."""
        self._turns.stop()
        self._turns.join()
        self._until = 0.0
        try:
            self._lease.leave()
        except LogdoctorError as error:  # it expires by itself
            log.warning("lease of the leader not given back", cause=str(error))

    def _beat_safely(self) -> float:
        pause = self._lease.seconds / _BEATS
        try:
            self._beat()
        except LogdoctorError as error:
            log.error("lease of the leader not renewed", cause=str(error))
            return pause / 2
        return pause

    def _beat(self) -> None:
        begun = self._clock()
        if not self._lease.beat():
            self._until, self._has_taken = 0.0, False
            return
        if not self._has_taken:
            log.info("this process leads")
            self._taken()
            self._has_taken = True
            begun = self._clock()
            if not self._lease.beat():  # it took longer than the lease
                self._has_taken = False
                return
        self._until = begun + self._lease.seconds
