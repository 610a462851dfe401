"""A folder among the temporary files of a machine. It goes with its process; after a kill, with the next one that makes
such a folder."""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = "logdoctor-scratch-"
_TRIES = 10


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a new folder, which is removed in the end. Those that processes left which were killed are removed first.
    `OSError` when there is no room for one."""
    for left in Path(tempfile.gettempdir()).glob(f"{_NAME}*"):
        _remove_if_left(left)
    folder, held = _made()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _made() -> tuple[Path, int]:
    """Return a folder that this process holds while it lives. `OSError` where none can be held."""
    for _ in range(_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=_NAME))
        held = _held(folder)
        if held is not None and folder.exists():  # nobody took it for one that was left
            return folder, held
        shutil.rmtree(folder, ignore_errors=True)
        if held is not None:
            os.close(held)
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), tempfile.gettempdir())


def _remove_if_left(folder: Path) -> None:
    """Remove a folder of this user that nobody holds."""
    held = _held(folder)
    if held is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _held(folder: Path) -> int | None:
    """Return the descriptor by which a folder is held; None when others hold it, or when it is none of this user."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
