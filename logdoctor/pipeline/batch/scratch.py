"""A temporary folder that goes with its process; after a kill, the next process that makes one removes it."""

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
    """Yield a new folder, removed at the end. Those left by killed processes are removed first. `OSError` without space
    for one."""
    for left in Path(tempfile.gettempdir()).glob(f"{_NAME}*"):
        _remove_if_left(left)
    folder, held = _made()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _made() -> tuple[Path, int]:
    """Return a folder that this process holds while it lives; `OSError` when none can be held."""
    for _ in range(_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=_NAME))
        held = _held(folder)
        if held is not None and folder.exists():  # nobody took it for an abandoned one
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
    """Return the descriptor that holds a folder; None when others hold it, or it is another user's."""
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
