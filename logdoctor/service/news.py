"""Changes of verdicts and incidents by any process, passed on to listeners in this one."""

from collections.abc import Callable

import structlog

from logdoctor.service.turns import Turns, shielded
from logdoctor.store.jobs.records import Records, StoredVerdict

log = structlog.get_logger()

_LOOK = 0.2  # seconds between checks for what other processes published
_PAGE = 100


class News:
    """A thread that calls its `listeners` with each new or changed verdict, in order, and `changed` after changes of
    verdicts or incidents.

    It misses what is published while it does not run; whoever must not miss that reads the records.
    """

    def __init__(self, records: Records) -> None:
        self.listeners: list[Callable[[StoredVerdict], None]] = []
        """Called with each new or changed verdict."""
        self.changed: list[Callable[[], None]] = []
        """Called after verdicts or incidents changed."""
        self._records, self._last, self._seen = records, 0, 0
        self._turns = Turns("news", self._turn)
        self.wake, self.stop, self.join = self._turns.wake, self._turns.stop, self._turns.join

    def start(self) -> None:
        """Start with what is published from now on."""
        self._last = self._seen = self._records.last_event()
        self._turns.start()

    def _turn(self) -> float:
        latest = self._records.last_event()
        if latest == self._seen:
            return _LOOK
        while found := self._records.newer(self._last, _PAGE):
            for stored in found:
                self._last = stored.event
                for listener in list(self.listeners):
                    with shielded("verdict not told", verdict=stored.id):
                        listener(stored)
        self._seen = latest
        for changed in self.changed:
            with shielded("change not told"):
                changed()
        return _LOOK
