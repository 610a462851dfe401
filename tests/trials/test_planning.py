"""Laws of plans."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from eval.planning.bound import proven
from logdoctor.trials.planning import least, makespan, plan, schedule
from logdoctor.trials.types import EvalSet, Shard, Times

SECONDS = st.floats(0, 500, allow_nan=False)
Problem = tuple[list[EvalSet], dict[str, Times], int, float]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Sets with their times, workers, and the seconds that loading takes."""
    sets, times = [], {}
    for number in range(draw(st.integers(1, 12))):
        name = f"set{number}"
        samples = draw(st.integers(1, 2000))
        sets.append(EvalSet(name, samples, "", "", splittable=draw(st.booleans())))
        inference, runs = draw(SECONDS), draw(st.integers(0, 1))
        times[name] = Times(draw(st.floats(0, 60)), inference / samples, draw(st.just(0.0) | SECONDS), runs)
    return sets, times, draw(st.integers(1, 33)), draw(st.floats(0, 60))


@st.composite
def begun(draw: st.DrawFn) -> tuple[Problem, list[Shard], list[float]]:
    """A problem of which some shards are done, also twice or not of any set, and when each worker is free."""
    sets, times, workers, load = draw(problems())
    done = [Shard("of another trial", 0, 10)]
    for one in sets:
        for _ in range(draw(st.integers(0, 3))):
            start = draw(st.integers(0, one.samples - 1))
            done.append(Shard(one.name, start, draw(st.integers(start + 1, one.samples))))
    free = draw(st.lists(st.floats(0, 600), min_size=workers, max_size=workers))
    return (sets, times, workers, load), done, free


def samples_of(shards: list[Shard], name: str) -> list[int]:
    return sorted(sample for one in shards if one.set == name for sample in range(one.start, one.end))


@settings(deadline=None)
@given(problems())
def test_every_sample_is_in_one_shard_and_what_does_not_split_stays_whole(problem: Problem) -> None:
    sets, times, workers, load = problem
    shards = plan(sets, times, workers, load)
    for one in sets:
        assert samples_of(shards, one.name) == list(range(one.samples))
        assert one.splittable or Shard(one.name, 0, one.samples) in shards


def test_a_plan_comes_to_its_end_where_numbers_are_rounded() -> None:
    """Before, it looked for ever at the same time, one in 700 times that the last shards of short sets were planned."""
    sets = [EvalSet("a", 9, "", ""), EvalSet("c", 6, "", "")]
    short = Times(0.010315813428470781, 0.020631626856941563, 0.05, 1)
    long = Times(0.02159462674990209, 0.04318925349980418, 0.05, 1)
    done = [Shard("a", 0, 3), Shard("c", 0, 3)]
    shards = plan(sets, {"a": short, "c": long}, 2, 0.0, done, [0.2769738322414923, 0.0])
    assert samples_of(shards, "a") == [3, 4, 5, 6, 7, 8] and samples_of(shards, "c") == [3, 4, 5]


@settings(deadline=None)
@given(begun())
def test_what_is_done_is_left_out_and_the_rest_is_made_once(given: tuple[Problem, list[Shard], list[float]]) -> None:
    (sets, times, workers, _), done, free = given
    shards = plan(sets, times, workers, 0.0, done, free)
    for one in sets:
        lacking = sorted(set(range(one.samples)) - set(samples_of(done, one.name)))
        whole = list(range(one.samples)) if lacking else []
        assert samples_of(shards, one.name) == (lacking if one.splittable else whole)


@settings(deadline=None)
@given(problems())
def test_workers_pull_what_comes_first_and_make_one_shard_at_a_time(problem: Problem) -> None:
    sets, times, workers, load = problem
    placed = schedule(plan(sets, times, workers, load), times, workers, load)
    assert all(before.start <= after.start for before, after in pairwise(placed))
    for worker in range(workers):
        mine = [one for one in placed if one.worker == worker]
        assert all(before.end <= after.start for before, after in pairwise(mine))
        assert all(one.start >= load for one in mine)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_no_plan_is_far_from_what_is_proven_to_be_the_least(problem: Problem) -> None:
    sets, guessed, workers, load = problem
    times = {name: one._replace(runs=1) for name, one in guessed.items()}  # a guess is split further, which costs
    span = makespan(schedule(plan(sets, times, workers, load), times, workers, load), times)
    bound = proven(sets, times, workers, load).seconds
    assert least(sets, times, workers, load) <= bound + 1e-9 and bound <= span + 0.003
    piece = max(one.inference(1) for one in times.values())  # nothing is split further
    assert span <= (4 / 3 - 1 / (3 * workers)) * bound + piece + 0.01


def test_the_longest_metric_comes_first_and_then_the_longest_set() -> None:
    sets = [EvalSet(name, 100, "", "") for name in ("short", "long", "scored")]
    times = {"long": Times(1, 1.0, 0, 1), "scored": Times(1, 0.5, 120, 1), "short": Times(1, 0.1, 0, 1)}
    assert [one.set for one in plan(sets, times, 1, 5)] == ["scored", "long", "short"]


def test_a_set_is_split_only_where_that_pays() -> None:
    sets = [EvalSet("one", 1000, "", "")]
    assert len(plan(sets, {"one": Times(1, 0.1, 0, 1)}, 4, 0)) == 4
    assert plan(sets, {"one": Times(500, 0.001, 0, 1)}, 4, 0) == [Shard("one", 0, 1000)]


def test_a_guess_is_split_further_than_what_was_measured() -> None:
    sets = [EvalSet("one", 1000, "", "")]
    measured, guessed = (len(plan(sets, {"one": Times(1, 0.1, 0, runs)}, 2, 0)) for runs in (3, 0))
    assert measured == 2 < guessed
    assert len(plan(sets, {"one": Times(1, 0.1, 0, 0)}, 1, 0)) == 1, "one worker has nobody to share with"


def test_a_worker_that_is_busy_for_long_gets_nothing() -> None:
    sets, times, free = [EvalSet("one", 100, "", "")], {"one": Times(1, 0.1, 0, 1)}, [0.0, 1000.0, 0.0]
    shards = plan(sets, times, 3, 0, (), free)
    assert {one.worker for one in schedule(shards, times, 3, 0, free)} == {0, 2}


def test_nothing_is_planned_when_all_is_done() -> None:
    done = [Shard("one", 0, 60), Shard("one", 50, 100)]
    assert plan([EvalSet("one", 100, "", "")], {"one": Times(1, 0.1, 0, 1)}, 2, 0, done) == []
