"""The supervision lease: one process holds a lock on a file in the job's state folder."""

import fcntl
import json
import os
import time
from contextlib import suppress
from typing import Any

from logdoctor.errors import SendError
from logdoctor.safe.lasting_files import Folder

_LEASE = "lease"


class LeaseTaken(SendError):
    """Another supervisor has the job."""


class Lease:
    """The right to supervise one job; it ends with this process, however that ends.

    If nodes share the state folder, its file system must share locks (NFS 4, Lustre with `flock`).
    """

    def __init__(self, folder: str, job: str) -> None:
        """Acquire it; `LeaseTaken` naming the owner when another process has it, `SendError` without locks."""
        try:
            self._descriptor = Folder(folder, private=True).open(_LEASE, os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = _owner(self._descriptor)
            os.close(self._descriptor)
            raise LeaseTaken(
                f"job {job}", f"is supervised by {owner}", "End that one first, or wait for it."
            ) from error
        except OSError as error:
            step = "Give --state a folder that can be locked."
            path = str(error.filename or os.path.join(folder, _LEASE))
            raise SendError(path, f"cannot be locked ({error.strerror})", step) from error
        about = {"host": os.uname().nodename, "pid": os.getpid(), "since": time.time()}
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(about).encode(), 0)

    def release(self) -> None:
        """Release it for another process."""
        with suppress(OSError):
            os.close(self._descriptor)


def _owner(descriptor: int) -> str:
    """Return who holds it, in words."""
    try:
        about: Any = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {int(about['pid'])} on {str(about['host'])[:100]!r}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"
