"""`logdoctor runs`: the attempts of a job, and where the time went."""

import sys
import time
from typing import TYPE_CHECKING

import click
import msgspec

from logdoctor.cli.exits import COULD_NOT_WORK
from logdoctor.cli.options import Place, place_options, served_settings
from logdoctor.errors import LogdoctorError

if TYPE_CHECKING:
    from rich.table import Table

    from logdoctor.jobs.timeline import Run


@click.group()
def runs() -> None:
    """Show the attempts of a job, and the time lost between them."""


@runs.command("show")
@click.argument("job", metavar="JOB")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@place_options
def runs_show(job: str, as_json: bool, place: Place) -> None:
    """Show the attempts of JOB and the time that was lost.

    Time is lost to detection, restarts and repeated steps. For a job that no service knows, the record of `logdoctor
    run --restart` on this machine is shown, if there is one.
    """
    try:
        found = _run(job, place)
    except LogdoctorError:
        if (found := _recorded(job)) is None:
            raise
    if found is None or not found.attempts:
        found = _recorded(job)
    if found is None or not found.attempts:
        click.echo(f"logdoctor: job {job!r}: is not known. List jobs: logdoctor incidents list --job JOB", err=True)
        sys.exit(COULD_NOT_WORK)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        _show(found)


def _run(job: str, place: Place) -> "Run | None":
    if place.service is not None:
        from logdoctor.cli.client.runs import served_run

        return served_run(place.service, job)
    from logdoctor.store.jobs.runs import stored_run
    from logdoctor.wiring import stored

    records = stored.records(served_settings(place.data_dir))
    try:
        return stored_run(records, job, time.time())
    finally:
        records.close()


def _recorded(job: str) -> "Run | None":
    """Return the run that a supervisor on this machine recorded; None without one."""
    from logdoctor.cli.recorded_runs import recorded_run
    from logdoctor.job.send.environment import read_environment
    from logdoctor.job.send.target import is_name

    states = read_environment().state_folder
    return recorded_run(states, job, time.time()) if states and is_name(job) else None


def _show(run: "Run") -> None:
    from rich.console import Console

    from logdoctor.jobs.report import length

    console = Console(highlight=False)
    console.print(_table(run))
    if run.wall is not None and run.effective is not None:
        lost = f"{length(run.detection)} until verdicts, {length(run.restart)} until restarts"
        again = f"{length(run.lost)} in {run.lost_steps:,} steps that were made again"
        bound = "at most " if run.attempts[-1].outcome == "failed" else ""
        console.print(f"{bound}{run.effective:.1%} effective of {length(run.wall)}; lost: {lost}, {again}", style="dim")


def _table(run: "Run") -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from logdoctor.jobs.report import length

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("attempt", "outcome", "reason"):
        table.add_column(name)
    for name in ("steps", "made again", "lasted", "to verdict", "to restart"):
        table.add_column(name, justify="right")
    for one in run.attempts:
        lasted = None if one.started is None or one.ended is None else one.ended - one.started
        spans = ["-" if value is None else length(value) for value in (lasted, one.detection, one.restart)]
        first, last = ("?" if step is None else f"{step:,}" for step in (one.first_step, one.last_step))
        steps = "-" if one.last_step is None else f"{first} to {last}"
        again = "-" if one.lost_steps is None else f"{one.lost_steps:,}"
        reason = "" if one.reason == "None" else one.reason
        table.add_row(str(one.number), one.outcome, Text(reason), steps, again, *spans)
    return table
