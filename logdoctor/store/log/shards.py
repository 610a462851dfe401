"""Which worker reads which shard of the log: by a lease on each, and an epoch that fences off former owners.

A worker that was stopped or cut off past its lease may wake and continue. It cannot do harm: every change by an owner
checks the epoch in its own transaction (`fenced`). Only the clock of the database counts.
"""

import zlib
from collections.abc import Collection
from typing import NamedTuple

import sqlalchemy as sa

from logdoctor.errors import LogdoctorError
from logdoctor.store.database import Database
from logdoctor.store.schema import SHARDS, shards, workers


def shard_of(job: str, attempt: int) -> int:
    """Return the shard of an attempt; all of its streams are in it, as a verdict needs them all."""
    return zlib.crc32(f"{job}/{attempt}".encode()) % SHARDS


_DEAD = 100  # leases after which a silent worker is forgotten


class Fenced(LogdoctorError):
    """Another worker owns the shard, so this one's change is refused."""

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
    """Lock the shard for this transaction; `Fenced` when another worker has taken it over."""
    query = sa.select(shards.c.epoch).where(shards.c.shard == owned.shard).with_for_update()
    if connection.scalar(query) != owned.epoch:
        raise Fenced(*owned)


def still_owned(connection: sa.Connection, owned: Collection[Owned]) -> set[Owned]:
    """Lock shards for this transaction; return those that no other worker has taken over."""
    return _hold(connection, shards.c.shard.in_([one.shard for one in owned])) & set(owned)


def _hold(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> set[Owned]:
    """Lock shards for this transaction, in the order that everybody uses."""
    query = sa.select(shards.c.shard, shards.c.epoch).where(*where).order_by(shards.c.shard).with_for_update()
    return {Owned(*row) for row in connection.execute(query)}


def in_use(database: Database) -> bool:
    """Return whether a worker is alive, or died less than a lease ago."""
    with database.reading() as connection:
        now = database.now(connection)
        return any(
            connection.scalar(sa.select(sa.func.count()).select_from(one).where(one.c.until > now))
            for one in (workers, shards)
        )


class Leases:
    """The shards that one worker owns. It must `beat` several times in `seconds`, or others take them over."""

    def __init__(self, database: Database, worker: str, seconds: float = 10.0, rulebook: str = "") -> None:
        self._database, self._worker, self.seconds, self._rulebook = database, worker, seconds, rulebook

    def beat(self, figures: str = "") -> set[Owned]:
        """Renew leases, claim a fair share of free shards, release the excess; return the owned shards. `figures` are
        published for this worker.

        Shards with snapshots of another rule book are left to live workers of that book: this one would have to read
        their attempts from the beginning.
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
        """End the leases of all workers; for a process that knows them to be dead, because it holds the folder."""
        with self._database.appending() as connection:
            _hold(connection)
            now = self._database.now(connection)
            held = shards.c.until > now
            connection.execute(sa.update(shards).where(held).values(until=now))
            connection.execute(sa.delete(workers))

    def give_back(self, owned: Collection[Owned]) -> None:
        """Release shards, so that whoever claims them does so in another epoch."""
        with self._database.appending() as connection:
            now = self._database.now(connection)
            for one in sorted(owned):
                mine = (shards.c.shard == one.shard, shards.c.epoch == one.epoch, shards.c.owner == self._worker)
                connection.execute(sa.update(shards).where(*mine).values(owner="", until=now))

    def leave(self) -> None:
        """Release all shards at once, when a worker stops."""
        with self._database.appending() as connection:
            mine = shards.c.owner == self._worker
            _hold(connection, mine)
            now = self._database.now(connection)
            connection.execute(sa.update(shards).where(mine).values(owner="", until=now))
            connection.execute(sa.delete(workers).where(workers.c.worker == self._worker))

    def _register(self, connection: sa.Connection, now: float, figures: str) -> dict[str, str]:
        """Register this worker as alive, and delete long dead ones; return the rule books of live workers."""
        values = {"rulebook": self._rulebook, "until": now + self.seconds, "figures": figures}
        mine = workers.c.worker == self._worker
        if not connection.execute(sa.update(workers).where(mine).values(values)).rowcount:
            connection.execute(sa.insert(workers).values(worker=self._worker, **values))
        connection.execute(sa.delete(workers).where(workers.c.until < now - _DEAD * self.seconds))
        living = sa.select(workers.c.worker, workers.c.rulebook).where(workers.c.until > now)
        return {worker: rulebook for worker, rulebook in connection.execute(living)}

    def _share(self, connection: sa.Connection, books: list[str]) -> int:
        """Return how many shards this worker should own: its part of those reserved for workers of its rule book, and
        of those open to all."""
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
        """Claim up to `most` shards whose lease has ended."""
        ours = shards.c.rulebook.in_(["", self._rulebook])
        free = [shards.c.until <= now, sa.or_(ours, shards.c.rulebook.not_in(books))]
        query = sa.select(shards.c.shard, shards.c.epoch).where(*free).order_by(shards.c.shard)
        found = connection.execute(query.limit(most).with_for_update(skip_locked=True)).all()
        ids = [shard for shard, _ in found]
        taken = {"owner": self._worker, "epoch": shards.c.epoch + 1, "until": now + self.seconds}
        taken["rulebook"] = self._rulebook
        connection.execute(sa.update(shards).where(shards.c.shard.in_(ids)).values(taken))
        return {Owned(shard, epoch + 1) for shard, epoch in found}
