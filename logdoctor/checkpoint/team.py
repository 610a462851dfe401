"""What the ranks of a job tell each other about a save or a load, over a gloo group of their own."""

import math
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist

from logdoctor.checkpoint.reports import sentence_of
from logdoctor.errors import CheckpointError

T = TypeVar("T")
_TIMEOUT = timedelta(days=1)  # a group that timed out is of no use any more; a rank that dies is noticed at once
CLOSING = math.inf


class LeftOut(Exception):
    """Another rank could not begin this save."""


class NotBegun(Exception):
    """This rank has nothing to save; the text says why."""


class _Told(NamedTuple):
    value: Any
    problem: str | None


class Team:
    """The ranks that save or load together; one without `torch.distributed`. Making one is a collective operation, and
    so is each method; not where a rank works `alone`, as if there were no others. A team serves one thread."""

    def __init__(self, alone: bool = False) -> None:
        together = not alone and dist.is_available() and dist.is_initialized()
        self.group: Any = dist.new_group(backend="gloo", timeout=_TIMEOUT) if together else None
        self.rank: int = dist.get_rank() if together else 0
        self.size: int = dist.get_world_size() if together else 1
        self.here: int = self.tell(host := socket.gethostname()).count(host)
        """Ranks on this machine."""

    @property
    def leads(self) -> bool:
        """Whether this rank decides for all."""
        return self.rank == 0

    def tell(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank."""
        if self.group is None:
            return [value]
        told: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(told, value, group=self.group)
        except RuntimeError as error:
            raise CheckpointError("another rank", "is gone, or cannot be reached", "Restart the job.") from error
        return told

    def everyone(self, work: Callable[[], T]) -> list[T]:
        """Do something on every rank and return the results of all. When it fails on one, all raise, so that no rank
        waits for one that gave up: `CheckpointError`, and the error itself where there is one rank."""
        if self.group is None:
            return [work()]
        try:
            mine = _Told(work(), None)
        except BaseException as error:  # noqa: BLE001 - the others must hear of it
            mine = _Told(None, sentence_of(error))
        told = self.tell(mine)
        for rank, each in enumerate(told):
            if each.problem is not None:
                raise CheckpointError(f"rank {rank}", each.problem.rstrip("."), "")
        return [each.value for each in told]

    def leader(self, work: Callable[[], T]) -> T:
        """Do something on the first rank only, and return its result on all."""
        return self.everyone(lambda: work() if self.leads else None)[0]  # type: ignore[return-value]

    def agree(self, serial: float, problem: str | None = None, step: int | None = None) -> None:
        """Return when all ranks are at the save of this number, of the same step, and none has a problem. `LeftOut`
        when another rank is further already: it could not begin this one. `NotBegun`, or `CheckpointError`, when a rank
        has a problem or saves another step: the file would hold values of both."""
        while True:
            told = self.tell((serial, problem, step))
            newest = max(number for number, _, _ in told)
            if serial < newest:
                raise LeftOut("a rank was not done with the one before")
            if all(number == newest for number, _, _ in told):
                break
        if len(steps := {each for _, _, each in told}) > 1:
            named = ", ".join(f"{each} on rank {rank}" for rank, (_, _, each) in list(enumerate(told))[:8])
            todo = "Call save on every rank at the same steps."
            raise CheckpointError(f"a save of {len(steps)} steps at once", f"would mix their values ({named})", todo)
        self.everyone(lambda: _raise(problem))

    def end(self) -> None:
        """Give up the group; the team is of no use afterwards."""
        if self.group is not None:
            with suppress(ValueError, RuntimeError, AssertionError):  # the program has ended torch.distributed
                dist.destroy_process_group(self.group)


def _raise(problem: str | None) -> None:
    if problem:
        raise NotBegun(problem)
