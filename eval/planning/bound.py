"""A lower bound on the seconds of any plan, proven by OR-Tools' CP-SAT."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ortools.sat.python import cp_model

from logdoctor.trials.planning import least, makespan, plan, schedule
from logdoctor.trials.types import EvalSet, Times

_UNITS = 1000  # per second; times are rounded down, so that the bound holds


class Proven(NamedTuple):
    """A proven bound: no plan is done before `seconds`. `closed` when more time would not raise it."""

    seconds: float
    closed: bool


def proven(
    sets: Sequence[EvalSet], times: Mapping[str, Times], workers: int, load: float, limit: float = 10.0
) -> Proven:
    """Return the proven bound on the makespan of any plan, after at most `limit` seconds.

    Of a plan it asks: each worker loads first; a set's shards have room on the workers before its scoring must begin,
    `fixed` seconds for each; a set has as many shards as it needs to end by then; one that does not split is on one
    worker whole. Only the distribution of splittable sets' shards is left open.
    """
    if not sets:
        return Proven(0.0, True)
    known = least(sets, times, workers, load)
    span = makespan(schedule(plan(sets, times, workers, load), times, workers, load), times)
    model = cp_model.CpModel()
    earliest, latest = _down(known), _down(span) + 2
    end = model.new_int_var(earliest, latest, "end")
    busy = [
        (_down(times[one.name].score), _splittable(model, end, (earliest, latest), one, times[one.name], load))
        for one in sets
        if _splits(one)
    ]
    whole = [(_down(times[one.name].score), _inference(one, times[one.name])) for one in sets if not _splits(one)]
    _together(model, end, [*busy, *whole], workers, _down(load))
    _one_by_one(model, end, whole, workers, _down(load))
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit
    solver.parameters.num_workers = 2
    solver.parameters.random_seed = 0
    status = solver.solve(model)
    return Proven(max(known, solver.best_objective_bound / _UNITS), status == cp_model.OPTIMAL)


def _down(seconds: float) -> int:
    return math.floor(seconds * _UNITS)


def _splits(one: EvalSet) -> bool:
    return one.splittable and one.samples > 1


def _inference(one: EvalSet, times: Times) -> int:
    return _down(times.inference(one.samples))


def _splittable(
    model: cp_model.CpModel,
    end: cp_model.IntVar,
    between: tuple[int, int],
    one: EvalSet,
    times: Times,
    load: float,
) -> cp_model.LinearExprT:
    """Return the total time of a set's shards. Each number of shards suffices only for an `end` late enough for the
    longest of them."""

    def early(pieces: int) -> int:
        return _down(load + times.inference(-(-one.samples // pieces)) + times.score)

    earliest, latest = between
    pieces = 1
    while early(pieces) > latest and pieces < one.samples:
        pieces += 1
    least_seconds = _down(pieces * times.fixed + one.samples * times.sample)
    more_pieces = []
    while early(pieces) > earliest and pieces < one.samples:
        more = model.new_bool_var("")
        model.add(end >= early(pieces)).only_enforce_if(~more)
        more_pieces.append(more)
        pieces += 1
    return least_seconds + _down(times.fixed) * cp_model.LinearExpr.sum(more_pieces)


def _together(
    model: cp_model.CpModel,
    end: cp_model.IntVar,
    busy: Sequence[tuple[int, cp_model.LinearExprT]],
    workers: int,
    load: int,
) -> None:
    """Require room on all workers together before the sets with at least each scoring time."""
    taken = []
    for score, seconds in sorted(busy, key=lambda one: -one[0]):
        taken.append(seconds)
        model.add(cp_model.LinearExpr.sum(taken) <= workers * (end - load - score))


def _one_by_one(
    model: cp_model.CpModel, end: cp_model.IntVar, whole: Sequence[tuple[int, int]], workers: int, load: int
) -> None:
    """Require room on each worker for the sets that it makes whole."""
    taken: dict[int, list[cp_model.LinearExprT]] = defaultdict(list)
    for number, (score, seconds) in enumerate(sorted(whole, reverse=True)):
        makers = [model.new_bool_var("") for _ in range(min(workers, number + 1))]  # workers are alike
        model.add_exactly_one(makers)
        for worker, makes in enumerate(makers):
            taken[worker].append(makes * seconds)
            model.add(cp_model.LinearExpr.sum(taken[worker]) <= end - load - score)
