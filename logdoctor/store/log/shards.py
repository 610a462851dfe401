"""Which worker reads which part of the log: a lease on each shard, and an epoch that shuts out whoever lost it.

A worker that was stopped or cut off past its lease may wake and go on. It cannot do harm: every change that an owner
makes checks the epoch in its own transaction (`fenced`). Only the clock of the database counts.
"""

import zlib
from collections.abc import Collection
from typing import NamedTuple

import sqlalchemy as sa

from logdoctor.errors import LogdoctorError
from logdoctor.store.database import Database
from logdoctor.store.schema import SHARDS, shards, workers


def shard_of(job: str, attempt: int) -> int:
    """Return the shard of an attempt; all of its streams are in it, because a verdict needs them all."""
    return zlib.crc32(f"{job}/{attempt}".encode()) % SHARDS


_DEAD = 100  # leases after which a worker that was not heard of is forgotten


class Fenced(LogdoctorError):
    """Another worker owns the shard: what this one was about to change is not its business any more."""

    def __init__(self, shard: int, epoch: int) -> None:
        super().__init__(f"shard {shard}", f"this worker owned it in epoch {epoch}", "Its new owner goes on.")
        self.shard, self.epoch = shard, epoch

    def __reduce__(self) -> tuple[type["Fenced"], tuple[int, int]]:
        return Fenced, (self.shard, self.epoch)


class Owned(NamedTuple):
    """A shard that a worker owns. The epoch is part of every change that it makes."""

    shard: int
    epoch: int


def fenced(connection: sa.Connection, owned: Owned) -> None:
    """Hold the shard for this transaction; `Fenced` when another worker has taken it over."""
    query = sa.select(shards.c.epoch).where(shards.c.shard == owned.shard).with_for_update()
    if connection.scalar(query) != owned.epoch:
        raise Fenced(*owned)


def still_owned(connection: sa.Connection, owned: Collection[Owned]) -> set[Owned]:
    """Hold shards for this transaction; those that no other worker has taken over."""
    return _hold(connection, shards.c.shard.in_([one.shard for one in owned])) & set(owned)


def _hold(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> set[Owned]:
    """Hold shards for this transaction, in the order in which everybody does."""
    query = sa.select(shards.c.shard, shards.c.epoch).where(*where).order_by(shards.c.shard).with_for_update()
    return {Owned(*row) for row in connection.execute(query)}


def in_use(database: Database) -> bool:
    """Return whether a worker lives, or died less than the time of a lease ago."""
    with database.reading() as connection:
        now = database.now(connection)
        return any(
            connection.scalar(sa.select(sa.func.count()).select_from(one).where(one.c.until > now))
            for one in (workers, shards)
        )


class Leases:
    """The shards that one worker owns. It must `beat` several times in `seconds`, or others take its shards over."""

    def __init__(self, database: Database, worker: str, seconds: float = 10.0, rulebook: str = "") -> None:
        self._database, self._worker, self.seconds, self._rulebook = database, worker, seconds, rulebook

    def beat(self, figures: str = "") -> set[Owned]:
        """Renew what is owned, take a fair share of what nobody owns, and leave what is too much. `figures` is what the
        worker says of itself.

        Shards whose snapshots are of another rule book are left to workers of that book while one lives: this one would
        have to read their attempts from the beginning.
        """
        with self._database.appending() as connection:
            now = self._database.now(connection)
            peers = self._register(connection, now, figures)
            owned = self._renew(connection, now)
            share = self._share(connection, list(peers.values()))
            for extra in sorted(owned)[share:]:
                owned.discard(extra)
                self._release(connection, extra, now)
            if len(owned) < share:
                owned |= self._claim(connection, now, share - len(owned), set(peers.values()))
            return owned

    def clear(self) -> None:
        """End the leases of all workers; for whoever knows that none of them lives, because it holds the folder."""
        with self._database.appending() as connection:
            _hold(connection)
            now = self._database.now(connection)
            held = shards.c.until > now
            connection.execute(sa.update(shards).where(held).values(until=now))
            connection.execute(sa.delete(workers))

    def give_back(self, owned: Collection[Owned]) -> None:
        """End the leases of shards, whoever takes them then does so in another epoch."""
        with self._database.appending() as connection:
            now = self._database.now(connection)
            for one in sorted(owned):
                mine = (shards.c.shard == one.shard, shards.c.epoch == one.epoch, shards.c.owner == self._worker)
                connection.execute(sa.update(shards).where(*mine).values(owner="", until=now))

    def leave(self) -> None:
        """Let others have all shards at once; for a worker that stops."""
        with self._database.appending() as connection:
            mine = shards.c.owner == self._worker
            _hold(connection, mine)
            now = self._database.now(connection)
            connection.execute(sa.update(shards).where(mine).values(owner="", until=now))
            connection.execute(sa.delete(workers).where(workers.c.worker == self._worker))

    def _register(self, connection: sa.Connection, now: float, figures: str) -> dict[str, str]:
        """Say that this worker lives, and forget those that are long dead; the rule books of all that live."""
        values = {"rulebook": self._rulebook, "until": now + self.seconds, "figures": figures}
        mine = workers.c.worker == self._worker
        if not connection.execute(sa.update(workers).where(mine).values(values)).rowcount:
            connection.execute(sa.insert(workers).values(worker=self._worker, **values))
        connection.execute(sa.delete(workers).where(workers.c.until < now - _DEAD * self.seconds))
        living = sa.select(workers.c.worker, workers.c.rulebook).where(workers.c.until > now)
        return {worker: rulebook for worker, rulebook in connection.execute(living)}

    def _share(self, connection: sa.Connection, books: list[str]) -> int:
        """How many shards this worker should own: as many as its peers of those that only workers of its rule book may
        take over, and as many as anybody of those that are left to nobody."""
        query = sa.select(shards.c.rulebook, sa.func.count()).group_by(shards.c.rulebook)
        left: dict[str, int] = {rulebook: count for rulebook, count in connection.execute(query)}
        ours = left.pop(self._rulebook, 0) if self._rulebook else 0
        free = sum(count for rulebook, count in left.items() if not rulebook or rulebook not in books)
        return -(-ours // books.count(self._rulebook)) - (-free // len(books))

    def _renew(self, connection: sa.Connection, now: float) -> set[Owned]:
        mine = (shards.c.owner == self._worker, shards.c.until > now)
        found = _hold(connection, *mine)
        if found:
            connection.execute(sa.update(shards).where(*mine).values(until=now + self.seconds))
        return found

    def _release(self, connection: sa.Connection, owned: Owned, now: float) -> None:
        connection.execute(sa.update(shards).where(shards.c.shard == owned.shard).values(owner="", until=now))

    def _claim(self, connection: sa.Connection, now: float, most: int, books: set[str]) -> set[Owned]:
        """Take over up to so many shards whose lease has ended."""
        ours = shards.c.rulebook.in_(["", self._rulebook])
        free = [shards.c.until <= now, sa.or_(ours, shards.c.rulebook.not_in(books))]
        query = sa.select(shards.c.shard, shards.c.epoch).where(*free).order_by(shards.c.shard)
        found = connection.execute(query.limit(most).with_for_update(skip_locked=True)).all()
        ids = [shard for shard, _ in found]
        taken = {"owner": self._worker, "epoch": shards.c.epoch + 1, "until": now + self.seconds}
        taken["rulebook"] = self._rulebook
        connection.execute(sa.update(shards).where(shards.c.shard.in_(ids)).values(taken))
        return {Owned(shard, epoch + 1) for shard, epoch in found}
