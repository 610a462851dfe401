"""`logdoctor trials run`, `resume`, `status` and `sweep`: run, resume and inspect a trial."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from logdoctor.cli.exits import FAILED, NOTHING_FAILED, interruptible, plain
from logdoctor.errors import LogdoctorError
from logdoctor.settings import read_settings

if TYPE_CHECKING:
    from logdoctor.trials.coordinator import Place
    from logdoctor.trials.journal import Event
    from logdoctor.trials.progress import Progress, SetProgress
    from logdoctor.trials.results import Results
    from logdoctor.trials.state import State
    from logdoctor.trials.trial_file import Trial

_folder = click.Path(exists=True, file_okay=False, path_type=Path)
_file = click.Path(dir_okay=False, path_type=Path)


def _working(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options shared by commands that run a trial."""
    for option in (
        click.option("--ray", metavar="ADDRESS", help="Work on the Ray cluster there; `auto`: that of this machine."),
        click.option("--slurm", is_flag=True, help="Work in an array job of Slurm; DIR must be seen by its nodes."),
        click.option("--slurm-option", "slurm_options", multiple=True, metavar="NAME=VALUE", help="Of sbatch, as "
                     "partition=eval."),
        click.option("--workers", type=click.IntRange(1), help="How many; default: as the file says, or has room for."),
        click.option("--priors", type=_file, help="What is known of times; default: a file in the data folder."),
        click.option("--job", metavar="JOB", help="With LOGDOCTOR_URL: the job whose checkpoint it is; its scores go "
                     "there, and logs of what failed. Default: the name of the model."),
        click.option("--parquet", type=_file, help="Also write the metrics as a table."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE")
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="The state folder to make."
)
@click.option("--checkpoint", type=click.Path(exists=True, path_type=Path), help="Another checkpoint than in FILE.")
@click.option("--step", type=click.IntRange(0), help="The step of that checkpoint.")
@_working
def run(file: Path, out: Path, checkpoint: Path | None, step: int | None, **options: Any) -> None:
    """Evaluate the checkpoint of a trial file on its sets.

    Workers pull shards of sets from one queue; each set is scored separately, as soon as its last shard is there. All
    output is in the folder --out: after a crash, `logdoctor trials resume` continues from there.

    Exit codes: 0 every set is scored, 1 a set failed, 2 could not work, 130 interrupted.
    """
    from logdoctor.trials.state import State
    from logdoctor.trials.trial_file import read_trial

    trial = read_trial(file)
    model = trial.model
    if step is not None and checkpoint is None:
        raise click.UsageError("--step is of another --checkpoint.")
    if checkpoint is not None:
        model = msgspec.structs.replace(model, path=str(checkpoint.resolve()), step=step)
        trial = msgspec.structs.replace(trial, model=model)
    _work(State(out, trial), options)


@click.command()
@click.argument("folder", type=_folder, metavar="DIR")
@_working
def resume(folder: Path, **options: Any) -> None:
    """Resume an interrupted trial, or retry its failed sets.

    No finished shard is made again.

    Exit codes: as for `logdoctor trials run`.
    """
    from logdoctor.trials.state import State

    _work(State(folder), options)


@click.command()
@click.argument("folder", type=_folder, metavar="DIR")
@click.option("--parquet", type=_file, help="Also write the metrics as a table.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(folder: Path, parquet: Path | None, as_json: bool) -> None:
    """Show the progress of a trial, the time left, and its scores."""
    from logdoctor.trials.results import results_of
    from logdoctor.trials.state import read_begun, read_progress, read_remaining

    trial, progress = read_begun(folder), read_progress(folder)
    _table_to(parquet, trial, progress)
    _show(results_of(folder, trial, progress, read_remaining(folder)), as_json)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE")
def sweep(file: Path) -> None:
    """Remove from this machine what killed trials left. These are checkpoints in the folders `memory` and `cache` of
    FILE. What a living process uses stays. A trial that begins does the same."""
    from logdoctor.trials.node import sweep as sweep_node
    from logdoctor.trials.trial_file import read_trial

    sweep_node(read_trial(file))


def _work(state: "State", options: dict[str, Any]) -> None:
    advice = f"Go on: logdoctor trials resume {plain(str(state.folder))}"
    with interruptible(advice), ExitStack() as stack:
        stack.callback(state.close)
        _worked(state, options, stack)
        trial, progress = state.trial, state.progress
    from logdoctor.trials.results import failed, results_of

    _table_to(options["parquet"], trial, progress)
    _enter(trial, progress, options["job"])
    found = results_of(state.folder, trial, progress)
    _show(found, options["as_json"])
    sys.exit(FAILED if failed(found.sets) else NOTHING_FAILED)


def _worked(state: "State", options: dict[str, Any], stack: ExitStack) -> None:
    """Run a trial until it is done."""
    from logdoctor.trials.coordinator import Coordinator
    from logdoctor.trials.judges import Judges
    from logdoctor.trials.pinning import PinnedCheckpoint
    from logdoctor.wiring import trials as parts

    settings = read_settings()
    trial = state.trial
    if options["parquet"] is not None:
        from logdoctor.extras import require

        require("pyarrow")
    pinned = PinnedCheckpoint(Path(trial.model.path), f"is evaluated in {state.folder.resolve()}", _say)
    stack.callback(pinned.release)
    place = _place(state, options, stack)
    judges = Judges(trial.judges, place.host)
    stack.callback(judges.close)
    job = options["job"] or trial.model.name
    send = parts.FailureSender(settings.url, job, state.folder) if settings.url else None
    why = parts.diagnosing(settings, send)
    line = _Progress(state)
    coordinator = Coordinator(state, place, parts.priors(settings, options["priors"]), why, judges.url, line.happened)
    try:
        coordinator.run(line.watch)
    finally:
        line.end()
        place.close()
        if send is not None and not send.close():
            _say(f"Not all logs of what failed were sent to the service; they are in {state.folder / 'logs'}.")


def _place(state: "State", options: dict[str, Any], stack: ExitStack) -> "Place":
    from logdoctor.trials.local import LocalPlace

    trial = state.trial
    if options["ray"] is not None and options["slurm"]:
        raise click.UsageError("--ray and --slurm cannot be combined.")
    if options["ray"] is not None:
        from logdoctor.wiring.ray_trials import ray_place

        return stack.enter_context(ray_place(options["ray"], trial, options["workers"] or 0))
    if options["slurm"]:
        from logdoctor.wiring.slurm_trials import slurm_place

        given = dict(_option(text) for text in options["slurm_options"])
        return stack.enter_context(slurm_place(state.folder, trial, options["workers"] or 0, given))
    return LocalPlace(trial, options["workers"] or 0)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--slurm-option {text!r} is not NAME=VALUE.")
    return name, value


class _Progress:
    """Prints the progress of a trial on standard error, on one line or every ten seconds."""

    def __init__(self, state: "State") -> None:
        self._state = state
        self._every = 0.5 if sys.stderr.isatty() else 10.0
        self._said = time.monotonic()

    def happened(self, event: "Event") -> None:
        """Print events that a person wants to know at once."""
        from logdoctor.trials.journal import Dropped, Failed, Scored

        match event:
            case Failed():
                what = "scoring" if event.scoring else f"samples {event.shard.start} to {event.shard.end}"
                where = f" ({event.log})" if event.log else ""
                self._print(f"{event.shard.set}: {what}, try {event.attempt} failed: {event.why}{where}")
            case Dropped():
                self._print(f"{event.set}: failed for good.")
            case Scored():
                shown = ", ".join(f"{name} {value:.6g}" for name, value in event.metrics.items())
                self._print(f"{event.set}: {shown}")

    def watch(self, left: float) -> None:
        """Print the progress."""
        if time.monotonic() - self._said < self._every:
            return
        self._said = time.monotonic()
        sets = self._state.progress.of_sets(self._state.trial)
        done, whole = sum(one.done for one in sets), sum(one.samples for one in sets)
        scored = sum(one.state == "scored" for one in sets)
        text = f"{done:,} of {whole:,} samples, {scored} of {len(sets)} sets scored, {_time(left)} left"
        click.echo(f"\r{text}\x1b[K" if sys.stderr.isatty() else text, err=True, nl=not sys.stderr.isatty())

    def end(self) -> None:
        """End the line."""
        if sys.stderr.isatty():
            click.echo("\r\x1b[K", err=True, nl=False)

    def _print(self, text: str) -> None:
        self.end()
        click.echo(plain(text), err=True)


def _say(text: str) -> None:
    click.echo(plain(text), err=True)


def _show(found: "Results", as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("set", "state"):
        table.add_column(name)
    table.add_column("samples", justify="right")
    table.add_column("scores")
    for one in found.sets:
        table.add_row(Text(one.name), one.state, _samples(one), Text(_scores(one)))
    console = Console(highlight=False)
    console.print(table)
    step = "" if found.step is None else f", step {found.step:,}"
    left = "" if found.remaining is None else f"; {_time(found.remaining)} left"
    console.print(Text(f"{found.model}{step}{left}"), style="dim")


def _samples(one: "SetProgress") -> str:
    return f"{one.samples:,}" if one.done == one.samples else f"{one.done:,} of {one.samples:,}"


def _scores(one: "SetProgress") -> str:
    if one.state == "failed":
        return plain(": ".join(part for part in (one.why, one.quote) if part)[:300])
    return ", ".join(f"{name} {value:.6g}" for name, value in one.metrics.items())


def _enter(trial: "Trial", progress: "Progress", job: str | None) -> None:
    """Enter the scores into the service, if there is one, with the job."""
    from logdoctor.cli.options import chosen_place
    from logdoctor.jobs.scores import Score
    from logdoctor.trials.results import rows_of

    place = chosen_place(None, None)
    if place.service is None:
        return
    if trial.model.step is None:
        _say("The scores are not entered into the service: the trial file names no step of the checkpoint.")
        return
    from logdoctor.cli.client.scores import enter_scores

    scores = [Score(trial.model.step, one.set, one.metric, one.value, one.samples) for one in rows_of(trial, progress)]
    try:
        enter_scores(place.service, job or trial.model.name, scores)
    except LogdoctorError as error:
        _say(f"The scores are not entered into the service: {error} `logdoctor trials resume` tries again.")


def _table_to(place: Path | None, trial: "Trial", progress: "Progress") -> None:
    if place is not None:
        from logdoctor.trials.results import rows_of
        from logdoctor.trials.tables import write_results

        write_results(place, rows_of(trial, progress))


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
