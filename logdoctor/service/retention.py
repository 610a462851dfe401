"""Raw logs expire by age and size, notifications by age; verdicts with their evidence stay."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import structlog

from logdoctor.errors import LogdoctorError
from logdoctor.service.holding import Holding
from logdoctor.store.incidents.notices import Notices
from logdoctor.store.jobs.records import Records
from logdoctor.store.log.archive import Archive, AttemptSize
from logdoctor.store.log.shards import Fenced
from logdoctor.store.log.table import LogTable

log = structlog.get_logger()

_TIDYING = 3600.0
_MARKS = 86_400.0  # seconds within which a shipper without an answer may repeat a push
DEAD_LONGER = 4
"""Given-up notifications are kept this many times longer than delivered ones: somebody may want to send them again, or
to see what was never reported."""


class Rules(NamedTuple):
    """What is kept: `age` in seconds since the last write, total `bytes` on disk, and `notices` in seconds since
    delivery (0: no limit); checked `every` so many seconds."""

    age: float
    bytes: int
    every: float
    notices: float = 0.0


class Retention:
    """A thread that deletes archives of settled attempts, and old notifications."""

    def __init__(
        self,
        stored: LogTable,
        archive: Archive,
        records: Records,
        holding: Holding,
        closed: Callable[[str, int], None],
        rules: Rules,
    ) -> None:
        self._log, self._archive, self._records, self._holding, self._rules = stored, archive, records, holding, rules
        self._closed = closed
        self._notices = Notices(records.database)
        self._stopping = threading.Event()
        self._next_tidying = 0.0
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)
        self.bytes = 0
        """Size of the archive on disk at the last check."""

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def stop(self) -> None:
        """Stop."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def sweep(self, now: float) -> list[AttemptSize]:
        """Delete expired logs, then the oldest until the rest fits; return the deleted ones."""
        sizes = sorted(self._archive.sizes(), key=lambda size: size.changed)
        total = sum(size.bytes for size in sizes)
        deleted: list[AttemptSize] = []
        for size in sizes:
            too_old = self._rules.age and now - size.changed > self._rules.age
            too_much = self._rules.bytes and total > self._rules.bytes
            if not (too_old or too_much) or not self._is_settled(size):
                continue
            total -= size.bytes  # also if another worker deletes it, or this one next time
            if self._delete(size.job, size.attempt, now):
                deleted.append(size)
                log.info("log deleted", job=size.job, attempt=size.attempt, bytes=size.bytes)
        self.bytes = total
        return deleted

    def forget(self, now: float) -> int:
        """Delete expired notifications and return how many."""
        kept, total = self._rules.notices, 0
        while kept and not self._stopping.is_set():
            deleted = self._notices.forget(now - kept, now - DEAD_LONGER * kept)
            total += deleted
            if not deleted:
                break
        if total:
            log.info("notifications deleted", count=total)
        return total

    def tidy(self, now: float) -> None:
        """Delete unlisted objects of dead workers, and old push marks; the worker of the first shard does it, every
        hour."""
        if now < self._next_tidying or not self._holding.is_first():
            return
        self._next_tidying = now + _TIDYING
        if orphans := self._archive.sweep(now):
            log.info("orphans deleted", count=orphans)
        self._log.forget_marks(now - _MARKS)

    def _delete(self, job: str, number: int, now: float) -> bool:
        """Delete the log of an owned attempt that is not in memory; return whether it was deleted."""
        if (owned := self._holding.idle(job, number)) is None:
            return False
        try:
            if not self._archive.delete(owned, job, number, now):
                return False
        except Fenced:
            self._holding.lose(owned)
            return False
        self._closed(job, number)
        return True

    def _is_settled(self, size: AttemptSize) -> bool:
        """Return whether an attempt is settled, or unknown."""
        attempt = self._records.attempt(size.job, size.attempt)
        return attempt is None or attempt.settled

    def _run(self) -> None:
        while not self._stopping.is_set():
            for task in (self.sweep, self.forget, self.tidy):
                try:
                    task(time.time())
                except (LogdoctorError, OSError) as error:
                    log.error("retention failed", task=task.__name__, cause=str(error))
            self._stopping.wait(self._rules.every)
