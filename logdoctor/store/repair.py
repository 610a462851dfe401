"""Repair what is stored: list the archive anew from its objects, and say what is lost.

Only while no service runs. Each step is said before it is done.
"""

import secrets
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial

import sqlalchemy as sa

from logdoctor.errors import StoreError
from logdoctor.store import identity
from logdoctor.store.archive import Archive, indexed
from logdoctor.store.log import LogLimits, LogTable, StreamBytes
from logdoctor.store.mending import End, Item, Mending, number_of
from logdoctor.store.names import Key, file_name
from logdoctor.store.objects import Objects
from logdoctor.store.records import Records
from logdoctor.store.schema import log_rows, parts, shards, streams
from logdoctor.store.shards import Leases, Owned, fenced, in_use, shard_of
from logdoctor.store.survey import ALL, Attempt, Part, Survey, damaged_parts, listed_parts, survey

Say = Callable[[str], None]
_LEASE = 600.0  # seconds for which others are kept out, if this process dies


class Repair:
    """One repair of a database and its archive. `say` is told each step before it is done; `dry` does none of them."""

    def __init__(self, records: Records, objects: Objects, say: Say, dry: bool = False) -> None:
        self._records, self._database, self._objects = records, records.database, objects
        self._say, self._dry = say, dry
        self._archive = Archive(self._database, objects)
        self._log = LogTable(self._database, LogLimits(0, 0, 0))
        self._leases = Leases(self._database, f"doctor-{secrets.token_hex(4)}", _LEASE)
        self._owned: dict[int, Owned] = {}
        self._kept: set[str] = set()  # objects that are listed, or could not be and hold what no other does

    def run(self, deep: bool = False) -> None:
        """Repair everything. `StoreError` when a worker lives, or when the archive is not the one that is listed."""
        self._require_alone()
        found = survey(self._database, self._objects, young=ALL)
        was_foreign = self._require_archive(found)
        damaged = damaged_parts(self._database, self._objects, found.missing) if deep else {}
        if not self._dry:
            self._owned = {owned.shard: owned for owned in self._leases.beat()}
        try:
            for job, number in sorted(_concerned(found, damaged.values())):
                self._renew()
                self._mend(found, job, number, damaged)
            self._clean_log(found)
            if was_foreign:
                self._say("let the archive and this database belong to each other")
                self._do(lambda: identity.unite(self._database, self._objects))
            else:
                self._delete_orphans()
        finally:
            if not self._dry:
                self._leases.leave()

    def _require_alone(self) -> None:
        if in_use(self._database):
            cause = "is in use: workers live, or died less than the time of a lease ago"
            raise StoreError(self._database.thing, cause, "Stop them, or wait, and try again.")

    def _require_archive(self, found: Survey) -> bool:
        """Whether the archive belongs to no database or to another one, or the database to another archive."""
        is_foreign = not identity.are_united(self._database, self._objects)
        if is_foreign and found.listed and len(found.missing) == found.listed:
            cause = f"has none of the {found.listed} objects that the database lists"
            raise StoreError(f"the archive {self._objects}", cause, "Mount or restore it, or correct its URL.")
        return is_foreign

    def _renew(self) -> None:
        if not self._dry:
            self._leases.beat()

    def _do(self, step: Callable[[], None]) -> None:
        if not self._dry:
            step()

    # One attempt

    def _mend(self, found: Survey, job: str, number: int, damaged: Collection[str]) -> None:
        """List the objects of an attempt anew, with others in the place of what is lost."""
        name = f"{job}/{number}"
        with self._database.reading() as connection:
            listed = list(listed_parts(connection, job, number))
        kept = self._records.attempt(job, number)
        if kept is not None and kept.settled and listed and all(part.name in found.missing for part in listed):
            self._say(
                f"{name}: all of its objects are gone, as when its log was deleted: say that it was; its verdict stays"
            )
            self._do(lambda: self._forget(job, number))
            return
        mending = self._mending(found, (job, number), listed, damaged)
        for problem in mending.said:
            self._say(f"{name}: {problem}")
        self._kept |= mending.kept | {item.name for item in mending.items}
        if not self._dry:
            if kept is None:
                self._records.open_attempt(job, number, time.time())
            if self._list(found, job, number, mending) and kept is not None and kept.settled:
                self._records.reopen(job, number, self._owned[shard_of(job, number)])

    def _forget(self, job: str, number: int) -> None:
        owned = self._owned[shard_of(job, number)]
        self._archive.delete(owned, job, number, time.time(), is_lost=True)

    def _mending(self, found: Survey, of: Attempt, listed: Iterable[Part], damaged: Collection[str]) -> Mending:
        mending = Mending(self._read, lambda number, data: self._put(of, number, data), lambda: self._chunks(*of))
        for part in listed:
            mending.take_listed(part, part.name in found.missing or part.name in damaged)
        mending.take_newer(found.newer.get(of, []))
        for key, held in found.streams.items():
            if (key.job, key.attempt) != of:
                continue
            reached = mending.ends.get(key.stream, End()).offset
            if reached < held.archived or any(end > reached for _, end in found.gaps.get(key, [])):
                mending.fill_up(key.stream, held)
        return mending

    def _list(self, found: Survey, job: str, number: int, mending: Mending) -> bool:
        """Enter the objects of an attempt and where its streams stand; whether there are bytes that were not known."""
        shard, now, grown = shard_of(job, number), time.time(), False
        with self._database.appending() as connection:
            fenced(connection, self._owned[shard])
            mine = (parts.c.job == job, parts.c.attempt == number)
            times = {name: at for name, at in connection.execute(sa.select(parts.c.object, parts.c.at).where(*mine))}
            connection.execute(sa.delete(parts).where(*mine))
            rows: list[dict[str, object]] = []
            place = 0
            for item in mending.items:
                place = max(place + 1, number_of(item.name))  # so that names are in order, should they be all there is
                row = {"job": job, "attempt": number, "number": place, "object": item.name, "bytes": item.bytes}
                rows.append(row | {"index": _index(item), "at": times.get(item.name, now)})
            if rows:
                connection.execute(sa.insert(parts), rows)
            for stream, end in mending.ends.items():
                key = Key(job, number, stream)
                of = (streams.c.job == job, streams.c.attempt == number, streams.c.stream == stream)
                before = found.streams.get(key)
                values = {"archived": end.offset}
                if before is None or before.next < end.offset:
                    grown = True
                    values |= {"next": end.offset, "lines": end.newlines}
                if before is None:
                    fresh = {"shard": shard, "changed": now, "scanned": 0, "kept": 0, "state": "", "problem": ""}
                    connection.execute(sa.insert(streams).values(**key._asdict(), **fresh, **values))
                else:
                    connection.execute(sa.update(streams).where(*of).values(**values))
                if problems := mending.lost.get(stream):
                    told = connection.scalar(sa.select(streams.c.problem).where(*of))
                    problem = "; ".join(filter(None, (told, *problems)))
                    connection.execute(sa.update(streams).where(*of).values(problem=problem))
        return grown

    # The log

    def _clean_log(self, found: Survey) -> None:
        """Delete the rows that cannot be read, now that what they held is replaced, and set the sums."""
        for shard, seq, _ in found.damaged:
            self._say(f"delete row {seq} of shard {shard} of the log, which cannot be read")
            self._do(partial(self._delete_row, shard, seq))
        wrong = {shard for shard, _, _ in found.damaged} | set(found.bytes)
        for shard in sorted(wrong):
            self._say(f"set how many bytes the log of shard {shard} holds")
            self._do(partial(self._set_bytes, shard))

    def _delete_row(self, shard: int, seq: int) -> None:
        with self._database.appending() as connection:
            fenced(connection, self._owned[shard])
            connection.execute(sa.delete(log_rows).where(log_rows.c.shard == shard, log_rows.c.seq == seq))

    def _set_bytes(self, shard: int) -> None:
        with self._database.appending() as connection:
            fenced(connection, self._owned[shard])
            total = sa.select(sa.func.coalesce(sa.func.sum(log_rows.c.bytes), 0)).where(log_rows.c.shard == shard)
            size = int(connection.scalar(total) or 0)
            connection.execute(sa.update(shards).where(shards.c.shard == shard).values(bytes=size))

    def _delete_orphans(self) -> None:
        found = survey(self._database, self._objects, young=ALL)
        names = [facts.name for facts in found.orphans] + [name for some in found.newer.values() for name in some]
        for name in sorted(set(names) - self._kept):
            self._say(f"delete the object {name}, which nobody lists")
            self._do(partial(self._objects.delete, name))

    # For the mending of an attempt

    def _chunks(self, job: str, number: int) -> dict[str, list[StreamBytes]]:
        """Return what the log has of the streams of an attempt."""
        found: dict[str, list[StreamBytes]] = {}
        after = 0
        while rows := self._log.read(shard_of(job, number), after):
            after = rows[-1].seq
            for chunk in (chunk for row in rows for chunk in row.chunks):
                if (chunk.key.job, chunk.key.attempt) == (job, number) and chunk.key.stream:
                    found.setdefault(chunk.key.stream, []).append(chunk)
        return found

    def _read(self, name: str) -> bytes:
        """Return an object, or as much as is there of it."""
        size = self._objects.size(name)
        try:
            return self._objects.get(name, 0, size) if size else b""
        except StoreError:
            return b""

    def _put(self, of: Attempt, number: int, data: bytes) -> str:
        """Write an object of an attempt, and return its name."""
        job, attempt = of
        name = f"{file_name(job)}/{attempt}/{number:06}-0-{secrets.token_hex(8)}.zst"
        self._do(lambda: self._objects.put(name, data))
        return name


def _concerned(found: Survey, damaged: Iterable[Attempt]) -> set[Attempt]:
    """The attempts of which something is to be listed anew."""
    keys = {*found.broken, *found.astray, *found.gaps}
    return {of for of, _ in found.missing.values()} | {key[:2] for key in keys} | {*found.newer, *damaged}


def _index(item: Item) -> bytes:
    names = {stream: place for place, stream in enumerate(item.starts)}
    return indexed(names, [(names[frame.stream], *frame[1:]) for frame in item.frames])
