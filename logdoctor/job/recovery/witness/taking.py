"""Take what the second witness says about an attempt that hangs, as lines."""

import os
from collections.abc import Callable, Collection
from typing import NamedTuple

from logdoctor.job.recovery.witness import flight, stacks
from logdoctor.job.recovery.witness.ranks import rank_processes
from logdoctor.safe.lasting_files import Folder

FOLDER = "witness"
WAYS = ("faulthandler", "py-spy", "flight-recorder")
"""How a witness may be taken: SIGUSR1 to ranks that catch it, py-spy, and PyTorch's flight recorder."""
_MOST_RANKS = 64  # on this machine, whose stacks are taken


class Witness(NamedTuple):
    """What may be asked of the ranks of a job, whose state folder is given, and who is told what cannot be."""

    folder: str
    ways: Collection[str]
    say: Callable[[str], None]

    def lines(self, key: str) -> list[str]:
        """Return lines about the attempt with a key, the most telling first."""
        folder = witness_folder(self.folder)
        ranks = rank_processes(key)
        lines = flight.shown(flight.ask(folder, ranks)) if "flight-recorder" in self.ways else []
        if not {"faulthandler", "py-spy"} & set(self.ways):
            return lines
        found: dict[int, stacks.Stack] = {}
        for rank, processes in sorted(ranks.items())[:_MOST_RANKS]:
            try:
                found[rank] = stacks.take(rank, processes, folder, self.ways)
            except stacks.Refused as error:
                self.say(f"the stack of rank {rank} cannot be taken: {error}.")
        return lines + stacks.shown(found)


def witness_folder(state: str) -> str:
    """Return the folder in which ranks leave what they are asked for, within the state folder of a job."""
    return os.path.join(state, FOLDER)


def empty_folder(state: str) -> str:
    """Return the folder, new: nothing of an earlier attempt is in it. `OSError` when it cannot be made."""
    place = Folder(state, private=True)
    place.remove_all(FOLDER)
    place.make(FOLDER, 0o700)
    return witness_folder(state)
