"""What the launcher says of the end is held against what the log says."""

import msgspec
import pytest

from logdoctor.diagnose.decide import diagnose as judge
from logdoctor.diagnose.ending import NOTHING, ReportedEnd, with_ending
from logdoctor.rules.load import RuleBook
from logdoctor.types import Line, Verdict
from tests.diagnose.conftest import Diagnose, Recorded
from tests.diagnose.logs import COMPLETED, ECC, steps

LOGS = {
    "running": steps(1, 30),
    "completed": steps(1, 30) + COMPLETED,
    "failed": steps(1, 30) + ECC,
    "unknown": "hello\n",
    "teardown": steps(1, 30) + "srun: error: gpu-1: task 3: Exited with exit code 1\n",
}
Words = tuple[int | None, int | None, str | None]


@pytest.fixture
def verdicts(diagnose: Diagnose) -> dict[str, Verdict]:
    return {name: diagnose(log) for name, log in LOGS.items()}


@pytest.mark.parametrize(
    ("log", "reported", "outcome"),
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
        ("running", (None, None, "NODE_FAIL"), "failed"),
        ("unknown", (None, None, None), "unknown"),
        ("unknown", (1, None, None), "failed"),
        ("unknown", (0, None, None), "completed"),
        ("unknown", (None, None, "COMPLETED"), "completed"),
        ("unknown", (None, None, "TIMEOUT"), "cancelled"),
        ("teardown", (None, None, None), "failed"),
        ("teardown", (0, None, None), "completed"),
    ],
)
def test_the_outcome(verdicts: dict[str, Verdict], log: str, reported: Words, outcome: str) -> None:
    before = verdicts[log]
    after = with_ending(before, ReportedEnd(*reported))
    assert after.outcome == outcome
    assert with_ending(after, ReportedEnd(*reported)) == after, "told twice is told once"
    assert after.progress == before.progress and after.compression == before.compression


@pytest.mark.parametrize("reported", [(0, None, None), (1, None, None), (None, 9, "FAILED"), (1, None, "CANCELLED")])
def test_what_the_log_reports_stands(verdicts: dict[str, Verdict], reported: Words) -> None:
    assert with_ending(verdicts["failed"], ReportedEnd(*reported)) == verdicts["failed"]


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        ((1, None, None), ["exit code 1"]),
        ((143, None, None), ["exit code 143"]),
        ((137, None, "OUT_OF_MEMORY"), ["exit code 137", "(OUT_OF_MEMORY)"]),
    ],
)
def test_a_silent_death_is_unknown_and_quotes_nothing(
    verdicts: dict[str, Verdict], reported: Words, words: list[str]
) -> None:
    verdict = with_ending(verdicts["running"], ReportedEnd(*reported))
    assert (verdict.reason, verdict.fault, verdict.recovery) == ("Unknown", "unknown", "ask_human")
    assert (verdict.evidence, verdict.suspects, verdict.confidence) == ((), (), 0.0)
    assert all(word in verdict.why for word in words)
    assert (verdict.detail == "") == (words == ["exit code 1"]), "an exit code alone says nothing more"


@pytest.mark.parametrize(
    ("reported", "detail"),
    [
        ((None, 9, None), "killed by SIGKILL, no witness"),
        ((137, None, None), "killed by SIGKILL, no witness"),
        ((None, 11, None), "segmentation fault"),
        ((0, 11, "FAILED"), "segmentation fault"),
    ],
)
def test_a_job_that_was_killed_or_crashed_in_its_steps_is_started_again(
    verdicts: dict[str, Verdict], reported: Words, detail: str
) -> None:
    verdict = with_ending(verdicts["running"], ReportedEnd(*reported))
    assert (verdict.reason, verdict.recovery, verdict.detail) == ("Unknown", "restart", detail)
    assert with_ending(verdicts["unknown"], ReportedEnd(None, 11)).recovery == "ask_human", "no step was made"


def test_a_stop_from_outside_names_the_state(verdicts: dict[str, Verdict]) -> None:
    assert "CANCELLED by 7" in with_ending(verdicts["running"], ReportedEnd(0, None, "CANCELLED by 7")).why


def test_what_follows_from_a_failure_is_none_where_none_was(diagnose: Diagnose) -> None:
    log = steps(1, 30) + "NCCL WARN Net : Connection closed by remote peer gpu-7<41234>\n"
    assert diagnose(log).outcome == "failed"
    assert diagnose(log, reported=ReportedEnd(exit_code=0)).outcome == "completed"
    assert diagnose(log, reported=ReportedEnd(exit_code=1)).reason == "NCCL Remote Error"


def test_a_line_that_the_log_agent_took_for_an_error_is_shown(recorded: Recorded, book: RuleBook) -> None:
    (record,) = recorded("hello\nthe loom jams\n")
    record = msgspec.structs.replace(record, lines=[Line(2, "the loom jams", noticed=True)])
    for reported, outcome in (
        (NOTHING, "unknown"),
        (ReportedEnd(died=True), "failed"),
        (ReportedEnd(exit_code=1), "failed"),
    ):
        verdict = judge([record], book, reported=reported)
        assert (verdict.outcome, [one.quote for one in verdict.evidence]) == (outcome, ["the loom jams"])
        assert "the Log Agent took this line for an error" in verdict.why


def test_of_what_nothing_is_known_nothing_is_advised(diagnose: Diagnose) -> None:
    verdict = diagnose("hello\n")
    assert (verdict.outcome, verdict.reason, verdict.recovery) == ("unknown", "None", "none")
    assert verdict.why and verdict.suggestion and not verdict.suspects
    assert diagnose("hello\n", reported=ReportedEnd(died=True)).reason == "Unknown"
