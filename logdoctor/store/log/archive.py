"""The archive: all stored bytes of streams, in objects that the database lists.

An object holds one flush of one attempt: frames of up to a MiB of one stream each, for `zstdcat`. It is written before
the transaction that lists it and deletes its bytes from the log; a process that dies in between leaves an unlisted
object, which `sweep` deletes.
"""

import re
import secrets
import threading
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import numpy as np
import sqlalchemy as sa

from logdoctor.errors import StoreDamaged, StoreError
from logdoctor.store.database import Database
from logdoctor.store.keeping import identity
from logdoctor.store.log.frames import Packer, unframed
from logdoctor.store.log.objects import Objects
from logdoctor.store.log.shards import Fenced, Owned, fenced
from logdoctor.store.log.table import DoneRows, trim
from logdoctor.store.lookup import of_keys
from logdoctor.store.names import Key, file_name
from logdoctor.store.schema import attempts, marks, parts, streams

FRAME = 1 << 20
"""Bytes of a stream in one frame, at most: what must be unpacked to read one line."""
_OPENED = 32  # attempts whose frame index is cached
_OURS = re.compile(r"[^/]+/\d+/(?:\d{6,}-\d+-[0-9a-f]{8}\.zst|[^/]+\.[0-9a-f]{8}\.state)")
_REST = 30.0  # seconds during which a failed object store is avoided by whoever has other things to do
_ORPHAN = 3600.0  # seconds after which an unlisted object is no longer about to be listed


class ArchivedLines(NamedTuple):
    """Raw lines of a stream from number `first` on; `complete` is False when the limit cut them off."""

    first: int
    lines: list[bytes]
    complete: bool


def lines_of(chunks: Iterable[bytes], number: int, first: int, last: int, limit: int) -> ArchivedLines:
    """Return lines `first` to `last` of a stream, about `limit` bytes at most. Its chunks begin in line `number`; if
    that is `first`, at its first byte."""
    found: list[bytes] = []
    current, taken = b"", 0
    for chunk in chunks:
        if number + (count := chunk.count(b"\n")) < first:
            number += count
            continue
        for place, part in enumerate(chunk.split(b"\n")):
            if place:
                if number >= first:
                    found.append(current)
                    taken += len(current) + 1
                if number >= last or taken > limit:
                    return ArchivedLines(first, found, number >= last)
                number += 1
                current = b""
            if number >= first and len(current) <= limit:
                current += part
        if taken + len(current) > limit:
            return ArchivedLines(first, [*found, current[:limit]], False)
    if current:
        found.append(current)
    return ArchivedLines(first, found, True)


class AttemptSize(NamedTuple):
    """The size of an archived attempt: bytes of its objects, and when the last was written, since the epoch."""

    job: str
    attempt: int
    bytes: int
    changed: float


class Archived(NamedTuple):
    """The archived bytes of a stream, and their newlines."""

    offset: int = 0
    newlines: int = 0


class StreamPiece(NamedTuple):
    """Bytes of a stream to archive: `offset` and `line` are those of the first."""

    stream: str
    offset: int
    line: int
    data: bytes


class Note(NamedTuple):
    """A frame's description of its bytes, from which the archive can be listed again."""

    stream: str
    offset: int
    line: int
    newlines: int


class Listed(msgspec.Struct, array_like=True):
    """The frame index of an object: the names of its streams, and rows of `COLUMNS` numbers."""

    streams: list[str]
    rows: bytes


COLUMNS = 7  # stream (index among the names), offset, line, length, newlines, begin and end in the object
_listed = msgspec.msgpack.Decoder(Listed)
_noted = msgspec.msgpack.Decoder(Note)


def indexed(names: Iterable[str], rows: Sequence[Sequence[int]]) -> bytes:
    """Encode the frame index of an object: the names of its streams, and rows of `COLUMNS` numbers."""
    return msgspec.msgpack.encode(Listed(list(names), np.array(rows, "<i8").tobytes()))


class ArchivedStream:
    """The archived bytes of one stream; they may grow while it is read, but never change. Methods that read raise
    `StoreError` when an object is damaged or missing."""

    def __init__(self, key: Key, objects: Objects) -> None:
        self.key, self._objects = key, objects
        self._offsets: list[int] = []
        self._lines: list[int] = []
        self._places: list[tuple[str, int, int]] = []  # object, begin, end
        self.offset = self.newlines = 0
        """Archived bytes and newlines of the stream."""

    def enter(self, name: str, rows: Iterable[Sequence[int]]) -> None:
        """Add the frames of an object, in order."""
        for _, offset, line, length, newlines, begin, end in rows:
            self._offsets.append(offset)
            self._lines.append(line)
            self._places.append((name, begin, end))
            self.newlines, self.offset = line - 1 + newlines, offset + length

    def read(self, begin: int, end: int) -> bytes:
        """Return bytes [begin, end), as far as they are archived."""
        found = []
        start = max(bisect_right(self._offsets, begin) - 1, 0)
        for offset, data in self._frames(start, bisect_left(self._offsets, end)):
            found.append(data[max(begin - offset, 0) : end - offset])
        return b"".join(found)

    def from_line(self, line: int, end: int) -> tuple[int, Iterator[bytes]]:
        """Return chunks around `line` up to byte `end`, and their first line's number. They begin at or before the
        start of `line`; `end` must end a frame."""
        start = max(bisect_left(self._lines, line) - 1, 0)
        number = self._lines[start] if self._lines else 1
        return number, self.frames(start, bisect_left(self._offsets, end))

    def newlines_before(self, end: int) -> int:
        """Return how many newlines precede byte `end`, which ends a frame."""
        count = bisect_left(self._offsets, end)
        return self._lines[count] - 1 if count < len(self._lines) else self.newlines

    def places(self, end: int) -> tuple[list[int], list[int]]:
        """Return each frame's offset and first line number, for frames that begin before `end`."""
        count = bisect_left(self._offsets, end)
        return self._offsets[:count], self._lines[:count]

    def frames(self, start: int, stop: int) -> Iterator[bytes]:
        """Return an iterator over the bytes of frames `start` to before `stop`."""
        return (data for _, data in self._frames(start, stop))

    def _frames(self, start: int, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield the offsets and bytes of the frames from number `start` on."""
        for number in range(start, len(self._places) if stop is None else stop):
            name, begin, end = self._places[number]
            note, data = unframed(self._objects.get(name, begin, end), name)
            if not is_listed(note, self.key.stream, self._offsets[number]):
                raise StoreDamaged(name, f"the frame at byte {begin} is another one", "Run `logdoctor doctor`.")
            yield self._offsets[number], data


def is_listed(note: bytes, stream: str, offset: int) -> bool:
    """Return whether a frame's note names this stream and offset."""
    with suppress(msgspec.DecodeError):
        told = _noted.decode(note)
        return (told.stream, told.offset) == (stream, offset)
    return False


class _Attempt:
    """The listed parts of an attempt: `count` of them, the last with this `number`."""

    def __init__(self) -> None:
        self.count = self.number = 0
        self.streams: dict[str, ArchivedStream] = {}


class Archive:
    """The archive of one database, in a folder or bucket. Reading is thread-safe; only the owner of a shard stores."""

    def __init__(self, database: Database, objects: Objects) -> None:
        self._database, self.objects = database, objects
        self._read: OrderedDict[tuple[str, int], _Attempt] = OrderedDict()
        self._reading = threading.Lock()
        self._packer = Packer()
        self._packing = threading.Lock()
        self._is_ours = False
        self._failed_at = -_REST

    @property
    def is_away(self) -> bool:
        """Whether writing or deleting an object has just failed: another try may take long."""
        return time.monotonic() - self._failed_at < _REST

    def _put(self, name: str, data: bytes) -> None:
        with self._telling():
            self.objects.put(name, data)
        self._failed_at = -_REST

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Record when the object store fails."""
        try:
            yield
        except StoreError:
            self._failed_at = time.monotonic()
            raise

    def meet(self) -> None:
        """Check once that the objects belong to the database; `StoreDamaged` if they do not, `StoreError` if that
        cannot be checked now."""
        if not self._is_ours:
            with self._telling():
                identity.require(self._database, self.objects)
            self._is_ours = True

    def open(self, key: Key) -> ArchivedStream:
        """Return the archived bytes of a stream as they are now."""
        return self._listed(key.job, key.attempt).streams.get(key.stream) or ArchivedStream(key, self.objects)

    def reached(
        self, names: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], "dict[str, Archived] | StoreDamaged"]:
        """Return how much of each attempt's streams is archived, with one statement for hundreds. An attempt with a
        damaged index has the error instead."""
        columns = list(parts.c["job", "attempt", "number", "object", "index"])
        query = sa.select(*columns).order_by(*columns[:3])
        found: dict[tuple[str, int], dict[str, Archived] | StoreDamaged] = {name: {} for name in names}
        with self._database.reading() as connection:
            rows = of_keys(connection, query, columns[:2], names)
            for (job, attempt), of in groupby(rows, lambda row: (row.job, row.attempt)):
                try:
                    listed = _Attempt()
                    _extend(listed, Key(job, attempt, ""), (row[2:] for row in of), self.objects)
                    found[job, attempt] = {n: Archived(s.offset, s.newlines) for n, s in listed.streams.items()}
                except StoreDamaged as error:
                    found[job, attempt] = error
        return found

    def streams(self, job: str, attempt: int) -> list[str]:
        """Return the names of an attempt's archived streams."""
        return sorted(self._listed(job, attempt).streams)

    def _listed(self, job: str, attempt: int) -> _Attempt:
        """Return the listed parts of an attempt; only new ones are read."""
        of = (parts.c.job == job, parts.c.attempt == attempt)
        newest = sa.select(sa.func.count(), sa.func.max(parts.c.number)).where(*of)
        query = sa.select(parts.c.number, parts.c.object, parts.c.index).where(*of).order_by(parts.c.number)
        with self._reading:
            known = self._read.get((job, attempt)) or _Attempt()
            with self._database.reading() as connection:
                count, number = connection.execute(newest).one()
                if known.count > count:  # it was deleted
                    known = _Attempt()
                if number != known.number:
                    _extend(
                        known,
                        Key(job, attempt, ""),
                        connection.execute(query.where(parts.c.number > known.number)),
                        self.objects,
                    )
            self._read[job, attempt] = known
            self._read.move_to_end((job, attempt))
            while len(self._read) > _OPENED:
                self._read.popitem(last=False)
            return known

    def store(self, gone: DoneRows, job: str, attempt: int, pieces: Sequence[StreamPiece]) -> None:
        """Archive the next pieces of an attempt's streams as one object, and list it. The rows of the log whose bytes
        are all archived then are deleted. `Fenced` when another worker owns the shard, or the pieces do not continue
        what is archived (as after a commit whose answer was lost): then nothing is changed, the object is swept, and
        the owner of the shard must load its state again."""
        self.meet()
        number = self._listed(job, attempt).number + 1
        with self._packing:
            data, index = self.packed(pieces)
        name = f"{file_name(job)}/{attempt}/{number:06}-{gone.owned.epoch}-{secrets.token_hex(4)}.zst"
        self._put(name, data)
        archived = {Key(job, attempt, one.stream): one.offset + len(one.data) for one in pieces}
        row = {"object": name, "bytes": len(data), "index": index, "at": time.time()}
        with self._database.appending() as connection:
            fenced(connection, gone.owned)
            mine = (streams.c.job == job, streams.c.attempt == attempt)
            query = sa.select(streams.c.stream, streams.c.archived).where(*mine)
            reached = {stream: offset for stream, offset in connection.execute(query)}
            for one in pieces:
                if reached.get(one.stream) != one.offset:
                    raise Fenced(*gone.owned)
                reached[one.stream] += len(one.data)
            trim(connection, gone, archived)
            connection.execute(sa.insert(parts).values(job=job, attempt=attempt, number=number, **row))

    def packed(self, pieces: Iterable[StreamPiece]) -> tuple[bytes, bytes]:
        """Return an object with these pieces, and its index."""
        names: dict[str, int] = {}
        frames, rows, end = [], [], 0
        for stream, offset, line, whole in pieces:
            for at in range(0, len(whole), FRAME):
                data = whole[at : at + FRAME]
                newlines = data.count(b"\n")
                note = msgspec.msgpack.encode(Note(stream, offset, line, newlines))
                frames.append(self._packer.pack(note, data))
                begin, end = end, end + len(frames[-1])
                rows.append((names.setdefault(stream, len(names)), offset, line, len(data), newlines, begin, end))
                offset, line = offset + len(data), line + newlines
        return b"".join(frames), indexed(names, rows)

    def keep_state(self, owned: Owned, key: Key, state: bytes) -> str:
        """Replace the snapshot of a stream, and return its name; `Fenced` when another worker owns the shard."""
        if self.is_away:
            raise StoreError("the archive", "it failed a moment ago", "Check where it lies.")
        self.meet()
        name = f"{file_name(key.job)}/{key.attempt}/{file_name(key.stream)}.{secrets.token_hex(4)}.state"
        self._put(name, state)
        self._replace_state(owned, key, name)
        return name

    def drop_states(self, owned: Owned, keys: Iterable[Key]) -> None:
        """Delete the snapshots of ended streams."""
        for key in keys:
            self._replace_state(owned, key, "")

    def _replace_state(self, owned: Owned, key: Key, name: str) -> None:
        mine = (streams.c.job == key.job, streams.c.attempt == key.attempt, streams.c.stream == key.stream)
        with self._database.appending() as connection:
            fenced(connection, owned)
            former = connection.scalar(sa.select(streams.c.state).where(*mine))
            if former != name:
                connection.execute(sa.update(streams).where(*mine).values(state=name))
        if former and former != name:
            self._discard([former])

    def state(self, name: str) -> bytes | None:
        """Return a snapshot; None when it is gone."""
        size = self.objects.size(name) if name else None
        return self.objects.get(name, 0, size) if size else None

    def sizes(self) -> list[AttemptSize]:
        """Return the size of every attempt."""
        query = sa.select(parts.c.job, parts.c.attempt, sa.func.sum(parts.c.bytes), sa.func.max(parts.c.at))
        with self._database.reading() as connection:
            rows = connection.execute(query.group_by(parts.c.job, parts.c.attempt))
            return [AttemptSize(job, attempt, int(size), changed) for job, attempt, size, changed in rows]

    def size(self, job: str, attempt: int) -> int:
        """Return the bytes of an attempt's objects."""
        query = sa.select(sa.func.sum(parts.c.bytes)).where(parts.c.job == job, parts.c.attempt == attempt)
        with self._database.reading() as connection:
            return int(connection.scalar(query) or 0)

    def delete(self, owned: Owned, job: str, attempt: int, at: float, is_lost: bool = False) -> bool:
        """Delete the streams of an attempt, whose verdict becomes final for ever. Return False if it is not settled, or
        not fully archived (ignored if the archive `is_lost`). `Fenced` when another worker owns its shard."""
        tables = (parts, streams, marks)
        it = (attempts.c.job == job, attempts.c.number == attempt)
        behind = (streams.c.job == job, streams.c.attempt == attempt, streams.c.next != streams.c.archived)
        with self._database.appending() as connection:
            fenced(connection, owned)  # nobody appends meanwhile
            if not is_lost and connection.scalar(sa.select(sa.func.count()).select_from(streams).where(*behind)):
                return False
            settled = sa.update(attempts).where(*it, attempts.c.settled.is_(True)).values(deleted=at)
            if not connection.execute(settled).rowcount:
                return False
            mine = (streams.c.job == job, streams.c.attempt == attempt, streams.c.state != "")
            names = list(connection.scalars(sa.select(streams.c.state).where(*mine)))
            of = (parts.c.job == job, parts.c.attempt == attempt)
            names += connection.scalars(sa.select(parts.c.object).where(*of))
            for table in tables:
                connection.execute(sa.delete(table).where(table.c.job == job, table.c.attempt == attempt))
        self._discard(names)
        return True

    def _discard(self, names: Iterable[str]) -> None:
        """Delete unlisted objects; what cannot be deleted now is swept later."""
        for name in names:
            if self.is_away:
                return
            with suppress(StoreError), self._telling():
                self.objects.delete(name)

    def sweep(self, now: float) -> int:
        """Delete unlisted objects that nobody is about to list, and return their number.

        An object after the last listed one of its attempt stays: the database may be a restored older one, to which
        `logdoctor doctor --repair` adds what is newer.
        """
        self.meet()
        old = [one.name for one in self.objects.walk() if one.at < now - _ORPHAN and _OURS.fullmatch(one.name)]
        with self._database.reading() as connection:
            listed = {name: number for name, number in connection.execute(sa.select(parts.c.object, parts.c.number))}
            states = set(connection.scalars(sa.select(streams.c.state)))
            deleted = sa.select(attempts.c.job, attempts.c.number).where(attempts.c.deleted.is_not(None))
            gone = {f"{file_name(job)}/{attempt}" for job, attempt in connection.execute(deleted)}
        last: dict[str, int] = {}
        for name, number in listed.items():
            last[_folder(name)] = max(number, last.get(_folder(name), 0))
        orphans = [
            name
            for name in old
            if name not in listed
            and name not in states
            and (name.endswith(".state") or _folder(name) in gone or _number(name) <= last.get(_folder(name), 0))
        ]
        for name in orphans:
            self.objects.delete(name)
        self.objects.sweep()
        return len(orphans)


def _folder(name: str) -> str:
    """Return the folder of the attempt that an object belongs to."""
    return name.rpartition("/")[0]


def _number(name: str) -> int:
    """Return the number in an object's name."""
    return int(name.rpartition("/")[2].partition("-")[0])


def _extend(known: _Attempt, of: Key, rows: Iterable[Any], objects: Objects) -> None:
    """Add newly listed parts of an attempt."""
    for number, name, index in rows:
        try:
            listed = _listed.decode(index)
            table = np.frombuffer(listed.rows, "<i8").reshape(-1, COLUMNS)
        except (msgspec.DecodeError, ValueError) as error:
            cause = f"what the database says of it is damaged ({error})"
            raise StoreDamaged(name, cause, "Run `logdoctor doctor`.") from error
        for place, stream in enumerate(listed.streams):
            if stream not in known.streams:
                known.streams[stream] = ArchivedStream(of._replace(stream=stream), objects)
            known.streams[stream].enter(name, table[table[:, 0] == place].tolist())
        known.number, known.count = number, known.count + 1
