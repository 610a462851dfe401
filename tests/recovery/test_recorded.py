"""`logdoctor runs show` without a service: the record of a supervisor on this machine."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logdoctor.cli.recorded_runs import recorded_run
from logdoctor.job.recovery.deciding import Attempt
from logdoctor.job.recovery.judged import Judged
from logdoctor.job.recovery.record import facts_of
from tests.test_cli import Ran, run

__all__ = ["run"]

S3 = Judged("failed", "S3 Storage Error", "restart", 0.9, "s3", step=19, first=0)


@pytest.fixture
def states(tmp_path: Path) -> Path:
    """The folder of states with the record of a job: 100 s, 20 s until its output was given up, 4 s until its verdict,
    2 s until it began again; then 50 s."""
    events: list[dict[str, Any]] = [
        {"at": 1000.0, "event": "begun"},
        {"at": 1000.0, "event": "started", "number": 1},
        {"at": 1124.0, "event": "ended", **facts_of(Attempt(1, 1, 100.0, S3, sending=20.0, judging=4.0))},
        {"at": 1126.0, "event": "started", "number": 2},
        {"at": 1177.0, "event": "ended", **facts_of(Attempt(2, 1, 50.0, S3._replace(first=10, step=30), judging=1.0))},
        {"at": 1178.0, "event": "started", "number": 3},
        {"at": 1190.0, "event": "ended", **facts_of(Attempt(3, 0, 12.0))},
    ]
    (tmp_path / "states" / "llm").mkdir(parents=True, mode=0o700)
    lines = [json.dumps({"job": "llm", **event}) for event in events]
    (tmp_path / "states" / "llm" / "record.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "states"


def test_the_time_in_which_a_service_was_waited_for_is_not_effective(states: Path) -> None:
    found = recorded_run(str(states), "llm", 2000.0)
    assert found is not None
    assert [(one.outcome, one.reason, one.detection, one.restart) for one in found.attempts] == [
        ("failed", "S3 Storage Error", 24.0, 2.0),
        ("failed", "S3 Storage Error", 1.0, 1.0),
        ("completed", "None", None, None),
    ]
    assert (found.wall, found.detection, found.restart, found.lost_steps) == (190.0, 25.0, 3.0, 10)
    assert found.effective == pytest.approx(1 - (25 + 3 + 50) / 190)
    assert recorded_run(str(states), "other", 2000.0) is None


def test_it_is_shown_where_no_service_knows_the_job(
    run: Callable[..., Ran], states: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGDOCTOR_STATE_DIR", str(states))
    monkeypatch.setenv("LOGDOCTOR_DATA_DIR", str(tmp_path / "data"))
    ran = run("runs", "show", "llm")
    assert ran.code == 0 and "S3 Storage Error" in ran.out and "25 s until verdicts, 3 s until restarts" in ran.out
    unknown = run("runs", "show", "other")
    assert unknown.code == 2 and "holds no records" in unknown.err


def test_an_attempt_that_runs_is_shown_and_nonsense_is_passed_over(states: Path) -> None:
    with (states / "llm" / "record.jsonl").open("a") as file:
        for event in ({"event": "started", "number": "x"}, {"event": "ended", "number": 4, "at": "y"}, {"event": 7}):
            file.write(json.dumps({"job": "llm", "at": 1, **event}) + "\n")
        file.write(json.dumps({"job": "llm", "event": "started", "number": 4, "at": 1200.0}) + "\n")
    found = recorded_run(str(states), "llm", 1300.0)
    assert found is not None and found.attempts[-1].outcome == "running" and found.wall == 300.0
