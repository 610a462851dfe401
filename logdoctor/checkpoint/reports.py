"""What is told of saves: to the log, to a hook, and as numbers."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

State = Literal["copying", "writing", "verifying", "verified", "failed", "left out"]


@dataclass
class Stall:
    """Seconds for which one save kept training waiting: inside `save`, for the copy before the optimizer's step,
    and for the save before it to be written."""

    returned: float = 0.0
    staging: float = 0.0
    backpressure: float = 0.0

    @property
    def total(self) -> float:
        return self.returned + self.staging + self.backpressure


@dataclass
class Save:
    """One save on its way to the disk. What it says changes while it is written; `wait` waits for its end."""

    step: int
    data_position: int | None
    loss: float | None
    state: State = "copying"
    name: str = ""
    """That of its folder, once it has one."""
    problem: str | None = None
    """Why it failed or was left out, as a sentence."""
    bytes: int = 0
    """What this rank wrote."""
    differing: tuple[str, ...] = ()
    """Names under which ranks had other values; those of the lowest rank are saved. Known on the first rank."""
    rank_forms: tuple[str, ...] | None = None
    """The form of names that each rank has for itself. Known on the first rank, where there are others."""
    seconds: float = 0.0
    """From the copy until it was whole on the disk."""
    stall: Stall = field(default_factory=Stall)
    copied: threading.Event = field(default_factory=threading.Event, repr=False)
    done: threading.Event = field(default_factory=threading.Event, repr=False)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is verified or has failed: see `state`. False when that takes longer than so many seconds."""
        return self.done.wait(timeout)

    @property
    def committed(self) -> bool:
        """Whether it is whole on the disk."""
        return self.state in ("verifying", "verified")


class Report(NamedTuple):
    """One thing that happened, for a hook: `kind` is one of `saved`, `failed`, `left out`, `changed` (a save that could
    not be read back as it was written), `differs` (ranks have other values under the same names), `damaged` (not as it
    was written when it was to be loaded), `left` (parts of the state that nobody had saved, for want of that rank, stay
    as they are), `kept` (an old one that could not be deleted), `lease`, `mirrored`, `mirror` (not reached, or not
    uploaded)."""

    kind: str
    step: int | None
    sentence: str
    save: Save | None = None


@dataclass
class Stats:
    """Counts and seconds of one `Checkpointer`, since it was made."""

    asked: int = 0
    saved: int = 0
    failed: int = 0
    left_out: int = 0
    changed: int = 0
    deleted: int = 0
    mirrored: int = 0
    mirror_failed: int = 0
    writers_replaced: int = 0
    hook_failures: int = 0
    bytes_written: int = 0
    stall: Stall = field(default_factory=Stall)
    last_saved_step: int | None = None
    last_saved: Path | None = None
    last_saved_at: float | None = None
    """Seconds since the epoch."""
    last_mirrored_step: int | None = None
    last_problem: str | None = None


def sentence_of(error: BaseException) -> str:
    """Return what went wrong as one line."""
    failures = getattr(error, "failures", None)  # of torch.distributed.checkpoint: by rank, with its stack
    if isinstance(failures, dict) and failures:
        rank, (cause, _) = sorted(failures.items())[0]
        return f"rank {rank}: {sentence_of(cause)}"
    said = " ".join(str(error).split()) or "no more is known"
    plain = isinstance(error, OSError) or error.__class__.__module__.startswith("logdoctor.")  # they are sentences
    return (said if plain else f"{error.__class__.__name__}: {said}")[:500]
