"""Back up and restore stored data."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from logdoctor.errors import StoreError
from logdoctor.settings import Settings, data_folder, environment
from logdoctor.store.database import Database, sqlite_file
from logdoctor.store.keeping import backup
from logdoctor.store.keeping.backup import Copied
from logdoctor.wiring.stored import database_url, objects


def made(settings: Settings, to: Path) -> Iterator[str]:
    """Make a backup in a new folder. Yield the steps done, and those left to do."""
    url = database_url(settings)
    if file := sqlite_file(url):
        yield from _said(backup.of_sqlite(file, objects(settings), to), to)
        return
    program = shutil.which("pg_dump") or ""
    database = Database(url)
    try:
        count = backup.of_postgresql(database, url, to, program, environment())
    finally:
        database.close()
    if program:
        yield f"{to / backup.DUMP}: the database, for pg_restore"
    else:
        yield "the database was not copied: pg_dump is not installed; run it where it is, before the objects are copied"
    yield f"{to / backup.LISTING}: the {count} objects that the database needs"
    yield f"the objects were not copied: copy those of the list from {objects(settings)}"


def restored(settings: Settings, source: Path, newer: bool) -> Iterator[str]:
    """Restore a backup into the data folder, with `newer` also over an archive with later logs; yield the steps
    done."""
    if settings.database_url:
        step = "Unset it, or restore the database with its own tools."
        raise StoreError("LOGDOCTOR_DATABASE_URL", "is set, but a backup is restored into a data folder", step)
    folder = data_folder(settings)
    yield from _said(backup.put_back(source, folder, objects(settings), newer), folder)


def _said(copied: Copied, to: Path) -> Iterator[str]:
    yield f"{to}: the database and {copied.objects} objects, {copied.bytes} bytes"
    for name in copied.gone:
        yield f"left out: {name}, which is not there (retention may have deleted it)"
