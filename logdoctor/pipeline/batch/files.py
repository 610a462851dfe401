"""Tables and pages: files that are written atomically."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from logdoctor.errors import StoreError
from logdoctor.safe import lasting_files


@contextmanager
def new_file(place: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces an existing one once it is whole and durable; an exception changes nothing.
    `StoreError` when it cannot be written."""
    try:
        with lasting_files.new_file(place) as file:
            yield file
    except OSError as error:
        cause = f"cannot be written ({error.strerror or error})"
        raise StoreError(str(place), cause, "Check the folder and its permissions.") from error


def moved(made: Path, place: Path) -> None:
    """Move a whole file into place, also across disks; `StoreError` when that fails."""
    try:
        made.replace(place)
        lasting_files.synced(place.parent)
    except OSError as error:
        if error.errno != errno.EXDEV:
            cause = f"cannot be written ({error.strerror or error})"
            raise StoreError(str(place), cause, "Check the folder and its permissions.") from error
        with made.open("rb") as whole, new_file(place) as copy:
            shutil.copyfileobj(whole, copy)
        made.unlink()
