"""What a worker holds: the attempts of its shards, read from the log, archived, and passed to the watch.

Nothing is handed over when an owner dies. The next one reads what is not archived from the log, and what it must know
of the rest from the last snapshots and the archive.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog

from logdoctor.errors import LimitReached, LogdoctorError, StoreDamaged
from logdoctor.service.streams import LiveAttempt, LiveStream
from logdoctor.service.turns import Turns, shielded
from logdoctor.store.jobs.records import End, Records, StoredVerdict
from logdoctor.store.log.archive import FRAME, Archive, Archived, StreamPiece
from logdoctor.store.log.shards import Fenced, Owned, shard_of
from logdoctor.store.log.table import DoneRows, Head, LogTable, Row, Standing, StreamBytes
from logdoctor.store.names import Key

log = structlog.get_logger()

_DUE = 4 * FRAME  # bytes of a stream that are worth an object
_OBJECT = 32 << 20  # bytes of streams in one object of the archive, roughly
_RETRY = 1.0  # seconds between retries of failed reads and archiving
_STOP_SECONDS = 60.0  # seconds at a stop to finish the object being written
_PARTING = 5.0  # seconds for the rest: what is not archived stays in the log
_AHEAD = 16 << 20  # bytes of many shards that are read at once
_AT_ONCE = 500  # attempts that are loaded with one statement
_FAR = 4  # times `unscanned` that may wait before even shards that a verdict waits for are not read
_ROW_COST = 1000  # bytes of memory that a row takes until it is deleted
ENDED, FACTS_CHANGED, ANEW = b"ended", b"described", b"anew"
"""Requests to the owner of an attempt: judge it, because all or part of it ended; check what was reported about its
job; judge it again, because the case that decided it was withdrawn."""


class HoldingBounds(NamedTuple):
    """Limits in bytes: `unscanned` may wait for compression before reading of the log pauses; beyond `unarchived` in
    this worker, or twice that in the log, all streams are archived, not only full frames."""

    unscanned: int
    unarchived: int


class HoldingFigures(NamedTuple):
    """What is in memory now."""

    shards: int
    streams: int
    attempts: int
    unscanned: int
    unarchived: int


class _ReadRow(NamedTuple):
    """A row that was read: its bytes, the offset at which each of its streams ends, and the attempts it asks to
    re-judge."""

    seq: int
    bytes: int
    ends: dict[LiveStream, int]
    anew: list[LiveAttempt]


class _Shard:
    """An owned shard: the last row read and the last one that a verdict waits for, the unarchived rows, and the numbers
    of damaged rows that are kept for repair."""

    def __init__(self, owned: Owned, now: float) -> None:
        self.owned = owned
        self.last = self.awaited = 0
        self.rows: deque[_ReadRow] = deque()
        self.kept: set[int] = set()
        self.is_cut = False  # whether streams may end in a damaged row
        self.retry_at = 0.0  # when reading is retried after a failure
        self.read_at, self.is_behind = now, False  # when it was last read to its end, and whether there is more now
        self.taken_at = 0.0  # when its rows were last taken

    def is_awaited(self, head: Head) -> bool:
        """Return whether a request or a verdict waits behind what was read."""
        return max(head.asked, self.awaited) > self.last

    def looked_at(self, head: int, at: float) -> None:
        """Update `is_behind` and `read_at`, given that `head` was the last row at time `at`."""
        self.is_behind = self.last < head
        if not self.is_behind:
            self.read_at = at


class Holding:
    """The attempts of the owned shards. Calls `announce` with verdicts that are no longer final. Thread-safe, except
    `pull`, which is the watch's. Its `clock` measures silence everywhere."""

    def __init__(
        self,
        stored: LogTable,
        archive: Archive,
        records: Records,
        announce: Callable[[StoredVerdict], None],
        bounds: HoldingBounds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._archive, self._records, self._announce = stored, archive, records, announce
        self._bounds, self.clock = bounds, clock
        self.lock = threading.Lock()
        self.fresh = threading.Condition(self.lock)
        """Notified when there is something to scan or to judge."""
        self.attempts: dict[tuple[str, int], LiveAttempt] = {}
        self.unscanned: dict[LiveStream, None] = {}
        """Streams with bytes to compress, those that have waited longest first."""
        self.settling = threading.Lock()
        """Held while an attempt is settled or reopened in the records, so that each sees what the other did."""
        self.asked: Callable[[LiveAttempt], None] = lambda attempt: None
        """Called with an attempt to judge now."""
        self._shards: dict[int, _Shard] = {}
        self._lost: set[Owned] = set()
        self._loading = threading.Lock()
        self._archiving = threading.Lock()
        self._unscanned_bytes = self._unarchived_bytes = 0
        self._log_bytes = 0  # of all workers, as of the last check
        self._held_bytes = 0  # of rows read and not deleted: one unarchived byte keeps a row
        self._archivist = Turns("archivist", self._archive_turn)

    def start(self) -> None:
        """Start to archive."""
        self._archivist.start()

    def stop(self) -> None:
        """Archive what was read, as far as time allows, and stop."""
        self._archivist.stop()
        self._archivist.join(_STOP_SECONDS)
        try:
            self.archive_all(time.monotonic() + _PARTING)
        except LogdoctorError as error:  # it stays in the log
            log.error("archive not written", cause=str(error))

    def wake(self) -> None:
        """Make the watch read the log: something was appended."""
        with self.lock:
            self.fresh.notify_all()

    # Ownership

    def own(self, owned: Collection[Owned]) -> list[Owned]:
        """Hold exactly these shards from now on, dropping others; return the new ones."""
        with self.lock:
            current = {shard.owned for shard in self._shards.values()}
            owned = set(owned) - self._lost
        lost = current - set(owned)
        for one in lost:
            self.lose(one)
        if lost:
            log.info("shards left to others", count=len(lost))
        new = sorted(set(owned) - current)
        with self.lock:
            for one in new:
                self._shards[one.shard] = _Shard(one, self.clock())
        if new:
            self.wake()
        return new

    def lost(self, owned: Collection[Owned]) -> set[Owned]:
        """Return those of `owned` that this worker has dropped. It must not hold them again in the same epoch: an
        operation begun before might still take effect."""
        with self.lock:
            self._lost &= set(owned)
            return set(self._lost)

    def lose(self, owned: Owned) -> None:
        """Drop all state of a shard that another worker may own."""
        with self._loading, self.lock:
            shard = self._shards.get(owned.shard)
            if shard is None or shard.owned != owned:
                return
            del self._shards[owned.shard]
            self._lost.add(owned)
            self._held_bytes -= sum(row.bytes for row in shard.rows)
            shard.rows.clear()
            for attempt in [one for one in self.attempts.values() if one.owned == owned]:
                self._drop(attempt)

    def _drop(self, attempt: LiveAttempt) -> None:
        attempt.is_dropped = True
        for stream in attempt.streams.values():
            self._leave_unscanned(stream)
            self._unarchived_bytes -= stream.durable - stream.archived
        attempt.streams = {}  # it is a cycle with its streams, which would stay until the next full collection
        del self.attempts[attempt.job, attempt.number]

    def _leave_unscanned(self, stream: LiveStream) -> None:
        """Discard what of a stream waits in memory for compression."""
        self.unscanned.pop(stream, None)
        self._unscanned_bytes -= stream.unscanned_bytes
        stream.unscanned, stream.unscanned_bytes = [], 0

    def live(self, job: str, number: int) -> LiveAttempt | None:
        """Return an attempt if it is in memory."""
        with self.lock:
            return self.attempts.get((job, number))

    def owns(self, job: str, number: int) -> bool:
        """Return whether this worker owns the shard of an attempt."""
        with self.lock:
            return shard_of(job, number) in self._shards

    def is_first(self) -> bool:
        """Return whether this worker owns the first shard, whose owner does one-worker tasks."""
        with self.lock:
            return 0 in self._shards

    def idle(self, job: str, number: int) -> Owned | None:
        """Return an attempt's shard if this worker owns it and does not hold the attempt."""
        with self.lock:
            shard = self._shards.get(shard_of(job, number))
            return shard.owned if shard and (job, number) not in self.attempts else None

    # Reading the log

    def pull(self) -> bool:
        """Read new rows of the owned shards; return whether there were any. Shards behind which a request or verdict
        waits come first, in turns, unless compression is far behind. Others wait while it is behind at all."""
        with self.lock:
            owned = dict(self._shards)
        if not owned:
            return False
        at, heads = self.clock(), self._log.heads()
        self._log_bytes = sum(head.bytes for head in heads.values())
        pulled = False
        waiting = [(shard, heads[number]) for number, shard in owned.items()]
        waiting.sort(key=lambda one: (not one[0].is_awaited(one[1]), one[0].taken_at))
        ahead = self._read_ahead(waiting)
        turns = deque(waiting)
        while turns and not self._is_far_behind:
            shard, head = turns.popleft()
            if shard.is_awaited(head) and self._pull_safely(shard, head.row, ahead):
                turns.append((shard, head))
                pulled = True
        for shard, head in waiting:
            if (head.row > shard.last or shard.is_cut) and not self.is_behind:
                pulled |= self._pull_safely(shard, head.row, ahead)
            shard.looked_at(head.row, at)
        return pulled

    def _read_ahead(self, waiting: Iterable[tuple[_Shard, Head]]) -> dict[_Shard, list[Row]]:
        """Read the next rows of all due shards at once and load their attempts: hundreds may begin together. On failure
        each shard is read by itself."""
        now, is_behind, is_far_behind = self.clock(), self.is_behind, self._is_far_behind
        due = [
            shard
            for shard, head in waiting
            if head.row > shard.last
            and now >= shard.retry_at
            and (not is_far_behind if shard.is_awaited(head) else not is_behind)
        ]
        with suppress(LogdoctorError):
            return self._read(due) if due else {}
        return {}

    def _read(self, wanted: Sequence[_Shard]) -> dict[_Shard, list[Row]]:
        """Read the next rows of shards and load their attempts; stop early if there are many."""
        found = self._log.read_each({shard.owned.shard: shard.last for shard in wanted}, _AHEAD)
        self.load_all({chunk.key[:2] for rows in found.values() for row in rows for chunk in row.chunks})
        return {shard: found[shard.owned.shard] for shard in wanted if shard.owned.shard in found}

    def _pull_safely(self, shard: _Shard, head: int, ahead: dict[_Shard, list[Row]]) -> bool:
        """Pull one shard; its failure affects no other."""
        if self.clock() < shard.retry_at:
            return False
        shard.retry_at = self.clock() + _RETRY
        with shielded("log not read", shard=shard.owned.shard):
            pulled = self._pull(shard, head, ahead.pop(shard, None))
            shard.retry_at, shard.taken_at = 0.0, self.clock()
            return pulled
        return False

    def _pull(self, shard: _Shard, head: int, rows: list[Row] | None) -> bool:
        """Enter the given rows of a shard, else its next ones; return whether there were any."""
        with self.lock:
            if self._shards.get(shard.owned.shard) is not shard:
                return False
        if rows is None:
            rows = self._read([shard])[shard]
        if not rows:  # the last owner has archived them
            shard.last = max(shard.last, head)
        try:
            for row in rows:
                self._enter(shard, row)
            if shard.is_cut:
                self._mend(shard)
        except Fenced as error:
            self.lose(Owned(error.shard, error.epoch))
            return True
        if self._is_full:
            self._archivist.wake()
        return bool(rows)

    def _mend(self, shard: _Shard) -> None:
        """Mark what is lost at the ends of streams, once all rows were read: no later bytes would reveal it."""
        head, ends = self._log.ends(shard.owned.shard)
        if head != shard.last:
            return
        for key, end in ends.items():
            attempt = self._attempt(key)
            stream = self._stream(attempt, key) if attempt is not None and attempt.owned == shard.owned else None
            if stream is not None and end > stream.durable:
                self._fill(stream, end - stream.durable, self.clock())
        shard.is_cut = False

    def _enter(self, shard: _Shard, row: Row) -> None:
        """Enter what is new in a row."""
        read = _ReadRow(row.seq, _ROW_COST + sum(len(chunk.data) for chunk in row.chunks), {}, [])
        stays = bool(row.damage)
        if row.damage:
            log.error("log damaged", shard=shard.owned.shard, row=row.seq, cause=row.damage)
        now = self.clock()
        for chunk in row.chunks:
            attempt = self._attempt(chunk.key)
            if attempt is None:
                continue
            if attempt.owned != shard.owned:  # another worker owned it meanwhile: this row is no longer the next one
                raise Fenced(*shard.owned)
            if not chunk.key.stream:
                self._handle(attempt, chunk.data)
                if chunk.data == ANEW:
                    read.anew.append(attempt)
            elif (stream := self._stream(attempt, chunk.key)) is not None:
                self._take(stream, chunk, now)
                read.ends[stream] = stream.durable
            else:
                stays = True
        with self.lock:
            if self._shards.get(shard.owned.shard) is not shard:
                raise Fenced(*shard.owned)
            shard.last = row.seq
            shard.rows.append(read)
            self._held_bytes += read.bytes
            if stays:
                shard.kept.add(row.seq)
            shard.is_cut = shard.is_cut or bool(row.damage)
            self.fresh.notify_all()

    def _attempt(self, key: Key) -> LiveAttempt | None:
        """Load the attempt; return None when its log was deleted."""
        try:
            return self.load(key.job, key.attempt)
        except LimitReached as error:
            log.error("attempt not taken up", job=key.job, attempt=key.attempt, cause=str(error))
            return None

    def _take(self, stream: LiveStream, chunk: StreamBytes, now: float) -> None:
        """Append what is new in a chunk; a gap before it is filled with a note of the loss."""
        if (gap := chunk.offset - stream.durable) > 0:
            self._fill(stream, gap, now)
        if new := chunk.data[stream.durable - chunk.offset :]:
            self._append(stream, new, now)

    def _fill(self, stream: LiveStream, gap: int, now: float) -> None:
        where = f"{gap} bytes of stream {stream.key.stream} from byte {stream.durable} on"
        problem = f"{where} are lost: the log of the service is damaged"
        log.error("bytes missing", stream=str(stream.key), cause=problem)
        if problem not in stream.problem:  # the row may be read again
            problems = "; ".join(filter(None, (stream.problem, problem)))
            self._log.lost(stream.attempt.owned, stream.key, problems)
            stream.problem = problems
        self._append(stream, f"\n[logdoctor: {problem}]".encode()[: gap - 1].ljust(gap - 1) + b"\n", now)

    def _append(self, stream: LiveStream, data: bytes, now: float) -> None:
        with self.lock:
            attempt = stream.attempt
            if self.attempts.get((attempt.job, attempt.number)) is not attempt:
                raise Fenced(*attempt.owned)
            stream.durable += len(data)
            stream.stood = max(stream.stood, stream.durable)
            stream.last_at = attempt.changed_at = now
            attempt.reopened |= attempt.settled
            if attempt.settled or attempt.abandoned:
                self._unsettle(attempt)
            stream.unarchived.append(data)
            self._unarchived_bytes += len(data)
            if stream.durable - stream.archived >= _DUE:
                self._archivist.wake()
            if stream.ready:
                stream.unscanned.append((now, data))
                stream.unscanned_bytes += len(data)
                self._unscanned_bytes += len(data)
            self.unscanned.setdefault(stream)

    def _handle(self, attempt: LiveAttempt, wish: bytes) -> None:
        """Handle a request: load what the records say of an attempt, and judge it if asked."""
        if wish == ANEW and (verdict := self._records.reopen(attempt.job, attempt.number, attempt.owned)):
            self._announce(verdict)
        kept = self._records.attempt(attempt.job, attempt.number)
        if kept is None or kept.settled:
            return
        self.unsettle(attempt)
        with self.lock:
            attempt.is_redescribed = attempt.is_redescribed or wish == FACTS_CHANGED
            attempt.anew = attempt.anew or wish == ANEW
            if wish == ENDED:
                attempt.told_at = self.clock()
        self.told(attempt, kept.ends)
        if wish != FACTS_CHANGED:
            self.asked(attempt)

    def told(self, attempt: LiveAttempt, ends: Iterable[End]) -> None:
        """Set the ends that the records have of an attempt. They may be ahead of what was read: its verdict waits until
        the log is read up to its present end."""
        told = list(ends)
        self._told(attempt, told, self._log.head(attempt.owned.shard) if told else 0)

    def _told(self, attempt: LiveAttempt, ends: Iterable[End], head: int) -> None:
        with self.lock:
            attempt.ends, attempt.awaited = {end.stream: end for end in ends}, head
            attempt.abandoned = False
            if not attempt.settled and (shard := self._shards.get(attempt.owned.shard)):
                shard.awaited = max(shard.awaited, head)

    def is_read(self, attempt: LiveAttempt) -> bool:
        """Return whether the log was read to its head when the ends were set."""
        with self.lock:
            shard = self._shards.get(attempt.owned.shard)
            return shard is not None and shard.last >= attempt.awaited

    # In memory

    def load(self, job: str, number: int) -> LiveAttempt:
        """Return an attempt with all its streams; the unreadable ones are its `problems`.

        `Fenced` when this worker does not own its shard, `LimitReached` when its log was deleted.
        """
        found = self.load_all([(job, number)])
        if (job, number) not in found:
            raise Fenced(shard_of(job, number), 0)
        if (attempt := found[job, number]) is None:
            cause = "its log was deleted, and its verdict is final"
            raise LimitReached(f"attempt {job}/{number}", cause, "Start another attempt.")
        return attempt

    def load_all(self, names: Iterable[tuple[str, int]]) -> dict[tuple[str, int], LiveAttempt | None]:
        """Return attempts as `load` does, by job and number, in few statements. Those with a deleted log are None;
        those of shards that this worker does not own are left out."""
        found: dict[tuple[str, int], LiveAttempt | None] = {}
        wanted = sorted(names)
        for begin in range(0, len(wanted), _AT_ONCE):
            found |= self._load(wanted[begin : begin + _AT_ONCE])
        return found

    def _load(self, names: Iterable[tuple[str, int]]) -> dict[tuple[str, int], LiveAttempt | None]:
        with self._loading:
            with self.lock:
                found: dict[tuple[str, int], LiveAttempt | None] = {
                    name: self.attempts[name] for name in names if name in self.attempts
                }
                new = {
                    name: shard.owned
                    for name in names
                    if name not in found and (shard := self._shards.get(shard_of(*name)))
                }
            loaded = self._loaded(new) if new else {}
            with self.lock:
                for name, attempt in loaded.items():
                    if attempt is not None:
                        self.attempts[name] = attempt
                        if not attempt.settled:
                            self._wake(attempt)
            return found | loaded

    def _loaded(self, wanted: dict[tuple[str, int], Owned]) -> dict[tuple[str, int], LiveAttempt | None]:
        """Load attempts with all their streams: a verdict needs every one."""
        kept = self._records.known_attempts(wanted, time.time())
        standings, archived = self._log.standings(wanted), self._archive.reached(wanted)
        provisional = self._records.provisional(wanted)
        heads = self._log.heads() if any(one.ends for one in kept.values()) else {}
        found: dict[tuple[str, int], LiveAttempt | None] = dict.fromkeys(wanted)
        for name, owned in wanted.items():
            if kept[name].deleted is None:
                changed = max((standing.changed for standing in standings[name].values()), default=time.time())
                attempt = found[name] = LiveAttempt(*name, owned, self.clock() - _age(changed))
                attempt.settled, attempt.provisional = kept[name].settled, name in provisional
                if kept[name].ends:
                    self._told(attempt, kept[name].ends, heads[owned.shard].row)
                    attempt.told_at = self.clock() - _age(max(end.at for end in kept[name].ends))
                _add_streams(attempt, standings[name], archived[name], self.clock())
                attempt.is_enrolled = not any(stream.archived for stream in attempt.streams.values())
        return found

    def _stream(self, attempt: LiveAttempt, key: Key) -> LiveStream | None:
        """Return the stream, created if new; None when it cannot be read."""
        with self.lock:
            if key.stream not in attempt.streams and key.stream not in attempt.problems:
                attempt.streams[key.stream] = LiveStream(key, attempt, Standing(), self.clock())
            return attempt.streams.get(key.stream)

    def unsettle(self, attempt: LiveAttempt) -> None:
        """Allow an attempt to be judged again after a final verdict."""
        with self.lock:
            self._unsettle(attempt)

    def _unsettle(self, attempt: LiveAttempt) -> None:
        attempt.is_counted |= attempt.settled
        attempt.settled = False
        if attempt.abandoned:
            attempt.ends.pop("", None)
            attempt.abandoned = False
        self._wake(attempt)

    def _wake(self, attempt: LiveAttempt) -> None:
        """Queue the streams of an unsettled attempt whose archive must be read first."""
        for stream in attempt.streams.values():
            if not stream.ready:
                self.unscanned.setdefault(stream)
        self.fresh.notify_all()

    # For the watch

    def scanned(self, stream: LiveStream, limit: int) -> list[bytes]:
        """Take about `limit` bytes from what waits for compression."""
        with self.lock:
            size = taken = 0
            while taken < len(stream.unscanned) and size < limit:
                size += len(stream.unscanned[taken][1])
                taken += 1
            chunks = [data for _, data in stream.unscanned[:taken]]
            del stream.unscanned[:taken]
            stream.unscanned_bytes -= size
            self._unscanned_bytes -= size
            if not stream.unscanned:
                self.unscanned.pop(stream, None)
            return chunks

    def catch_up(self, stream: LiveStream, reached: int) -> bool:
        """Continue a stream that was read up to `reached` from memory; False when memory begins later, because the
        archive, or the unread log, has more."""
        with self.lock:
            if stream.attempt.is_dropped or not stream.archived <= reached <= stream.durable:
                return False
            stream.ready = True
            chunks = _behind(stream.unarchived, reached - stream.archived)
            stream.unscanned = [(stream.last_at, data) for data in chunks]
            stream.unscanned_bytes = sum(map(len, chunks))
            self._unscanned_bytes += stream.unscanned_bytes
            if not stream.unscanned:
                self.unscanned.pop(stream, None)
            return True

    def give_up(self, stream: LiveStream) -> None:
        """Stop compressing what has arrived of a stream; later bytes go on from there."""
        with self.lock:
            self._leave_unscanned(stream)
            stream.ready = False

    def read_until(self, attempt: LiveAttempt, now: float) -> float:
        """Return the time, at most `now`, that silence of an attempt counts to: that up to which its log was read."""
        shard = self._shards.get(attempt.owned.shard)
        return min(now, shard.read_at) if shard is not None and shard.is_behind else now

    def fall_back(self, stream: LiveStream) -> None:
        """Make the watch read a stream from its archive again."""
        with self.lock:
            if stream.attempt.is_dropped:
                return
            self._leave_unscanned(stream)
            stream.ready, stream.scan = False, None
            self.unscanned[stream] = None

    def forget(self, attempt: LiveAttempt) -> bool:
        """Drop an attempt from memory once all of it is archived; False when more came or the archive fails."""
        if not self._archive.is_away:
            self.archive(attempt)
        with self._loading, self.lock:
            streams = list(attempt.streams.values())
            if any(stream.unarchived or stream.unscanned for stream in streams):
                return False
            if self.attempts.get((attempt.job, attempt.number)) is attempt:
                self._drop(attempt)
            return True

    def reopen_changed(self) -> None:
        """Record durably which settled attempts got more bytes, so that their verdicts are not final.

        This must come before rows of the log are deleted: until then only those show it.
        """
        with self.settling:
            with self.lock:
                changed = [attempt for attempt in self.attempts.values() if attempt.reopened]
            for attempt in changed:
                try:
                    verdict = self._records.reopen(attempt.job, attempt.number, attempt.owned)
                except Fenced:
                    self.lose(attempt.owned)
                    continue
                if verdict:
                    self._announce(verdict)
                attempt.reopened, attempt.provisional = False, True

    @property
    def is_behind(self) -> bool:
        """Whether so much waits for compression that reading of the log pauses."""
        return self._unscanned_bytes > self._bounds.unscanned

    @property
    def _is_far_behind(self) -> bool:
        """Whether the watch must compress first, whatever waits: else memory would grow with its lag."""
        return self._unscanned_bytes > _FAR * self._bounds.unscanned

    @property
    def is_half_full(self) -> bool:
        """Whether more than half the limit waits for compression."""
        return 2 * self._unscanned_bytes > self._bounds.unscanned

    def lag(self) -> float:
        """Return the seconds that the oldest bytes have waited, in memory or the log."""
        with self.lock:
            waiting = [since for stream in self.unscanned if (since := stream.waiting_since) is not None]
            waiting += [shard.read_at for shard in self._shards.values() if shard.is_behind]
        return self.clock() - min(waiting) if waiting else 0.0

    def figures(self) -> HoldingFigures:
        """Return counts and sizes, for metrics."""
        with self.lock:
            streams = sum(len(attempt.streams) for attempt in self.attempts.values())
            return HoldingFigures(
                len(self._shards), streams, len(self.attempts), self._unscanned_bytes, self._unarchived_bytes
            )

    # Archiving

    def archive(self, attempt: LiveAttempt) -> None:
        """Bring the archive of an attempt up to date, durably."""
        with suppress(LogdoctorError):
            self._archive_safely(attempt, 1)

    def archive_all(self, until: float = math.inf) -> None:
        """Archive all that was read, durably; begin nothing after `until`, by the monotonic clock."""
        with self.lock:
            attempts = list(self.attempts.values())
        for attempt in attempts:
            if time.monotonic() > until:
                log.warning("not all archived", cause="too much waits; it stays in the log")
                break
            with shielded("archive not written", job=attempt.job, attempt=attempt.number):
                self._archive_safely(attempt, 1)
        self._trim()

    def _archive_turn(self) -> float:
        """Archive what is due; return the seconds until the next turn."""
        if not self._archive_what_is_due():
            self._archivist.stopping.wait(_RETRY)  # however often it is woken
        return _RETRY

    @property
    def _is_full(self) -> bool:
        """Whether the log holds so much that all streams are archived, not only full frames."""
        ours = max(self._unarchived_bytes, self._held_bytes)
        return ours > self._bounds.unarchived or self._log_bytes > 2 * self._bounds.unarchived

    def _archive_what_is_due(self) -> bool:
        """Archive streams that are worth an object, or all when the log is too full; return whether all succeeded."""
        with self.lock:
            least = 1 if self._is_full else _DUE
            due = [
                a for a in self.attempts.values() if any(s.durable - s.archived >= least for s in a.streams.values())
            ]
        done = 0
        for attempt in due:
            if self._archivist.stopping.is_set():
                break
            with shielded("archive not written", job=attempt.job, attempt=attempt.number):
                self._archive_safely(attempt, least)
                done += 1
        self._trim()
        return done == len(due)

    def _archive_safely(self, attempt: LiveAttempt, least: int) -> None:
        try:
            while self._archive_some(attempt, least):
                pass
        except Fenced:
            self.lose(attempt.owned)

    def _archive_some(self, attempt: LiveAttempt, least: int) -> bool:
        """Archive one object of streams with at least `least` bytes each; return whether there may be more."""
        with self._archiving:
            with self.lock:
                chosen, pieces, size = self._chosen(attempt, least)
                upto = self._trimmable(attempt.owned, {s: p.offset + len(p.data) for s, _, p in chosen})
            if not pieces:
                return False
            self.reopen_changed()  # of the chosen attempts: their rows are deleted next
            gone = DoneRows(attempt.owned, upto, self._damaged(attempt.owned))
            self._archive.store(gone, attempt.job, attempt.number, pieces)
            with self.lock:
                for stream, count, piece in [] if attempt.is_dropped else chosen:
                    del stream.unarchived[:count]
                    stream.archived += len(piece.data)
                    stream.archived_lines += piece.data.count(b"\n")
                    self._unarchived_bytes -= len(piece.data)
                self._trimmed(attempt.owned, upto)
            return size >= _OBJECT

    def _chosen(
        self, attempt: LiveAttempt, least: int
    ) -> tuple[list[tuple[LiveStream, int, StreamPiece]], list[StreamPiece], int]:
        """Return the next streams to archive with their chunk counts and pieces; the pieces; their total bytes."""
        chosen, size = [], 0
        for stream in attempt.streams.values():
            if stream.durable - stream.archived < least or not stream.unarchived or size >= _OBJECT:
                continue
            count = taken = 0
            while count < len(stream.unarchived) and size + taken < _OBJECT:
                taken += len(stream.unarchived[count])
                count += 1
            data = b"".join(stream.unarchived[:count])
            chosen.append(
                (stream, count, StreamPiece(stream.key.stream, stream.archived, stream.archived_lines + 1, data))
            )
            size += taken
        return chosen, [piece for _, _, piece in chosen], size

    def _trimmable(self, owned: Owned, archived: dict[LiveStream, int]) -> int:
        """Return the last row up to which all is archived, once streams reach these offsets."""
        shard = self._shards.get(owned.shard)
        upto = 0
        for row in shard.rows if shard and shard.owned == owned else ():
            if any(archived.get(stream, stream.archived) < end for stream, end in row.ends.items()):
                break
            if any(one.anew and not one.is_dropped for one in row.anew):
                break
            upto = row.seq
        return upto

    def _damaged(self, owned: Owned) -> frozenset[int]:
        with self.lock:
            shard = self._shards.get(owned.shard)
            return frozenset(shard.kept if shard else ())

    def _trimmed(self, owned: Owned, upto: int) -> None:
        shard = self._shards.get(owned.shard)
        while shard and shard.owned == owned and shard.rows and shard.rows[0].seq <= upto:
            self._held_bytes -= shard.rows.popleft().bytes

    def _trim(self) -> None:
        """Delete rows that only held requests or known bytes."""
        with self.lock:
            found = [(shard.owned, self._trimmable(shard.owned, {})) for shard in self._shards.values()]
        for owned, upto in found:
            if upto:
                with self._archiving:
                    try:
                        self._log.trim(DoneRows(owned, upto, self._damaged(owned)))
                    except Fenced:
                        self.lose(owned)
                        continue
                    with self.lock:
                        self._trimmed(owned, upto)


def _add_streams(
    attempt: LiveAttempt, standings: Mapping[str, Standing], archived: Mapping[str, Archived] | StoreDamaged, now: float
) -> None:
    """Add the streams of an attempt, or why they cannot be read, while loading it."""
    for name, standing in standings.items():
        key = Key(attempt.job, attempt.number, name)
        try:
            if isinstance(archived, StoreDamaged):
                raise archived
            reached = archived.get(name, Archived())
            if reached.offset != standing.archived:
                cause = f"its archive ends at byte {reached.offset}, not {standing.archived}"
                raise StoreDamaged(f"stream {key}", cause, "Run `logdoctor doctor`.")
            stream = attempt.streams[name] = LiveStream(key, attempt, standing, now, reached.newlines)
            stream.progress_at = attempt.changed_at
        except StoreDamaged as error:
            log.error("stream not readable", stream=str(key), cause=str(error))
            attempt.problems[name] = str(error)


def _age(at: float) -> float:
    """Return the seconds since a recorded time; 0 when that clock was ahead."""
    return max(time.time() - at, 0.0)


def _behind(chunks: Sequence[bytes], size: int) -> list[bytes]:
    """Return chunks without their first `size` bytes."""
    found = []
    for chunk in chunks:
        if rest := chunk[size:]:
            found.append(rest)
        size = max(size - len(chunk), 0)
    return found
