"""A job that runs is ended for a hang or a bad loss where that is allowed, and for nothing else."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from logdoctor.job.recovery import watching
from logdoctor.job.recovery.running import StopRequest, request_stop
from logdoctor.job.recovery.watching import FirstLook, Watching
from logdoctor.job.send.asides import add_asides, listen
from logdoctor.job.send.copy import FollowedCopy, OutputCopy
from tests import waiting

HANG = {"outcome": "failed", "reason": "Hang", "recovery": "restart", "confidence": 0.7, "fingerprint": "h"}
OTHER = HANG | {"reason": "ECC Error", "recovery": "isolate_and_restart"}


class Looks:
    """What is seen at each look; after that nothing, and the test fails."""

    def __init__(self, *verdicts: Mapping[str, Any] | None, is_suspect: bool = False) -> None:
        self._verdicts = iter(verdicts)
        self.is_suspect = is_suspect

    def __call__(self) -> Mapping[str, Any] | None:
        return next(self._verdicts)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watching, "_STANDS_SECONDS", 0.005)
    monkeypatch.setattr(watching, "_AGAIN_SECONDS", 0.005)


def watched(folder: Path, *verdicts: Mapping[str, Any] | None, dry_run: bool = False) -> list[str]:
    """What is said while an attempt is watched that looks so; the request is in the folder then."""
    said: list[str] = []
    looks = Looks(*verdicts)
    Watching(str(folder), lambda key, times: looks, ("hang",), said.append, dry_run).watch("k.1")
    return said


@pytest.mark.usefixtures("quick")
def test_a_verdict_that_stands_is_asked_for(tmp_path: Path) -> None:
    (said,) = watched(tmp_path, None, HANG, None, OTHER, {"nonsense": 1}, HANG, HANG)
    assert said.startswith("its verdict is Hang: it is ended.")
    assert json.loads((tmp_path / "stop.json").read_text()) == {"attempt": "k.1", "verdict": HANG}
    assert (tmp_path / "stop.json").stat().st_mode & 0o777 == 0o600


@pytest.fixture
def asides(tmp_path: Path) -> list[bytes]:
    """The lines that become part of the output of the job."""
    kept: list[bytes] = []
    listen(str(tmp_path), kept.append)
    return kept


MISSING = "stacks: missing ranks: 1: at load (data.py:14), while rank 0 waits in all_reduce (c10d.py:3)"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("is_still", [True, False], ids=["still", "moving"])
def test_ranks_that_are_suspected_to_hang_are_asked_twice(tmp_path: Path, asides: list[bytes], is_still: bool) -> None:
    """A rank that is elsewhere a little later evaluates, or loads data."""
    answers = iter([[MISSING], [MISSING if is_still else MISSING.replace("14", "17")]])
    looks = Looks(*[None] * 5, HANG | {"first_rank": 1}, HANG | {"first_rank": 1}, is_suspect=True)
    said: list[str] = []
    Watching(str(tmp_path), lambda key, times: looks, ("hang",), said.append, witness=lambda key: next(answers)).watch(
        "k.1"
    )
    assert said[0].startswith("its verdict is Hang (rank 1): it is ended.")
    add_asides(str(tmp_path), ["the last"])
    lines = waiting.until(lambda: b"the last" in b"".join(asides) and b"".join(asides)).splitlines()
    assert lines == [f"[logdoctor] {MISSING}".encode()] * is_still + [b"[logdoctor] the last"]


class HeldAtFirst:
    """States of a job that a person holds at the first looks."""

    def __init__(self, looks: int) -> None:
        self._left = looks

    def look(self, is_suspect: bool) -> list[str]:
        self._left -= 1
        return []

    @property
    def is_held(self) -> bool:
        return self._left >= 0


@pytest.mark.usefixtures("quick")
def test_a_job_that_a_person_holds_is_not_ended_until_it_had_time_for_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_RESUMED_SECONDS", 0.05)
    looks = Looks(*[HANG] * 100)
    states: Any = HeldAtFirst(20)
    Watching(str(tmp_path), lambda key, times: looks, ("hang",), print, states=lambda key: states).watch("k.1")
    assert states._left <= -5 and (tmp_path / "stop.json").exists()


@pytest.mark.usefixtures("quick")
def test_a_dry_run_only_says_it(tmp_path: Path) -> None:
    assert watched(tmp_path, HANG, HANG, dry_run=True) == ["it would be ended now: its verdict is Hang."]
    assert not list(tmp_path.iterdir())


def test_the_first_who_knows_is_believed() -> None:
    assert FirstLook(Looks(None), Looks(HANG))() == HANG
    assert FirstLook(Looks(OTHER), Looks(HANG))() == OTHER


def test_a_request_for_another_attempt_is_not_followed(tmp_path: Path) -> None:
    request_stop(str(tmp_path), "k.1", HANG)
    stop = StopRequest(str(tmp_path), "k.2")
    assert not (tmp_path / "stop.json").exists(), "what was left for an earlier one"
    for key in ("k.1", None, 2):
        (tmp_path / "stop.json").write_text(json.dumps({"attempt": key, "verdict": HANG}))
        assert stop.verdict() is None
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
