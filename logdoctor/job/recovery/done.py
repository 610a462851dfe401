"""The mark that a job is done: a file in its state folder, which is believed where its supervisor did not see the end.

Who runs the command makes it after exit code 0; the training program may, at the path that it is told.
"""

import os
from contextlib import suppress

from logdoctor.errors import SendError
from logdoctor.safe.lasting_files import Folder

MARK = "done"


def mark(path: str) -> bool:
    """Make the mark; return whether it could be made."""
    folder, name = os.path.split(path)
    with suppress(OSError):
        Folder(folder).write(name, b"", lasting=True)
        return True
    return False


def is_marked(folder: str) -> bool:
    """Return whether the last attempt of the job with a state folder left the mark."""
    with suppress(OSError):
        Folder(folder, private=True).read(MARK, 1)
        return True
    return False


def unmark(folder: str) -> None:
    """Remove the mark before an attempt begins; `SendError` when it cannot be, for it would be believed."""
    state = Folder(folder, private=True)
    try:
        state.remove(MARK, lasting=True)
    except OSError as error:
        raise SendError(state.path_of(MARK), f"cannot be removed ({error.strerror})", "Check the folder.") from error
