"""The database and its archive know each other: each holds the ids of both.

So a database that is missing, empty or restored from the wrong place does not start beside a full archive: it would
take unlisted objects for orphans, and delete them. And no process over a database archives into a place that the others
do not read, such as the data folder of its own machine.
"""

import secrets
from contextlib import suppress

import sqlalchemy as sa

from logdoctor.errors import StoreDamaged, StoreError
from logdoctor.store.database import Database
from logdoctor.store.log.objects import Objects
from logdoctor.store.names import IDENTITY
from logdoctor.store.schema import identity, parts

_NEXT_STEP = "Restore the right database, correct the URL of the archive, or run `logdoctor doctor --repair`."
_ONE_PLACE = (
    "Set LOGDOCTOR_ARCHIVE_URL to one place for all processes: a bucket, or a folder that all machines mount. "
    "To give the database this archive from now on, run `logdoctor doctor --repair`."
)


def of_database(database: Database) -> str:
    """Return the id of a database, assigned when its tables were created."""
    with database.reading() as connection:
        return str(connection.execute(sa.select(identity.c.id)).scalar_one())


def archive_of_database(database: Database) -> str:
    """Return the id of a database's archive; "" for none."""
    with database.reading() as connection:
        return str(connection.execute(sa.select(identity.c.archive)).scalar_one())


def session_key(database: Database) -> str:
    """Return the key that signs browser sessions, shared by every process over a database."""
    with database.reading() as connection:
        return str(connection.execute(sa.select(identity.c.session_key)).scalar_one())


def of_archive(objects: Objects) -> str:
    """Return the id of the database that an archive belongs to; "" for none."""
    return _ids(objects)[0]


def require(database: Database, objects: Objects) -> None:
    """Bind a new archive to a database that has none; `StoreDamaged` when either belongs to another, or when the
    archive is unexpectedly empty. `StoreError` when it cannot be reached, which proves nothing."""
    if refused := refusal(database, objects):
        raise refused
    if not of_archive(objects):
        with suppress(StoreError):  # another process was quicker, or it cannot be written, which the next line reports
            _put(database, objects, archive_of_database(database) or secrets.token_hex(16))
    _, archive = _ids(objects)
    with database.writing() as connection:
        connection.execute(sa.update(identity).where(identity.c.archive == "").values(archive=archive))
    if refused := refusal(database, objects):
        raise refused


def refusal(database: Database, objects: Objects) -> StoreDamaged | None:
    """Return why a database and an archive may not be used together; None if they may."""
    thing = f"{database.thing} and the archive {objects}"
    owner, archive = _ids(objects)
    if not owner:
        with database.reading() as connection:
            listed = connection.scalar(sa.select(sa.func.count()).select_from(parts)) or 0
        is_empty = next(iter(objects.walk()), None) is None
        owner, archive = _ids(objects)  # again: another process may have begun meanwhile, and it writes the ids first
    mine = archive_of_database(database)
    if owner and owner != of_database(database):
        return StoreDamaged(thing, "the archive belongs to another database", _NEXT_STEP)
    if owner:
        return (
            StoreDamaged(thing, "the database has another archive", _ONE_PLACE) if mine not in ("", archive) else None
        )
    if is_empty and listed:
        cause = f"the archive is empty, but the database lists {listed} objects"
        return StoreDamaged(thing, cause, "Mount or restore the archive, or correct its URL.")
    if is_empty and mine:
        return StoreDamaged(thing, "the archive is empty, and the database has another one", _ONE_PLACE)
    if not is_empty and not listed:
        return StoreDamaged(thing, "the archive belongs to another database, as this one lists nothing", _NEXT_STEP)
    return None


def unite(database: Database, objects: Objects) -> None:
    """Bind a database and an archive to each other, whatever they belonged to before."""
    owner, archive = _ids(objects)
    if owner != of_database(database) or not archive:
        archive = secrets.token_hex(16)
        if owner:
            objects.delete(IDENTITY)
        _put(database, objects, archive)
    with database.writing() as connection:
        connection.execute(sa.update(identity).values(archive=archive))


def are_united(database: Database, objects: Objects) -> bool:
    """Return whether a database and an archive belong to each other."""
    return _ids(objects) == (of_database(database), archive_of_database(database))


def _put(database: Database, objects: Objects, archive: str) -> None:
    objects.put(IDENTITY, f"{of_database(database)} {archive}\n".encode())


def _ids(objects: Objects) -> tuple[str, str]:
    """Return the ids in an archive, its database's and its own; both "" if there are none."""
    size = objects.size(IDENTITY)
    owner, _, archive = (objects.get(IDENTITY, 0, size) if size else b"").decode("ascii", "replace").partition(" ")
    return owner.strip(), archive.strip()
