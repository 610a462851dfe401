"""One output that grows: when it says that its job hangs or that its loss has gone bad, and when it takes that back."""

import random
from collections.abc import Callable

import pytest

from logdoctor.rules.scanner import Scanner
from logdoctor.service.live.log import LiveLog, Patience
from logdoctor.types import Verdict
from tests.diagnose.logs import ECC, steps


class Clock:
    """A clock that is set by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Growing:
    """A log whose job makes a step every second, or so, of the clock of the test."""

    def __init__(self, scanner: Scanner, least: float = 30.0, times: float = 1.0, every: float = 1.0) -> None:
        self.clock, self._every = Clock(), every
        self.log = LiveLog("main", scanner, Patience(least, 900.0, times), self.clock)
        self.step = 0

    def goes_on(self, count: int, loss: Callable[[int], float] = lambda step: 2.0) -> list[Verdict]:
        """What it says while so many steps are made, looked at after each."""
        said = []
        for _ in range(count):
            self.clock.now += self._every
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
    """It has shown its pace: steps of a second, saves of twelve, and silences of twenty-five."""
    for _ in range(3):
        assert not growing.goes_on(20) and not growing.pauses(12, "saving checkpoint\n")
        assert not growing.goes_on(20) and not growing.pauses(25)
    assert not growing.goes_on(20)


def test_a_hang_is_said_once_and_taken_back(growing: Growing) -> None:
    shown(growing)
    (hang,) = growing.pauses(130)
    assert (hang.outcome, hang.reason, hang.recovery) == ("failed", "Hang", "restart")
    assert hang.progress.step == growing.step - 1
    (back,) = growing.goes_on(3)
    assert back.outcome == "running"


def test_a_pace_that_is_not_known_is_waited_for(growing: Growing) -> None:
    growing.goes_on(20)
    assert not growing.pauses(890)
    assert [verdict.reason for verdict in growing.pauses(20)] == ["Hang"]


@pytest.mark.parametrize("seed", range(4))
def test_no_healthy_run_hangs(scanner: Scanner, seed: int) -> None:
    """Saves, evaluations and compilations, printed or silent, of up to sixty steps each, in any order."""
    chance = random.Random(seed)
    every = chance.choice([0.1, 0.5, 1.0, 3.0, 10.0])
    growing = Growing(scanner, least=20.0, every=every)
    names = {name: chance.random() < 0.5 for name in ("saving checkpoint\n", "eval_start\n", "compiling\n")}
    for _ in range(chance.randint(5, 9)):
        assert not growing.goes_on(chance.randint(3, 40))
        name, is_printed = chance.choice(list(names.items()))
        assert not growing.pauses(chance.uniform(1, 60) * every, name if is_printed else "")
        assert not growing.goes_on(1)


WAITS = "[logdoctor] stacks: missing ranks: 1: at load (data.py:14), while rank 0 waits in all_reduce (c10d.py:3)\n"
STOPPED = "[logdoctor] process state: missing ranks: 1: stopped by a signal (process 4711); kill -CONT goes on\n"


@pytest.mark.parametrize(("witness", "every"), [(STOPPED, 0.1), (STOPPED, 1.0), (STOPPED, 4.0), (WAITS, 0.1)])
def test_with_a_witness_a_hang_is_found_soon_and_its_rank_is_named(
    scanner: Scanner, witness: str, every: float
) -> None:
    growing = Growing(scanner, least=20.0, every=every)
    assert not growing.goes_on(60) and not growing.pauses(5)
    (hang,) = growing.pauses(20, witness)
    assert (hang.reason, hang.first_rank) == ("Hang", 1)
    (back,) = growing.goes_on(3)
    assert back.outcome == "running"
    assert not growing.pauses(890)


def test_a_silence_that_ended_an_attempt_is_waited_for_longer_in_the_next(scanner: Scanner) -> None:
    first, second = Growing(scanner), Growing(scanner, times=2.0)
    for growing in (first, second):
        shown(growing)
        assert not growing.pauses(115)
    assert first.pauses(10) and not second.pauses(120) and second.pauses(10)
    third = Growing(scanner, times=4.0)
    third.goes_on(30)
    assert [hang.first_rank for hang in third.pauses(40, STOPPED)] == [1], "a stopped process is not waited for"


def test_what_a_witness_could_end_is_suspected_first(growing: Growing) -> None:
    growing.goes_on(60)
    assert not growing.pauses(119) and not growing.log.is_suspect
    assert not growing.pauses(2) and growing.log.is_suspect
    growing.goes_on(1)
    assert not growing.log.is_suspect


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
