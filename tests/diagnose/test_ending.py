"""What the launcher says of the end is held against what the log says."""

import pytest

from logdoctor.diagnose.ending import with_ending
from logdoctor.types import Verdict
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import COMPLETED, ECC, steps

LOGS = {
    "running": steps(1, 30),
    "completed": steps(1, 30) + COMPLETED,
    "failed": steps(1, 30) + ECC,
    "unknown": "hello\n",
}
Told = tuple[int | None, int | None, str | None]


@pytest.fixture
def verdicts(diagnose: Diagnose) -> dict[str, Verdict]:
    return {name: diagnose(log) for name, log in LOGS.items()}


@pytest.mark.parametrize(
    ("log", "told", "outcome"),
    [
        ("running", (None, None, None), "running"),
        ("running", (0, None, None), "completed"),
        ("running", (0, 0, "COMPLETED"), "completed"),
        ("running", (1, None, None), "failed"),
        ("running", (-1, None, None), "failed"),
        ("running", (None, 9, None), "failed"),
        ("running", (0, 15, "FAILED"), "failed"),
        ("running", (0, None, "CANCELLED"), "cancelled"),
        ("running", (0, 15, "CANCELLED by 1000"), "cancelled"),
        ("running", (1, None, "cancelled+"), "cancelled"),
        ("running", (None, None, "TIMEOUT"), "cancelled"),
        ("running", (143, None, "PREEMPTED"), "cancelled"),
        ("running", (1, None, "CANCELLEDNOT"), "failed"),
        ("running", (1, None, ""), "failed"),
        ("running", (1, None, " "), "failed"),
        ("completed", (None, None, None), "completed"),
        ("completed", (0, None, "COMPLETED"), "completed"),
        ("completed", (1, None, None), "failed"),
        ("failed", (0, None, "COMPLETED"), "failed"),
        ("failed", (1, None, "FAILED"), "failed"),
        ("failed", (None, None, "CANCELLED"), "failed"),
        ("unknown", (1, None, None), "failed"),
    ],
)
def test_the_outcome(verdicts: dict[str, Verdict], log: str, told: Told, outcome: str) -> None:
    before = verdicts[log]
    after = with_ending(before, *told)
    assert after.outcome == outcome
    assert with_ending(after, *told) == after, "told twice is told once"
    assert after.progress == before.progress and after.compression == before.compression


@pytest.mark.parametrize("told", [(0, None, None), (1, None, None), (None, 9, "FAILED"), (1, None, "CANCELLED")])
def test_what_the_log_reports_stands(verdicts: dict[str, Verdict], told: Told) -> None:
    assert with_ending(verdicts["failed"], *told) == verdicts["failed"]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ((1, None, None), ["exit code 1"]),
        ((None, 9, None), ["signal 9"]),
        ((0, 11, "FAILED"), ["signal 11", "(FAILED)"]),
        ((137, None, "OUT_OF_MEMORY"), ["exit code 137", "(OUT_OF_MEMORY)"]),
    ],
)
def test_a_silent_death_is_unknown_and_quotes_nothing(
    verdicts: dict[str, Verdict], told: Told, words: list[str]
) -> None:
    verdict = with_ending(verdicts["running"], *told)
    assert (verdict.reason, verdict.fault, verdict.recovery) == ("Unknown", "unknown", "ask_human")
    assert (verdict.evidence, verdict.suspects, verdict.confidence) == ((), (), 0.0)
    assert all(word in verdict.why for word in words)


def test_a_stop_from_outside_names_the_state(verdicts: dict[str, Verdict]) -> None:
    assert "CANCELLED by 7" in with_ending(verdicts["running"], 0, None, "CANCELLED by 7").why
