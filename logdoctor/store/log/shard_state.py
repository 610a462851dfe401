"""The state of the log and its workers, for operators, in two short queries.

They read 64 rows and one per worker, none of the log itself, so they cost the same however much waits.
"""

from typing import NamedTuple

import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.schema import shards, workers

MOST = 128
"""Workers that are reported; no more than 64 own a shard."""


class ShardState(NamedTuple):
    """A shard: the bytes of its unarchived rows; its owner, "" for none; how many owners it has had; the seconds since
    its lease ended, 0 while it has an owner and if it never had one."""

    shard: int
    bytes: int
    owner: str
    owners: int
    unowned: float


class LivingWorker(NamedTuple):
    """A live worker, the seconds until its lease ends, and its figures as JSON."""

    worker: str
    lasts: float
    figures: str


class LogState(NamedTuple):
    """All shards, and the live workers."""

    shards: tuple[ShardState, ...] = ()
    workers: tuple[LivingWorker, ...] = ()


def state_of(database: Database) -> LogState:
    """Return the present state of the log, by the clock of the database."""
    columns = (shards.c.shard, shards.c.bytes, shards.c.owner, shards.c.epoch, shards.c.until)
    heard = (workers.c.worker, workers.c.until, workers.c.figures)
    with database.reading() as connection:
        now = database.now(connection)
        found = connection.execute(sa.select(*columns).order_by(shards.c.shard)).all()
        living = sa.select(*heard).where(workers.c.until > now).order_by(workers.c.worker).limit(MOST)
        of_workers = connection.execute(living).all()
    return LogState(
        tuple(_shard(*row, now) for row in found),
        tuple(LivingWorker(worker, until - now, figures) for worker, until, figures in of_workers),
    )


def _shard(shard: int, size: int, owner: str, owners: int, until: float, now: float) -> ShardState:
    """Return the state of a shard, with its lease's end `until`, 0.0 for never."""
    if until > now:
        return ShardState(shard, size, owner, owners, 0.0)
    return ShardState(shard, size, "", owners, now - until if until else 0.0)
