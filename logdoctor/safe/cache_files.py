"""Files of a cache: only those of this user or root are believed, since whoever writes one decides what is read."""

from contextlib import suppress
from pathlib import Path

from logdoctor.safe.lasting_files import Folder

_MOST = 256 << 20  # bytes


def read(path: Path) -> bytes | None:
    """Return the content of a cache file; None when it is missing, no regular file, or of somebody else."""
    try:
        return Folder(path.parent).read(path.name, _MOST, ours=True)
    except OSError:
        return None


def write(path: Path, data: bytes) -> None:
    """Write a cache file, whole or not at all; a cache that cannot be written is no error."""
    with suppress(OSError):
        folder = Folder(path.parent)
        folder.make(mode=0o700)
        folder.write(path.name, data, mode=None, lasting=False)
