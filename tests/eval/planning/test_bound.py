"""The bound that is proven: no plan stays below, and it is sharp where it can be known by hand."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.planning.bound import proven
from logdoctor.trials.planning import least, makespan, schedule
from logdoctor.trials.types import EvalSet, Shard, Times


def whole(*seconds: float) -> tuple[list[EvalSet], dict[str, Times]]:
    """Sets of one sample, which take so many seconds."""
    sets = [EvalSet(f"set{number}", 1, "", "", splittable=False) for number in range(len(seconds))]
    return sets, {one.name: Times(0, took, 0, 1) for one, took in zip(sets, seconds, strict=True)}


def test_sets_that_do_not_split_are_dealt_out_as_well_as_can_be() -> None:
    sets, times = whole(10, 10, 10)
    assert proven(sets, times, 2, 5) == pytest.approx((25, True), abs=0.01)
    assert least(sets, times, 2, 5) == pytest.approx(20, abs=0.01)  # which is less sharp


def test_a_set_that_splits_fills_all_workers_and_pays_for_each_shard() -> None:
    one, times = EvalSet("one", 1000, "", ""), {"one": Times(10, 0.1, 30, 1)}
    assert proven([one], times, 4, 5) == pytest.approx((5 + 10 + 25 + 30, True), abs=0.01)


def test_nothing_takes_no_time() -> None:
    assert proven([], {}, 8, 5) == (0, True)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(0, 10),
)
def test_the_bound_is_what_the_best_of_all_orders_takes(
    seconds: list[tuple[int, int]], workers: int, load: int
) -> None:
    sets, times = whole(*(float(took) for took, _ in seconds))
    for one, (_, score) in zip(sets, seconds, strict=True):
        times[one.name] = times[one.name]._replace(score=float(score))
    shards = [Shard(one.name, 0, 1) for one in sets]
    best = min(makespan(schedule(order, times, workers, load), times) for order in permutations(shards))
    assert proven(sets, times, workers, load) == pytest.approx((best, True), abs=0.01)
