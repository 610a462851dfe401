"""PyTorch's flight recorder: which collective is unfinished, and which ranks did not enqueue it.

Each rank numbers the collectives of a process group. Ranks that wait in one have enqueued it; the rank that they wait
for has not, or is itself waiting in another group, where the cause is.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from logdoctor.job.recovery.orphans import Process
from logdoctor.job.recovery.witness.hook import ASK, stacks_file, trace_file
from logdoctor.job.recovery.witness.ranks import variable_of
from logdoctor.safe.budget import json_of
from logdoctor.safe.lasting_files import Folder

_ANSWER_SECONDS, _LOOK_SECONDS = 4.0, 0.1
_READ_BYTES = 64 << 20
_SHOWN_RANKS = 16
_DEFAULT = "default_pg"
_NCCL_FILE = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"


class Calls(NamedTuple):
    """What a rank did in one process group: numbers of its last enqueued and completed collective, and recorded
    names."""

    enqueued: int
    completed: int
    names: Mapping[int, str]


class Group(NamedTuple):
    """A process group: its name, and its purpose according to PyTorch."""

    name: str
    purpose: str


Trace = Mapping[Group, Calls]
"""The flight recorder of one rank."""


def ask(folder: str, ranks: Mapping[int, Sequence[Process]]) -> dict[int, Trace]:
    """Return the flight recorders of answering ranks, and those that NCCL wrote to files. Ranks answer from any node
    that shares the folder."""
    began = time.time()
    with suppress(OSError):
        Folder(folder).write(ASK, os.urandom(8).hex().encode(), None, lasting=False)
    hooked = _hooked(folder)
    until = time.monotonic() + _ANSWER_SECONDS
    while not all(_is_newer(folder, rank, began) for rank in hooked) and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
    found: dict[int, Trace] = {}
    for rank in hooked:
        if _is_newer(folder, rank, began) and (trace := _of_json(folder, rank)) is not None:
            found[rank] = trace
    for rank, processes in ranks.items():
        if rank not in found and (dumped := _of_nccl(rank, processes)):
            found[rank] = dumped
    return found


def trace_of(dumps: Iterable[Any]) -> dict[Group, Calls]:
    """Parse the dumps of one rank (plain JSON values), skipping what cannot be read."""
    found: dict[Group, Calls] = {}
    for dump in dumps:
        with suppress(AttributeError, TypeError, KeyError, ValueError, IndexError, OverflowError):
            found |= _read(dump)
    return found


def shown(traces: Mapping[int, Trace]) -> list[str]:
    """Return lines about flight recorders: unfinished collectives, and missing ranks."""
    groups = sorted({group for trace in traces.values() for group in trace})
    waiting: dict[int, str] = {}
    behind: dict[int, str] = {}
    lines = []
    for group in groups:
        calls = {rank: trace[group] for rank, trace in sorted(traces.items()) if group in trace}
        if group.purpose == _DEFAULT:  # all ranks are in it, but one that never called anything has no record of it
            calls |= {rank: Calls(0, 0, {}) for rank in traces if rank not in calls}
        unfinished = [rank for rank, one in sorted(calls.items()) if one.completed < one.enqueued]
        if not unfinished:
            continue
        number = max(calls[rank].enqueued for rank in unfinished)
        absent = sorted(rank for rank, one in calls.items() if one.enqueued < number)
        name = next((one.names[number] for one in calls.values() if number in one.names), "collective")
        where = f"#{number} {name} of group {group.name} ({group.purpose})"
        lines.append(f"flight recorder: {where} is not finished by {_named(unfinished)}; enqueued by all but {absent}")
        waiting |= dict.fromkeys(unfinished, where)
        behind |= {rank: f"{where}, in which {_named(unfinished)} waits" for rank in absent if rank not in behind}
    missing = [rank for rank in sorted(behind) if rank not in waiting] or sorted(behind)
    if missing:
        numbers = ", ".join(map(str, missing[:_SHOWN_RANKS]))
        lines.insert(0, f"flight recorder: missing ranks: {numbers}: did not enqueue {behind[missing[0]]}")
    return ["".join(c if c.isprintable() else "?" for c in line) for line in lines]


def _named(ranks: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, ranks[:_SHOWN_RANKS]))}"


def _read(dump: Any) -> dict[Group, Calls]:
    groups: dict[str, Group] = {}
    names: dict[str, dict[int, str]] = {}
    for entry in dump["entries"]:
        key, (name, purpose) = _word(entry["pg_id"]), entry["process_group"][:2]
        groups[key] = Group(_word(name), _word(purpose))
        if not entry.get("is_p2p"):
            names.setdefault(key, {})[_number(entry["collective_seq_id"])] = _word(entry["profiling_name"])
    found = {}
    for key, status in dump["pg_status"].items():
        enqueued, completed = (_number(status[f"last_{name}_collective"]) for name in ("enqueued", "completed"))
        if key in groups:
            found[groups[key]] = Calls(max(enqueued, 0), max(completed, 0), names.get(key, {}))
    return found


def _word(value: Any) -> str:
    """Return a text or number in at most 64 characters; `ValueError` for other values, whose text may be endless."""
    if not isinstance(value, str | int):
        raise ValueError("no word")
    return str(value)[:64]


def _number(value: Any) -> int:
    number = int(_word(value))
    if abs(number) >= 1 << 63:
        raise ValueError("no number that counts something")
    return number


def _hooked(folder: str) -> list[int]:
    """Return the ranks whose program answers."""
    try:
        names = Folder(folder).names()
    except OSError:
        return []
    numbers = (name.removeprefix("rank-").removesuffix(".stacks") for name in names)
    ranks = sorted(int(number) for number in numbers if number.isascii() and number.isdecimal())
    return [rank for rank in ranks if stacks_file(rank) in names]


def _is_newer(folder: str, rank: int, time_: float) -> bool:
    path = os.path.join(folder, trace_file(rank))
    try:
        return os.stat(path, follow_symlinks=False).st_mtime >= time_ - 1.0  # file system clocks are coarse
    except OSError:
        return False


def _of_json(folder: str, rank: int) -> dict[Group, Calls] | None:
    """Return a rank's answer, {} when it has called nothing yet; None when it is invalid."""
    with suppress(OSError, ValueError):
        dumps = json_of(Folder(folder).read(trace_file(rank), _READ_BYTES))
        if isinstance(dumps, list) and dumps and all(isinstance(dump, dict) and "version" in dump for dump in dumps):
            return trace_of(dumps)
    return None


def _of_nccl(rank: int, processes: Sequence[Process]) -> dict[Group, Calls]:
    """Return what NCCL's watchdog wrote for a rank: a pickle, read without executing it."""
    prefix = next((told for process in processes if (told := variable_of(process, _NCCL_FILE))), "")
    if not prefix:
        return {}
    try:
        from logdoctor.job.recovery.catalogue.pickled import NotRead, plain, unpickled
    except ModuleNotFoundError:  # only the sender is installed
        return {}
    folder, name = os.path.split(f"{prefix}{rank}")
    with suppress(OSError, NotRead, RecursionError, ValueError):  # /tmp: anybody may have created that name
        return trace_of([plain(unpickled(Folder(folder).read(name, _READ_BYTES, ours=True)))])
    return {}
