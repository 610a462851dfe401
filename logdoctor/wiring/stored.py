"""Locate and open stored data: the data folder and the records in it."""

import errno
import os
from pathlib import Path

from logdoctor.errors import StoreError
from logdoctor.service.reading import Logs
from logdoctor.settings import Settings, data_folder
from logdoctor.store.database import Database
from logdoctor.store.incidents.notices import Notices
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.store.log.archive import Archive
from logdoctor.store.log.bucket import Bucket
from logdoctor.store.log.objects import FolderObjects, Objects
from logdoctor.store.log.table import LogLimits, LogTable
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.store.redis_state import RedisState


def database_url(settings: Settings) -> str:
    """Return the URL of the records; create its folder."""
    return settings.database_url or f"sqlite:///{made_folder(settings) / 'logdoctor.db'}"


def made_folder(settings: Settings) -> Path:
    """Return the data folder, created if missing; `StoreError` when it cannot be used."""
    folder = data_folder(settings)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            number = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(number, os.strerror(number).lower())
    except OSError as error:
        next_step = "Choose another with --data-dir or LOGDOCTOR_DATA_DIR."
        raise StoreError(str(folder), f"cannot be used as the data folder ({error.strerror})", next_step) from error
    return folder.resolve()


def open_to_others(folder: Path) -> str:
    """Return the mode of a folder that others may enter, as in `755`, or ""."""
    mode = folder.stat().st_mode & 0o777
    return f"{mode:03o}" if mode & 0o077 else ""


def records(settings: Settings) -> Records:
    """Return only the records, for commands that run beside a service."""
    return Records(database_url(settings))


def redis_state(settings: Settings) -> RedisState | None:
    """Return the shared state in Redis; None without Redis."""
    return RedisState(settings.redis_url) if settings.redis_url else None


def objects(settings: Settings) -> Objects:
    """Return the object store of the archive: a bucket or a folder."""
    if "://" in settings.archive_url:
        return Bucket(settings.archive_url)
    return FolderObjects(Path(settings.archive_url) if settings.archive_url else data_folder(settings) / "archive")


def logs(settings: Settings, database: Database) -> Logs:
    """Return only the logs, for commands that run beside a service."""
    log = LogTable(database, LogLimits(0, 0, 0))  # nothing is appended
    return Logs(log, Archive(database, objects(settings)))


def learned_rules(settings: Settings) -> LearnedRules:
    """Return the learned rules of the data folder, for commands that run beside a service."""
    return LearnedRules(records(settings).database)


def node_records(settings: Settings) -> NodeRecords:
    """Return the records of nodes, for commands that run beside a service."""
    return NodeRecords(records(settings).database)


def outbox(settings: Settings) -> Notices:
    """Return the outbox of notifications, for commands that run beside a service."""
    return Notices(records(settings).database)
