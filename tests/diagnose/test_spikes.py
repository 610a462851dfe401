"""Loss spikes: at which step they began, and which of them a running job is not waited for."""

import json
import math
from collections.abc import Callable, Mapping

import msgspec
import pytest

from logdoctor.diagnose.decide import diagnose as judge
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Record, Verdict
from tests.compress.records import recorded
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import steps

Loss = Callable[[int], float]


def falling(step: int) -> float:
    return 6.0 / (1 + step / 50) + 1.5 + 0.02 * (step % 5)


def spiked(at: int, high: Loss) -> Loss:
    return lambda step: falling(step) if step < at else high(step)


def record_of(text: str, scanner: Scanner) -> Record:
    return recorded([text.encode()], scanner, 1 << 20)


@pytest.fixture
def running(scanner: Scanner) -> Callable[[str], Verdict]:
    """The verdict on a job that runs and has printed this."""

    def of(text: str) -> Verdict:
        return judge([record_of(text, scanner)], scanner.book, runs=True)

    return of


@pytest.mark.parametrize("high", [lambda step: 30.0, lambda step: math.nan, lambda step: 9.0 + step / 20])
def test_the_step_at_which_it_began_is_told(diagnose: Diagnose, high: Loss) -> None:
    verdict = diagnose(steps(0, 230, spiked(200, high)))
    assert (verdict.reason, verdict.onset_step) == ("Loss Spike", 200)


def test_other_verdicts_have_no_onset(diagnose: Diagnose) -> None:
    assert diagnose(steps(0, 230) + "KeyError: 'tokens'\n").onset_step is None
    assert diagnose(steps(0, 230)).onset_step is None


def test_a_guard_that_stops_the_job_names_the_step_too(diagnose: Diagnose) -> None:
    log = steps(0, 100) + "ERROR: loss is NaN, stopping training\nRuntimeError: loss is NaN\n"
    verdict = diagnose(log)
    assert verdict.recovery == "rollback_and_skip" and verdict.onset_step == 99


def test_a_running_job_is_waited_for_until_its_loss_does_not_come_back(running: Callable[[str], Verdict]) -> None:
    early = running(steps(0, 205, spiked(200, lambda step: 30.0)))
    late = running(steps(0, 210, spiked(200, lambda step: 30.0)))
    assert (early.outcome, late.outcome) == ("running", "failed")
    assert (late.reason, late.recovery, late.onset_step) == ("Loss Spike", "rollback_and_skip", 200)
    assert late.evidence[0].line == 201


def test_a_loss_that_one_rank_logs_every_hundred_steps(scanner: Scanner) -> None:
    """It may have gone bad at any step since the last one that was good, and so may what was saved there."""
    logged = "".join(steps(step, step + 1, spiked(2000, lambda step: 30.0)) for step in range(0, 3100, 100))
    silent = "".join(f"[rank1] step: {step} | 0.51 s\n" for step in range(0, 3100, 10))
    records = [recorded([text.encode()], scanner, 4096) for text in (logged, silent)]
    verdict = judge(records, scanner.book, runs=True)
    assert (verdict.reason, verdict.onset_step, verdict.evidence[0].line) == ("Loss Spike", 1901, 21)


PLAIN: Mapping[str, Callable[[int, float], str]] = {
    "step and loss": lambda step, loss: f"step: {step} | loss: {loss:.6f}\n",
    "JSON": lambda step, loss: json.dumps({"step": step, "lr": 0.001, "loss": loss}) + "\n",
    "OpenMMLab": lambda step, loss: f"Iter(train) [{step}/9000]  lr: 1e-4  time: 0.2  loss: {loss:.4f}\n",
    "PaddlePaddle": lambda step, loss: f"[2024/03/02 11:00:00] global step {step}, epoch: 1, loss: {loss:.4f}\n",
}
"""Lines that a filter rule takes only where the loss is a number."""


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("block", [64, 4096, 1 << 20])
def test_a_loss_that_is_no_number_tells_its_own_step(
    scanner: Scanner, running: Callable[[str], Verdict], name: str, block: int
) -> None:
    """The line is evidence, and no filter rule reads it; its step is not that of the line before."""
    text = "".join(PLAIN[name](step, falling(step) if step < 185 else math.nan) for step in range(1, 196))
    assert "nan" in text.lower()
    whole, streamed = running(text), judge([recorded([text.encode()], scanner, block)], scanner.book, runs=True)
    assert (whole.outcome, whole.reason, whole.onset_step) == ("failed", "Loss Spike", 185)
    assert whole.evidence[0].line == 185
    assert msgspec.json.encode(streamed) == msgspec.json.encode(whole)


@pytest.mark.parametrize("name", PLAIN)
def test_a_single_high_loss_before_the_first_that_is_no_number_is_the_onset(diagnose: Diagnose, name: str) -> None:
    text = "".join(
        PLAIN[name](step, falling(step) if step < 184 else 30.0 if step == 184 else math.nan) for step in range(1, 196)
    )
    assert diagnose(text).onset_step == 184


@pytest.mark.parametrize("name", PLAIN)
def test_losses_that_are_no_number_for_some_steps_are_no_spike(running: Callable[[str], Verdict], name: str) -> None:
    text = "".join(PLAIN[name](step, math.nan if 100 <= step < 103 else falling(step)) for step in range(1, 196))
    assert running(text).outcome == "running"


PLANNED: Mapping[str, str] = {
    "other data, whose loss falls": steps(0, 240, spiked(200, lambda step: 2.0 + 6.0 * 0.93 ** (step - 200))),
    "a spike that comes back": steps(0, 260, lambda step: 20.0 if 200 <= step < 215 else falling(step)),
    "a rise by half": steps(0, 260, spiked(200, lambda step: falling(200) * 1.5)),
    "steps counted anew, from random weights": steps(0, 200, falling) + steps(0, 40, lambda step: 9.0),
    "a loss that is logged once more": steps(0, 201, spiked(200, lambda step: 30.0)),
}


@pytest.mark.parametrize("name", PLANNED)
def test_what_is_planned_or_comes_back_ends_no_running_job(running: Callable[[str], Verdict], name: str) -> None:
    assert running(PLANNED[name]).outcome == "running"


def test_a_spike_late_in_a_long_log_is_seen_at_once(running: Callable[[str], Verdict], scanner: Scanner) -> None:
    """Far from the beginning few metric lines are kept for good, but the last ones are all read."""
    healthy = 40_000  # steps, 12 MB
    text = steps(0, healthy + 12, lambda step: 2.0 if step < healthy else 30.0)
    assert len(text) > 8 << 20
    verdict = running(text)
    assert (verdict.reason, verdict.onset_step) == ("Loss Spike", healthy)
    assert verdict.evidence[0].line == healthy + 1


def test_what_is_read_at_the_end_is_bounded(scanner: Scanner) -> None:
    record = record_of(steps(0, 40_000), scanner)
    (readings,) = record.progress.values()
    assert len(readings.lines) < 12_000 and list(readings.lines[-64:]) == list(range(39_937, 40_001))
