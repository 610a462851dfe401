"""Logs and archives for tests, over any database, and streams whose bytes are known."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from logdoctor.errors import LogdoctorError
from logdoctor.store.database import Database
from logdoctor.store.log.archive import Archive, StreamPiece
from logdoctor.store.log.objects import FolderObjects
from logdoctor.store.log.shards import Leases, Owned, shard_of
from logdoctor.store.log.table import DoneRows, LogLimits, LogTable, NewBytes, Reached, StreamBytes
from logdoctor.store.names import Key
from logdoctor.store.schema import SHARDS, log_rows, shards

LIMITS = LogLimits(stream_bytes=1 << 40, streams=1000, shard_bytes=1 << 30)
KEY = Key("job", 1, "rank 0")
_LINE = 64


def data_of(key: Key, begin: int, end: int) -> bytes:
    """Return bytes [begin, end) of a stream: lines that say which they are of which stream."""
    first, name = begin // _LINE, str(key).encode()
    lines = (b"%s line %08d" % (name, number) for number in range(first, end // _LINE + 1))
    return b"".join(line.ljust(_LINE - 1)[: _LINE - 1] + b"\n" for line in lines)[
        begin - first * _LINE : end - first * _LINE
    ]


class Parts(NamedTuple):
    """What is stored in one database, and its archive."""

    database: Database
    log: LogTable
    archive: Archive
    objects: FolderObjects


@contextmanager
def opened(url: str, folder: Path, limits: LogLimits = LIMITS) -> Iterator[Parts]:
    """Yield the log and the archive of a database."""
    database, objects = Database(url), FolderObjects(folder)
    try:
        yield Parts(database, LogTable(database, limits), Archive(database, objects), objects)
    finally:
        database.close()


def of_all(database: Database, worker: str = "worker") -> list[Owned]:
    """Let a worker own all shards, whoever owned them; what it owns, by number."""
    leases = Leases(database, worker, 600.0)
    leases.clear()
    owned = sorted(leases.beat())
    assert [one.shard for one in owned] == list(range(SHARDS))
    return owned


def owner_of(database: Database, key: Key, worker: str = "worker") -> Owned:
    """Let a worker own all shards; the one of a stream."""
    return of_all(database, worker)[shard_of(key.job, key.attempt)]


def appended(log: LogTable, entries: Sequence[NewBytes], at: float) -> list[int | LogdoctorError]:
    """Append entries as one group; the offset behind each, or why it was not taken."""
    return [result.next if isinstance(result, Reached) else result for result in log.append(entries, at)]


def sent(log: LogTable, key: Key, *parts: bytes) -> list[int]:
    """Append parts of a stream, each as a group of its own; the offsets behind them."""
    found = []
    for data in parts:
        (result,) = appended(log, [NewBytes(key, None, data)], 5.0)
        assert isinstance(result, int), result
        found.append(result)
    return found


def chunks_of(log: LogTable, key: Key) -> list[StreamBytes]:
    """What the log holds of the shard of a stream."""
    found, after, shard = [], 0, shard_of(key.job, key.attempt)
    while rows := log.read(shard, after):
        assert not any(row.damage for row in rows), rows
        found += [chunk for row in rows for chunk in row.chunks]
        after = rows[-1].seq
    return found


def joined(chunks: Sequence[StreamBytes], key: Key, begin: int = 0) -> bytes:
    """The bytes of a stream from an offset on, each of whose chunks must continue it."""
    data = b""
    for chunk in chunks:
        if chunk.key == key:
            assert chunk.offset == begin + len(data), f"{key}: {chunk.offset} instead of {begin + len(data)}"
            data += chunk.data
    return data


def held(database: Database) -> dict[int, tuple[int, int]]:
    """For each shard with bytes or rows, how many bytes it is said to hold, and how many its rows hold."""
    sums = sa.select(log_rows.c.shard, sa.func.sum(log_rows.c.bytes)).group_by(log_rows.c.shard)
    with database.reading() as connection:
        said = {shard: size for shard, size in connection.execute(sa.select(shards.c.shard, shards.c.bytes))}
        rows = {shard: int(size) for shard, size in connection.execute(sums)}
    return {shard: (said[shard], rows.get(shard, 0)) for shard in said if said[shard] or shard in rows}


def archived(parts: Parts, owned: Owned, key: Key, upto: int) -> None:
    """Archive all that the log has of the only stream of a shard up to a row, and delete those rows."""
    standing = parts.log.standing(key)
    known = parts.archive.open(key)
    rows = [row for row in parts.log.read(owned.shard, 0, 1000) if row.seq <= upto]
    data = b"".join(chunk.data[max(standing.archived - chunk.offset, 0) :] for row in rows for chunk in row.chunks)
    piece = StreamPiece(key.stream, standing.archived, known.newlines + 1, data)
    parts.archive.store(DoneRows(owned, upto), key.job, key.attempt, [piece])
