"""The log: bytes that are acknowledged but not archived yet, as rows of the database.

Bytes are appended in groups, one transaction each: it checks the offsets of their streams, advances them, and adds one
row per shard with its bytes as a compressed frame. So any process may append, whoever dies, and acknowledged bytes are
stored once. The owner of a shard (store/log/shards.py) reads its rows in order. Exactly-once rests on the offsets of
the bytes, not on a reader's memory: rows may be read again, and known bytes are skipped.
"""

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from logdoctor.errors import Busy, LimitReached, LogdoctorError, OffsetMismatch, StoreError
from logdoctor.store.database import Database
from logdoctor.store.log.frames import Packed, Packer, framed, unframed
from logdoctor.store.log.shards import Owned, fenced, shard_of, still_owned
from logdoctor.store.lookup import of_keys
from logdoctor.store.names import Key
from logdoctor.store.schema import attempts, log_rows, marks, shards, streams

_READ = 16  # rows that are read at once
_UNREAD = 60.0  # seconds after which nobody here will read an appended row


class NewBytes(NamedTuple):
    """Bytes of a stream. Those without an offset are appended at its end, once per `mark` other than "".

    Bytes of the stream "" are no log: they are a request about the attempt to the owner of the shard, handled after
    everything before it.
    """

    key: Key
    offset: int | None
    data: bytes
    mark: str = ""


class LogLimits(NamedTuple):
    """Limits: bytes of one stream, streams of one attempt, bytes of one shard's rows."""

    stream_bytes: int
    streams: int
    shard_bytes: int


class StreamBytes(NamedTuple):
    """Bytes at an offset of a stream; those of the stream "" are a request about the attempt."""

    key: Key
    offset: int
    data: bytes


class Row(NamedTuple):
    """A row of the log. An unreadable one has no chunks, and `damage` says what is wrong with it."""

    seq: int
    chunks: list[StreamBytes]
    damage: str = ""

    @property
    def asks(self) -> bool:
        """Whether the row has a request to the owner."""
        return any(not chunk.key.stream for chunk in self.chunks)


class Standing(NamedTuple):
    """The state of a stream: the next byte, newlines before it, the first unarchived byte, when bytes last came
    (seconds since the epoch), lines scanned and kept by the filter rules as last published, the object with its last
    snapshot, and what was lost of it; "" for none."""

    next: int = 0
    lines: int = 0
    archived: int = 0
    changed: float = 0.0
    scanned: int = 0
    kept: int = 0
    state: str = ""
    problem: str = ""


class Reached(NamedTuple):
    """The state of a stream after an append: the next byte, newlines before it, and lines scanned and kept by the
    filter rules as last published."""

    next: int = 0
    lines: int = 0
    scanned: int = 0
    kept: int = 0


class Head(NamedTuple):
    """The state of a shard: its last row, its last row with a request, and the bytes of all rows."""

    row: int
    asked: int
    bytes: int


class DoneRows(NamedTuple):
    """Rows of an owned shard that are no longer needed: those up to a number, except some."""

    owned: Owned
    upto: int
    but: frozenset[int] = frozenset()


class _Note(NamedTuple):
    """A frame's description of one of its chunks, whose bytes follow each other."""

    job: str
    attempt: int
    stream: str
    offset: int
    length: int


class _Append:
    """Entries being appended in one transaction that locks their shards: nobody else moves their streams."""

    def __init__(self, connection: sa.Connection, limits: LogLimits, entries: Sequence[NewBytes]) -> None:
        self._connection, self._limits, self._entries = connection, limits, entries
        wanted = {entry.key for entry in entries if entry.key.stream}
        self._streams = _known(connection, wanted)
        self._attempts = _attempts(connection, {key[:2] for key in wanted - self._streams.keys()})
        self._marks = _repeated(connection, entries)
        self._moved: set[Key] = set()
        self._new_marks: list[tuple[Key, str]] = []

    def place(self, entry: NewBytes, held: int) -> tuple[Reached | LogdoctorError, bool]:
        """Advance a stream whose shard holds `held` bytes. Return its state, or why the entry is refused, and whether
        it has bytes to write."""
        if not entry.key.stream:
            return Reached(), True
        stream = self._streams.get(entry.key)
        reached = stream or Reached()
        if entry.mark and (entry.key, entry.mark) in self._marks:
            return reached, False
        refused = self._refused(entry, stream, reached.next, held)
        if refused is not None:
            return refused, False
        if not entry.data:
            return reached, False
        next_offset, lines = reached.next + len(entry.data), reached.lines + entry.data.count(b"\n")
        reached = self._streams[entry.key] = reached._replace(next=next_offset, lines=lines)
        self._moved.add(entry.key)
        if entry.mark:
            self._marks.add((entry.key, entry.mark))
            self._new_marks.append((entry.key, entry.mark))
        return reached, True

    def _refused(self, entry: NewBytes, stream: Reached | None, reached: int, held: int) -> LogdoctorError | None:
        if entry.offset is not None and entry.offset != reached:
            return OffsetMismatch(str(entry.key), entry.offset, reached)
        if held > self._limits.shard_bytes:
            return Busy("the service", "too much waits to be archived", "Try again later.")
        if reached + len(entry.data) > self._limits.stream_bytes:
            cause = f"it would be longer than {self._limits.stream_bytes} bytes"
            return LimitReached(f"stream {entry.key}", cause, "Start another stream or attempt.")
        return self._refused_stream(entry.key) if stream is None and entry.data else None

    def _refused_stream(self, key: Key) -> LimitReached | None:
        """Count another stream of an attempt, or return why there may not be another."""
        count = self._attempts[key.job, key.attempt]
        if count is None:
            cause = "its log was deleted, and its verdict is final"
            return LimitReached(f"attempt {key.job}/{key.attempt}", cause, "Start another attempt.")
        if count >= self._limits.streams:
            cause = f"it has {count} streams"
            return LimitReached(f"attempt {key.job}/{key.attempt}", cause, "Send fewer streams, one for each node.")
        self._attempts[key.job, key.attempt] = count + 1
        return None

    def finish(self, at: float) -> None:
        """Write the new ends of the streams, and the new marks."""
        rows = [
            {**key._asdict(), "shard": shard_of(key.job, key.attempt), "next": s.next, "lines": s.lines, "changed": at}
            for key, s in sorted(self._streams.items())  # in the same order as `say`, or they block each other
            if key in self._moved
        ]
        if rows:
            statement, order = _upsert(self._connection.dialect)
            values = [row | _NEW_STREAM for row in rows]
            self._connection.exec_driver_sql(
                statement, [tuple(map(row.get, order)) for row in values] if order else values
            )
        if self._new_marks:
            pushed = [{**key._asdict(), "mark": mark, "at": at} for key, mark in self._new_marks]
            self._connection.execute(sa.insert(marks), pushed)


_STANDING = [streams.c[name] for name in Standing._fields]
_NEW_ROW = sa.insert(log_rows)
_NEW_HEAD = (
    sa.update(shards)
    .where(shards.c.shard == sa.bindparam("of"))
    .values(
        head=sa.bindparam("to"),
        asked=sa.case((sa.bindparam("asks"), sa.bindparam("to")), else_=shards.c.asked),
        bytes=shards.c.bytes + sa.bindparam("more"),
    )
)
_LOCK = (
    sa.select(shards.c.shard, shards.c.head, shards.c.bytes)
    .where(shards.c.shard.in_(sa.bindparam("shards", expanding=True)))
    .order_by(shards.c.shard)
    .with_for_update()
)
_notes = msgspec.msgpack.Decoder(list[_Note])
_NEW_STREAM = {"archived": 0, "scanned": 0, "kept": 0, "state": "", "problem": ""}


class _Recent:
    """The rows that this process appended and has not read yet, to save reading them back; thread-safe. `most` is the
    limit in bytes."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._rows: OrderedDict[tuple[int, int], tuple[float, Row]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, shard: int, row: Row) -> None:
        """Keep a durable row if there is room: earlier ones are read first. Rows that nobody reads, because another
        process owns their shard, are dropped after a while."""
        now, size = time.monotonic(), _size(row)
        with self._lock:
            while self._rows and next(iter(self._rows.values()))[0] < now - _UNREAD:
                self._bytes -= _size(self._rows.popitem(last=False)[1][1])
            if self._bytes + size <= self._most:
                self._rows[shard, row.seq] = now, row
                self._bytes += size

    def take(self, shard: int, after: int, most: int) -> list[Row]:
        """Remove and return up to `most` consecutive rows of a shard after row `after`."""
        found: list[Row] = []
        with self._lock:
            while len(found) < most and (kept := self._rows.pop((shard, after + 1 + len(found)), None)):
                self._bytes -= _size(kept[1])
                found.append(kept[1])
        return found


def _size(row: Row) -> int:
    return sum(len(chunk.data) for chunk in row.chunks)


class LogTable:
    """The log of one database. Any thread of any process may append; only its owner reads a shard. A process that does
    both caches up to `recent` bytes of what it appended."""

    def __init__(self, database: Database, limits: LogLimits, recent: int = 0) -> None:
        self._database, self._limits, self._recent = database, limits, _Recent(recent)

    def append(self, entries: Sequence[NewBytes], at: float) -> list[Reached | LogdoctorError]:
        """Append entries durably; return each stream's new state, or why the entry was refused: it does not continue
        its stream (`OffsetMismatch`), the stream is too long or one too many (`LimitReached`), or too much of its
        shard is unarchived (`Busy`).

        Entries of one stream are taken in order. `StoreError` when the database fails: then nothing was taken, or it is
        unknown, and the end of the stream tells.
        """
        places = _by_shard(entries)
        packed = {shard: _packed(entries[place].data for place in of) for shard, of in places.items()}
        results: list[Reached | LogdoctorError] = [Reached()] * len(entries)
        with self._database.appending() as connection:
            room = _lock(connection, places)
            group = _Append(connection, self._limits, entries)
            written: list[tuple[int, Row]] = []
            frames: list[tuple[int, bytes]] = []
            for shard, of in places.items():
                taken: list[StreamBytes] = []
                for place in of:
                    entry = entries[place]
                    results[place], writes = result, writes = group.place(entry, room[shard].bytes)
                    if writes and isinstance(result, Reached):
                        taken.append(StreamBytes(entry.key, max(result.next - len(entry.data), 0), entry.data))
                if taken:
                    whole = packed[shard] if len(taken) == len(of) else _packed(one.data for one in taken)
                    written.append((shard, Row(room[shard].head + 1, taken)))
                    frames.append((whole.raw, framed(_encoded(taken), whole)))
            _insert(connection, written, frames)
            group.finish(at)
        for shard, row in written:
            self._recent.put(shard, row)
        return results

    def standing(self, key: Key) -> Standing:
        """Return the state of a stream; one without bytes is at 0."""
        with self._database.reading() as connection:
            row = connection.execute(sa.select(*_STANDING).where(*_is(key))).one_or_none()
        return Standing(*row) if row else Standing()

    def streams_of(self, job: str, attempt: int) -> dict[str, Standing]:
        """Return the state of each stream of an attempt."""
        return self.standings([(job, attempt)])[job, attempt]

    def standings(self, attempts: Collection[tuple[str, int]]) -> dict[tuple[str, int], dict[str, Standing]]:
        """Return the state of each stream of attempts, by job and number, in one statement."""
        found: dict[tuple[str, int], dict[str, Standing]] = {attempt: {} for attempt in attempts}
        query = sa.select(*streams.c["job", "attempt", "stream"], *_STANDING)
        with self._database.reading() as connection:
            for row in of_keys(connection, query, streams.c["job", "attempt"], found):
                found[row.job, row.attempt][row.stream] = Standing(*row[3:])
        return found

    def heads(self) -> dict[int, Head]:
        """Return the state of each shard, so that readers know what is new."""
        query = sa.select(shards.c.shard, shards.c.head, shards.c.asked, shards.c.bytes)
        with self._database.reading() as connection:
            return {row[0]: Head(*row[1:]) for row in connection.execute(query)}

    def head(self, shard: int) -> int:
        """Return the last row of a shard."""
        with self._database.reading() as connection:
            return connection.scalar(sa.select(shards.c.head).where(shards.c.shard == shard)) or 0

    def ends(self, shard: int) -> tuple[int, dict[Key, int]]:
        """Return a shard's last row, and the ends of its streams not fully archived."""
        columns = (streams.c.job, streams.c.attempt, streams.c.stream, streams.c.next)
        of = sa.and_(streams.c.shard == shards.c.shard, streams.c.next > streams.c.archived)
        query = sa.select(shards.c.head, *columns).select_from(shards).outerjoin(streams, of)
        with self._database.reading() as connection:
            rows = connection.execute(query.where(shards.c.shard == shard)).all()
        return rows[0].head, {Key(*row[1:4]): row.next for row in rows if row.job is not None}

    def read(self, shard: int, after: int, most: int = _READ) -> list[Row]:
        """Return up to `most` rows of a shard that follow row `after`, in order."""
        if recent := self._recent.take(shard, after, most):
            return recent
        return self._stored(shard, after, most)

    def _stored(self, shard: int, after: int, most: int) -> list[Row]:
        with self._database.reading() as connection:
            return _stored(connection, shard, after, most)

    def read_each(self, after: Mapping[int, int], enough: int) -> dict[int, list[Row]]:
        """Return the rows after a given one of each shard, in one transaction. Each has as many as `read` returns; it
        stops once `enough` bytes were read."""
        found: dict[int, list[Row]] = {}
        size = 0
        with self._database.reading() as connection:
            for shard, row in after.items():
                if size >= enough:
                    break
                found[shard] = self._recent.take(shard, row, _READ) or _stored(connection, shard, row, _READ)
                size += sum(map(_size, found[shard]))
        return found

    def tail(self, key: Key, begin: int) -> list[StreamBytes]:
        """Return the logged chunks of a stream from offset `begin` on, without damaged rows. For showing logs: it reads
        all rows of the shard."""
        found, after, shard = [], 0, shard_of(key.job, key.attempt)
        while rows := self._stored(shard, after, _READ):
            after = rows[-1].seq
            for row in rows:
                found += [chunk for chunk in row.chunks if chunk.key == key and chunk.offset + len(chunk.data) > begin]
        return found

    def trim(self, gone: DoneRows) -> None:
        """Delete rows that are no longer needed; `Fenced` when another worker owns their shard."""
        with self._database.appending() as connection:
            trim(connection, gone, {})

    def say(self, counts: Mapping[Owned, Mapping[Key, tuple[int, int]]]) -> set[Owned]:
        """Publish the scanned and kept lines of streams of owned shards; return the shards that another worker owns,
        which are skipped."""
        if not counts:
            return set()
        where = [streams.c[name] == sa.bindparam(f"of_{name}") for name in ("job", "attempt", "stream")]
        values: dict[str, Any] = {"scanned": sa.bindparam("of_scanned"), "kept": sa.bindparam("of_kept")}
        with self._database.appending() as connection:
            owned = still_owned(connection, counts.keys())
            said = sorted((*key, *of) for one in owned for key, of in counts[one].items())
            if said:
                names = ("of_job", "of_attempt", "of_stream", "of_scanned", "of_kept")
                update = sa.update(streams).where(*where).values(values)
                connection.execute(update, [dict(zip(names, one, strict=True)) for one in said])
        return counts.keys() - owned

    def lost(self, owned: Owned, key: Key, problem: str) -> None:
        """Record for good what was lost of a stream; `Fenced` when another worker owns its shard, and may know
        better."""
        with self._database.appending() as connection:
            fenced(connection, owned)
            connection.execute(sa.update(streams).where(*_is(key)).values(problem=problem))

    def changed(self, job: str, attempt: int) -> float:
        """Return when bytes of an attempt last came, in seconds since the epoch; 0 if none ever did."""
        mine = (streams.c.job == job, streams.c.attempt == attempt)
        with self._database.reading() as connection:
            return float(connection.scalar(sa.select(sa.func.max(streams.c.changed)).where(*mine)) or 0.0)

    def forget_marks(self, before: float) -> None:
        """Delete the marks of pushes before a time: repeating one of them later doubles its lines."""
        with self._database.appending() as connection:
            connection.execute(sa.delete(marks).where(marks.c.at < before))


def trim(connection: sa.Connection, gone: DoneRows, archived: dict[Key, int]) -> None:
    """Record archived offsets of streams and delete rows, in the transaction that lists the object. `Fenced` when
    another worker owns the shard."""
    fenced(connection, gone.owned)
    if archived:
        where = [streams.c[name] == sa.bindparam(f"of_{name}") for name in ("job", "attempt", "stream")]
        moved = [
            {"of_job": key.job, "of_attempt": key.attempt, "of_stream": key.stream, "to": to}
            for key, to in sorted(archived.items())
        ]
        connection.execute(sa.update(streams).where(*where).values(archived=sa.bindparam("to")), moved)
    shard = gone.owned.shard
    rows = (log_rows.c.shard == shard, log_rows.c.seq <= gone.upto, log_rows.c.seq.not_in(gone.but))
    freed = connection.scalar(sa.select(sa.func.sum(log_rows.c.bytes)).where(*rows))
    if freed is not None:
        connection.execute(sa.delete(log_rows).where(*rows))
        left = shards.c.bytes - int(freed)
        connection.execute(sa.update(shards).where(shards.c.shard == shard).values(bytes=left))


def _by_shard(entries: Sequence[NewBytes]) -> dict[int, list[int]]:
    """Return the indexes of each shard's entries, in the order in which shards are locked."""
    groups: dict[int, list[int]] = defaultdict(list)
    for place, entry in enumerate(entries):
        groups[shard_of(entry.key.job, entry.key.attempt)].append(place)
    return dict(sorted(groups.items()))


def _lock(connection: sa.Connection, groups: Iterable[int]) -> dict[int, Any]:
    return {row.shard: row for row in connection.execute(_LOCK, {"shards": list(groups)})}


def _known(connection: sa.Connection, keys: Iterable[Key]) -> dict[Key, Reached]:
    """Return the state of the streams that exist; the holder of their shard's lock is alone with them."""
    names, ends = streams.c["job", "attempt", "stream"], streams.c["next", "lines", "scanned", "kept"]
    rows = of_keys(connection, sa.select(*names, *ends), names, list(keys))
    return {Key(*row[:3]): Reached(*row[3:]) for row in rows}


def _attempts(connection: sa.Connection, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int | None]:
    """Return how many streams each attempt has; None for one whose log was deleted."""
    found: dict[tuple[str, int], int | None] = dict.fromkeys(keys, 0)
    names = streams.c["job", "attempt"]
    counts = sa.select(*names, sa.func.count()).group_by(*names)
    found |= {(job, attempt): count for job, attempt, count in of_keys(connection, counts, names, found)}
    names = attempts.c["job", "number"]
    deleted = sa.select(*names).where(attempts.c.deleted.is_not(None))
    return found | {(job, attempt): None for job, attempt in of_keys(connection, deleted, names, found)}


def _repeated(connection: sa.Connection, entries: Iterable[NewBytes]) -> set[tuple[Key, str]]:
    """Return which marks of the entries were taken before."""
    names = marks.c["job", "attempt", "stream", "mark"]
    wanted = [(*entry.key, entry.mark) for entry in entries if entry.mark]
    found = of_keys(connection, sa.select(*names), names, wanted)
    return {(Key(job, attempt, stream), mark) for job, attempt, stream, mark in found}


class _Packers(threading.local):
    """One packer per thread: creating one costs more than packing a few lines."""

    def __init__(self) -> None:
        self.packer = Packer()


_packers = _Packers()


def _packed(parts: Iterable[bytes]) -> Packed:
    return _packers.packer.packed(b"".join(parts))


def _encoded(taken: Iterable[StreamBytes]) -> bytes:
    return msgspec.msgpack.encode([_Note(*chunk.key, chunk.offset, len(chunk.data)) for chunk in taken])


@cache
def _upsert(dialect: sa.Dialect) -> tuple[str, tuple[str, ...]]:
    """Return the statement that writes the ends of streams, and its positional parameters' order. It is compiled once,
    as hundreds of streams move in a group."""
    insert = sqlite.insert(streams) if dialect.name == "sqlite" else postgresql.insert(streams)
    changed = {name: insert.excluded[name] for name in ("next", "lines", "changed")}
    upsert = insert.on_conflict_do_update(index_elements=["job", "attempt", "stream"], set_=changed)
    compiled = upsert.compile(dialect=dialect, column_keys=[column.name for column in streams.columns])
    return str(compiled), tuple(compiled.positiontup or ())


def _insert(connection: sa.Connection, rows: Sequence[tuple[int, Row]], frames: Sequence[tuple[int, bytes]]) -> None:
    """Insert a row for each of several shards; each frame comes with its number of bytes."""
    if not rows:
        return
    both = [(shard, row, size, frame) for (shard, row), (size, frame) in zip(rows, frames, strict=True)]
    new = [{"shard": shard, "seq": row.seq, "bytes": size, "frame": frame} for shard, row, size, frame in both]
    connection.execute(_NEW_ROW, new)
    heads = [{"of": shard, "to": row.seq, "asks": row.asks, "more": size} for shard, row, size, _ in both]
    connection.execute(_NEW_HEAD, heads)


def _stored(connection: sa.Connection, shard: int, after: int, most: int) -> list[Row]:
    """Return up to `most` rows of a shard that follow row `after`."""
    query = sa.select(log_rows.c.seq, log_rows.c.frame).where(log_rows.c.shard == shard, log_rows.c.seq > after)
    found = connection.execute(query.order_by(log_rows.c.seq).limit(most)).all()
    return [row_of(shard, seq, frame) for seq, frame in found]


def row_of(shard: int, seq: int, frame: bytes) -> Row:
    """Return the decoded row of a shard."""
    try:
        note, data = unframed(frame, f"row {seq} of shard {shard} of the log")
        chunks, at = [], 0
        for one in _notes.decode(note):
            chunks.append(StreamBytes(Key(one.job, one.attempt, one.stream), one.offset, data[at : at + one.length]))
            at += one.length
    except (StoreError, msgspec.DecodeError) as error:
        return Row(seq, [], str(error))
    return Row(seq, chunks)


def _is(key: Key) -> tuple[sa.ColumnElement[bool], ...]:
    return streams.c.job == key.job, streams.c.attempt == key.attempt, streams.c.stream == key.stream
