"""`logdoctor trials plan` and `simulate`: how a trial will use its workers, and how that compares with others."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from logdoctor.errors import TrialError
from logdoctor.lasting_files import new_file
from logdoctor.settings import read_settings

if TYPE_CHECKING:
    from logdoctor.trials.types import Model

_GIGABYTES = 2.0  # of a billion parameters, in bf16
_NIC = 25 / 8  # GB/s
_seconds = click.FloatRange(0, 1e6)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE")
@click.option("--workers", type=click.IntRange(1, 4096), help="How many; default: as the file says.")
@click.option("--load", type=_seconds, help="Seconds for a worker to load the model; default: as over 25 Gb/s.")
@click.option(
    "--priors",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What is known of times; default: a file in the data folder.",
)
@click.option("--limit", type=_seconds, default=10.0, show_default=True, help="Seconds to prove the bound in.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Also write the chart as a picture.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    file: Path,
    workers: int | None,
    load: float | None,
    priors: Path | None,
    limit: float,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Show which worker will make what of a trial file and when, by the times of earlier runs.

    Beside the time that all takes stands the time that no plan stays below, which is proven.
    """
    from logdoctor.build.trials import priors as known
    from logdoctor.cli import trial_charts
    from logdoctor.trials.outlook import outlook
    from logdoctor.trials.trial_file import read_trial

    trial = read_trial(file)
    count = workers or trial.workers
    if not count:
        raise click.UsageError(f"{file} does not say how many workers there are. Give --workers.")
    times = known(read_settings(), priors)
    planned = outlook(
        trial.sets,
        {one.name: times.times(one, trial.model.billions) for one in trial.sets},
        count,
        _load(trial.model) if load is None else load,
        limit,
    )
    if svg is not None:
        try:
            with new_file(svg) as file_of_chart:
                file_of_chart.write(trial_charts.svg(planned).encode())
        except OSError as error:
            raise TrialError(str(svg), f"cannot be written ({error.strerror})", "Name another file.") from error
    trial_charts.show(planned, as_json)


@click.command()
@click.option("--workloads", type=click.IntRange(1, 1000), default=20, show_default=True, help="Calibrated, to try on.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Where drawing begins.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def simulate(workloads: int, seed: int, as_json: bool) -> None:
    """Compare the plan with a trial for each set, the paper's policy and OpenCompass' partitioners.

    Simulates 63 sets on 1 and 4 nodes of 8 GPUs. Workloads are drawn at random; only those count on which the paper's
    policy does what the paper says of it. Takes some seconds for each.
    """
    from itertools import islice

    from logdoctor.cli import trial_charts
    from logdoctor.trials.comparing import CLAIMED, calibrated, compare

    found = []
    drawn = 0
    with click.progressbar(islice(calibrated(seed), workloads), workloads, "workloads", file=sys.stderr) as each:
        for drawn, workload in each:
            found += [compare(workload, nodes, seed + drawn) for nodes in CLAIMED]
    trial_charts.show_compared(found, drawn, as_json)


def _load(model: "Model") -> float:
    return (model.billions or 0.0) * _GIGABYTES / _NIC
