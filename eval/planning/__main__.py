"""`python -m eval.planning`: the figures that docs/trials.md gives of plans."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from statistics import median

import click

from eval.planning.comparing import CLAIMED, SIGMA, Compared, Planned, calibrated, compare

Figure = tuple[str, Callable[[Compared], float]]


@click.command()
@click.option("--workloads", type=click.IntRange(1, 1000), default=20, show_default=True, help="Calibrated, to try on.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Where drawing begins.")
def main(workloads: int, seed: int) -> None:
    """Compare the plan with a trial for each set, the paper's policy and OpenCompass' partitioners.

    Simulates 63 sets on 1 and 4 nodes of 8 GPUs. Workloads are drawn at random; only those count on which the paper's
    policy does what the paper says of it. Takes some seconds for each, and prints one JSON object.
    """
    found, drawn = list[Compared](), 0
    with click.progressbar(islice(calibrated(seed), workloads), workloads, "workloads", file=sys.stderr) as each:
        for drawn, workload in each:
            found += [compare(workload, nodes, seed + drawn) for nodes in CLAIMED]
    rows = {
        name: {str(count): _spread([of(one) for one in found if one.nodes == count]) for count in CLAIMED}
        for name, of in _FIGURES
    }
    print(json.dumps({"workloads": workloads, "drawn": drawn, "wrong_sigma": SIGMA, "rows": rows}, indent=1))


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "least": min(values), "most": max(values)}


def _faster(of: Callable[[Compared], float]) -> Callable[[Compared], float]:
    """Return a speed-up over a trial for each set."""
    return lambda one: one.trial_per_set / of(one)


def _of_plan(name: str, of: Callable[[Compared], Planned]) -> Iterable[Figure]:
    yield name, _faster(lambda one: of(one).right)
    yield f"{name}, times guessed wrong", _faster(lambda one: of(one).wrong)
    yield f"{name}, bound", _faster(lambda one: of(one).bound)
    yield f"{name}, in times the bound", lambda one: of(one).right / of(one).bound
    yield f"{name}, half off in times right", lambda one: of(one).half_off / of(one).right
    yield f"{name}, wrong in times right", lambda one: of(one).wrong / of(one).right


_FIGURES: tuple[Figure, ...] = (
    ("OpenCompass NaivePartitioner", _faster(lambda one: one.stages)),
    ("OpenCompass SizePartitioner", _faster(lambda one: one.sizes)),
    ("OpenCompass NumWorkerPartitioner", _faster(lambda one: one.workers)),
    ("paper", _faster(lambda one: one.paper)),
    *_of_plan("plan, a command for each shard", lambda one: one.commands),
    *_of_plan("plan, serve", lambda one: one.served),
)

if __name__ == "__main__":
    main()
