"""Repair of what is stored: lists objects of the archive that the database does not know.

It runs only without a service, and announces each step. What is damaged stays as it is: a backup may have it.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from logdoctor.errors import StoreError
from logdoctor.store.jobs.records import Records
from logdoctor.store.keeping import identity
from logdoctor.store.keeping.survey import ALL, FramePlace, Survey, listed_parts, place_of, sound, survey
from logdoctor.store.log.archive import Archive, Note, indexed
from logdoctor.store.log.frames import walk
from logdoctor.store.log.objects import Objects
from logdoctor.store.log.shards import Leases, Owned, fenced, in_use, shard_of
from logdoctor.store.names import Key
from logdoctor.store.schema import log_rows, parts, shards, streams

Say = Callable[[str], None]
_LEASE = 600.0  # seconds for which others are kept out if this process dies
_noted = msgspec.msgpack.Decoder(Note)
Ends = dict[str, FramePlace]
"""The last frame of each stream of an attempt."""


class Unlisted(NamedTuple):
    """An unlisted object and its frames."""

    name: str
    bytes: int
    frames: list[FramePlace]


class Repair:
    """One repair of a database and its archive. Passes each step to `say` before it is done; `dry` does none."""

    def __init__(self, records: Records, objects: Objects, say: Say, dry: bool = False) -> None:
        self._records, self._database, self._objects = records, records.database, objects
        self._say, self._dry = say, dry
        self._archive = Archive(self._database, objects)
        self._leases = Leases(self._database, f"doctor-{secrets.token_hex(4)}", _LEASE)
        self._owned: dict[int, Owned] = {}
        self._kept: set[str] = set()  # objects that are listed, or hold bytes that no other does but cannot be listed

    def run(self) -> None:
        """Repair everything. `StoreError` when a worker is alive, or the archive is not the listed one."""
        self._require_alone()
        found = survey(self._database, self._objects, young=ALL)
        was_foreign = self._require_archive(found)
        if not self._dry:
            self._owned = {owned.shard: owned for owned in self._leases.beat()}
        try:
            for job, number in sorted({*found.newer, *(of for of, _ in found.missing.values())}):
                self._renew()
                self._list_anew(found, job, number)
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
        """Return whether database and archive do not belong to each other; `StoreError` if all listed objects are
        missing."""
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

    def _list_anew(self, found: Survey, job: str, number: int) -> None:
        """List an attempt's unlisted objects that continue its streams."""
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
        ends = {frame.stream: frame for part in listed for frame in part.frames}
        unlisted = [self._read(name) for name in found.newer.get((job, number), [])]
        chosen = []
        for one in _continuing(unlisted, ends):
            what = f"list the object {one.name}" if one.bytes else f"list as missing: {_nowhere(one.frames)}"
            self._say(f"{name}: {what}")
            chosen.append(one)
        for one in unlisted:
            if any(_follows(frame, ends) for frame in one.frames):
                self._say(f"{name}: leave the object {one.name}, which continues nothing")
                self._kept.add(one.name)
        self._kept |= {one.name for one in chosen}
        if chosen and not self._dry:
            if kept is None:
                self._records.open_attempt(job, number, time.time())
            last = max((part.number for part in listed), default=0)
            if self._list(found, Key(job, number, ""), last, chosen, ends) and kept is not None and kept.settled:
                self._records.reopen(job, number, self._owned[shard_of(job, number)])

    def _forget(self, job: str, number: int) -> None:
        owned = self._owned[shard_of(job, number)]
        self._archive.delete(owned, job, number, time.time(), is_lost=True)

    def _read(self, name: str) -> Unlisted:
        """Read the sound frames of an object."""
        size, places = self._objects.size(name), []
        try:
            data = self._objects.get(name, 0, size) if size else b""
        except StoreError:
            data = b""
            self._kept.add(name)
        for frame in walk(data):
            try:
                note = _noted.decode(frame.note)
            except msgspec.DecodeError:
                continue
            place = FramePlace(*note[:3], frame.raw, note.newlines, frame.begin, frame.end)
            if sound(data, place, name):
                places.append(place)
        return Unlisted(name, len(data), places)

    def _list(self, found: Survey, of: Key, number: int, chosen: Sequence[Unlisted], ends: Ends) -> bool:
        """Enter objects of an attempt after its last, `number`, and update its streams; return whether there are bytes
        that were unknown before."""
        shard, now, grown, rows = shard_of(of.job, of.attempt), time.time(), False, []
        for one in chosen:
            number = max(number + 1, _number_of(one.name))  # so that names are in order if they are all that is left
            row = {"job": of.job, "attempt": of.attempt, "number": number, "object": one.name, "bytes": one.bytes}
            rows.append(row | {"index": _index(one.frames), "at": now})
        with self._database.appending() as connection:
            fenced(connection, self._owned[shard])
            connection.execute(sa.insert(parts), rows)
            for stream in {frame.stream for one in chosen for frame in one.frames}:
                key, end = of._replace(stream=stream), _end(ends[stream])
                before, values = found.streams.get(key), {"archived": end}
                if before is None or before.next < end:
                    grown = True
                    values |= {"next": end, "lines": ends[stream].line - 1 + ends[stream].newlines}
                if before is None:
                    fresh = {"shard": shard, "changed": now, "scanned": 0, "kept": 0, "state": "", "problem": ""}
                    connection.execute(sa.insert(streams).values(**key._asdict(), **fresh, **values))
                else:
                    mine = (streams.c.job == key.job, streams.c.attempt == key.attempt, streams.c.stream == stream)
                    connection.execute(sa.update(streams).where(*mine).values(**values))
        return grown

    # The log

    def _clean_log(self, found: Survey) -> None:
        """Delete unreadable rows whose loss the service has reported, and correct the sums."""
        unsaid = {shard_of(key.job, key.attempt) for key in found.gaps}
        wrong = set(found.bytes)
        for shard, seq, _ in found.damaged:
            row = f"row {seq} of shard {shard} of the log, which cannot be read"
            if shard in unsaid:
                self._say(f"leave {row}: the service has to say first what is lost of it")
            else:
                self._say(f"delete {row}")
                self._do(partial(self._delete_row, shard, seq))
                wrong.add(shard)
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


def _continuing(unlisted: Iterable[Unlisted], ends: Ends) -> Iterator[Unlisted]:
    """Yield the objects that continue an attempt's streams, by number, and update `ends`. Each has only the frames that
    do. Of several with one number, one was listed before the database was lost, and the bytes of the others exist
    elsewhere: preferred is the one that leaves no hole, that the next objects continue, or that holds most. A hole
    is yielded as a missing object."""
    ordered = sorted(unlisted, key=lambda one: _number_of(one.name))
    groups = [list(group) for _, group in groupby(ordered, lambda one: _number_of(one.name))]
    for group, behind in pairwise([*groups, []]):
        while fit := [one for one in group if _onward(one.frames, ends, over_holes=True)]:
            best = max(fit, key=lambda one: _worth(one, ends, behind))
            group.remove(best)
            frames = _onward(best.frames, ends, over_holes=True)
            if holes := _holes(frames, ends):
                folder, _, name = best.name.rpartition("/")
                yield Unlisted(f"{folder}/lost-before-{name}", 0, holes)
            ends |= {frame.stream: frame for frame in frames}
            yield best._replace(frames=frames)


def _worth(one: Unlisted, ends: Ends, behind: Iterable[Unlisted]) -> tuple[bool, bool, int]:
    frames = _onward(one.frames, ends, over_holes=True)
    after = ends | {frame.stream: frame for frame in frames}
    return not _holes(frames, ends), any(_onward(other.frames, after) for other in behind), one.bytes


def _onward(frames: Sequence[FramePlace], ends: Ends, over_holes: bool = False) -> list[FramePlace]:
    """Return the frames that continue their streams, one after another; with `over_holes` also those further on."""
    reached, found = {stream: _end(frame) for stream, frame in ends.items()}, []
    for frame in frames:
        at = reached.get(frame.stream, 0)
        if frame.length and (frame.offset == at or (over_holes and frame.offset > at)):
            reached[frame.stream] = _end(frame)
            found.append(frame)
    return found


def _holes(frames: Sequence[FramePlace], ends: Ends) -> list[FramePlace]:
    """Return the gaps between ends of streams and later frames, as missing frames."""
    last, found = dict(ends), []
    for frame in frames:
        before = last.get(frame.stream, FramePlace(frame.stream, 0, 1, 0, 0, 0, 0))
        if (end := _end(before)) < frame.offset:
            line = before.line + before.newlines
            found.append(FramePlace(frame.stream, end, line, frame.offset - end, frame.line - line, 0, 1))
        last[frame.stream] = frame
    return found


def _number_of(name: str) -> int:
    """Return the number of an object; 0 if it has none."""
    place = place_of(name)
    return place[2] if place else 0


def _end(frame: FramePlace) -> int:
    return frame.offset + frame.length


def _nowhere(frames: Iterable[FramePlace]) -> str:
    return ", ".join(f"{one.length} bytes of stream {one.stream} from byte {one.offset} on" for one in frames)


def _follows(frame: FramePlace, ends: Ends) -> bool:
    """Return whether a frame holds bytes beyond the end of its stream."""
    return frame.stream not in ends or _end(frame) > _end(ends[frame.stream])


def _index(frames: Sequence[FramePlace]) -> bytes:
    names = {stream: place for place, stream in enumerate(dict.fromkeys(frame.stream for frame in frames))}
    return indexed(names, [(names[frame.stream], *frame[1:]) for frame in frames])
