"""The mark that a job is done: a file in its state folder, believed if no supervisor saw the end.

Whoever runs the command creates it after exit code 0; so may the training program, at the path it is given.
"""

import os
from contextlib import suppress

from logdoctor.errors import SendError
from logdoctor.safe.lasting_files import Folder

MARK = "done"


def mark(path: str) -> bool:
    """Create the mark; return whether that succeeded."""
    folder, name = os.path.split(path)
    with suppress(OSError):
        Folder(folder).write(name, b"", lasting=True)
        return True
    return False


def is_marked(folder: str) -> bool:
    """Return whether the job's last attempt left the mark."""
    with suppress(OSError):
        Folder(folder, private=True).read(MARK, 1)
        return True
    return False


def unmark(folder: str) -> None:
    """Remove the mark before an attempt begins; `SendError` when that fails, because a stale mark would be believed."""
    state = Folder(folder, private=True)
    try:
        state.remove(MARK, lasting=True)
    except OSError as error:
        raise SendError(state.path_of(MARK), f"cannot be removed ({error.strerror})", "Check the folder.") from error
