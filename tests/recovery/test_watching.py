"""A job that runs is ended for a hang or a bad loss where that is allowed, and for nothing else."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from logdoctor.recovery import watching
from logdoctor.recovery.contract import ASK, DONE
from logdoctor.recovery.running import StopRequest, request_stop
from logdoctor.recovery.watching import FirstLook, LocalLook, Watching
from logdoctor.send.copy import FollowedCopy, OutputCopy
from tests.diagnose.logs import steps
from tests.recovery.conftest import Job

Until = Callable[[Callable[[], Any]], None]

HANG = {"outcome": "failed", "reason": "Hang", "recovery": "restart", "confidence": 0.7, "fingerprint": "h"}
OTHER = HANG | {"reason": "ECC Error", "recovery": "isolate_and_restart"}


class Looks:
    """What is seen at each look; after that nothing, and the test fails."""

    def __init__(self, *verdicts: Mapping[str, Any] | None) -> None:
        self._verdicts = iter(verdicts)

    def __call__(self) -> Mapping[str, Any] | None:
        return next(self._verdicts)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watching, "_STANDS_SECONDS", 0.005)


def watched(folder: Path, *verdicts: Mapping[str, Any] | None, dry_run: bool = False) -> list[str]:
    """What is said while an attempt is watched that looks so; the request is in the folder then."""
    said: list[str] = []
    looks = Looks(*verdicts)
    Watching(str(folder), lambda key: looks, ("hang",), said.append, dry_run).watch("k.1")
    return said


@pytest.mark.usefixtures("quick")
def test_a_verdict_that_stands_is_asked_for(tmp_path: Path) -> None:
    (said,) = watched(tmp_path, None, HANG, None, OTHER, {"nonsense": 1}, HANG, HANG)
    assert said.startswith("its verdict is Hang: it is ended.")
    assert json.loads((tmp_path / "stop.json").read_text()) == {"attempt": "k.1", "verdict": HANG}
    assert (tmp_path / "stop.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("quick")
def test_a_dry_run_only_says_it(tmp_path: Path) -> None:
    assert watched(tmp_path, HANG, HANG, dry_run=True) == ["it would be ended now: its verdict is Hang."]
    assert not list(tmp_path.iterdir())


def test_the_first_who_knows_is_believed() -> None:
    assert FirstLook(Looks(None), Looks(HANG))() == HANG
    assert FirstLook(Looks(OTHER), Looks(HANG))() == OTHER


def test_a_request_for_another_attempt_is_not_followed(tmp_path: Path) -> None:
    request_stop(str(tmp_path), "k.1", HANG)
    assert StopRequest(str(tmp_path), "k.2").verdict() is None
    stop = StopRequest(str(tmp_path), "k.2")
    request_stop(str(tmp_path), "k.2", HANG)
    found = stop.verdict()
    assert found is not None and found.reason == "Hang"


def test_a_copy_is_followed_past_its_replacement(tmp_path: Path) -> None:
    followed = FollowedCopy(str(tmp_path))
    assert not list(followed.read())
    copy = OutputCopy(str(tmp_path), 20)
    seen = b""
    for word in (b"one ", b"two ", b"three ", b"four ", b"five ", b"six "):
        copy.append(word)
        seen += b"".join(followed.read())
    assert seen == b"one two three four five six "


def test_a_growing_copy_is_judged_here(tmp_path: Path) -> None:
    copy = OutputCopy(str(tmp_path), 1 << 20)
    look = LocalLook(str(tmp_path))
    copy.append(steps(0, 60).encode())
    assert look() is None
    copy.append(steps(60, 80, lambda step: 50.0).encode())
    deadline = time.monotonic() + 60
    while (verdict := look()) is None:
        assert time.monotonic() < deadline
    assert (verdict["reason"], verdict["onset_step"]) == ("Loss Spike", 60)


def test_a_bad_loss_ends_the_job_while_it_runs(job: Job) -> None:
    """No checkpoint is known, so a person chooses one."""
    assert job.run([{"steps": [0, 80], "spike": [80, 120], "hang": True}], "--end-on", "loss-spike") == ASK
    (ended,) = job.events("ended")
    assert (ended["judged"]["reason"], ended["judged"]["onset"]) == ("Loss Spike", 80)
    assert job.decisions == ["ask"] and "its verdict is Loss Spike: it is ended." in job.err


def test_until_its_pauses_are_known_a_job_hangs_after_the_longer_limit(alone: Job, until: Until) -> None:
    alone.environment["LOGDOCTOR_HANG_LEAST_SECONDS"] = "1"
    plan = [{"steps": [0, 5], "hang": True}, {}]
    run = alone.start(plan, "--end-on", "hang")
    until(lambda: alone.starts)
    time.sleep(10)  # more than a hang takes to be seen and to stand
    assert run.process.poll() is None and len(alone.starts) == 1 and not alone.events("ended")
    run.process.terminate()
    run.wait()
    alone.environment["LOGDOCTOR_HANG_SECONDS"] = "2"
    (alone.folder / "starts.jsonl").unlink()
    assert alone.run(plan, "--end-on", "hang") == 0
    assert alone.events("ended")[1]["judged"]["reason"] == "Hang" and len(alone.starts) == 2


def test_nothing_is_ended_unless_that_was_asked_for(job: Job) -> None:
    assert job.run([{"steps": [0, 80], "spike": [80, 120], "seconds": 8}]) == DONE
    assert job.decisions == ["stop"]


def test_reasons_that_are_none_are_refused(job: Job) -> None:
    assert job.run([{}], "--end-on", "boredom") == 2
    assert "--end-on 'boredom' is no such reason. Choose of hang, loss-spike." in job.err
