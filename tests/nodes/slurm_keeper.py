"""Keeps the daemons of a Slurm cluster of tests: nothing of them outlives it, however the tests end.

    python slurm_keeper.py FOLDER

A line of standard input is a JSON list: a file for what a command prints, and the words of the command. Its process id
is the answer. At the end of standard input (the tests are over, or were killed) every process that descends from a
command, or has the folder in its environment, is killed, those in sessions of their own too; the folder is removed.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PATIENCE = 60.0
"""Seconds that the killed have to be gone."""


def main() -> None:
    """Starts what it is told, until standard input ends."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit())
    threading.Thread(target=_reap, daemon=True).start()
    try:
        for line in sys.stdin:
            log, *command = json.loads(line)
            print(_start(log, command), flush=True)
    finally:
        _end()
        shutil.rmtree(sys.argv[1], ignore_errors=True)


def _start(log: str, command: list[str]) -> int:
    """Starts a command whose output goes to a log; it is killed with the keeper."""
    with open(log, "ab") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        ).pid


def _reap() -> None:
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(0.05)


def _end() -> None:
    limit = time.monotonic() + _PATIENCE
    while (left := _descendants(os.getpid()) | _users(sys.argv[1])) and time.monotonic() < limit:
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def _users(folder: str) -> set[int]:
    """Those whose Slurm is configured in the folder: an `srun` of tests that were killed, or a task that got away."""
    mark, found = f"SLURM_CONF={folder}/".encode(), set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/environ", "rb") as environment:
                if any(pair.startswith(mark) for pair in environment.read().split(b"\0")):
                    found.add(int(entry))
        except OSError:
            continue
    return found


def _descendants(root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                state, parent = stat.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state != b"Z":
            children.setdefault(int(parent), []).append(int(entry))
    found, frontier = [], [root]
    while frontier:
        frontier = [child for parent in frontier for child in children.get(parent, [])]
        found += frontier
    return set(found)


if __name__ == "__main__":
    main()
