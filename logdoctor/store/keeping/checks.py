"""Checks of what is stored: each reports a state and the next step."""

import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from logdoctor.errors import LogdoctorError, StoreError, sentence
from logdoctor.store.database import Database, revision
from logdoctor.store.keeping import identity
from logdoctor.store.keeping.survey import ALL, YOUNG, Survey, damaged_parts, survey
from logdoctor.store.log.objects import Objects
from logdoctor.store.log.shards import in_use

REPAIR = "Stop the service and run `logdoctor doctor --repair`."
_START = "The service says in the logs what is lost of them, and goes on behind it."
_CLOCK = 5.0  # seconds by which the clocks may differ
_NAMED = 3  # things named on one line

State = Literal["ok", "warning", "problem"]


class Check(NamedTuple):
    """One line: what was checked, its state, what was found, and the next step ("": none)."""

    name: str
    state: State
    found: str
    next_step: str = ""


def failed(name: str, error: LogdoctorError) -> Check:
    """Return a check that ended in an error."""
    return Check(name, "problem", sentence(error.thing, error.cause), error.next_step)


def named(things: Collection[object]) -> str:
    """Return the number of things and the names of the first."""
    first = ", ".join(str(thing) for _, thing in zip(range(_NAMED), things, strict=False))
    return f"{len(things)} ({first}{', ...' if len(things) > _NAMED else ''})"


def of_database(url: str) -> Check:
    """Check that a database is reachable and of the newest revision, without changing it."""
    try:
        found = revision(url)
    except LogdoctorError as error:
        return failed("database", error)
    if not found.current:
        return Check("database", "warning", f"{found.thing} is empty", "`logdoctor serve` creates it.")
    if found.current != found.newest:
        said = f"{found.thing} is of revision {found.current}, not {found.newest}"
        return Check("database", "warning", said, "`logdoctor serve` upgrades it.")
    return Check("database", "ok", f"{found.thing} is of the newest revision ({found.newest})")


def of_clock(database: Database) -> Check:
    """Check that the clocks of this machine and the database agree."""
    with database.reading() as connection:
        apart = time.time() - database.now(connection)
    said = f"differs from that of the database by {abs(apart):.1f} s"
    if abs(apart) > _CLOCK:
        return Check("clock", "problem", said, "Run an NTP client on both machines.")
    return Check("clock", "ok", said)


def of_archive(objects: Objects) -> Check:
    """Check that an object can be written, read and deleted."""
    name, data = f"doctor/{secrets.token_hex(8)}.test", secrets.token_bytes(64)
    try:
        objects.put(name, data)
        if objects.get(name, 0, len(data)) != data:
            return Check("archive", "problem", f"{objects} returns other bytes than were written", "Check its disk.")
        objects.delete(name)
        if objects.size(name) is not None:
            return Check("archive", "problem", f"{objects} keeps what is deleted", "Check its permissions.")
    except LogdoctorError as error:
        with suppress(StoreError):
            objects.delete(name)
        return failed("archive", error)
    return Check("archive", "ok", f"{objects} can be written, read and deleted")


def of_identity(database: Database, objects: Objects) -> Check:
    """Check that the archive belongs to the database."""
    try:
        if refused := identity.refusal(database, objects):
            return failed("identity", refused)
        if not identity.of_archive(objects):
            return Check("identity", "ok", "the archive has no id yet: the service writes it")
    except LogdoctorError as error:
        return failed("identity", error)
    return Check("identity", "ok", "the archive belongs to the database")


def of_stored(database: Database, objects: Objects, deep: bool = False) -> Iterator[Check]:
    """Yield the checks of the log, the archive and its listing; `deep` reads every object."""
    try:
        found = survey(database, objects, YOUNG if in_use(database) else ALL)
        yield from _of_log(found)
        damaged = damaged_parts(database, objects, found.missing) if deep else {}
        yield _of_objects(found, damaged, deep)
        yield _of_streams(found)
        yield from _of_unlisted(found)
    except LogdoctorError as error:
        yield failed("stored logs", error)


def _of_log(found: Survey) -> Iterator[Check]:
    if found.damaged:
        rows = [f"row {seq} of shard {shard}" for shard, seq, _ in found.damaged]
        yield Check("log", "problem", f"rows that cannot be read: {named(rows)}", f"{_START} Then: {REPAIR}")
    elif found.gaps:
        gaps = [f"{key} from byte {spans[0][0]} to {spans[0][1]}" for key, spans in found.gaps.items()]
        yield Check("log", "problem", f"streams with missing bytes: {named(gaps)}", _START)
    else:
        yield Check("log", "ok", "every row can be read, and no bytes are missing")
    if found.bytes:
        shards = [f"shard {shard} says {said}, holds {held}" for shard, (said, held) in found.bytes.items()]
        yield Check("log size", "problem", f"wrong sums: {named(shards)}", REPAIR)
    else:
        yield Check("log size", "ok", "the sums of all shards are right")


def _of_objects(found: Survey, damaged: Collection[str], deep: bool) -> Check:
    wrong: Sequence[str] = [
        *(f"{name} {why}" for name, (_, why) in found.missing.items()),
        *(f"{name} is damaged" for name in damaged),
    ]
    if wrong:
        return Check("objects", "problem", named(wrong), "Restore them from a backup. Nothing else brings them back.")
    how = "every frame of them is sound" if deep else "of the listed size (`--deep` reads them)"
    return Check("objects", "ok", f"{found.listed} listed objects are there, {how}")


def _of_streams(found: Survey) -> Check:
    wrong = [f"{key}: its parts do not continue each other" for key in sorted(found.broken)]
    wrong += [f"{key}: archived up to {said}, listed up to {end}" for key, (said, end) in sorted(found.astray.items())]
    if wrong:
        return Check("streams", "problem", named(wrong), "Restore the database from a backup.")
    return Check("streams", "ok", f"{len(found.streams)} streams are archived as far as they are said to be")


def _of_unlisted(found: Survey) -> Iterator[Check]:
    if found.newer:
        of = [f"{job}/{attempt}" for job, attempt in sorted(found.newer)]
        said = f"the archive has objects behind the last that the database knows, of attempts: {named(of)}"
        yield Check("newer objects", "problem", f"{said}. The database may be an older one", REPAIR)
    else:
        yield Check("newer objects", "ok", "the database knows the newest objects")
    if found.orphans:
        size = sum(facts.bytes for facts in found.orphans)
        said = f"objects that nobody lists, {size} bytes: {named([facts.name for facts in found.orphans])}"
        yield Check("orphans", "warning", said, f"They do no harm. {REPAIR}")
    else:
        yield Check("orphans", "ok", "every object is listed")
