"""One output that grows: when it says that its job hangs or that its loss has gone bad, and when it takes that back."""

from collections.abc import Callable

import pytest

from logdoctor.live.log import LiveLog, Patience
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Verdict
from tests.diagnose.logs import ECC, steps


class Clock:
    """A clock that is set by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Growing:
    """A log whose job makes a step every second, of the clock of the test."""

    def __init__(self, scanner: Scanner, least: float = 30.0) -> None:
        self.clock = Clock()
        self.log = LiveLog("main", scanner, Patience(least, 900.0), self.clock)
        self.step = 0

    def goes_on(self, count: int, loss: Callable[[int], float] = lambda step: 2.0) -> list[Verdict]:
        """What it says while so many steps are made, looked at after each."""
        said = []
        for _ in range(count):
            self.clock.now += 1.0
            self.log.push(steps(self.step, self.step + 1, loss).encode())
            self.step += 1
            said.append(self.log.look())
        return [verdict for verdict in said if verdict is not None]

    def pauses(self, seconds: float, text: str = "") -> list[Verdict]:
        """What it says while nothing is stepped for so long, looked at every second."""
        self.log.push(text.encode())
        said = []
        for _ in range(int(seconds)):
            self.clock.now += 1.0
            said.append(self.log.look())
        return [verdict for verdict in said if verdict is not None]


@pytest.fixture
def growing(scanner: Scanner) -> Growing:
    return Growing(scanner)


def shown(growing: Growing) -> None:
    """It has shown its pace: steps of a second, and two saves of twelve."""
    for _ in range(3):
        assert not growing.goes_on(20) and not growing.pauses(12, "saving checkpoint\n")
    assert not growing.goes_on(20)


def test_a_hang_is_said_once_and_taken_back(growing: Growing) -> None:
    shown(growing)
    (hang,) = growing.pauses(60)
    assert (hang.outcome, hang.reason, hang.recovery) == ("failed", "Hang", "restart")
    assert hang.progress.step == growing.step - 1
    (back,) = growing.goes_on(3)
    assert back.outcome == "running"


def test_a_pace_that_is_not_known_is_waited_for(growing: Growing) -> None:
    growing.goes_on(20)
    assert not growing.pauses(890)
    assert [verdict.reason for verdict in growing.pauses(20)] == ["Hang"]


def test_a_save_as_long_as_others_is_no_hang(growing: Growing) -> None:
    shown(growing)
    assert not growing.pauses(34, "saving checkpoint\n")


def test_a_bad_loss_is_said_while_steps_go_on(growing: Growing) -> None:
    growing.goes_on(60)
    said = growing.goes_on(30, lambda step: 50.0)
    assert [(verdict.reason, verdict.onset_step) for verdict in said] == [("Loss Spike", 60)]
    assert [verdict.outcome for verdict in growing.goes_on(80)] == ["running"]


def test_a_bar_that_is_redrawn_is_progress(growing: Growing) -> None:
    shown(growing)
    for step in range(100):
        growing.clock.now += 1.0
        bar = f"\rTraining: {step}%|###   | {step}/100 [00:{step % 60:02d}<01:00, 1.0it/s, loss=2.0]"
        growing.log.push(bar.encode())
        assert growing.log.look() is None


def test_a_silence_after_the_last_step_is_no_hang(growing: Growing) -> None:
    """All that was wanted is done: whoever starts it again makes nothing better."""
    for step in range(1, 101):
        growing.clock.now += 1.0
        growing.log.push(f"step: {step}/100 | loss: {2 + 1 / step:.4f}\n".encode())
        assert growing.log.look() is None
    assert not growing.pauses(4000)


def test_the_end_is_judged_on_all_of_it(growing: Growing) -> None:
    growing.goes_on(30)
    growing.log.push(ECC.encode().rstrip())
    assert growing.log.end().reason == "ECC Error"
