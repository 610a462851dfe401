"""Backups: a copy of the database, then of the objects it lists; consistent while a service runs.

Objects never change, so the copied database lists the objects of one moment. An object that retention deleted meanwhile
is reported and left out.
"""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from logdoctor.errors import StoreDamaged, StoreError
from logdoctor.safe.lasting_files import Folder, new_file, synced
from logdoctor.store.database import Database
from logdoctor.store.keeping import identity
from logdoctor.store.log.objects import FolderObjects, Objects
from logdoctor.store.names import IDENTITY
from logdoctor.store.schema import parts, streams

DATABASE, ARCHIVE, DUMP, LISTING = "logdoctor.db", "archive", "logdoctor.dump", "objects.txt"


class Copied(NamedTuple):
    """The number of copied objects, their bytes, and the names of missing ones."""

    objects: int
    bytes: int
    gone: list[str]


def of_sqlite(file: Path, objects: Objects, to: Path) -> Copied:
    """Copy an SQLite database, possibly in use, and its archive to a new folder. `StoreError` when that fails."""
    folder = _make(to)
    copy = to / DATABASE
    try:
        os.close(folder.open(DATABASE, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with _opened(file) as source, _opened(copy) as target:
            source.backup(target)
            target.execute("PRAGMA journal_mode=DELETE").close()
        synced(copy)
        synced(to)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(str(copy), f"cannot be written ({error})", "Check the disk and its permissions.") from error
    database = Database(f"sqlite:///{copy}")
    try:
        place = FolderObjects(to / ARCHIVE)
        copied = copy_objects(names(database), objects, place)
        identity.unite(database, place)
    finally:
        database.close()
    for rest in ("-wal", "-shm"):
        copy.with_name(copy.name + rest).unlink(missing_ok=True)
    return copied


def of_postgresql(database: Database, url: str, to: Path, program: str, environment: Mapping[str, str]) -> int:
    """Dump the database and write the list of its objects, both of one snapshot; return the number of objects. With ""
    for `program` (`pg_dump`) only the list is written."""
    folder = _make(to)
    with database.reading() as connection:
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")  # a dump may take hours
        snapshot = str(connection.scalar(sa.text("SELECT pg_export_snapshot()")))
        found = list(_names(connection))
        if program:  # while the transaction keeps the snapshot
            os.close(folder.open(DUMP, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            _dump(url, to / DUMP, snapshot, program, environment)
    folder.write(LISTING, "".join(f"{name}\n" for name in found).encode())
    return len(found)


def names(database: Database) -> list[str]:
    """Return the names of the objects that a database needs."""
    with database.reading() as connection:
        return list(_names(connection))


def copy_objects(wanted: list[str], objects: Objects, to: Objects, linking: bool = True) -> Copied:
    """Copy objects that the target lacks. With `linking`, files are hard links where possible; then damage of the disk
    affects both."""
    count, size, gone = 0, 0, []
    for name in wanted:
        bytes_ = objects.size(name)
        if bytes_ is None:
            gone.append(name)
            continue
        try:
            if to.size(name) is None and not (linking and _linked(objects, to, name)):
                to.put(name, objects.get(name, 0, bytes_))
        except StoreDamaged:  # it was deleted at this moment
            gone.append(name)
            continue
        count, size = count + 1, size + bytes_
    return Copied(count, size, gone)


def put_back(source: Path, folder: Path, objects: Objects, newer: bool = False) -> Copied:
    """Restore a backup into an empty data folder; its database comes last, so that nothing can start before all is
    there. `StoreError` when it is no such backup, the folder is not empty, or the archive belongs to another database
    or, unless `newer` is True, holds what was written after the backup: a service may be running over it. What was
    copied into the folder is removed then."""
    if (source / DUMP).exists() or (source / LISTING).exists():
        cause = "is a backup of PostgreSQL"
        step = f"Run `pg_restore --clean --if-exists -d DATABASE {source / DUMP}`, then `logdoctor doctor`."
        raise StoreError(str(source), cause, step)
    given = Folder(source)
    if DATABASE not in (given.names() if source.is_dir() else ()):
        raise StoreError(str(source), f"holds no {DATABASE}", "Name the folder that `logdoctor backup` made.")
    if folder.exists() and any(folder.iterdir()):
        raise StoreError(str(folder), "is not empty", "Name a new folder with --data-dir.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return _put_back(given, folder, objects, newer)
    except BaseException:
        ours = Folder(folder)
        there = ours.names()
        for name in there if DATABASE not in there else ():  # else a service has begun there
            if name.startswith(f".{DATABASE}") or name == ARCHIVE:
                ours.remove_all(name)
        raise


def _put_back(given: Folder, folder: Path, objects: Objects, newer: bool) -> Copied:
    fresh = folder / f".{DATABASE}"
    try:
        with open(given.open(DATABASE), "rb") as database_file, new_file(fresh, 0o600) as copy:
            shutil.copyfileobj(database_file, copy, 1 << 20)
    except OSError as error:
        thing, cause = str(error.filename or fresh), f"cannot be copied ({error.strerror})"
        raise StoreError(thing, cause, "Check the disk and the backup.") from error
    database = Database(f"sqlite:///{fresh}")
    try:
        if (its := identity.of_archive(objects)) and its != identity.of_database(database):
            raise StoreError(f"the archive {objects}", "belongs to another database", "Choose an empty one.")
        listed = names(database)
        known = {IDENTITY, *listed}
        if its and not newer and any(one.name not in known for one in objects.walk()):
            cause = "holds logs that were written after the backup: a service may be running over it"
            step = "Stop that service, and give --newer: what the backup does not list is deleted in the end."
            raise StoreError(f"the archive {objects}", cause, step)
        copied = copy_objects(listed, FolderObjects(Path(given.path), ARCHIVE), objects, linking=False)
        identity.unite(database, objects)
    finally:
        database.close()
        for rest in ("-wal", "-shm"):
            fresh.with_name(fresh.name + rest).unlink(missing_ok=True)
    if (folder / DATABASE).exists():
        raise StoreError(str(folder), "is no longer empty: a service has begun there", "Stop it, and try again.")
    fresh.rename(folder / DATABASE)
    synced(folder)
    return copied


def _linked(objects: Objects, to: Objects, name: str) -> bool:
    return isinstance(objects, FolderObjects) and isinstance(to, FolderObjects) and objects.link(name, to)


def _names(connection: sa.Connection) -> Iterator[str]:
    yield from connection.scalars(sa.select(parts.c.object).order_by(parts.c.job, parts.c.attempt, parts.c.number))
    yield from connection.scalars(sa.select(streams.c.state).where(streams.c.state != "").order_by(streams.c.state))


def _dump(url: str, to: Path, snapshot: str, program: str, environment: Mapping[str, str]) -> None:
    """Run pg_dump, with its secrets in the environment, where others cannot read them."""
    place = sa.make_url(url)
    given = {
        "PGHOST": place.host or place.query.get("host"),
        "PGPORT": place.port or place.query.get("port"),
        "PGUSER": place.username,
        "PGPASSWORD": place.password,
        "PGDATABASE": place.database,
    } | {f"PG{name.upper()}": place.query.get(name) for name in ("sslmode", "sslrootcert", "sslcert", "sslkey")}
    told = {name: str(value) for name, value in given.items() if value}
    command = [program, "--format=custom", f"--snapshot={snapshot}", f"--file={to}"]
    done = subprocess.run(command, env={**environment, **told}, capture_output=True, text=True, check=False)
    if done.returncode:
        cause = f"fails ({' '.join(done.stderr.split())[:500]})"
        raise StoreError("pg_dump", cause, "Check that it is as new as the server.")
    synced(to)


def _make(path: Path) -> Folder:
    """Make the folder of a backup, or take an empty one into which nobody else may write or look."""
    folder = Folder(path, private=True)
    try:
        folder.make(mode=0o700)
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(opened, 0o700)
        finally:
            os.close(opened)
        if folder.names():
            raise StoreError(str(path), "is not empty", "Name a new folder.")
    except OSError as error:
        raise StoreError(str(path), f"cannot be made ({error.strerror})", "Name another folder.") from error
    return folder


def _opened(file: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, timeout=30))
