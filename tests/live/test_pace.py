"""How long a job may go without a step, by what its own log has shown."""

import random

import pytest

from logdoctor.service.live.pace import Pace

LEAST, MOST = 30.0, 900.0


def paced(gaps: list[float], pauses: dict[int, tuple[bytes, float]] | None = None) -> Pace:
    """A pace of steps after so many seconds each; some are replaced by pauses, with what was printed before them."""
    pace, at = Pace(), 0.0
    pace.step("main", at)
    for number, gap in enumerate(gaps):
        text, seconds = (pauses or {}).get(number, (b"", gap))
        if text:
            pace.say(text)
        at += seconds
        pace.step("main", at)
    return pace


SAVES = {30: (b"saving checkpoint at step 30", 20.0), 60: (b"saving checkpoint at step 60", 24.0)}


def test_until_the_pace_is_known_the_most_counts() -> None:
    assert Pace().patience(LEAST, MOST) == MOST
    assert paced([1.0] * 19).patience(LEAST, MOST) == MOST
    assert paced([1.0] * 500).patience(LEAST, MOST) == MOST, "it has never shown a pause"


def test_three_times_the_longest_pause_may_pass() -> None:
    pace = paced([1.0] * 100, SAVES | {90: (b"saving checkpoint at step 90", 55.0)})
    pace.say(b"Saving checkpoint")
    assert pace.patience(LEAST, MOST) == 165.0
    pace = paced([1.0] * 100, SAVES)
    pace.say(b"Saving checkpoint")
    assert pace.patience(LEAST, MOST) == 120.0, "an upload may be tried again"
    pace = paced([0.2] * 100, {30: (b"saving", 9.0), 60: (b"saving", 9.0)})
    pace.say(b"saving")
    assert pace.patience(LEAST, MOST) == LEAST


def test_a_pause_of_a_new_kind_may_last_the_most() -> None:
    pace = paced([1.0] * 100, SAVES)
    assert pace.patience(LEAST, MOST) == MOST, "nothing names what it does, and it was never silent so"
    pace.say(b"Running evaluation on 3 sets")
    assert pace.patience(LEAST, MOST) == MOST


def test_slow_steps_are_no_pause_of_a_kind() -> None:
    assert paced([1.0] * 100, {30: (b"", 9.0), 60: (b"", 9.0)}).patience(LEAST, MOST) == MOST


def test_a_pause_without_a_name_is_learned() -> None:
    pace = paced([1.0] * 100, {30: (b"", 60.0), 60: (b"", 50.0)})
    assert pace.patience(LEAST, MOST) == 180.0


WAITS = b"[logdoctor] stacks: missing ranks: 1: at load (data.py:14), while rank 0 waits in all_reduce (c10d.py:3)"
STOPPED = b"[logdoctor] process state: missing ranks: 1: stopped by a signal (process 4711); kill -CONT goes on"


def test_where_a_witness_says_that_ranks_wait_no_silence_need_have_been_seen() -> None:
    pace = paced([0.1] * 100)
    assert pace.patience(LEAST, MOST) == MOST and pace.patience(LEAST, MOST, witnessed=True) == LEAST
    pace.say(WAITS)
    assert pace.patience(LEAST, MOST) == LEAST
    pace.say(b"eval_start")
    assert pace.patience(LEAST, MOST) == MOST, "it may well be there that they wait"
    pace = paced([1.0] * 100)
    pace.say(WAITS)
    assert pace.patience(LEAST, MOST) == 120.0, "others wait for the one that evaluates, too"
    pace = paced([1.0] * 10)
    pace.say(WAITS)
    assert pace.patience(LEAST, MOST) == MOST, "it may compile"


def test_a_stopped_process_makes_no_pause() -> None:
    for pace in (Pace(), paced([1.0] * 3), paced([1.0] * 100, SAVES)):
        pace.say(b"eval_start")
        pace.say(STOPPED)
        assert pace.patience(LEAST, MOST) == LEAST and pace.is_stopped
        pace.step("main", 1e6)
        assert not pace.is_stopped and pace.patience(LEAST, MOST) >= MOST
    pace = paced([20.0] * 100)
    pace.say(STOPPED)
    assert pace.patience(LEAST, MOST) == 100.0, "five slow steps"


def test_steps_slower_than_the_most_are_no_hang() -> None:
    assert paced([1000.0] * 3).patience(LEAST, MOST) == 3000.0


@pytest.mark.parametrize("seed", range(100))
def test_pauses_of_sixty_steps_raise_no_alarm_in_a_healthy_run(seed: int) -> None:
    """Saves, evaluations and compilations, printed or silent, short and long, the first of each at any time."""
    chance = random.Random(seed)
    pace, step, at = Pace(), chance.uniform(0.05, 15), 0.0
    silent = {name: chance.random() < 0.5 for name in (b"saving checkpoint", b"eval_start", b"compiling")}
    pace.step("main", at)
    for number in range(1, 600):
        name = chance.choice(list(silent)) if number % chance.randint(10, 50) == 0 else None
        gap = step * (chance.uniform(0.8, 1.3) if name is None else chance.uniform(1, 60))
        if name and not silent[name]:
            pace.say(name)
        assert gap < pace.patience(20.0, MOST), (number, name)
        at += gap
        pace.step("main", at)


def test_output_in_bursts_is_judged_by_the_gaps_between_bursts() -> None:
    gaps = ([0.0] * 9 + [40.0]) * 20
    assert paced(gaps).patience(LEAST, MOST) >= 120.0


def test_steps_that_vary_are_given_five_times_their_slowest() -> None:
    gaps = [*([1.0] * 60), *([4.0] * 3), *([1.0] * 30)]
    pace = paced(gaps, {10: (b"saving", 1.0), 20: (b"saving", 1.0)})
    pace.say(b"saving")
    assert pace.patience(1.0, 5.0) == 20.0


def test_ranks_that_print_together_are_no_quicker_than_one() -> None:
    """Eight ranks, 10 ms apart, a step each 10 s: the time from rank to rank is no pace, nor is that to the next step a
    pause."""
    pace = Pace()
    for step in range(40):
        for rank in range(8):
            pace.step(f"rank {rank}", step * 10 + rank * 0.01)
    assert pace.patience(LEAST, MOST) == pytest.approx(120 * 10)
    for end in (460, 520):  # two pauses that all ranks make
        for rank in range(8):
            pace.step(f"rank {rank}", end - 55 + rank * 0.01)
        for rank in range(8):
            pace.step(f"rank {rank}", end + 5 + rank * 0.01)
    assert pace.patience(LEAST, MOST) == pytest.approx(120 * 10)


def test_a_burst_is_one_step() -> None:
    pace = Pace()
    for burst in range(40):
        for part in range(5):
            pace.step("main", burst * 10 + part * 0.001)
    assert pace.patience(LEAST, MOST) == pytest.approx(120 * 10)


def test_a_pause_is_measured_in_steps_not_in_looks_at_the_output() -> None:
    """Steps of 0.1 s that are read once a second, half of the time with a short save between them."""
    pace = Pace()
    for look in range(1, 41):
        pace.step("main", look * 1.0, 10)
        if look % 2:
            pace.say(b"saving checkpoint")
    pace.step("main", 41.0, 10)
    assert pace.patience(10.0, MOST, witnessed=True) == pytest.approx(120 * 0.1)


def test_a_first_pause_may_take_sixty_steps_and_more_but_no_day() -> None:
    assert paced([20.0] * 100).patience(LEAST, MOST) > 1.2 * 60 * 20
    assert paced([200.0] * 100).patience(LEAST, MOST) == 2 * MOST
