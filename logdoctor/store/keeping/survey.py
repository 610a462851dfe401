"""What the database lists compared with what the archive holds, for checks and repair."""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import sqlalchemy as sa

from logdoctor.errors import StoreError
from logdoctor.store.database import Database
from logdoctor.store.log.archive import COLUMNS, Listed, is_listed
from logdoctor.store.log.frames import unframed
from logdoctor.store.log.objects import ObjectFacts, Objects
from logdoctor.store.log.table import row_of
from logdoctor.store.names import IDENTITY, MAX_ATTEMPT, Key, named
from logdoctor.store.schema import attempts, log_rows, parts, shards, streams

YOUNG = 3600.0  # seconds within which an unlisted object may be about to be listed
ALL = -1e9
"""For `young`: nobody is about to list objects, whatever the clocks say."""
_AT_ONCE = 200
_PART = ("job", "attempt", "number", "object", "bytes", "index")
_listed = msgspec.msgpack.Decoder(Listed)

Attempt = tuple[str, int]
"""A job and an attempt's number."""


class FramePlace(NamedTuple):
    """A frame of an object: its stream, the offset, line and length of its bytes there, and its place in the object."""

    stream: str
    offset: int
    line: int
    length: int
    newlines: int
    begin: int
    end: int


class Part(NamedTuple):
    """A row of `parts`: an object of an attempt, and its frames."""

    job: str
    attempt: int
    number: int
    name: str
    bytes: int
    frames: list[FramePlace]


class Held(NamedTuple):
    """A stream as the database has it."""

    next: int
    lines: int
    archived: int
    state: str


class Survey(NamedTuple):
    """The result of a survey.

    `objects` are all in the archive; `missing` the listed ones that are not there, or of another size, and why;
    `broken` the streams whose listed parts do not continue each other; `covered` up to where the parts of each stream
    go; `damaged` the unreadable rows of the log (shard, row, cause); `bytes` the stated and actual bytes of a shard's
    rows where these differ; `gaps` bytes of streams missing from the log; `newer` the objects of attempts after the
    last listed one; `orphans` all other unlisted objects.
    """

    objects: dict[str, ObjectFacts]
    listed: int
    missing: dict[str, tuple[Attempt, str]]
    broken: set[Key]
    covered: dict[Key, int]
    streams: dict[Key, Held]
    damaged: list[tuple[int, int, str]]
    bytes: dict[int, tuple[int, int]]
    gaps: dict[Key, list[tuple[int, int]]]
    newer: dict[Attempt, list[str]]
    orphans: list[ObjectFacts]

    @property
    def astray(self) -> dict[Key, tuple[int, int]]:
        """Streams whose stated archived offset differs from the end of their parts: (stated, found)."""
        keys = self.streams.keys() | self.covered.keys()
        ends = {
            key: (self.streams[key].archived if key in self.streams else 0, self.covered.get(key, 0)) for key in keys
        }
        return {key: end for key, end in ends.items() if end[0] != end[1]}


def survey(database: Database, objects: Objects, young: float = YOUNG) -> Survey:
    """Survey everything; a service may run meanwhile, and may be about to list `young` objects (age in seconds)."""
    lying = {facts.name: facts for facts in objects.walk() if facts.name != IDENTITY}
    with database.reading() as connection:
        streams_now = _streams(connection)
        known: set[str] = {held.state for held in streams_now.values()}
        suspects: dict[str, tuple[Attempt, str]] = {}
        covered: dict[Key, int] = {}
        broken: set[Key] = set()
        last: dict[Attempt, int] = {}
        count = 0
        for part in listed_parts(connection):
            count += 1
            known.add(part.name)
            last[part.job, part.attempt] = part.number
            facts = lying.get(part.name)
            if facts is None or facts.bytes != part.bytes:
                why = "is missing" if facts is None else f"has {facts.bytes} bytes, not {part.bytes}"
                suspects[part.name] = (part.job, part.attempt), why
            for frame in part.frames:
                key = Key(part.job, part.attempt, frame.stream)
                if covered.get(key, 0) != frame.offset:
                    broken.add(key)
                covered[key] = frame.offset + frame.length
        deleted = _deleted(connection)
        damaged, sizes, gaps = _log(connection, streams_now)
        now = database.now(connection)
    missing = {name: of for name, of in suspects.items() if is_gone(database, objects, name)}
    newer: dict[Attempt, list[str]] = {}
    orphans = []
    for facts in lying.values():
        if facts.name in known or facts.at > now - young:
            continue
        of = place_of(facts.name)
        if of and of[:2] not in deleted and of[2] > last.get(of[:2], 0):
            newer.setdefault(of[:2], []).append(facts.name)
        else:
            orphans.append(facts)
    return Survey(lying, count, missing, broken, covered, streams_now, damaged, sizes, gaps, newer, orphans)


def place_of(name: str) -> tuple[str, int, int] | None:
    """Return job, attempt and number of an object with bytes of streams; None for other objects."""
    folder, _, rest = name.partition("/")
    attempt, _, file = rest.partition("/")
    number = file.partition("-")[0]
    if not file.endswith(".zst") or not (attempt.isdecimal() and number.isdecimal()) or int(attempt) > MAX_ATTEMPT:
        return None
    return named(folder), int(attempt), int(number)


def listed_parts(connection: sa.Connection, job: str | None = None, attempt: int = 0) -> Iterator[Part]:
    """Yield the listed parts of all attempts or of one, in order."""
    query = sa.select(*(parts.c[column] for column in _PART))
    if job is not None:
        query = query.where(parts.c.job == job, parts.c.attempt == attempt)
    query = query.order_by(parts.c.job, parts.c.attempt, parts.c.number).execution_options(yield_per=_AT_ONCE)
    for row in connection.execute(query):
        yield _listed_part(row)


def _listed_part(row: Any) -> Part:
    job, attempt, number, name, size, index = row
    return Part(job, attempt, number, name, size, _frames(index))


def _frames(index: bytes) -> list[FramePlace]:
    told = _listed.decode(index)
    table = np.frombuffer(told.rows, "<i8").reshape(-1, COLUMNS).tolist()
    return [FramePlace(told.streams[place], *numbers) for place, *numbers in table]


def is_gone(database: Database, objects: Objects, name: str) -> bool:
    """Return whether a listed object is missing or wrong in size, on a second look."""
    query = sa.select(parts.c.bytes).where(parts.c.object == name)
    with database.reading() as connection:
        size = connection.scalar(query)
    if size is None or objects.size(name) == size:
        return False
    with database.reading() as connection:  # retention deletes the row first
        return connection.scalar(query) is not None


def sound(data: bytes, frame: FramePlace, name: str) -> bool:
    """Return whether a frame is in the bytes of its object as listed."""
    try:
        note, _ = unframed(data[frame.begin : frame.end], name)
    except StoreError:
        return False
    return is_listed(note, frame.stream, frame.offset)


def damaged_parts(database: Database, objects: Objects, but: Collection[str] = ()) -> dict[str, Attempt]:
    """Read all listed objects except `but`, and return those with a damaged frame."""
    with database.reading() as connection:
        names = list(connection.scalars(sa.select(parts.c.object).order_by(parts.c.object)))
    found = {}
    for name in names:
        part = None if name in but else _part(database, name)
        if part and not _is_sound(database, objects, part):
            found[part.name] = part.job, part.attempt
    return found


def _is_sound(database: Database, objects: Objects, part: Part) -> bool:
    try:
        data = objects.get(part.name, 0, part.bytes)
    except StoreError:
        return not is_gone(database, objects, part.name)
    return all(sound(data, frame, part.name) for frame in part.frames)


def _part(database: Database, name: str) -> Part | None:
    query = sa.select(*(parts.c[column] for column in _PART))
    with database.reading() as connection:
        row = connection.execute(query.where(parts.c.object == name)).one_or_none()
    return _listed_part(row) if row else None


def _streams(connection: sa.Connection) -> dict[Key, Held]:
    columns = ("job", "attempt", "stream", *Held._fields)
    rows = connection.execute(sa.select(*(streams.c[name] for name in columns)))
    return {Key(*row[:3]): Held(*row[3:]) for row in rows}


def _deleted(connection: sa.Connection) -> set[Attempt]:
    query = sa.select(attempts.c.job, attempts.c.number).where(attempts.c.deleted.is_not(None))
    return {(job, number) for job, number in connection.execute(query)}


def _log(
    connection: sa.Connection, standing: dict[Key, Held]
) -> tuple[list[tuple[int, int, str]], dict[int, tuple[int, int]], dict[Key, list[tuple[int, int]]]]:
    """Read the log and return its damaged rows, wrong sums and missing bytes."""
    said = {shard: size for shard, size in connection.execute(sa.select(shards.c.shard, shards.c.bytes))}
    held = dict.fromkeys(said, 0)
    damaged = []
    reached = {key: one.archived for key, one in standing.items()}
    gaps: dict[Key, list[tuple[int, int]]] = {}
    query = sa.select(log_rows.c.shard, log_rows.c.seq, log_rows.c.bytes, log_rows.c.frame)
    query = query.order_by(log_rows.c.shard, log_rows.c.seq).execution_options(yield_per=16)
    for shard, seq, size, frame in connection.execute(query):
        held[shard] += size
        row = row_of(shard, seq, frame)
        if row.damage:
            damaged.append((shard, seq, row.damage))
        for chunk in row.chunks:
            if chunk.key not in reached:
                continue  # its attempt was deleted, or it is a request
            if chunk.offset > reached[chunk.key]:
                gaps.setdefault(chunk.key, []).append((reached[chunk.key], chunk.offset))
            reached[chunk.key] = max(reached[chunk.key], chunk.offset + len(chunk.data))
    for key, one in standing.items():
        if reached[key] < one.next:
            gaps.setdefault(key, []).append((reached[key], one.next))
    wrong = {shard: (said[shard], held[shard]) for shard in said if said[shard] != held[shard]}
    return damaged, wrong, gaps
