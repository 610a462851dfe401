"""Collects the second witness's lines about a hanging attempt."""

import os
from collections.abc import Callable, Collection
from typing import NamedTuple

from logdoctor.job.recovery.witness import flight, stacks
from logdoctor.job.recovery.witness.ranks import rank_processes
from logdoctor.safe.lasting_files import Folder

FOLDER = "witness"
WAYS = ("faulthandler", "py-spy", "flight-recorder")
"""Allowed ways: SIGUSR1 to ranks that handle it, py-spy, and PyTorch's flight recorder."""
_MOST_RANKS = 64  # on this machine, whose stacks are taken


class Witness(NamedTuple):
    """Asks the ranks of the job with this state folder, in the allowed ways; `say` reports failures."""

    folder: str
    ways: Collection[str]
    say: Callable[[str], None]

    def lines(self, key: str) -> list[str]:
        """Return lines about an attempt, the most telling first."""
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
    """Return the folder, within a job's state folder, where ranks leave their answers."""
    return os.path.join(state, FOLDER)


def empty_folder(state: str) -> str:
    """Recreate that folder, empty, and return it; `OSError` when that fails."""
    place = Folder(state, private=True)
    place.remove_all(FOLDER)
    place.make(FOLDER, 0o700)
    return witness_folder(state)
