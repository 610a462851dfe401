"""A thread that does queued work of some kinds, one row at a time (store/keeping/work.py)."""

import time
from collections.abc import Callable, Collection, Mapping

import structlog

from logdoctor.errors import Busy
from logdoctor.service.leading import alone
from logdoctor.service.turns import Turns, shielded
from logdoctor.store.keeping.work import Work, WorkItem

log = structlog.get_logger()

_LOOK = 2.0  # seconds between checks for work of other processes
_FIRST_PAUSE, _LONGEST_PAUSE = 15.0, 3600.0  # seconds before failed work is retried
_TRIES, _DAY = 10, 86_400.0  # work that failed this often, over this many seconds, is dropped


class NotYet(Exception):
    """Raised by a duty that must wait: it is retried after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class TaskRunner:
    """Does the queued work of the kinds in `duties`, while it `leads`. A duty runs again when it raises, and when the
    service stops or dies before its end, so it must be idempotent. After ten tries over more than a day it is
    dropped, unless its kind is `kept`. Thread-safe."""

    def __init__(
        self,
        name: str,
        work: Work,
        duties: Mapping[str, Callable[[WorkItem], None]],
        kept: Collection[str] = (),
        leads: Callable[[], bool] = alone,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._work, self._duties, self._kept, self._leads, self._clock = work, duties, kept, leads, clock
        self._turns = Turns(name, self._turn, may=leads)
        self.start, self.wake, self.stop, self.join = (
            self._turns.start,
            self._turns.wake,
            self._turns.stop,
            self._turns.join,
        )
        self.stopping = self._turns.stopping

    def _turn(self) -> float:
        for item in self._work.due(self._duties.keys(), self._clock()):
            if self.stopping.is_set() or not self._leads():
                return 0.0
            self._do(item)
        following = self._work.next_due(self._duties.keys())
        return _LOOK if following is None else min(max(following - self._clock(), 0.0), _LOOK)

    def _do(self, item: WorkItem) -> None:
        if item.tries >= _TRIES and self._clock() - item.at > _DAY and item.kind not in self._kept:
            log.error("work given up", kind=item.kind, key=item.key, tries=item.tries)
            self._work.finish(item)
            return
        self._work.begin(item, self._clock() + min(_FIRST_PAUSE * 2.0 ** min(item.tries, 30), _LONGEST_PAUSE))
        with shielded("work failed", kind=item.kind, key=item.key):
            try:
                self._duties[item.kind](item)
            except NotYet as error:
                self._work.put_off(item, self._clock() + min(error.seconds, _DAY))
            except Busy as error:  # it is retried, as if it had failed
                log.warning("work put off", kind=item.kind, key=item.key, cause=str(error))
            else:
                if not self.stopping.is_set():  # interrupted work looks like finished work
                    self._work.finish(item)
