"""Lines that a supervisor adds to an output being sent, through a named pipe."""

import os
import threading
from collections.abc import Callable, Sequence

from logdoctor.job.send.notices import PREFIX
from logdoctor.safe.lasting_files import Folder

_NAME = "asides"
_LINE_BYTES = 2048  # less than PIPE_BUF, so that lines of several writers do not mix


def listen(folder: str, keep: Callable[[bytes], None]) -> None:
    """Pass lines added in a folder to `keep`, in a thread, until this process ends; `OSError` when the pipe cannot be
    made."""
    private = Folder(folder, private=True)
    private.remove(_NAME)
    with private.at(_NAME) as (at, name):
        os.mkfifo(name, 0o600, dir_fd=at)
        reading = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=at)  # O_RDWR: it never ends

    def run() -> None:
        held = b""
        while data := os.read(reading, 1 << 16):
            whole, newline, held = (held + data).rpartition(b"\n")
            keep(whole + newline)

    threading.Thread(target=run, name="logdoctor-asides", daemon=True).start()


def add_asides(folder: str, lines: Sequence[str]) -> bool:
    """Add lines to the output that listens in a folder; return whether it took them."""
    try:
        with Folder(folder, private=True).at(_NAME) as (at, name):
            writing = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=at)
    except OSError:  # nobody listens
        return False
    try:
        for line in lines:
            raw = f"{PREFIX}{line}".encode("utf-8", "replace")[: _LINE_BYTES - 1]
            os.write(writing, raw.replace(b"\n", b"?") + b"\n")
    except OSError:
        return False
    finally:
        os.close(writing)
    return True
