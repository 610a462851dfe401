"""The database and its archive know each other, by an id that stands in both.

So a database that is missing, empty or restored from the wrong place is not started beside a full archive: it would
take what it does not list for orphans, and delete it.
"""

from contextlib import suppress

import sqlalchemy as sa

from logdoctor.errors import StoreDamaged, StoreError
from logdoctor.store.database import Database
from logdoctor.store.names import IDENTITY
from logdoctor.store.objects import Objects
from logdoctor.store.schema import identity, parts

_NEXT_STEP = "Restore the right database, correct the URL of the archive, or run `logdoctor doctor --repair`."


def of_database(database: Database) -> str:
    """Return the id of a database, which it got when its tables were made."""
    with database.reading() as connection:
        return str(connection.execute(sa.select(identity.c.id)).scalar_one())


def session_key(database: Database) -> str:
    """Return the key that signs browser sessions, for every process over a database."""
    with database.reading() as connection:
        return str(connection.execute(sa.select(identity.c.session_key)).scalar_one())


def of_archive(objects: Objects) -> str:
    """Return the id that an archive has; "" for none."""
    size = objects.size(IDENTITY)
    return objects.get(IDENTITY, 0, size).decode("ascii", "replace").strip() if size else ""


def require(database: Database, objects: Objects) -> None:
    """Give an archive that is new the id of the database; `StoreDamaged` when it belongs to another one, or when it is
    empty and should not be. `StoreError` when it cannot be reached, of which nothing follows."""
    if refused := refusal(database, objects):
        raise refused
    if not of_archive(objects):
        with suppress(StoreError):  # another process was quicker; or it cannot be written, and the next line says so
            write(database, objects)
        if refused := refusal(database, objects):
            raise refused


def refusal(database: Database, objects: Objects) -> StoreDamaged | None:
    """Return why a database and an archive are not to be used together; None when they may be."""
    if not (its := of_archive(objects)):
        with database.reading() as connection:
            listed = connection.scalar(sa.select(sa.func.count()).select_from(parts)) or 0
        is_empty = next(iter(objects.walk()), None) is None
        its = of_archive(objects)  # another process may have begun meanwhile: it writes the id first
    thing = f"{database.thing} and the archive {objects}"
    if its:
        cause = "the archive belongs to another database"
        return None if its == of_database(database) else StoreDamaged(thing, cause, _NEXT_STEP)
    if is_empty and listed:
        cause = f"the archive is empty, but the database lists {listed} objects"
        return StoreDamaged(thing, cause, "Mount or restore the archive, or correct its URL.")
    if not is_empty and not listed:
        return StoreDamaged(thing, "the archive belongs to another database, as this one lists nothing", _NEXT_STEP)
    return None


def write(database: Database, objects: Objects) -> None:
    """Let an archive without an id belong to a database."""
    objects.put(IDENTITY, f"{of_database(database)}\n".encode())
