"""What a worker is asked to do, and what comes of it."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from logdoctor.trials.trial_file import Sandbox


class Task(NamedTuple):
    """A command for a worker: its words, which are filled in with these `values` and with what the worker knows
    (`{model}`, `{out}`), and the seconds that it may take. A command that scores is given `outputs`; with a `sandbox`
    it runs code that a model wrote. No words are for the command that serves all shards."""

    template: tuple[str, ...]
    values: Mapping[str, str]
    seconds: float
    outputs: bytes | None = None
    sandbox: Sandbox | None = None


class Outcome(NamedTuple):
    """What came of a task: its exit code (128 and the number of a signal that it died of; None when it was ended), the
    seconds that it took, what it wrote to `{out}` (None without), what it printed, and what is wrong with it, "" for
    nothing."""

    code: int | None
    seconds: float
    output: bytes | None
    log: bytes
    problem: str = ""


class WorkerLost(Exception):
    """A worker is gone, or its node is; this says nothing about what it did."""


class Loading(NamedTuple):
    """How a worker came to have the checkpoint: on which node, the digest of its content ("" where it is read where it
    lies), the seconds that it took, and whether it was copied to the node for this worker."""

    node: str
    digest: str = ""
    seconds: float = 0.0
    copied: bool = False


class Worker(Protocol):
    """Does one task after the other."""

    @property
    def name(self) -> str:
        """Return its name, which no other one has."""

    @property
    def loading(self) -> Loading:
        """Return how it came to have the checkpoint."""

    def run(self, task: Task) -> Outcome:
        """Return what came of a task; `WorkerLost` when that is not known."""

    def close(self) -> None:
        """Work no more."""
