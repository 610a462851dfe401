"""How ranks coordinate a save or a load, over their own gloo group."""

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
_TIMEOUT = timedelta(days=1)  # a group that timed out is unusable; a dead rank is noticed at once anyway
CLOSING = math.inf


class LeftOut(Exception):
    """Another rank could not begin this save."""


class NotBegun(Exception):
    """This rank has nothing to save; the message says why."""


class _Told(NamedTuple):
    value: Any
    problem: str | None


class Team:
    """The ranks that save or load together; a single one without `torch.distributed` or when `alone`. Creating one and
    each method are collective operations. A team serves one thread."""

    def __init__(self, alone: bool = False) -> None:
        together = not alone and dist.is_available() and dist.is_initialized()
        self.group: Any = dist.new_group(backend="gloo", timeout=_TIMEOUT) if together else None
        self.rank: int = dist.get_rank() if together else 0
        self.size: int = dist.get_world_size() if together else 1
        self.here: int = self.tell(host := socket.gethostname()).count(host)
        """The number of ranks on this machine."""

    @property
    def leads(self) -> bool:
        """Return whether this rank decides for all."""
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
        """Do something on every rank and return all results. If it fails on one, all raise `CheckpointError`, so that
        no rank waits; a single rank raises the error itself."""
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
        """Wait until all ranks are at the save with this number and step, without problems. `LeftOut` when another rank
        is already further: it could not begin this one. `NotBegun` or `CheckpointError` when a rank has a problem or
        saves another step, which would mix values of both."""
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
        """Destroy the group; the team is unusable afterwards."""
        if self.group is not None:
            with suppress(ValueError, RuntimeError, AssertionError):  # the program has ended torch.distributed
                dist.destroy_process_group(self.group)


def _raise(problem: str | None) -> None:
    if problem:
        raise NotBegun(problem)
