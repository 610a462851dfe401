"""A worker keeps the shards that it owns, and takes over those of dead workers."""

from collections.abc import Callable, Collection

import structlog

from logdoctor.errors import LogdoctorError
from logdoctor.service.holding import Holding
from logdoctor.service.turns import Turns
from logdoctor.store.log.shards import Leases, Owned

log = structlog.get_logger()

_BEATS = 4  # per lease
_LONGEST_PAUSE = 15.0  # most seconds between heartbeats, which also publish figures, however long the lease


class Owner:
    """A thread that renews the leases of this worker; calls `taken` with the shards it has taken over.

    `figures` returns what the worker publishes; `beaten` is called after each heartbeat that reached the database. A
    worker that cannot reach the database for the length of a lease must assume that others own its shards.
    """

    def __init__(
        self,
        leases: Leases,
        holding: Holding,
        taken: Callable[[Collection[Owned]], None],
        figures: Callable[[], str] = str,
        beaten: Callable[[], None] = lambda: None,
    ) -> None:
        self._leases, self._holding, self._taken = leases, holding, taken
        self._figures, self._beaten = figures, beaten
        self._renewed = holding.clock()
        self._turns = Turns("owner", self._beat_safely)

    def start(self) -> None:
        """Own what nobody owns, and keep the leases."""
        self._beat()
        self._turns.start()

    def stop(self) -> None:
        """Release all shards."""
        self._turns.stop()
        self._turns.join()
        self._leases.leave()

    def _beat_safely(self) -> float:
        pause = min(self._leases.seconds / _BEATS, _LONGEST_PAUSE)
        try:
            self._beat()
        except LogdoctorError as error:
            log.error("leases not renewed", cause=str(error))
            if self._holding.clock() - self._renewed > self._leases.seconds:
                self._holding.own(())
            return pause / 2
        return pause

    def _beat(self) -> None:
        begun = self._holding.clock()
        owned = self._leases.beat(self._figures())
        if dropped := self._holding.lost(owned):
            self._leases.give_back(dropped)
            owned -= dropped
        self._renewed = begun
        self._beaten()
        if new := self._holding.own(owned):
            log.info("shards taken", count=len(new))
            self._taken(new)
