"""Bytes of streams are appended to the log; what is acknowledged is never lost or doubled.

Any process may take them: it holds no state that another needs. What arrives while a group is written forms the next
group, so a thousand streams share one transaction.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from logdoctor import tracing
from logdoctor.errors import Busy, LimitReached, LogdoctorError, StorageFull, StoreError
from logdoctor.store.jobs.records import Attempt, Records
from logdoctor.store.log.frames import MAX_RAW
from logdoctor.store.log.table import LogTable, NewBytes, Reached
from logdoctor.store.names import Key

log = structlog.get_logger()

MAX_ENTRY = MAX_RAW // 2
"""Bytes of an entry, at most."""
_GROUP = MAX_RAW // 8  # bytes after which a group is written although more is waiting
_ENTRY_COST = 2000  # bytes that an entry counts for beside its data: more than its names can take
_LOOK = 0.2  # seconds for which the size of the log is cached
_OPENED = 10_000  # attempts remembered as open


class IntakeBounds(NamedTuple):
    """Limits in bytes: `behind` in the log before senders have to wait, and `min_free` on the disk."""

    behind: int
    min_free: int


class IntakeFigures(NamedTuple):
    """Counts since the start."""

    bytes_in: int
    lines_in: int
    groups: int
    refused: int


class Intake:
    """The intake of this process; thread-safe. Calls `wake` when something was appended."""

    def __init__(
        self, stored: LogTable, records: Records, folder: Path, bounds: IntakeBounds, wake: Callable[[], None]
    ) -> None:
        self._log, self._records = stored, records
        self._folder, self._bounds, self._wake = folder, bounds, wake
        self._waiting: list[tuple[NewBytes, Future[Reached]]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._opened: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._opening, self._turn = threading.Lock(), threading.Lock()
        self._unopened: list[tuple[tuple[str, int], Future[Attempt]]] = []
        self._held = 0  # bytes in the log, as of the last check
        self._looked, self._is_stale = 0.0, False
        self._bytes_in = self._lines_in = self._groups = self._refused = 0
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)

    def start(self) -> None:
        """Start to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def open(self, key: Key) -> None:
        """Begin an attempt, unless it has begun; `LimitReached` when its log was deleted."""
        for begun in self.open_all([key]):
            if begun.result().deleted is not None:
                cause = "its log was deleted, and its verdict is final"
                raise LimitReached(f"attempt {key.job}/{key.attempt}", cause, "Start another attempt.")

    def open_all(self, keys: Iterable[Key]) -> list[Future[Attempt]]:
        """Begin attempts together; return futures of those that were not open, which may fail."""
        new = {(key.job, key.attempt): Future[Attempt]() for key in keys if not self.is_open(key)}
        if not new:
            return []
        with self._opening:
            self._unopened += new.items()
        with self._turn:  # whoever holds it opens for all that wait: hundreds begin at once
            with self._opening:
                group, self._unopened = self._unopened, []
            self._open(group)
        with self._opening:
            for attempt, begun in new.items():
                if begun.exception() is None and begun.result().deleted is None:
                    self._opened[attempt] = None
            while len(self._opened) > _OPENED:
                self._opened.popitem(last=False)
        return list(new.values())

    def _open(self, group: Sequence[tuple[tuple[str, int], Future[Attempt]]]) -> None:
        """Open attempts in one transaction; if that fails, each by itself, so that one affects no other."""
        if not group:
            return
        try:
            found = self._records.open_attempts([attempt for attempt, _ in group], time.time())
        except Exception as error:  # noqa: BLE001 -- it is raised where each is waited for
            if len(group) == 1:
                group[0][1].set_exception(error)
            else:
                for one in group:
                    self._open([one])
            return
        for (_, begun), attempt in zip(group, found, strict=True):
            begun.set_result(attempt)

    def is_open(self, key: Key) -> bool:
        """Return whether `open` would have nothing to do, and need no disk."""
        return (key.job, key.attempt) in self._opened

    def closed(self, job: str, number: int) -> None:
        """Forget that an attempt is open, because its log was deleted: the records are asked again."""
        with self._opening:
            self._opened.pop((job, number), None)

    def take(self, key: Key, offset: int, data: bytes) -> Future[Reached]:
        """Append bytes at `offset` of a stream; the future has its new end once they are durable.

        It fails with `OffsetMismatch` when they do not continue the stream, `LimitReached` when it is too long, `Busy`
        when too much waits, `StorageFull` or `StoreError` when they cannot be written; then none of them is kept.
        """
        return self._append(NewBytes(key, offset, data))

    def push(self, key: Key, data: bytes, mark: str) -> Future[Reached]:
        """Append bytes at the end of a stream, once per mark other than "": repetitions are dropped. Returns a future
        as `take` does."""
        return self._append(NewBytes(key, None, data, mark))

    def wish(self, job: str, number: int, wish: bytes) -> None:
        """Send a request to the owner of an attempt (see `service.holding`); durable on return."""
        self._append(NewBytes(Key(job, number, ""), None, wish)).result()

    def _append(self, entry: NewBytes) -> Future[Reached]:
        if len(entry.data) > MAX_ENTRY:
            cause = f"{len(entry.data)} bytes at once are more than {MAX_ENTRY}"
            raise LimitReached(f"stream {entry.key}", cause, "Send smaller parts.")
        future: Future[Reached] = Future()
        future.set_running_or_notify_cancel()  # a waiter that gives up must not disturb the others
        with self._changed:
            if self._closing:
                raise Busy("the service", "it stops", "Try again later.")
            self._waiting.append((entry, future))
            self._changed.notify()
        return future

    def _run(self) -> None:
        while True:
            with self._changed:
                due = _LOOK if self._is_stale or self.is_behind else None
                self._changed.wait_for(lambda: self._waiting or self._closing, due)
                group = self._next_group()
            if group:
                self._write(group)
                self._is_stale = True
            elif self._closing:
                return
            if time.monotonic() - self._looked > _LOOK:
                self._look()

    def _next_group(self) -> list[tuple[NewBytes, Future[Reached]]]:
        """Return the next entries to write, about `_GROUP` bytes of them."""
        size = 0
        for place, (entry, _) in enumerate(self._waiting):
            size += len(entry.data) + _ENTRY_COST
            if size > _GROUP and place:
                group, self._waiting = self._waiting[:place], self._waiting[place:]
                return group
        group, self._waiting = self._waiting, []
        return group

    def _write(self, group: list[tuple[NewBytes, Future[Reached]]]) -> None:
        """Append a group; whatever fails, the thread goes on with the next."""
        begun = time.time_ns()
        try:
            self._require_room(sum(len(entry.data) for entry, _ in group))
            results = self._log.append([entry for entry, _ in group], time.time())
        except LogdoctorError as error:
            log.error("log not written", cause=str(error), entries=len(group))
            self._fail(group, error)
            return
        except Exception as error:  # the edge of the thread: all waiters get the error
            log.exception("log not written")
            self._fail(group, StoreError("the log", f"an internal error ({error!r})", "Try again."))
            return
        self._groups += any(isinstance(result, Reached) for result in results)
        for (entry, future), result in zip(group, results, strict=True):
            if isinstance(result, LogdoctorError):
                self._refused += 1
                future.set_exception(result)
                continue
            if entry.key.stream:
                self._bytes_in += len(entry.data)
                self._lines_in += entry.data.count(b"\n")
            future.set_result(result)
        self._wake()
        if tracing.is_on():
            _trace([entry for entry, _ in group], begun)

    def _fail(self, group: list[tuple[NewBytes, Future[Reached]]], error: LogdoctorError) -> None:
        self._refused += len(group)
        for _, future in group:
            future.set_exception(error)

    def room(self) -> tuple[int, int]:
        """Return the log's size limit, beyond which senders wait, and the free bytes on disk."""
        free = os.statvfs(self._folder)
        return self._bounds.behind, free.f_bavail * free.f_frsize

    def _require_room(self, size: int) -> None:
        if self.room()[1] < self._bounds.min_free + size:
            cause = f"less than {self._bounds.min_free} bytes are free on the disk"
            raise StorageFull("the disk of the service", cause, "Free some space; the sender will try again.")

    @property
    def is_full(self) -> bool:
        """Whether the disk has no room left, so that all input is refused."""
        return self.room()[1] < self._bounds.min_free + 1

    @property
    def is_behind(self) -> bool:
        """Whether so much waits in the log that senders should wait."""
        return self._held > self._bounds.behind

    def _look(self) -> None:
        """Update how much waits in the log."""
        self._looked, self._is_stale = time.monotonic(), False
        with suppress(LogdoctorError):
            self._held = sum(head.bytes for head in self._log.heads().values())

    def figures(self) -> IntakeFigures:
        """Return counts, for metrics."""
        return IntakeFigures(self._bytes_in, self._lines_in, self._groups, self._refused)


def _trace(group: Sequence[NewBytes], begun: int) -> None:
    """Trace the append for each attempt of a group."""
    sizes: dict[tuple[str, int], tuple[int, int]] = {}
    for entry in group:
        attempt = entry.key.job, entry.key.attempt
        entries, size = sizes.get(attempt, (0, 0))
        sizes[attempt] = entries + 1, size + len(entry.data)
    for (job, number), (entries, size) in sizes.items():
        tracing.spent("append", job, number, begun, entries=entries, bytes=size, group=len(group))
