"""Tables and pages: files that are written whole or not at all."""

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
    """Yield a file that takes the place of what was there once it is whole and on the disk; after an exception nothing
    changed. `StoreError` when it cannot be written."""
    try:
        with lasting_files.new_file(place) as file:
            yield file
    except OSError as error:
        cause = f"cannot be written ({error.strerror or error})"
        raise StoreError(str(place), cause, "Check the folder and its permissions.") from error


def moved(made: Path, place: Path) -> None:
    """Let a whole file take the place of what was there, also on another disk. `StoreError` when it cannot be."""
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
