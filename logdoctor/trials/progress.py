"""The progress of a trial, from its journal."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from logdoctor.trials.journal import (
    Begun,
    Dropped,
    Ended,
    Event,
    Failed,
    Finished,
    Loaded,
    Scored,
    Started,
)
from logdoctor.trials.trial_file import Trial
from logdoctor.trials.types import EvalSet, Shard

TRIES = 3
"""Failures of a shard, or of a scoring, before its set is given up."""
LOSSES = 6
"""Losses of a shard with its worker before its set is given up: it may be what ends them."""

SetState = Literal["waiting", "running", "scoring", "scored", "failed"]


class SetProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a set. `done` samples have outputs on disk; `metrics` exist once it is scored; `why` it failed,
    the line of its log that proves it, and that log."""

    name: str
    state: SetState
    samples: int
    done: int
    metrics: dict[str, float] = {}
    why: str = ""
    quote: str = ""
    log: str = ""


class Progress:
    """The state that a journal describes: `finished` shards with seconds and digests, `running` ones with workers,
    `scored` sets with metrics and seconds, and `dropped` ones."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.finished: dict[Shard, Finished] = {}
        self.running: dict[Shard, Started] = {}
        self.scored: dict[str, Scored] = {}
        self.dropped: dict[str, Dropped] = {}
        self.last_failure: dict[str, Failed] = {}
        self.loads: list[Loaded] = []
        self.begun: Begun | None = None
        self.ended = False
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Apply the next event."""
        match event:
            case Begun():
                self.begun, self.ended = event, False
                self.running.clear()
                self.dropped.clear()
            case Loaded():
                self.loads.append(event)
            case Started():
                self.running[event.shard] = event
            case Finished():
                self.running.pop(event.shard, None)
                self.finished[event.shard] = event
            case Failed():
                self.running.pop(event.shard, None)
                self.last_failure[event.shard.set] = event
            case Scored():
                self.scored[event.set] = event
            case Dropped():
                self.dropped[event.set] = event
            case Ended():
                self.ended = True

    @property
    def digest(self) -> str:
        """The digest of the evaluated checkpoint; "" while unknown."""
        return next((load.digest for load in self.loads if load.digest), "")

    def is_over(self, name: str) -> bool:
        """Return whether a set is scored or given up."""
        return name in self.scored or name in self.dropped

    def forget(self, shard: Shard) -> None:
        """Mark a shard as unmade: its outputs are gone."""
        self.finished.pop(shard, None)
        self.scored.pop(shard.set, None)

    def parts(self, name: str) -> list[Shard]:
        """Return the finished shards of a set, in the order of their samples."""
        return sorted(shard for shard in self.finished if shard.set == name)

    def is_whole(self, one: EvalSet) -> bool:
        """Return whether all samples of a set have outputs."""
        return sum(shard.samples for shard in self.parts(one.name)) == one.samples

    def of_sets(self, trial: Trial) -> list[SetProgress]:
        """Return the progress of each set, in the order of the trial file."""
        running = {shard.set for shard in self.running}
        return [self._of(one, one.name in running) for one in trial.sets]

    def _of(self, one: EvalSet, runs: bool) -> SetProgress:
        done = sum(shard.samples for shard in self.parts(one.name))
        scored, dropped = self.scored.get(one.name), self.dropped.get(one.name)
        state: SetState = "waiting"
        if scored is not None:
            state = "scored"
        elif dropped is not None:
            state = "failed"
        elif done == one.samples:
            state = "scoring"
        elif runs or done:
            state = "running"
        told = SetProgress(name=one.name, state=state, samples=one.samples, done=done)
        if scored is not None:
            return msgspec.structs.replace(told, metrics=scored.metrics)
        if dropped is not None:
            last = self.last_failure.get(one.name)
            proof = {"quote": last.quote, "log": last.log} if last is not None else {}
            return msgspec.structs.replace(told, why=dropped.why, **proof)
        return told


def measured(progress: Progress) -> Mapping[str, Sequence[tuple[int, float]]]:
    """Return the samples and seconds of finished shards, by set."""
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for shard, made in progress.finished.items():
        found[shard.set].append((shard.samples, made.seconds))
    return found
