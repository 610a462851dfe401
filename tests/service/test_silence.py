"""What is done with an attempt that says nothing, second by second."""

from types import SimpleNamespace
from typing import Any

import pytest

from logdoctor.service.silence import Timing, idle_seconds, step
from logdoctor.service.streams import NOBODY, LiveAttempt
from logdoctor.store.jobs.records import End

TIMING = Timing(scan=1.0, quiet=60.0, hang=900.0, linger=300.0, abandon=86_400.0, least=300.0)
NOW = 1_000_000.0


def attempt(silent: float, stepless: float = 0.0, looked: float | None = None, **said: Any) -> LiveAttempt:
    """An attempt of which nothing came for so long, and no step; last looked at so long ago."""
    made = LiveAttempt("a", 1, NOBODY)
    made.changed_at = NOW - silent
    made.looked_at = NOW - (silent if looked is None else looked)
    stream: Any = SimpleNamespace(ready=True, progress_at=NOW - max(stepless, silent), waiting_since=None)
    made.streams["main"] = stream
    for name, value in said.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (attempt(59), "wait"),
        (attempt(61), "look"),
        (attempt(61, looked=10), "wait"),
        (attempt(10, stepless=899, looked=800), "wait"),
        (attempt(10, stepless=901, looked=226), "look"),
        (attempt(10, stepless=901, looked=200), "wait"),
        (attempt(1019, looked=10), "wait"),
        (attempt(1021, looked=10), "unload"),
        (attempt(2000, looked=900), "unload"),  # however often looks are due
        (attempt(2000, looked=1200), "look"),  # it was not looked at when it hung
        (attempt(86_401), "abandon"),
        (attempt(301, ends={"other": End("other", 1, None, None, 0.0)}), "abandon"),
        (attempt(86_401, ends={"": End("", 0, None, None, 0.0)}), "judge"),
        (attempt(86_401, asked=True), "wait"),
        (attempt(299, settled=True), "wait"),
        (attempt(301, settled=True), "forget"),
    ],
)
def test_what_silence_asks_for(made: LiveAttempt, wanted: str) -> None:
    assert step(made, TIMING, NOW) == wanted


def test_what_cannot_be_looked_at_leaves_memory_all_the_same() -> None:
    made = attempt(5000)
    made.streams["main"].ready = False
    assert step(made, TIMING, NOW) == "unload"
    made.streams.clear()
    assert step(made, TIMING, NOW) == "unload"


def test_an_attempt_without_steps_hangs() -> None:
    assert idle_seconds(attempt(10, stepless=900), TIMING, NOW) is None
    assert idle_seconds(attempt(10, stepless=901), TIMING, NOW) == 901


def test_what_waits_for_compression_may_hold_a_step() -> None:
    made = attempt(0, stepless=2000)
    made.streams["main"].waiting_since = NOW - 1200  # type: ignore[misc]  # a stand-in, no LiveStream
    assert idle_seconds(made, TIMING, NOW) is None
    made.streams["main"].waiting_since = NOW - 1000  # type: ignore[misc]
    assert idle_seconds(made, TIMING, NOW) == 1000


def test_an_attempt_that_has_shown_its_pace_is_judged_by_it() -> None:
    made = attempt(10, stepless=310)
    assert idle_seconds(made, TIMING, NOW) is None
    for at in [*range(30), 60, 61, 62, 90, 91]:
        made.pace.step("main", float(at))
    assert idle_seconds(made, TIMING, NOW) == 310
    made.pace.say(b"saving checkpoint")
    assert idle_seconds(made, TIMING, NOW) is None
