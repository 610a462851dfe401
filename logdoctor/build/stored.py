"""Locate and open what is stored: the data folder and the records in it."""

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from logdoctor.errors import StoreError
from logdoctor.settings import Settings, data_folder

if TYPE_CHECKING:
    from logdoctor.store.records import Records


def database_url(settings: Settings) -> str:
    """Return the URL of the records; create its folder."""
    return settings.database_url or f"sqlite:///{made_folder(settings) / 'logdoctor.db'}"


def made_folder(settings: Settings) -> Path:
    """Return the data folder, created if missing; `StoreError` when it cannot be used."""
    folder = data_folder(settings)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "permission denied")
    except OSError as error:
        next_step = "Choose another with --data-dir or LOGDOCTOR_DATA_DIR."
        raise StoreError(str(folder), f"cannot be used as the data folder ({error.strerror})", next_step) from error
    return folder.resolve()


def records(settings: Settings) -> "Records":
    """Return the records alone, for commands that run beside a service."""
    from logdoctor.store.records import Records

    return Records(database_url(settings))
