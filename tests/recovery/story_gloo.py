"""Real training of two ranks, with faults: the supervisor does what is right, and loses and repeats no batch."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from logdoctor.job.recovery.contract import ASK, DONE, FIX_FIRST
from logdoctor.job.recovery.skipping import read_ranges
from logdoctor.settings import cache_folder, read_settings
from tests.recovery import gloo
from tests.recovery.gloo import GLOBAL_BATCH, SAVE_EVERY, STEPS
from tests.send.conftest import ROOT
from tests.soak import SOAKING

S3 = "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: https://s3.example.org"
SEEDS = range(12) if SOAKING else range(1)
NOTHING = {"fault": "none"}


class Ran(NamedTuple):
    """How a supervised job ended: its exit code, what was decided, and what each attempt was told and saw."""

    folder: Path
    code: int
    decisions: list[str]
    starts: list[dict[str, Any]]
    err: str

    def steps(self, attempt: int, rank: int = 0) -> dict[int, list[int]]:
        """The samples of each step that a rank made in an attempt."""
        lines = (self.folder / f"samples-{attempt}-{rank}").read_text().splitlines()
        return {step: samples for step, samples in map(json.loads, lines)}

    @property
    def attempts(self) -> int:
        """How many attempts trained."""
        return len(list(self.folder.glob("samples-*-0")))

    @property
    def kept(self) -> dict[int, set[int]]:
        """The samples of each step that is in the final model, of both ranks."""
        found: dict[int, set[int]] = {}
        for attempt in range(self.attempts):
            parts = [self.steps(attempt, rank) for rank in range(2)]
            found = {step: samples for step, samples in found.items() if step < min(parts[0], default=STEPS)}
            found |= {step: set(samples) | set(parts[1].get(step, ())) for step, samples in parts[0].items()}
        return found

    @property
    def model(self) -> dict[str, torch.Tensor]:
        """The final model."""
        loaded: dict[str, torch.Tensor] = torch.load(self.folder / "final.pt", weights_only=True)
        return loaded


Train = Callable[..., Ran]


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Train]:
    """Trains with a plan, supervised, and waits for the end."""
    running: list[subprocess.Popen[bytes]] = []

    def ran(name: str, plan: dict[str, Any], *options: str) -> Ran:
        folder = tmp_path / name
        (folder / "ckpt").mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps(plan))
        state = folder / "state"
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT),
            "LOGDOCTOR_JOB": "gloo",
            "LOGDOCTOR_STATE_DIR": str(state),
            "LOGDOCTOR_CACHE_DIR": str(cache_folder(read_settings())),
            "OMP_NUM_THREADS": "1",
        }
        trainer = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", gloo.__file__, str(folder)]
        supervisor = ["logdoctor.job.recovery", "run", "--restart", "--delay", "0", "--grace", "20"]
        kept = ["--checkpoints", str(folder / "ckpt")]
        command = [sys.executable, "-m", *supervisor, *kept, *options, "--", sys.executable, "-m", *trainer]
        with (folder / "err").open("wb") as err:
            process = subprocess.Popen(
                [*command, str(folder / "plan.json")], env=environment, cwd=folder, stdout=err, stderr=err
            )
        running.append(process)
        code = process.wait()
        events = [json.loads(line) for line in (state / "gloo" / "record.jsonl").read_text().splitlines()]
        decided = [event["kind"] for event in events if event["event"] == "decided"]
        starts = [event["start"] for event in events if event["event"] == "started"]
        return Ran(folder, code, decided, starts, (folder / "err").read_text()[-3000:])

    yield ran
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()


def plan(*attempts: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"attempts": [*attempts, NOTHING], **others}


def quality(model: dict[str, torch.Tensor]) -> float:
    """The loss on samples that no training has seen."""
    pairs = [gloo.sample(number, {}) for number in range(1_000_000, 1_000_500)]
    x, y = torch.stack([pair[0] for pair in pairs]), torch.stack([pair[1] for pair in pairs])
    return float((x @ model["weight"].T + model["bias"] - y[:, None]).square().mean())


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The model of a training that nothing disturbs."""
    folder = tmp_path_factory.mktemp("clean")
    (folder / "ckpt").mkdir()
    (folder / "plan.json").write_text(json.dumps(plan()))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    trainer = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", gloo.__file__, str(folder)]
    command = [sys.executable, "-m", *trainer, str(folder / "plan.json")]
    subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True)
    loaded: dict[str, torch.Tensor] = torch.load(folder / "final.pt", weights_only=True)
    return loaded


@pytest.mark.parametrize("seed", SEEDS)
def test_what_passes_is_started_again_and_ends_as_if_nothing_had_been(
    train: Train, clean: dict[str, torch.Tensor], seed: int
) -> None:
    chance = random.Random(seed)
    at, rank = chance.randrange(SAVE_EVERY + 5, STEPS), chance.randrange(2)
    ran = train("s3", plan({"fault": "exit", "at": at, "rank": rank, "say": S3}))
    assert (ran.code, ran.decisions) == (DONE, ["restart", "stop"]), ran.err
    assert all(torch.equal(ran.model[name], clean[name]) for name in clean), "bit by bit the same"
    assert at - 1 - (min(ran.steps(1)) - 1) <= 2 * SAVE_EVERY, "at most the save that was being written is lost, too"
    assert ran.kept == {
        step: set(range((step - 1) * GLOBAL_BATCH, step * GLOBAL_BATCH)) for step in range(1, STEPS + 1)
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("fault", "code", "decision"),
    [
        ({"fault": "exit", "say": "NameError: name 'attention_mask' is not defined"}, FIX_FIRST, "stop"),
        ({"fault": "quit", "say": "the loom is jammed"}, ASK, "ask"),
        ({"fault": "memory"}, FIX_FIRST, "stop"),
    ],
)
def test_a_bug_and_what_is_not_known_are_not(
    train: Train, seed: int, fault: dict[str, Any], code: int, decision: str
) -> None:
    at = random.Random(seed).randrange(10, STEPS)
    ran = train("other", plan({**fault, "at": at, "rank": seed % 2}))
    assert (ran.code, ran.decisions) == (code, [decision]), ran.err


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kill_without_a_witness_is_started_again(train: Train, clean: dict[str, torch.Tensor], seed: int) -> None:
    at = random.Random(seed).randrange(SAVE_EVERY + 5, STEPS)
    ran = train("kill", plan({"fault": "kill", "at": at, "rank": seed % 2}))
    assert (ran.code, ran.decisions) == (DONE, ["restart", "stop"]), ran.err
    assert f"rank {seed % 2} killed by SIGKILL, no witness" in ran.err
    assert all(torch.equal(ran.model[name], clean[name]) for name in clean)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_hang_is_ended_and_started_again(train: Train, clean: dict[str, torch.Tensor], seed: int) -> None:
    at = random.Random(seed).randrange(4 * SAVE_EVERY, STEPS)
    slow = {"step_seconds": 0.1, "save_seconds": 0.5}  # its pace is known after twenty looks at its output
    hang = plan({"fault": "hang", "at": at, "rank": seed % 2}, **slow)
    ran = train("hang", hang, "--end-on", "hang", "--stacks", "faulthandler")
    assert (ran.code, ran.decisions) == (DONE, ["restart", "stop"]), ran.err
    assert all(torch.equal(ran.model[name], clean[name]) for name in clean)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("by", ["nan", "size"])
def test_a_spike_is_left_behind(train: Train, clean: dict[str, torch.Tensor], seed: int, by: str) -> None:
    """It goes back before the onset, and exactly the announced batches are absent."""
    onset = random.Random(f"{seed} {by}").randrange(4 * SAVE_EVERY, STEPS - 60)
    poisoned = {"poison": [onset, onset + 40], "poison_by": by, "step_seconds": 0.1}
    ran = train("spike", plan(NOTHING, **poisoned), "--end-on", "loss-spike", "--skip-batches", "50")
    assert (ran.code, ran.decisions) == (DONE, ["restart", "stop"]), ran.err
    (ranges,) = read_ranges(ran.starts[1]["skip"])
    begin = ran.starts[1]["back_to"]
    assert begin < onset and ranges.first == begin + 1 and ranges.last == onset + 50
    seen = {sample // GLOBAL_BATCH + 1 for samples in ran.kept.values() for sample in samples}
    assert seen == set(range(1, STEPS + ranges.last - ranges.first + 2)) - set(range(ranges.first, ranges.last + 1))
    assert quality(ran.model) < 1.02 * quality(clean)
