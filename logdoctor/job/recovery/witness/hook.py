"""For training programs: write this rank's stacks and flight recorder when a supervisor asks for them."""

import faulthandler
import os
import signal
import sys
import threading
import time
from contextlib import suppress

from logdoctor.job.recovery.contract import STACKS_DIR
from logdoctor.job.recovery.witness.ranks import RANKS, catches
from logdoctor.job.send.environment import variable
from logdoctor.safe.lasting_files import Folder

ASK = "ask"
"""The file whose content changes when flight recorders are requested."""
_LOOK_SECONDS = 0.5
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")


def stacks_file(rank: int) -> str:
    """Return the name of the file for a rank's stacks."""
    return f"rank-{rank}.stacks"


def trace_file(rank: int) -> str:
    """Return the name of a rank's flight recorder file, a JSON list of traces."""
    return f"rank-{rank}.trace"


def bear_witness() -> bool:
    """Let a supervisor see where this rank is when the job hangs; return whether one may.

    SIGUSR1 then writes this process's stacks to a file, unless the program handles it itself, and a thread answers
    requests for PyTorch's flight recorder. Call it once in the main thread of every rank.
    """
    folder, rank = variable(STACKS_DIR), next((told for name in RANKS if (told := variable(name))), "0")
    if not (folder and rank.isascii() and rank.isdecimal()):
        return False
    try:
        stacks = Folder(folder).open(stacks_file(int(rank)), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        if not catches(os.getpid(), signal.SIGUSR1):
            faulthandler.register(signal.SIGUSR1, stacks, all_threads=True, chain=False)
    except OSError:  # training continues without
        return False
    threading.Thread(target=_answer, args=(folder, int(rank)), name="logdoctor-witness", daemon=True).start()
    return True


def _answer(folder: str, rank: int) -> None:
    """Write the flight recorder at each new request."""
    answered = _asked(folder)
    while True:
        time.sleep(_LOOK_SECONDS)
        if (asked := _asked(folder)) == answered:
            continue
        answered = asked
        with suppress(Exception):  # training must never fail because of this
            Folder(folder).write(trace_file(rank), b"[" + b",".join(_traces()) + b"]", None, lasting=False)


def _asked(folder: str) -> bytes:
    with suppress(OSError):
        return Folder(folder).read(ASK, 64)
    return b""


def _traces() -> list[bytes]:
    """Return this process's flight recorders as JSON; none without PyTorch."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dumps = (getattr(c10d, name, None) for name in _DUMPS)
    return [dump() for dump in dumps if dump is not None]
