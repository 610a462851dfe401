"""Finds and ends processes that an attempt left behind, by a mark in their environment and by descent.

A process may leave its parent, group and session, but keeps the environment it was started with, and the supervisor
becomes the parent of orphans (Linux: PR_SET_CHILD_SUBREAPER). A process id alone is never trusted: it may have been
reused, so start times are compared before a process is ended.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

MARK = "_LOGDOCTOR_SUPERVISED"
"""The variable that all processes of a supervised job inherit; its value is `JOB'S ID/ATTEMPT`."""

_SUBREAPER = 36
_LISTENS = "0A"
_LOOK_SECONDS = 0.05


class Process(NamedTuple):
    """A process, and its start time in clock ticks since boot."""

    pid: int
    started: int


def adopt_orphans() -> bool:
    """Become the parent of orphaned descendants; return whether the system supports that."""
    import ctypes

    try:
        return bool(ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def marked(prefix: str) -> set[Process]:
    """Return this user's living processes whose mark begins with `prefix`."""
    wanted = f"{MARK}={prefix}".encode()
    return processes(lambda pid: any(one.startswith(wanted) for one in environment(pid)))


def processes(wanted: Callable[[int], bool]) -> set[Process]:
    """Return the living processes whose pid satisfies a predicate."""
    return {process for process in _all() if wanted(process.pid)}


def descendants(root: int, spared: Collection[Process] = ()) -> set[Process]:
    """Return the living descendants of a process, except the `spared` ones and theirs."""
    children: dict[int, list[Process]] = {}
    for process in _all():
        children.setdefault(_stat(process.pid)[1], []).append(process)
    found: set[Process] = set()
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found and child not in spared:
                found.add(child)
                waiting.append(child.pid)
    return found


def end(left: Callable[[], set[Process]], seconds: float) -> set[Process]:
    """End processes with SIGTERM, after `seconds` with SIGKILL; return those that survive even that.

    `left` is called repeatedly, because they may start others.
    """
    told: set[Process] = set()
    kill_at = time.monotonic() + seconds
    give_up = kill_at + 10
    while (there := left()) and time.monotonic() < give_up:
        if time.monotonic() >= kill_at:
            send(there, signal.SIGKILL)
        else:
            send(there - told, signal.SIGTERM)
            send(there - told, signal.SIGCONT)  # a stopped process would not receive it
            told |= there
        reap()
        time.sleep(_LOOK_SECONDS)
    reap()
    return left()


def send(processes: Iterable[Process], number: int) -> None:
    """Send a signal to processes, unless their pid has been reused."""
    for process in processes:
        if _stat(process.pid)[0] == process.started:
            with suppress(OSError):
                os.kill(process.pid, number)


def reap() -> None:
    """Reap adopted children; the caller must not wait for any child itself."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def listeners(port: int) -> set[Process]:
    """Return this user's processes that listen on a TCP port of this host."""
    inodes = set(_listening(port))
    return processes(lambda pid: bool(inodes & _sockets(pid))) if inodes else set()


def described(process: Process) -> str:
    """Describe a process for people."""
    try:
        with open(f"/proc/{process.pid}/cmdline", "rb") as file:
            line = file.read(200).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        line = ""
    return f"{process.pid} ({''.join(c if c.isprintable() else '?' for c in line) or 'unknown'})"


def environment(pid: int) -> list[bytes]:
    """Return the variables that a process was started with, `NAME=value`; none for another user's process."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _all() -> list[Process]:
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    found = ((number, _stat(number)) for number in numbers)
    return [Process(number, started) for number, (started, _) in found if started >= 0]


def _stat(pid: int) -> tuple[int, int]:
    """Return the start time and parent of a process; -1 for both when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return -1, -1
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return -1, -1
    return int(fields[19]), int(fields[1])


def _listening(port: int) -> Iterable[str]:
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{table}", encoding="ascii") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        yield from (row[9] for row in rows if row[3] == _LISTENS and row[1].rpartition(":")[2] == f"{port:04X}")


def _sockets(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for entry in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{entry}")
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found
