"""Trials of the harness in harness.py."""

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from logdoctor.trials.coordinator import Coordinator, Place, Why
from logdoctor.trials.journal import Event
from logdoctor.trials.local import LocalPlace
from logdoctor.trials.state import State
from logdoctor.trials.trial_file import Trial, read_trial
from logdoctor.trials.types import EvalSet, Times

HARNESS = shlex.join([sys.executable, str(Path(__file__).with_name("harness.py"))])
INFER = f"{HARNESS} infer {{model}} {{dataset}} {{start}} {{end}} {{out}}"
SCORE = f"{HARNESS} score {{outputs}} {{out}}"
SERVE = f"{HARNESS} serve {{model}}"


def eval_set(name: str, dataset: str = "plain", samples: int = 6, **more: Any) -> dict[str, Any]:
    """A set as a trial file has it."""
    return {"name": name, "samples": samples, "dataset": dataset, "infer": INFER, "score": SCORE, **more}


class Known:
    """All sets take as long; what is measured is kept."""

    def __init__(self) -> None:
        self.measured: dict[str, tuple[Sequence[tuple[int, float]], float | None]] = {}

    def times(self, one: EvalSet, billions: float | None) -> Times:
        return Times(0.05, 0.1, 0.05, 1)

    def record(
        self, one: EvalSet, billions: float | None, shards: Sequence[tuple[int, float]], score: float | None = None
    ) -> None:
        self.measured[one.name] = shards, score


class Trials:
    """Makes trial files and works on them here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known = Known()
        (folder / "checkpoint").mkdir()
        (folder / "checkpoint" / "model.safetensors").write_bytes(b"weights" * 1000)
        self.memory = folder / "shm"
        self.memory.mkdir()

    def file(self, *sets: dict[str, Any], **more: Any) -> Path:
        """A trial file with these sets."""
        model = {"path": "checkpoint", "name": "tiny", "step": 100, "billions": 0.1, "gpus": 0}
        whole = {"model": model, "sets": list(sets), "memory": str(self.memory), "cache": str(self.folder)}
        whole |= {"workers": 2, **more}
        path = self.folder / "trial.yaml"
        path.write_text(yaml.safe_dump(whole), encoding="utf-8")
        return path

    def trial(self, *sets: dict[str, Any], **more: Any) -> Trial:
        """The trial of such a file."""
        return read_trial(self.file(*sets, **more))

    def work(
        self,
        trial: Trial | None,
        place: Callable[[Trial], Place] = LocalPlace,
        judge_url: Callable[[str], str] = str,
        told: Callable[[Event], None] = lambda event: None,
    ) -> State:
        """Work on a trial, or go on with the one that there is, until it is done."""
        state = State(self.folder / "out", trial)
        there = place(state.trial)
        try:
            Coordinator(state, there, self.known, self.why, judge_url, told).run()
        finally:
            there.close()
            state.close()
        return state

    @staticmethod
    def why(name: str, log: bytes, code: int | None) -> Why | None:
        """What the last line of a log says."""
        return Why("by its log", log.decode().strip().splitlines()[-1]) if log.strip() else None


@pytest.fixture
def trials(tmp_path: Path) -> Trials:
    return Trials(tmp_path)


def unsplit(trials: Trials, *sets: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The scores of sets that are each one shard on one worker."""
    whole = [one | {"splittable": False} for one in sets]
    trial = msgspec.structs.replace(trials.trial(*whole), workers=1)
    folder, trials.folder = trials.folder, trials.folder / "unsplit"
    trials.folder.mkdir()
    try:
        return {name: scored.metrics for name, scored in trials.work(trial).progress.scored.items()}
    finally:
        trials.folder = folder
