"""`logdoctor trials`: evaluate a checkpoint on many data sets."""

import click

from logdoctor.cli.trials_running import resume, run, status, sweep


@click.group()
def trials() -> None:
    """Evaluate a checkpoint on many data sets, and keep the GPUs busy."""


for _command in (run, resume, status, sweep):
    trials.add_command(_command)
