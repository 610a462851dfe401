"""What earlier runs measured, and what is made of it."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logdoctor.errors import TrialError
from logdoctor.trials.priors import Priors
from logdoctor.trials.types import EvalSet

SET = EvalSet("gsm8k", 1000, "", "", tokens=100)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trials" / "times.jsonl"


def test_what_is_fixed_is_told_from_what_a_sample_takes(path: Path) -> None:
    Priors(path).record(SET, 7, [(100, 30.0), (200, 50.0), (700, 150.0)], 12.0)
    times = Priors(path).times(SET, 7)
    assert tuple(times) == pytest.approx((10, 0.2, 12, 1))


@settings(deadline=None, max_examples=50)
@given(st.floats(0, 60), st.floats(0.001, 2), st.lists(st.integers(1, 500), min_size=1, max_size=8))
def test_the_same_shards_are_expected_to_take_what_they_took(fixed: float, sample: float, sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        priors = Priors(Path(folder) / "times.jsonl")
        one = EvalSet("a", sum(sizes), "", "")
        priors.record(one, 7, [(size, fixed + sample * size) for size in sizes], 1.0)
        times = priors.times(one, 7)
        took = sum(fixed + sample * size for size in sizes)
        assert sum(times.inference(size) for size in sizes) == pytest.approx(took)


def test_one_slow_run_of_several_does_not_count(path: Path) -> None:
    priors = Priors(path)
    for seconds, score in ((110, 5), (900, 300), (112, 6)):
        priors.record(SET, 7, [(1000, seconds)], score)
    times = priors.times(SET, 7)
    assert times.inference(1000) == pytest.approx(112) and times.score == 6 and times.runs == 3


def test_the_nearest_size_of_model_is_scaled(path: Path) -> None:
    priors = Priors(path)
    priors.record(SET, 1, [(100, 15.0), (1000, 60.0)], 5)
    priors.record(SET, 7, [(100, 30.0), (1000, 210.0)], 5)
    small, large = (priors.times(SET, billions) for billions in (7, 70))
    assert large.sample == pytest.approx(10 * small.sample)
    assert (large.fixed, large.score) == (small.fixed, small.score)


def test_a_longer_set_is_scored_longer(path: Path) -> None:
    priors = Priors(path)
    priors.record(SET, 7, [(1000, 100.0)], 40)
    assert priors.times(EvalSet("gsm8k", 500, "", ""), 7).score == pytest.approx(20)


def test_a_set_that_never_ran_is_guessed_from_its_samples_and_tokens(path: Path) -> None:
    priors = Priors(path)
    short, long = (priors.times(EvalSet("new", 50, "", "", tokens=tokens), 7) for tokens in (10, 100))
    assert long.sample == pytest.approx(10 * short.sample) and long.runs == 0
    assert priors.times(EvalSet("new", 50, "", "", runs_code=True), 7).score > long.score


def test_a_guess_goes_by_how_fast_other_sets_were(path: Path) -> None:
    priors = Priors(path)
    priors.record(SET, 7, [(100, 15.0), (1000, 105.0)], 1)  # 0.1 s for 100 tokens
    guess = priors.times(EvalSet("new", 50, "", "", tokens=300), 14)
    assert guess.sample == pytest.approx(0.6) and guess.fixed == pytest.approx(5) and guess.runs == 0


@pytest.mark.parametrize(
    "torn", [b'{"set": "gsm8k", "shards": [[10', b"\xff\xfe", b"null", b'{"set": 7}', b"[]", b"{}"]
)
def test_what_a_crash_cut_off_costs_one_line(path: Path, torn: bytes) -> None:
    Priors(path).record(SET, 7, [(1000, 100.0)], 1)
    with path.open("ab") as file:
        file.write(torn)
    priors = Priors(path)
    assert priors.times(SET, 7).runs == 1
    priors.record(SET, 7, [(1000, 120.0)], 1)
    assert Priors(path).times(SET, 7).runs == 2


def test_many_write_at_once_and_no_line_is_lost(path: Path) -> None:
    def write(number: int) -> None:
        Priors(path).record(EvalSet(f"set{number % 4}", 10, "", ""), 7, [(10, float(number))] * 50, 1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    priors = Priors(path)
    assert [priors.times(EvalSet(f"set{number}", 10, "", ""), 7).runs for number in range(4)] == [10] * 4


@pytest.mark.parametrize("shards", [[], [(0, 1.0)], [(10, -1.0)], [(10, float("nan"))]])
def test_what_cannot_have_been_measured_is_refused(path: Path, shards: list[tuple[int, float]]) -> None:
    with pytest.raises(TrialError, match="gsm8k"):
        Priors(path).record(SET, 7, shards, 1)
    assert not path.exists()


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrialError, match="cannot be used"):
        Priors(tmp_path)
