"""The processes of the ranks of an attempt on this machine."""

from collections.abc import Mapping, Sequence

from logdoctor.job.recovery import orphans
from logdoctor.job.recovery.contract import ATTEMPT_KEY
from logdoctor.job.recovery.orphans import Process

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""The variables in which launchers store a process's rank, the surest first."""
_MOST = 128  # processes per rank, helpers included, that are examined


def attempt_processes(key: str) -> dict[Process, Mapping[str, str]]:
    """Return an attempt's processes here, each with the variables that it was started with."""
    return {process: told for process in orphans.processes(lambda _: True) if (told := _of(process, key))}


def rank_of(variables: Mapping[str, str], names: Sequence[str] = RANKS) -> int | None:
    """Return the rank that a launcher gave a process; None without one."""
    rank = next((variables[name] for name in names if name in variables), "")
    return int(rank) if rank.isascii() and rank.isdecimal() and len(rank) < 8 else None


def rank_processes(key: str) -> dict[int, list[Process]]:
    """Return an attempt's processes here by rank, the outermost first: a shell may enclose the program, which may have
    data loaders."""
    told = attempt_processes(key)
    name = next((name for name in RANKS if any(name in variables for variables in told.values())), None)
    found: dict[int, list[Process]] = {}
    for process in sorted(told, key=lambda one: (one.started, one.pid)):
        if name and (rank := rank_of(told[process], (name,))) is not None:
            found.setdefault(rank, []).append(process)
    return {rank: processes[:_MOST] for rank, processes in found.items()}


def variable_of(process: Process, name: str) -> str:
    """Return a variable that a process was started with; "" if unset."""
    return _variables(process).get(name, "")


def catches(pid: int, number: int) -> bool:
    """Return whether a process handles a signal, which would end it otherwise."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            caught = next(line for line in file if line.startswith(b"SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return False


def _of(process: Process, key: str) -> Mapping[str, str]:
    """Return the variables of an attempt's process; {} for any other."""
    variables = _variables(process)
    return variables if variables.get(ATTEMPT_KEY) == key else {}


def _variables(process: Process) -> dict[str, str]:
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in orphans.environment(process.pid))
    return {name: value for name, _, value in pairs}
