"""Where ranks are: stacks of their main threads, taken by `faulthandler` or py-spy."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from logdoctor.job.recovery import orphans
from logdoctor.job.recovery.orphans import Process
from logdoctor.job.recovery.witness.hook import stacks_file
from logdoctor.job.recovery.witness.ranks import catches
from logdoctor.safe.lasting_files import Folder

_WAITS = {"distributed_c10d.py", "c10d_logger.py", "_functional_collectives.py"}
"""The files of `torch.distributed` in which a rank waits for others."""
_FRAME = re.compile(rb'^  File "(?P<file>[^"\n]{1,4096})", line (?P<line>\d{1,9}) in (?P<function>.{1,200})$', re.M)
_THREAD = re.compile(rb"^(?:Current thread|Thread) 0x[0-9a-f]+.{0,80}\(most recent call first\):$", re.M)
_ANSWER_SECONDS, _LOOK_SECONDS, _QUIET_SECONDS = 3.0, 0.05, 0.3
_SPY_SECONDS = 10.0
_READ_BYTES = 1 << 20
_SPIED = 4  # processes per rank that py-spy is tried on
_SHOWN_FRAMES, _SHOWN_RANKS = 12, 16


class Frame(NamedTuple):
    """One call: the function, and its current file and line."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        """Format it for people, printable and short."""
        text = f"{self.function[:80]} ({os.path.basename(self.file)[:80]}:{self.line})"
        return "".join(character if character.isprintable() else "?" for character in text)


Stack = Sequence[Frame]
"""The calls of one thread, the innermost first."""


class Refused(Exception):
    """A stack cannot be taken; the message says why."""


def take(rank: int, processes: Sequence[Process], folder: str, ways: Collection[str]) -> Stack:
    """Return the stack of a rank's main thread; empty when its program prints it to its own output.

    SIGUSR1 is sent only to processes that handle it. `Refused` when no way is allowed, or none works.
    """
    if "faulthandler" in ways:
        hearing = [process for process in processes if catches(process.pid, signal.SIGUSR1)]
        if hearing:
            return _by_signal(hearing[0], folder, stacks_file(rank))
    if "py-spy" not in ways:
        raise Refused("it does not catch SIGUSR1 (logdoctor.resume.bear_witness)")
    refused = Refused("it has ended")
    for process in processes[:_SPIED]:
        try:
            return _by_py_spy(process)
        except Refused as error:
            refused = error
    raise refused


def shown(stacks: Mapping[int, Stack]) -> list[str]:
    """Return lines about stacks: each of them, and which ranks others visibly wait for."""
    known = {rank: stack for rank, stack in sorted(stacks.items()) if stack}
    lines = [
        f"stack of rank {rank}: {' < '.join(map(str, stack[:_SHOWN_FRAMES]))}"
        for rank, stack in list(known.items())[:_SHOWN_RANKS]
    ]
    waiting = [rank for rank, stack in known.items() if os.path.basename(stack[0].file) in _WAITS]
    missing = [rank for rank in known if rank not in waiting]
    if waiting and missing:
        there, others = known[missing[0]][0], known[waiting[0]][0]
        named = ", ".join(map(str, missing[:_SHOWN_RANKS]))
        lines.insert(0, f"stacks: missing ranks: {named}: at {there}, while rank {waiting[0]} waits in {others}")
    return lines


def parsed(report: bytes) -> Stack:
    """Return the main thread's stack in a `faulthandler` report, which prints that thread last."""
    starts = [found.end() for found in _THREAD.finditer(report)]
    part = report[starts[-1] :] if starts else b""
    return [
        Frame(
            found["function"].decode("utf-8", "replace"), found["file"].decode("utf-8", "replace"), int(found["line"])
        )
        for found in _FRAME.finditer(part)
    ]


def _by_signal(process: Process, folder: str, name: str) -> Stack:
    """Return the stack that a process writes to a file on SIGUSR1; empty when it writes elsewhere."""
    path = os.path.join(folder, name)
    before = _size(path)
    orphans.send([process], signal.SIGUSR1)
    until = time.monotonic() + _ANSWER_SECONDS
    size, grown_at = before, time.monotonic()
    while time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        if (now := _size(path)) != size:
            size, grown_at = now, time.monotonic()
        elif size > before and time.monotonic() - grown_at > _QUIET_SECONDS:
            break
    with suppress(OSError), os.fdopen(Folder(folder).open(name), "rb") as file:
        file.seek(max(before, size - _READ_BYTES))
        return parsed(file.read(_READ_BYTES))
    return []


def _size(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return 0


def _by_py_spy(process: Process) -> Stack:
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    program = shutil.which("py-spy") or (beside if os.path.exists(beside) else None)
    if program is None:
        raise Refused("py-spy is not installed: run `pip install py-spy`")
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(process.pid)]
    try:
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SPY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"py-spy: {type(error).__name__}") from error
    if ran.returncode:
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Refused(f"py-spy: {said[-1].strip()[:200] if said else f'exit code {ran.returncode}'}")
    try:
        return _of_py_spy(json.loads(ran.stdout))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Refused("py-spy: its answer cannot be read") from error


def _of_py_spy(threads: Any) -> Stack:
    """Return the main thread's stack in py-spy's answer."""
    main = next((one for one in threads if one.get("thread_name") == "MainThread"), threads[-1] if threads else None)
    frames = main["frames"] if main else ()
    return [Frame(str(frame["name"]), str(frame["filename"]), int(frame["line"])) for frame in frames]
