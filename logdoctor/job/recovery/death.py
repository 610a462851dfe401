"""How an attempt's command died, left for its supervisor by the process that ran it and still sends its output.

A killed launcher leaves its ranks behind; they are then ended for that reason alone, whatever they print.
"""

import json
import os
import signal
import time
from contextlib import suppress
from typing import NamedTuple

from logdoctor.job.recovery.witness.ranks import RANKS, attempt_processes, rank_of
from logdoctor.job.send.environment import variable
from logdoctor.safe.lasting_files import Folder

_NAME = "death.json"
_BYTES = 1 << 16
_AGAIN_SECONDS = 0.3  # allows ranks killed together with their launcher to die


class Death(NamedTuple):
    """How a command ended: when (monotonic clock), whether it could be started, and which ranks it left. Ranks are left
    only by a launcher killed with SIGKILL; at most 1,000 are kept."""

    at: float
    is_started: bool = True
    left: tuple[int, ...] = ()


def leave_death(folder: str, key: str, status: int | None) -> None:
    """Store in the state folder how an attempt's command ended: its wait status, None when it could not be started."""
    at, is_killed = time.monotonic(), status is not None and os.WIFSIGNALED(status)
    ranks = _ranks_left(key) if is_killed and os.WTERMSIG(status or 0) == signal.SIGKILL else []
    said = {"attempt": key, **Death(at, status is not None, tuple(ranks[:1000]))._asdict()}
    with suppress(OSError):  # the supervisor does without
        Folder(folder, private=True).write(_NAME, json.dumps(said).encode(), lasting=False)


def death_of(folder: str, key: str) -> Death | None:
    """Return how an attempt's command ended; None when that was not stored."""
    try:
        said = json.loads(Folder(folder, private=True).read(_NAME, _BYTES))
        death = Death(float(said["at"]), bool(said["is_started"]), tuple(said["left"]))
        return death if said["attempt"] == key else None
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


def _ranks_left(key: str) -> list[int]:
    """Return the ranks of an attempt that outlived their launcher. A process with a rank variable is a rank, unless
    this process has that variable, too: then the command is a rank."""
    names = [name for name in RANKS if not variable(name)]

    def alive() -> set[int]:
        told = attempt_processes(key).values()
        return {rank for variables in told if (rank := rank_of(variables, names)) is not None}

    if not alive():
        return []
    time.sleep(_AGAIN_SECONDS)
    return sorted(alive())
