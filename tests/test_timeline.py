"""The run of a job: what was lost between its attempts, reckoned by hand."""

from hypothesis import given
from hypothesis import strategies as st

from logdoctor.jobs.timeline import RunAttempt, run_of


def attempt(
    number: int, started: float | None, ended: float | None, first: int, last: int, judged: float
) -> RunAttempt:
    return RunAttempt(number, started, ended, "failed", "ECC Error", "restart", first, last, judged, number)


def test_what_was_lost_adds_up() -> None:
    """1,000 steps in 1,000 s, of which 100 are made again; 5 s to the verdict, 55 s to the restart."""
    run = run_of("a", [attempt(1, 0, 1000, 1, 1000, 1005), attempt(2, 1060, 2060, 901, 1900, 2061)], now=9999)
    first, last = run.attempts
    assert (first.lost_steps, first.lost_seconds, first.detection, first.restart) == (100, 100.0, 5.0, 55.0)
    assert (last.lost_steps, last.lost_seconds, last.detection, last.restart) == (None, None, None, None)
    assert (run.wall, run.detection, run.restart, run.lost, run.lost_steps) == (2060, 5.0, 55.0, 100.0, 100)
    assert run.effective is not None and abs(run.effective - 1900 / 2060) < 1e-9


def test_a_run_that_goes_on_lasts_until_now() -> None:
    runs = RunAttempt(2, 1060, None, "running", "None", "none")
    run = run_of("a", [attempt(1, 0, 1000, 1, 10, 1001), runs], now=1160)
    assert run.wall == 1160 and run.attempts[0].lost_steps is None


def test_an_attempt_that_began_where_the_last_one_ended_lost_nothing() -> None:
    run = run_of("a", [attempt(1, 0, 100, 1, 50, 101), attempt(2, 200, 300, 51, 99, 301)], now=400)
    assert (run.lost_steps, run.lost) == (0, 0.0)


def test_a_verdict_after_the_restart_is_no_detection_beyond_it() -> None:
    run = run_of("a", [attempt(1, 0, 100, 1, 50, 500), attempt(2, 110, 300, 51, 99, 301)], now=400)
    assert (run.attempts[0].detection, run.attempts[0].restart) == (10.0, 0.0)


def test_what_a_dead_attempt_lost_is_not_known_before_the_next_one() -> None:
    assert run_of("a", [attempt(1, 0, 100, 1, 50, 101)], now=400).effective is None
    unended = [attempt(1, 0, None, 1, 50, 101), attempt(2, 200, 300, 11, 99, 301)]
    assert run_of("a", unended, now=400).effective is None, "40 steps were made again, in a time that is not known"


def test_no_attempt_is_no_run() -> None:
    run = run_of("a", [], now=1.0)
    assert (run.wall, run.effective, run.attempts) == (None, None, [])


_time = st.none() | st.floats(0, 1e6)
_step = st.none() | st.integers(0, 10**6)


@given(st.lists(st.tuples(_time, _time, _step, _step, _time), max_size=6), st.floats(0, 1e6))
def test_whatever_is_known_it_is_reckoned(
    known: list[tuple[float | None, float | None, int | None, int | None, float | None]], now: float
) -> None:
    attempts = [
        RunAttempt(number, started, ended, "failed", "Hang", "restart", first, last, judged)
        for number, (started, ended, first, last, judged) in enumerate(known, 1)
    ]
    run = run_of("a", attempts, now)
    assert run.effective is None or 0 <= run.effective <= 1
    assert min(run.detection, run.restart, run.lost, run.lost_steps) >= 0
