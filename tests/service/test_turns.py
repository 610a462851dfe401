"""A thread that takes turns, whatever a turn comes to."""

import threading
import time

import pytest

from logdoctor.errors import StoreError
from logdoctor.service import turns
from logdoctor.service.turns import Turns
from tests.service.sites import eventually


def test_it_is_woken_and_comes_by_itself() -> None:
    taken: list[float] = []

    def turn() -> float:
        taken.append(time.monotonic())
        return 0.01 if len(taken) == 1 else 60.0

    found = Turns("test", turn)
    assert not found.runs
    found.start()
    eventually(lambda: len(taken) == 2)
    assert found.runs
    found.wake()
    eventually(lambda: len(taken) == 3)
    found.stop()
    found.join()
    eventually(lambda: not found.runs)
    assert len(taken) == 3


@pytest.mark.parametrize("error", [StoreError("the database", "fails", "Wait."), KeyError("x"), RecursionError()])
def test_a_turn_that_fails_is_followed_by_another(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_AFTER_FAILURE", 0.01)
    taken = threading.Semaphore(0)

    def turn() -> float:
        taken.release()
        raise error

    found = Turns("test", turn)
    found.start()
    assert all(taken.acquire(timeout=60) for _ in range(3))
    found.stop()
    found.join()
    eventually(lambda: not found.runs)


def test_a_call_to_stop_is_never_missed() -> None:
    for _ in range(200):
        found = Turns("test", lambda: 60.0)
        found.start()
        found.wake()
        found.stop()
        eventually(lambda found=found: not found.runs)  # type: ignore[misc]


def test_one_that_was_never_begun_may_be_stopped() -> None:
    found = Turns("test", lambda: 60.0)
    found.stop()
    found.join()
