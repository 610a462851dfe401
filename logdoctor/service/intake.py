"""Bytes of streams are numbered, made durable and archived; what is acknowledged is never lost or doubled."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import NamedTuple

import structlog

from logdoctor.errors import Busy, LimitReached, OffsetMismatch, StorageFull, StoreError
from logdoctor.service.restore import replay
from logdoctor.service.streams import LiveAttempt, LiveStream
from logdoctor.service.view import StreamView
from logdoctor.store.archive import FRAME, Archive, ArchivedLines, StreamFile, lines_of
from logdoctor.store.frames import Packer
from logdoctor.store.journal import MAX_ENTRY, Journal, JournalEntry
from logdoctor.store.names import Key
from logdoctor.store.records import Records, StoredVerdict

log = structlog.get_logger()

_MARKS = 256
_SHARE = 8  # part of what may wait for compression that one stream may use
_RETRY = 1.0  # seconds between attempts to archive when the disk is full


class IntakeBounds(NamedTuple):
    """How much is taken: bytes of one stream, streams of one attempt, streams in memory, bytes that may wait for
    compression and seconds that they may, bytes in the journal before it is archived, bytes in no archive."""

    stream_bytes: int
    streams: int
    open_streams: int
    behind: int
    late: float
    journal_bytes: int
    unarchived: int


class IntakeFigures(NamedTuple):
    """Counts since the start, and what is in memory now."""

    bytes_in: int
    lines_in: int
    groups: int
    refused: int
    streams: int
    attempts: int
    unscanned: int
    unarchived: int


class Intake:
    """All streams that are being sent. Methods are for any thread."""

    def __init__(
        self,
        archive: Archive,
        journal_of: Callable[..., Journal],
        records: Records,
        announce: Callable[[StoredVerdict], None],
        bounds: IntakeBounds,
    ) -> None:
        self._archive, self._records, self._announce, self._bounds = archive, records, announce, bounds
        self.lock = threading.Lock()
        self.fresh = threading.Condition(self.lock)
        """Told when there is something to scan or to judge."""
        self.attempts: dict[tuple[str, int], LiveAttempt] = {}
        self.unscanned: dict[LiveStream, None] = {}
        """Streams with bytes to compress, those first that wait longest."""
        self._streams: dict[Key, LiveStream] = {}
        self._opening = threading.Lock()
        self.settling = threading.Lock()
        """Held while an attempt is settled or reopened in the records, so that both see what the other did."""
        self._packer = Packer()
        self._touched: dict[Key, StreamFile] = {}
        self._full = threading.Event()  # a stream has a frame's worth of bytes to archive
        self._archiving = threading.Lock()
        self._stopping = False
        self._unscanned_bytes = self._unarchived_bytes = 0
        self._bytes_in = self._lines_in = self._groups = self._refused = 0
        self._journal = journal_of(committed=self._committed, failed=self._failed)
        self._archivist = threading.Thread(target=self._archive_for_ever, name="archivist", daemon=True)

    def start(self) -> None:
        """Bring the archive up to what was acknowledged before, then begin to take bytes."""
        replay(self._journal, self._archive, self._records)
        self._journal.start()
        self._archivist.start()

    def stop(self) -> None:
        """Write and archive everything that was taken."""
        self._journal.close()
        self._stopping = True
        self._full.set()
        if self._archivist.is_alive():
            self._archivist.join()
        try:
            self.empty_journal()
        except OSError as error:  # the journal stays, and is replayed
            log.error("archive not written", cause=str(error))

    @contextmanager
    def opened(self, key: Key) -> Iterator[LiveStream]:
        """The stream, held in memory while it is used; `Busy` or `LimitReached` when there are too many, `StoreError`
        when its archive is damaged."""
        stream = self.open(key)
        try:
            yield stream
        finally:
            self.close(stream)

    def close(self, stream: LiveStream) -> None:
        """Let go of a stream that was opened."""
        with self.lock:
            stream.users -= 1

    def open(self, key: Key) -> LiveStream:
        """The stream with one user more, read from its archive when it is not in memory."""
        stream = self._used(key)
        if stream is None:
            with self._opening:
                with self.lock:
                    self._check_room(key)
                stream = self._used(key) or self._read(key)
        return stream

    def _used(self, key: Key) -> LiveStream | None:
        with self.lock:
            if stream := self._streams.get(key):
                stream.users += 1
            return stream

    def load(self, job: str, number: int) -> LiveAttempt:
        """An attempt with all streams that its archive has; those that cannot be read are its `problems`."""
        with self._opening:
            return self._loaded(job, number)

    def _loaded(self, job: str, number: int) -> LiveAttempt:
        """The attempt, whole: a verdict that is made of a part of its streams is none."""
        with self.lock:
            if attempt := self.attempts.get((job, number)):
                return attempt
        kept = self._records.open_attempt(job, number, time.time())
        if kept.deleted is not None:
            cause = "its log was deleted, and its verdict is final"
            raise LimitReached(f"attempt {job}/{number}", cause, "Start another attempt.")
        attempt = LiveAttempt(job, number, self._archive.age(job, number))
        attempt.settled = kept.settled
        attempt.ends = {end.stream: end for end in kept.ends}
        current = self._records.current(job, number)
        attempt.provisional = current is not None and not current.final
        for name in self._archive.streams(job, number):
            key = Key(job, number, name)
            try:
                self._enter(LiveStream(key, self._archive.open(key), attempt))
            except StoreError as error:
                log.error("stream not readable", stream=str(key), cause=str(error))
                attempt.problems[name] = str(error)
        with self.lock:
            self.attempts[job, number] = attempt
        return attempt

    def _read(self, key: Key) -> LiveStream:
        """The stream with one user, when it is not in memory."""
        attempt = self._loaded(key.job, key.attempt)
        stream = attempt.streams.get(key.stream) or self._enter(LiveStream(key, self._archive.open(key), attempt))
        with self.lock:
            stream.users += 1
        return stream

    def _enter(self, stream: LiveStream) -> LiveStream:
        with self.lock:
            self._streams[stream.key] = stream.attempt.streams[stream.key.stream] = stream
            if not stream.attempt.settled:
                self._wake(stream.attempt)
        return stream

    def unsettle(self, attempt: LiveAttempt) -> None:
        """Let an attempt be judged again, although there was a final verdict."""
        with self.lock:
            self._unsettle(attempt)

    def _unsettle(self, attempt: LiveAttempt) -> None:
        attempt.settled = False
        if attempt.abandoned:
            attempt.ends.pop("", None)
            attempt.abandoned = False
        self._wake(attempt)

    def _wake(self, attempt: LiveAttempt) -> None:
        """Have those streams of an attempt read that have an archive; of a settled one nobody needs them."""
        for stream in attempt.streams.values():
            if not stream.ready:
                self.unscanned.setdefault(stream)
        self.fresh.notify_all()

    def _check_room(self, key: Key) -> None:
        attempt = self.attempts.get((key.job, key.attempt))
        if len(self._streams) >= self._bounds.open_streams:
            raise Busy("the service", f"it holds {len(self._streams)} open streams", "Try again later.")
        if attempt is not None and len(attempt.streams) >= self._bounds.streams:
            cause = f"it has {len(attempt.streams)} streams"
            raise LimitReached(f"attempt {key.job}/{key.attempt}", cause, "Send fewer streams, one for each node.")

    def expect(self, stream: LiveStream, offset: int) -> None:
        """`OffsetMismatch` when bytes at `offset` would not continue an opened stream."""
        with self.lock:
            self._expect(stream, offset)

    def _expect(self, stream: LiveStream, offset: int) -> None:
        if offset != stream.accepted:
            self._refused += 1
            raise OffsetMismatch(str(stream.key), offset, stream.accepted)

    def take(self, stream: LiveStream, offset: int, data: bytes) -> Future[None]:
        """Bytes that stand at `offset` of an opened stream; the future is done when they are durable.

        `OffsetMismatch` when they do not continue it, `LimitReached` when it is too long; the future fails
        with `StorageFull` when they cannot be written, and nothing of them is kept.
        """
        with self.lock:
            self._expect(stream, offset)
            return self._number(stream, data, "")

    def push(self, stream: LiveStream, data: bytes, mark: str) -> Future[None]:
        """Bytes that continue an opened stream wherever it ends, once for each mark that is not "": a
        repetition is not taken."""
        with self.lock:
            if mark in stream.marks:
                return stream.marks[mark] or _done()
            future = self._number(stream, data, mark)
            if mark:
                stream.marks[mark] = future
            while len(stream.marks) > _MARKS:
                stream.marks.popitem(last=False)
            return future

    def _number(self, stream: LiveStream, data: bytes, mark: str) -> Future[None]:
        if stream.accepted + len(data) > self._bounds.stream_bytes:
            cause = f"it would be longer than {self._bounds.stream_bytes} bytes"
            raise LimitReached(f"stream {stream.key}", cause, "Start another stream or attempt.")
        if self._unarchived_bytes > self._bounds.unarchived:
            self._refused += 1
            raise StorageFull("the archive", "it cannot be written fast enough", "The sender will try again.")
        if len(data) > MAX_ENTRY:
            cause = f"{len(data)} bytes at once are more than {MAX_ENTRY}"
            raise LimitReached(f"stream {stream.key}", cause, "Send smaller parts.")
        if not data:
            return stream.futures[-1][1] if stream.futures else _done()
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()  # one who no longer waits must not disturb the others
        entry = JournalEntry(stream.key, stream.accepted, data, mark)
        stream.accepted += len(data)
        stream.futures.append((stream.accepted, future))
        self._journal.append(entry)
        return future

    def is_behind(self, stream: LiveStream | None = None) -> bool:
        """Whether so much waits for compression, of all or of this stream, that the sender should wait, too."""
        if self._unscanned_bytes > self._bounds.behind:
            return True
        if stream is not None and stream.unscanned_bytes > self._bounds.behind // _SHARE:
            return True
        with self.lock:  # the first has waited longest, or nearly so
            since = next((s.waiting_since for s in self.unscanned if s.ready), None)
        return since is not None and time.monotonic() - since > self._bounds.late

    def _committed(self, group: Sequence[JournalEntry]) -> None:
        """Called by the journal: these bytes are durable."""
        now = time.monotonic()
        done: list[Future[None]] = []
        with self.lock:
            self._groups += 1
            for entry in group:
                done += self._settle(entry, now)
            self.fresh.notify_all()
        for future in done:
            future.set_result(None)

    def _settle(self, entry: JournalEntry, now: float) -> list[Future[None]]:
        """Enter durable bytes; the futures that wait for them."""
        stream = self._streams[entry.key]
        size = len(entry.data)
        stream.durable += size
        lines = entry.data.count(b"\n")
        stream.lines_in += lines
        attempt = stream.attempt
        stream.last_at = attempt.changed_at = now
        if attempt.settled:
            attempt.reopened = True
            self._unsettle(attempt)
        stream.unarchived.append(entry)
        self._unarchived_bytes += size
        self._bytes_in += size
        self._lines_in += lines
        if stream.durable - stream.archived >= FRAME:
            self._full.set()
        if stream.ready:
            stream.unscanned.append((now, entry.data))
            stream.unscanned_bytes += size
            self._unscanned_bytes += size
        self.unscanned.setdefault(stream)
        if entry.mark and stream.marks.get(entry.mark):
            stream.marks[entry.mark] = None
        ready = [future for end, future in stream.futures if end <= stream.durable]
        del stream.futures[: len(ready)]
        return ready

    def _failed(self, group: Sequence[JournalEntry], error: StorageFull) -> None:
        """Called by the journal: these bytes could not be written; what came behind them is given up, too."""
        lost: list[Future[None]] = []
        with self.lock:
            self._refused += 1
            for key in {entry.key: None for entry in (*group, *self._journal.withdraw())}:
                stream = self._streams[key]
                stream.accepted = stream.durable
                lost += [future for _, future in stream.futures]
                stream.futures.clear()
                for mark in [mark for mark, future in stream.marks.items() if future is not None]:
                    del stream.marks[mark]
        log.error("disk full", cause=error.cause, refused=len(lost))
        for future in lost:
            future.set_exception(error)

    def scanned(self, stream: LiveStream, limit: int) -> list[bytes]:
        """Take about `limit` bytes out of what waits for compression; for the watch."""
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
        """Let a stream whose file was read up to `reached` go on from memory; False when the file has more."""
        with self.lock:
            if reached != stream.archived:
                return False
            stream.ready = True
            stream.unscanned = [(stream.last_at, entry.data) for entry in stream.unarchived]
            stream.unscanned_bytes = sum(len(entry.data) for entry in stream.unarchived)
            self._unscanned_bytes += stream.unscanned_bytes
            if not stream.unscanned:
                self.unscanned.pop(stream, None)
            return True

    def fall_back(self, stream: LiveStream) -> None:
        """Let the watch read a stream from its archive again."""
        with self.lock:
            self._unscanned_bytes -= stream.unscanned_bytes
            stream.unscanned, stream.unscanned_bytes = [], 0
            stream.ready, stream.scan = False, None
            self.unscanned[stream] = None

    def lines(self, key: Key, first: int, last: int, limit: int) -> ArchivedLines:
        """Raw lines of a stream, from its archive and what is not there yet; at most about `limit` bytes."""
        with self.lock:
            stream = self._streams.get(key)
            archived = stream.archived if stream else None
            tail = [entry.data for entry in stream.unarchived] if stream else []
        file = stream.file if stream else self._archive.open_to_read(key)
        number, chunks = file.from_line(first, file.offset if archived is None else archived)

        def all_chunks() -> Iterator[bytes]:
            yield from chunks
            yield from tail

        return lines_of(all_chunks(), number, first, last, limit)

    def view(self, key: Key) -> StreamView:
        """A stream as it stands now, to be read from any line on; `StoreError` when its archive is damaged."""
        with self.lock:
            stream = self._streams.get(key)
            if stream is not None:
                tail = [entry.data for entry in stream.unarchived]
                standing = stream.file, stream.archived, stream.lines_in
        if stream is None:
            file, tail = self._archive.open_to_read(key), []
            standing = file, file.offset, file.newlines
        return StreamView(*standing, tail)

    def archived(self, key: Key) -> tuple[int, int]:
        """(bytes, newlines) of a stream that is not in memory."""
        file = self._archive.open(key)
        return file.offset, file.newlines

    def known(self, key: Key) -> LiveStream | None:
        """The stream when it is in memory, so that opening it needs no disk."""
        with self.lock:
            return self._streams.get(key)

    def forget(self, attempt: LiveAttempt) -> bool:
        """Drop an attempt from memory once its archive is whole; False when somebody uses it."""
        self.archive(attempt)
        with self._opening, self.lock:
            streams = list(attempt.streams.values())
            if any(s.users or s.unarchived or s.unscanned or s.accepted != s.durable for s in streams):
                return False
            for stream in streams:
                del self._streams[stream.key]
                self.unscanned.pop(stream, None)
            del self.attempts[attempt.job, attempt.number]
            return True

    def reopen_changed(self) -> None:
        """Enter durably which settled attempts got more bytes, and that their verdicts are not final.

        Also before a journal file is deleted, because until then only that file tells it.
        """
        with self.settling:
            with self.lock:
                changed = [attempt for attempt in self.attempts.values() if attempt.reopened]
            for attempt in changed:
                if verdict := self._records.reopen(attempt.job, attempt.number):
                    self._announce(verdict)
                attempt.reopened, attempt.provisional = False, True

    def delete(self, job: str, number: int) -> bool:
        """Delete the archive of an attempt that is not in memory; False when it is. See `empty_journal`."""
        with self._opening:
            with self.lock:
                if (job, number) in self.attempts:
                    return False
            self._records.forget_log(job, number, time.time())
            self._archive.delete(job, number)
            return True

    def lag(self) -> float:
        """Seconds that the oldest bytes have waited for compression."""
        with self.lock:
            waiting = [since for stream in self.unscanned if (since := stream.waiting_since) is not None]
        return time.monotonic() - min(waiting) if waiting else 0.0

    def durable_offset(self, stream: LiveStream) -> int | Future[None]:
        """How many bytes of a stream are durable, or what to wait for while more are being written."""
        with self.lock:
            return stream.futures[-1][1] if stream.futures else stream.durable

    def figures(self) -> IntakeFigures:
        """Counts and sizes, for metrics."""
        with self.lock:
            return IntakeFigures(
                self._bytes_in,
                self._lines_in,
                self._groups,
                self._refused,
                len(self._streams),
                len(self.attempts),
                self._unscanned_bytes,
                self._unarchived_bytes,
            )

    def archive(self, attempt: LiveAttempt) -> None:
        """Bring the archive of an attempt up to date, durably."""
        try:
            with self._archiving:
                for stream in list(attempt.streams.values()):
                    self._move(stream)
                    if file := self._touched.get(stream.key):
                        file.sync()
                        del self._touched[stream.key]
        except OSError as error:
            log.error("archive not written", cause=str(error))

    def _archive_for_ever(self) -> None:
        while not self._stopping:
            self._full.wait(_RETRY)
            self._full.clear()
            try:
                self._archive_full_frames()
                if self._journal.held > self._bounds.journal_bytes:
                    self.empty_journal()
            except OSError as error:
                log.error("archive not written", cause=str(error))
                time.sleep(_RETRY)

    def _archive_full_frames(self) -> None:
        with self.lock:
            full = [s for s in self._streams.values() if s.durable - s.archived >= FRAME]
        for stream in full:
            with self._archiving:
                self._move(stream)

    def empty_journal(self) -> None:
        """Archive all that the journal holds, durably, and delete its files: it would bring back what is deleted."""
        number = self._journal.rotate()
        with self.lock:
            streams = [stream for stream in self._streams.values() if stream.unarchived]
        for stream in streams:
            with self._archiving:
                self._move(stream)
        with self._archiving:
            for file in self._touched.values():
                file.sync()
            self._touched.clear()
        self.reopen_changed()
        self._journal.release(number)

    def _move(self, stream: LiveStream) -> None:
        """Move durable bytes of a stream from memory to its file."""
        with self.lock:
            entries = list(stream.unarchived)
        if not entries:
            return
        data = b"".join(entry.data for entry in entries)
        self._touched[stream.key] = stream.file
        stream.file.append(data, self._packer, [entry.mark for entry in entries if entry.mark])
        stream.file.keep_index()
        with self.lock:
            del stream.unarchived[: len(entries)]
            stream.archived += len(data)
            self._unarchived_bytes -= len(data)


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future
