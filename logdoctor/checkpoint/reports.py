"""Reports about saves: for the log, for a hook, and as counters."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

State = Literal["copying", "writing", "verifying", "verified", "failed", "left out"]


@dataclass
class Stall:
    """Seconds that one save held up training: inside `save`, for the copy before the optimizer's step, and for the
    previous save to be written."""

    returned: float = 0.0
    staging: float = 0.0
    backpressure: float = 0.0

    @property
    def total(self) -> float:
        return self.returned + self.staging + self.backpressure


@dataclass
class Save:
    """A save in progress. Its fields change while it is written; `wait` waits for its end."""

    step: int
    data_position: int | None
    loss: float | None
    state: State = "copying"
    name: str = ""
    """The name of its folder, once it has one."""
    problem: str | None = None
    """Why it failed or was skipped, as a sentence."""
    bytes: int = 0
    """Bytes that this rank wrote."""
    differing: tuple[str, ...] = ()
    """Names whose values differ between ranks; the lowest rank's are saved. Known on the first rank."""
    rank_forms: tuple[str, ...] | None = None
    """The forms of names that each rank has for itself. Known on the first rank of several."""
    seconds: float = 0.0
    """Time from the copy until it was durable."""
    stall: Stall = field(default_factory=Stall)
    copied: threading.Event = field(default_factory=threading.Event, repr=False)
    done: threading.Event = field(default_factory=threading.Event, repr=False)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is verified, failed or left out (`state`); return False after `timeout` seconds."""
        return self.done.wait(timeout)

    @property
    def committed(self) -> bool:
        """Return whether it is durable."""
        return self.state in ("verifying", "verified")


class Report(NamedTuple):
    """One event, for a hook. `kind` is `saved`, `failed`, `left out`, `changed` (a save read back differently),
    `differs` (values differ between ranks under one name), `damaged` (found at loading), `left` (parts of the state
    that nobody had saved, because there were fewer ranks, keep their values), `kept` (an old one could not be deleted),
    `lease`, `mirrored`, or `mirror` (unreachable, or an upload failed)."""

    kind: str
    step: int | None
    sentence: str
    save: Save | None = None


@dataclass
class Stats:
    """Counters and seconds of one `Checkpointer`, since its creation."""

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
