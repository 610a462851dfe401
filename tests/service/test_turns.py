"""A thread that takes turns, whatever a turn comes to."""

import threading

import pytest

from logdoctor.errors import StoreError
from logdoctor.service import turns
from logdoctor.service.turns import Turns
from tests import waiting
from tests.service.services import turned


def test_it_is_woken_and_comes_by_itself() -> None:
    taken = threading.Semaphore(0)
    pauses = iter([0.0])

    def turn() -> float:
        taken.release()
        return next(pauses, 1e6)

    found = Turns("test", turn)
    assert not found.runs
    found.start()
    for _ in range(2):
        taken.acquire()
    assert found.runs
    found.wake()
    taken.acquire()
    found.stop()
    found.join()
    waiting.until(lambda: not found.runs)
    assert found.done == 3


def test_none_is_taken_while_it_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_NOT_OURS", 0.01)
    may, taken = threading.Event(), threading.Event()

    def turn() -> float:
        taken.set()
        return 1e6

    found = Turns("test", turn, may=may.is_set)
    found.start()
    turned(found)
    assert not taken.is_set()
    may.set()
    taken.wait()
    found.stop()


@pytest.mark.parametrize("error", [StoreError("the database", "fails", "Wait."), KeyError("x"), RecursionError()])
def test_a_turn_that_fails_is_followed_by_another(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_AFTER_FAILURE", 0.01)
    taken = threading.Semaphore(0)

    def turn() -> float:
        taken.release()
        raise error

    found = Turns("test", turn)
    found.start()
    for _ in range(3):
        taken.acquire()
    found.stop()
    found.join()
    waiting.until(lambda: not found.runs)


def test_a_call_to_stop_is_never_missed() -> None:
    for _ in range(200):
        found = Turns("test", lambda: 1e6)
        found.start()
        found.wake()
        found.stop()
        waiting.until(lambda found=found: not found.runs)  # type: ignore[misc]


def test_one_that_was_never_begun_may_be_stopped() -> None:
    found = Turns("test", lambda: 60.0)
    found.stop()
    found.join()
