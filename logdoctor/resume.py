"""For training programs: what `logdoctor run --restart` tells them, and a batch sampler that leaves batches out.

    told = logdoctor.resume.announced()
    if told.checkpoint:
        load(told.checkpoint)
    batches = SkippingBatches(BatchSampler(...), told.skip, accumulation=8)
    loader = StatefulDataLoader(dataset, batch_sampler=batches)

`bear_witness()` lets the supervisor see where a rank is when the job hangs, if that is allowed. `done()` says that
training is complete, so that nobody begins again from its last step.

Needs nothing but Python; `torch.distributed` is used where the program has initialised it.
"""

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from logdoctor.errors import SendError
from logdoctor.job.recovery.contract import DONE_FILE, RESUME, SKIP
from logdoctor.job.recovery.done import mark
from logdoctor.job.recovery.skipping import Batches, batches_seen, read_ranges
from logdoctor.job.recovery.witness.hook import bear_witness
from logdoctor.job.send.environment import variable

__all__ = ["Announced", "SkippingBatches", "announced", "bear_witness", "done"]

T = TypeVar("T")


class Announced(NamedTuple):
    """The checkpoint to load ("": the program chooses), and the global batches to leave out, counted from 1 over the
    whole of the data, in order, both ends of each included."""

    checkpoint: str = ""
    skip: tuple[Batches, ...] = ()

    def position(self, step: int) -> int:
        """Return how many global batches of the data were passed after so many steps, left out ones included: the data
        position of a checkpoint."""
        return batches_seen(step, self.skip)


def announced() -> Announced:
    """Return what this start is told; the same on all ranks, where `torch.distributed` is initialised: then rank 0's
    word counts, because a supervisor may tell one pod alone.

    `SendError` on every rank when it cannot be read.
    """
    checkpoint, ranges = _of_rank_0((variable(RESUME), variable(SKIP)))
    try:
        return Announced(checkpoint, read_ranges(ranges))
    except ValueError as error:
        raise SendError(SKIP, f"cannot be read: {error}", "Nothing is left out. Correct it, or unset it.") from error


def done() -> bool:
    """Say that training is complete: call it on the first rank, once the last checkpoint is written. Return whether a
    supervisor will see it.

    It is for the case that supervisor and node die before they see how the program ends.
    """
    path = variable(DONE_FILE)
    return bool(path) and mark(path)


class SkippingBatches(Generic[T]):
    """The batches of one rank without those that are to be left out.

    `batches` yields the micro-batches of this rank for one epoch, in the same order at each start. As many of them as
    gradients are accumulated over (`accumulation`) are its part of one global batch, and the n-th part of each rank
    belongs to the n-th global batch: so all ranks leave out the same ones, and after a restart with another number of
    ranks, too, as long as the global batch has as many samples as before. What is left of an epoch that does not make a
    whole global batch is not used.

    Its state, as `StatefulDataLoader` keeps it, says how many micro-batches were passed, left out ones included. A loop
    that was broken off begins its epoch again, as with any sampler, unless a state is loaded.
    """

    def __init__(self, batches: Iterable[T], skip: Sequence[Batches] = (), accumulation: int = 1) -> None:
        """`ValueError` when gradients are not accumulated over one or more micro-batches."""
        if accumulation < 1:
            raise ValueError(f"gradients cannot be accumulated over {accumulation} micro-batches")
        self._batches, self._accumulation = batches, accumulation
        self._skip = read_ranges(",".join(f"{one.first}-{one.last}" for one in skip))
        self._before = 0  # global batches of the epochs before this one
        self._passed = 0  # micro-batches of this epoch, left out ones included
        self._begin = 0  # where a state that was loaded goes on

    def __iter__(self) -> Iterator[T]:
        """Yield the rest of the epoch after a state was loaded, else all of it; then the next one begins."""
        begin, self._begin = self._begin, 0
        for number, batch in enumerate(self._whole(iter(self._batches))):
            if number >= begin:
                self._passed = number + 1
                if not self._is_left_out(self._before + number // self._accumulation + 1):
                    yield batch
        self._before, self._passed = self._before + self._passed // self._accumulation, 0

    def state_dict(self) -> dict[str, Any]:
        """Return where it stands; the same on all ranks."""
        return {"epochs_batches": self._before, "passed": self._passed, "accumulation": self._accumulation}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken, also with another accumulation; `ValueError` when it was taken within a
        global batch and the accumulation has changed."""
        before, passed, accumulation = state["epochs_batches"], state["passed"], state["accumulation"]
        whole, rest = divmod(passed, accumulation)
        if rest and accumulation != self._accumulation:
            raise ValueError("the state was taken within a global batch: its accumulation must not change")
        self._before, self._passed = before, whole * self._accumulation + rest
        self._begin = self._passed

    def _whole(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield the batches that make whole global ones."""
        while len(group := list(itertools.islice(batches, self._accumulation))) == self._accumulation:
            yield from group

    def _is_left_out(self, number: int) -> bool:
        return any(one.first <= number <= one.last for one in self._skip)


def _of_rank_0(told: tuple[str, str]) -> tuple[str, str]:
    """Return what rank 0 was told, where ranks can talk to each other."""
    torch = sys.modules.get("torch")
    if torch is None:
        return told
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return told
    box: list[Any] = [told]
    distributed.broadcast_object_list(box, src=0)
    checkpoint, ranges = box[0]
    return checkpoint, ranges
