"""Files that are whole whenever they are there, also after a crash or a loss of power."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def new_file(place: Path, mode: int | None = None, over: bool = True, lasting: bool = True) -> Iterator[BinaryIO]:
    """Yield a file that has its place once it is whole and on the disk; after an exception nothing changed.

    It takes the place of what was there; unless it may go `over` that, then it is `FileExistsError`. `mode` is its
    permissions, those of the umask by default. One that is not `lasting` may be empty after a loss of power: a cache,
    which is faster to write so. `OSError` when it cannot be written.
    """
    fresh = place.with_name(f".{secrets.token_hex(8)}")  # whatever the length of the name
    try:
        with fresh.open("xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        if over:
            fresh.replace(place)
        else:
            os.link(fresh, place)
        if lasting:
            synced(place.parent)
    finally:
        with suppress(OSError):
            fresh.unlink()


def synced(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, outlive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
