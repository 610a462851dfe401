"""`logdoctor trials plan`: how a trial will use its workers."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from logdoctor.settings import read_settings

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from logdoctor.trials.planning import Placed
    from logdoctor.trials.types import EvalSet, Model, Times

_GIGABYTES = 2.0  # per billion parameters, in bf16
_NIC = 25 / 8  # GB/s
_COLOURS = ("blue", "green", "magenta", "cyan", "yellow", "red")
_NAME = 100  # characters
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(file: Path, workers: int | None, load: float | None, priors: Path | None, as_json: bool) -> None:
    """Show which worker will make which shards of a trial. The plan is based on the times of earlier runs."""
    from logdoctor.trials.planning import plan, schedule
    from logdoctor.trials.trial_file import read_trial
    from logdoctor.wiring.trials import priors as known

    trial = read_trial(file)
    count = workers or trial.workers
    if not count:
        raise click.UsageError(f"{file} does not say how many workers there are. Give --workers.")
    all_times = known(read_settings(), priors)
    times = {one.name: all_times.times(one, trial.model.billions) for one in trial.sets}
    seconds = _load(trial.model) if load is None else load
    placed = schedule(plan(trial.sets, times, count, seconds), times, count, seconds)
    _show(_Planned(count, seconds, trial.sets, times, placed), as_json)


def _load(model: "Model") -> float:
    return (model.billions or 0.0) * _GIGABYTES / _NIC


class _Planned(NamedTuple):
    """A plan, with the times that it is based on."""

    workers: int
    load: float
    sets: "tuple[EvalSet, ...]"
    times: "dict[str, Times]"
    placed: "list[Placed]"

    def scored_at(self) -> dict[str, float]:
        """Return the time at which each set is scored."""
        made = {one.name: 0.0 for one in self.sets}
        for one in self.placed:
            made[one.shard.set] = max(made[one.shard.set], one.end)
        return {name: at + self.times[name].score for name, at in made.items()}


def _show(planned: _Planned, as_json: bool) -> None:
    """Print a plan: a bar for each worker, and a row for each set."""
    from rich.console import Console

    from logdoctor.jobs.report import length
    from logdoctor.words.show import ascii_json

    span = max(planned.scored_at().values(), default=0.0)
    if as_json:
        print(ascii_json(_as_json(planned, span)))
        return
    console = Console(highlight=False)
    for worker in range(planned.workers):
        console.print(_bar(planned, worker, span, max(20, console.width - 5)), no_wrap=True)
    console.print(_sets(planned))
    console.print(f"all scored after {length(span)}, with {planned.workers} workers")
    if any(not one.runs for one in planned.times.values()):
        console.print("~ a guess from samples and tokens: the set has not run yet", style="dim")


def _bar(planned: _Planned, worker: int, span: float, width: int) -> "Text":
    """Return the bar of a worker. Each shard begins with a mark and the name of its set."""
    from rich.text import Text

    from logdoctor.words.show import safe

    numbers = {one.name: number for number, one in enumerate(planned.sets)}
    text = Text(f"{worker:>3} ", style="dim")
    at = 0
    for one in planned.placed:
        if one.worker == worker:
            start, end = (round(when / (span or 1.0) * width) for when in (one.start, one.end))
            text.append(" " * (start - at))
            name = f"▏{safe(one.shard.set, _NAME)}"[: end - start]
            text.append(name.ljust(end - start, "─"), style=_COLOURS[numbers[one.shard.set] % len(_COLOURS)])
            at = end
    return text


def _sets(planned: _Planned) -> "Table":
    from rich.table import Table
    from rich.text import Text

    from logdoctor.jobs.report import length
    from logdoctor.words.show import safe

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("set", overflow="fold")
    for name in ("samples", "shards", "inference", "scoring", "scored at", "earlier runs"):
        table.add_column(name, justify="right", no_wrap=True)
    shards = Counter(one.shard.set for one in planned.placed)
    scored = planned.scored_at()
    for one in sorted(planned.sets, key=lambda one: -scored[one.name]):
        times = planned.times[one.name]
        inference = sum(placed.end - placed.start for placed in planned.placed if placed.shard.set == one.name)
        row = (str(shards[one.name]), length(inference), length(times.score), length(scored[one.name]))
        table.add_row(Text(safe(one.name, _NAME)), str(one.samples), *row, str(times.runs) if times.runs else "~")
    return table


def _as_json(planned: _Planned, span: float) -> dict[str, object]:
    return {
        "workers": planned.workers,
        "load": planned.load,
        "makespan": span,
        "sets": [
            {"set": one.name, "samples": one.samples, **planned.times[one.name]._asdict()} for one in planned.sets
        ],
        "shards": [
            {"set": one.shard.set, "from": one.shard.start, "to": one.shard.end, "worker": one.worker}
            | {"begins": one.start, "ends": one.end}
            for one in planned.placed
        ],
    }
