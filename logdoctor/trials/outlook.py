"""What a trial comes to before it runs: the plan, on which worker and when, and the bound that is proven for it."""

from collections.abc import Mapping, Sequence

import msgspec

from logdoctor.trials.bound import proven
from logdoctor.trials.planning import Placed, makespan, plan, schedule
from logdoctor.trials.types import EvalSet, Times


class Outlook(msgspec.Struct, frozen=True):
    """A plan with the times that it is made by. All is scored after `makespan` seconds; no plan is done before `bound`,
    and when that is `closed`, more time to prove it would not help."""

    workers: int
    load: float
    makespan: float
    bound: float
    closed: bool
    sets: tuple[EvalSet, ...]
    times: dict[str, Times]
    placed: tuple[Placed, ...]

    @property
    def ratio(self) -> float:
        """Return how many times the bound the plan takes."""
        return self.makespan / self.bound if self.bound else 1.0


def outlook(
    sets: Sequence[EvalSet], times: Mapping[str, Times], workers: int, load: float, limit: float = 10.0
) -> Outlook:
    """Return the outlook of a trial, after `limit` seconds for the bound at most."""
    placed = schedule(plan(sets, times, workers, load), times, workers, load)
    bound = proven(sets, times, workers, load, limit)
    span = makespan(placed, times)
    return Outlook(workers, load, span, bound.seconds, bound.closed, tuple(sets), dict(times), tuple(placed))
