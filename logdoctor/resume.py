"""For training programs: the hints of `logdoctor run --restart`, and a batch sampler that skips batches.

    told = logdoctor.resume.announced()
    if told.checkpoint:
        load(told.checkpoint)
    batches = SkippingBatches(BatchSampler(...), told.skip, accumulation=8)
    loader = StatefulDataLoader(dataset, batch_sampler=batches)

`bear_witness()` lets the supervisor see where a rank is when the job hangs, if that is allowed. `done()` says that
training is complete, so that nobody resumes from its last step.

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
    """The checkpoint to load ("": the program chooses), and the global batches to skip. They are counted from 1 over
    the whole of the data, in order, both ends of each included."""

    checkpoint: str = ""
    skip: tuple[Batches, ...] = ()

    def position(self, step: int) -> int:
        """Return a checkpoint's data position: global batches passed after `step` steps, with skipped ones."""
        return batches_seen(step, self.skip)


def announced() -> Announced:
    """Return the hints for this start, rank 0's on all ranks where `torch.distributed` is initialised.

    A supervisor may inform one pod alone. `SendError` on every rank when the hints cannot be read.
    """
    checkpoint, ranges = _of_rank_0((variable(RESUME), variable(SKIP)))
    try:
        return Announced(checkpoint, read_ranges(ranges))
    except ValueError as error:
        raise SendError(SKIP, f"cannot be read: {error}", "Nothing is left out. Correct it, or unset it.") from error


def done() -> bool:
    """Mark training as complete, and return whether a supervisor will see it.

    Call it on the first rank, once the last checkpoint is written. It matters when supervisor and node die before they
    see how the program ends.
    """
    path = variable(DONE_FILE)
    return bool(path) and mark(path)


class SkippingBatches(Generic[T]):
    """The batches of one rank without those to skip.

    `batches` yields the micro-batches of this rank for one epoch, in the same order at each start. As many of them as
    gradients are accumulated over (`accumulation`) are its part of one global batch, and the n-th part of each rank
    belongs to the n-th global batch: so all ranks skip the same ones, also after a restart with another number of
    ranks, as long as the global batch keeps its size. The rest of an epoch that does not make a whole global batch is
    not used.

    Its state, as `StatefulDataLoader` keeps it, counts the micro-batches passed, skipped ones included. An interrupted
    loop begins its epoch again, as with any sampler, unless a state is loaded.
    """

    def __init__(self, batches: Iterable[T], skip: Sequence[Batches] = (), accumulation: int = 1) -> None:
        """Raise `ValueError` when `accumulation` is less than 1."""
        if accumulation < 1:
            raise ValueError(f"gradients cannot be accumulated over {accumulation} micro-batches")
        self._batches, self._accumulation = batches, accumulation
        self._skip = read_ranges(",".join(f"{one.first}-{one.last}" for one in skip))
        self._before = 0  # global batches of the epochs before this one
        self._passed = 0  # micro-batches of this epoch, skipped ones included
        self._begin = 0  # where a loaded state resumes

    def __iter__(self) -> Iterator[T]:
        """Yield the rest of the epoch after a state was loaded, else all of it. Then the next epoch begins."""
        begin, self._begin = self._begin, 0
        for number, batch in enumerate(self._whole(iter(self._batches))):
            if number >= begin:
                self._passed = number + 1
                if not self._is_left_out(self._before + number // self._accumulation + 1):
                    yield batch
        self._before, self._passed = self._before + self._passed // self._accumulation, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position; the same on all ranks."""
        return {"epochs_batches": self._before, "passed": self._passed, "accumulation": self._accumulation}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at a state, also with another accumulation. `ValueError` when it was taken within a global batch and
        the accumulation has changed."""
        before, passed, accumulation = state["epochs_batches"], state["passed"], state["accumulation"]
        whole, rest = divmod(passed, accumulation)
        if rest and accumulation != self._accumulation:
            raise ValueError("the state was taken within a global batch: its accumulation must not change")
        self._before, self._passed = before, whole * self._accumulation + rest
        self._begin = self._passed

    def _whole(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield the micro-batches that make whole global ones."""
        while len(group := list(itertools.islice(batches, self._accumulation))) == self._accumulation:
            yield from group

    def _is_left_out(self, number: int) -> bool:
        return any(one.first <= number <= one.last for one in self._skip)


def _of_rank_0(told: tuple[str, str]) -> tuple[str, str]:
    """Return the variables of rank 0, where ranks can talk to each other."""
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
