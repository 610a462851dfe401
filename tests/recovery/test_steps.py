"""Steps in an output that no rule reads: by their structure, or by a pattern of the job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import SendError
from logdoctor.job.recovery.steps import declared, last_step

TRACE = ["Traceback (most recent call last):", '  File "train.py", line 7, in step 12.5'] * 60


def output(line: str, count: int = 37) -> list[bytes]:
    """Lines with a counter and what goes up and down, as it comes in two blocks."""
    lines = [line.format(step=step, at=f"{step % 60:02d}", value=f"{step % 5}.{step}") for step in range(1, count + 1)]
    whole = "\n".join(["loading 3 of 4.5", *lines, *TRACE]).encode()
    return [whole[:100], whole[100:]]


@pytest.mark.parametrize(
    "line",
    [
        "update {step} of 60 :: score {value}",
        "[{step}/60] quality={value}",
        "2026-11-27 12:00:{at},123 it={step} | q={value}",
        "[rank1]: n={step} took {value} s",
    ],
)
def test_a_counter_beside_something_measured_is_the_step(line: str) -> None:
    assert last_step(output(line)) == 37
    assert last_step(output(line, 3)) is None, "three lines are no course"


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-27 12:00:{at} load {value}",
        "17957810{at} load {value}",  # seconds since the epoch
        "worker {step} is up",
        "after {step} s: {step}.5 GB",  # a clock
        "File {step}, line 3",
    ],
)
def test_clocks_and_bare_counters_are_no_steps(line: str) -> None:
    assert last_step(output(line)) is None


def test_a_line_that_holds_the_mark_of_a_number_is_another_outline() -> None:
    assert last_step([b"x 5 5 #\nx 5 5 5\n" * 3]) is None
    assert last_step(output("# {step} of # :: score {value}\n1 {step} of # :: score 2")) == 37


def test_ranks_that_print_the_same_step_count_once() -> None:
    lines = [f"it={step} | q={step % 3}.5" for step in range(1, 20) for _ in range(4)]
    assert last_step(["\n".join(lines).encode()]) == 19


def test_a_declared_pattern_finds_the_last_one() -> None:
    pattern = declared(r"round (\d+) done")
    assert last_step([b"round 3 done\nround 4 done\nround x done\nit=90 q=1.5\n"], pattern) == 4
    assert last_step([b"nothing"], pattern) is None and declared("") is None


@pytest.mark.parametrize(("pattern", "word"), [("(", "no regular"), (r"\d+", "0 groups"), ("(a)(b)", "2 groups")])
def test_a_pattern_that_cannot_be_used_is_refused(pattern: str, word: str) -> None:
    with pytest.raises(SendError, match=word):
        declared(pattern)


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_property_any_output_is_read(blocks: list[bytes]) -> None:
    found = last_step(blocks)
    assert found is None or found >= 0
