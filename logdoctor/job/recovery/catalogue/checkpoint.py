"""What is known about a checkpoint."""

from typing import Literal, NamedTuple

import msgspec

Framework = Literal["logdoctor", "megatron", "deepspeed", "transformers", "nemo", "lightning", "torch-dcp"]
"""The framework that wrote it; "logdoctor" is our own folder (docs/checkpoint-catalogue.md)."""
Health = Literal["healthy", "suspect", "unknown"]

MOST_TRIES = 2
"""Failed loads after which a checkpoint is skipped."""


class Pin(msgspec.Struct, frozen=True):
    """Why a checkpoint must stay: who pinned it and when, and until when (seconds since the epoch; None: forever)."""

    by: str
    why: str = ""
    at: float | None = None
    until: float | None = None


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint as found in its folder.

    `name` is its file name in `folder`, `path` what a loader is given. `data_position` counts global samples or batches
    (`data_unit`; "" is whatever the trainer counts) and differs from `step` after a skip. `attempt` numbers saves of
    the same step, `run` the runs of the job: going back to an earlier step begins a later run. `saved_at` is when its
    state was copied, or else when its last file was written, in seconds since the epoch; `seconds` is how long the save
    took. `torn` says why it cannot be loaded, `suspect` why it may be poisoned ("" when not); `notes` say what could
    not be checked. `tries` are failed loads since the last good one; `latest` says that the framework's own mark names
    it, `linked` that the folder holds only a link to it.
    """

    folder: str
    name: str
    path: str
    framework: Framework
    step: int | None = None
    data_position: int | None = None
    data_unit: Literal["samples", "batches", ""] = ""
    attempt: int | None = None
    run: int | None = None
    world_size: int | None = None
    loss: float | None = None
    saved_at: float | None = None
    seconds: float | None = None
    bytes: int = 0
    torn: str = ""
    health: Health = "unknown"
    suspect: str = ""
    notes: tuple[str, ...] = ()
    pinned: Pin | None = None
    tries: int = 0
    latest: bool = False
    linked: bool = False

    @property
    def complete(self) -> bool:
        """Return whether it can be loaded."""
        return not self.torn

    @property
    def order(self) -> tuple[int, int, int, float]:
        """Return its sort key, oldest first: by run and step where known, because clocks jump."""
        return (
            self.run or 0,
            -1 if self.step is None else self.step,
            -1 if self.attempt is None else self.attempt,
            self.saved_at or 0.0,
        )


class Refused(NamedTuple):
    """No checkpoint can be used, and why."""

    reason: str


class Onset(NamedTuple):
    """When a run went wrong: a step, a time (seconds since the epoch), or both, as far as known."""

    step: int | None = None
    time: float | None = None


class Found(NamedTuple):
    """A checkpoint as its reader found it, and the losses stored in it: (step, loss), in order."""

    checkpoint: Checkpoint
    losses: tuple[tuple[int, float], ...] = ()
