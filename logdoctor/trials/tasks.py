"""Tasks of workers, and their outcomes."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from logdoctor.trials.trial_file import Sandbox


class Task(NamedTuple):
    """A command for a worker: its words, to be filled in with these `values` and the worker's own (`{model}`, `{out}`),
    and its time limit in seconds. A command that scores gets `outputs`; with a `sandbox` it runs code that a model
    wrote. An empty template is for the command that serves all shards."""

    template: tuple[str, ...]
    values: Mapping[str, str]
    seconds: float
    outputs: bytes | None = None
    sandbox: Sandbox | None = None


class Outcome(NamedTuple):
    """The outcome of a task: its exit code (128 + N when it died of signal N; None when it was ended), its seconds,
    what it wrote to `{out}` (None if nothing), what it printed, and what is wrong with it, "" for nothing."""

    code: int | None
    seconds: float
    output: bytes | None
    log: bytes
    problem: str = ""


class WorkerLost(Exception):
    """A worker or its node is gone; this says nothing about its task."""


class Loading(NamedTuple):
    """How a worker got the checkpoint: on which node, the digest of its content ("" if read in place), the seconds it
    took, and whether it was copied to the node for this worker."""

    node: str
    digest: str = ""
    seconds: float = 0.0
    copied: bool = False


class Worker(Protocol):
    """Does one task after another."""

    @property
    def name(self) -> str:
        """Its unique name."""

    @property
    def loading(self) -> Loading:
        """How it got the checkpoint."""

    def run(self, task: Task) -> Outcome:
        """Run a task and return its outcome; `WorkerLost` when that is unknown."""

    def close(self) -> None:
        """Stop working."""
