"""Run a command in a session of its own that ends with the process that started it, however that ends.

A standalone program that needs only the standard library: `python -I -S keeping.py COMMAND...`. When its parent dies,
or on SIGTERM, it ends all processes of the session: what a harness left behind would hold a GPU.
"""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

_PDEATHSIG = 1
_SUBREAPER = 36
_GRACE = 3.0  # seconds from SIGTERM to SIGKILL
_NAP = 0.05


def main(command: list[str]) -> int:
    """Run the command and return its exit code; 127 or 126 when it cannot be started, 128 + N when it died of signal
    N."""
    parent = os.getppid()
    libc = ctypes.CDLL(None)
    libc.prctl(_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    libc.prctl(_SUBREAPER, 1, 0, 0, 0)  # processes that leave the session are found as children
    ended = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    mask = {int(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, {*ended, signal.SIGCHLD})}
    if os.getppid() != parent:
        return 128 + signal.SIGTERM
    child = os.fork()
    if child == 0:
        _become(command, mask)
    while True:
        told = signal.sigtimedwait({*ended, signal.SIGCHLD}, 1.0)
        if told is not None and told.si_signo in ended:
            _end_all()
            return 128 + signal.SIGTERM
        if (status := _status_of(child)) is not None:
            _end_all()
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _become(command: list[str], mask: set[int]) -> None:
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these for itself
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        found = not isinstance(error, FileNotFoundError | NotADirectoryError)
        print(f"{command[0]}: {f'cannot be run ({error.strerror})' if found else 'command not found'}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(126 if found else 127)


def _status_of(child: int) -> int | None:
    """Reap ended children; return the status of the command, None while it runs."""
    found = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                found = ended[1]
    return found


def _end_all() -> None:
    """End all descendants; orphans become our children, and so end, too."""
    kill_at = time.monotonic() + _GRACE
    told: set[int] = set()
    while there := _children():
        late = time.monotonic() >= kill_at
        for pid in there:
            if late or pid not in told:
                told.add(pid)
                for target in (-pid, pid):  # its process group, if it leads one
                    with suppress(OSError):
                        os.kill(target, signal.SIGKILL if late else signal.SIGTERM)
        if time.monotonic() > kill_at + _GRACE:
            return  # nothing ends what waits for a dead disk
        time.sleep(_NAP)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
