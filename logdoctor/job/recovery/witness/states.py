"""Ranks whose processes are stopped, or wait in the kernel: seen from outside, for any program.

A process stopped by SIGSTOP answers nothing, and others wait for it forever. Debuggers, and people who suspend a whole
job, stop processes, too: these are no faults, and nothing is ended for them.
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from logdoctor.job.recovery import orphans
from logdoctor.job.recovery.orphans import Process
from logdoctor.job.recovery.witness.ranks import attempt_processes, rank_of
from logdoctor.job.send.copy import NEWEST

_LOOK_SECONDS = 1.0
_LASTS_SECONDS = 5.0  # in one state without output: normal reads and writes take less
_SHOWN_RANKS = 16
_STOPPED, _IN_KERNEL = "T", "D"


class Seen(NamedTuple):
    """What is seen of a process: its rank (None without one), its state (a letter of proc(5)), and its tracer."""

    rank: int | None
    state: str
    tracer: int = 0


Read = Callable[[], Mapping[Process, Seen]]
"""Returns the processes of an attempt on this machine."""


class States:
    """The process states of one attempt, polled. A changed `size()` means new output."""

    def __init__(
        self, read: Read, size: Callable[[], object], say: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._read, self._size, self._say, self._clock = read, size, say, clock
        self._since: dict[tuple[Process, str], float] = {}
        self._told: set[tuple[Process, str]] = set()
        self._looked_at = self._quiet_since = clock()
        self._grown = size()
        self._held = ""

    @property
    def is_held(self) -> bool:
        """Return whether a person holds the job; then missing steps must not end it."""
        return bool(self._held)

    def look(self, is_suspect: bool) -> list[str]:
        """Return lines about newly found ranks: stopped ones and, if a hang is suspected, those waiting in the
        kernel."""
        now = self._clock()
        if now - self._looked_at < _LOOK_SECONDS:
            return []
        self._looked_at = now
        if (grown := self._size()) != self._grown:
            self._grown, self._quiet_since = grown, now
        seen = self._read()
        now_in = {(one, what.state) for one, what in seen.items() if what.state in (_STOPPED, _IN_KERNEL)}
        self._since = {one: self._since.get(one, now) for one in now_in}
        self._told &= now_in
        if self._is_held(seen):
            return []
        lasting = {one for one in now_in if now - max(self._since[one], self._quiet_since) >= _LASTS_SECONDS}
        return [
            line
            for state in (_STOPPED, *(_IN_KERNEL,) * is_suspect)
            if (line := self._line(state, seen, {one for one in lasting if one[1] == state}))
        ]

    def _is_held(self, seen: Mapping[Process, Seen]) -> bool:
        """Return whether a person holds the job, and report when that begins."""
        before, self._held = self._held, _held(seen)
        if self._held and self._held != before:
            self._say(f"{self._held}: it is not ended for making no steps meanwhile.")
        return bool(self._held)

    def _line(self, state: str, seen: Mapping[Process, Seen], lasting: set[tuple[Process, str]]) -> str:
        """Return a line about processes in a state; "" when no rank is new."""
        ranks: dict[int, Process] = {}
        for one, _ in sorted(lasting):
            if (rank := seen[one].rank) is not None:
                ranks.setdefault(rank, one)
        new = lasting - self._told
        if not ranks or not any(seen[one].rank is not None for one, _ in new):
            return ""
        self._told |= lasting
        named = sorted(ranks)[:_SHOWN_RANKS]
        numbers, pids = (", ".join(map(str, some)) for some in (named, [ranks[rank].pid for rank in named]))
        if state == _STOPPED:
            return f"process state: missing ranks: {numbers}: stopped by a signal (process {pids}); kill -CONT goes on"
        return f"kernel wait: missing ranks: {numbers}: in the kernel, uninterruptible (process {pids})"


def states_of(key: str, folder: str, say: Callable[[str], None]) -> States:
    """Return the states of an attempt whose output is copied to a folder."""

    def size() -> object:
        try:
            found = os.stat(os.path.join(folder, NEWEST), follow_symlinks=False)
        except OSError:
            return None
        return found.st_ino, found.st_size

    return States(lambda: read_states(key), size, say, time.monotonic)


def read_states(key: str) -> dict[Process, Seen]:
    """Return an attempt's processes on this machine, and what is seen of them."""
    told = attempt_processes(key)
    return {one: _seen(one.pid, rank_of(variables)) for one, variables in told.items()}


def _held(seen: Mapping[Process, Seen]) -> str:
    """Describe how a person holds a job; "" when nobody does."""
    for one, what in sorted(seen.items()):
        if what.tracer:
            of = "" if what.rank is None else f" of rank {what.rank}"
            return f"Process {one.pid}{of} is traced by {orphans.described(Process(what.tracer, 0))}"
    if seen and all(what.state == _STOPPED for what in seen.values()):
        return "All processes of the job are stopped (Ctrl-Z, scontrol suspend)"
    return ""


def _seen(pid: int, rank: int | None) -> Seen:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            fields = dict(line.split(b":\t", 1) for line in file if b":\t" in line)
        return Seen(rank, fields[b"State"][:1].decode("ascii"), int(fields[b"TracerPid"]))
    except (OSError, KeyError, ValueError):
        return Seen(rank, "")
