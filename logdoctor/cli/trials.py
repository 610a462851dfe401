"""`logdoctor trials`: evaluate a checkpoint on many data sets."""

import click

from logdoctor.cli.trials_plan import plan
from logdoctor.cli.trials_running import resume, run, status, sweep


@click.group()
def trials() -> None:
    """Evaluate a checkpoint on many data sets."""


for _command in (plan, run, resume, status, sweep):
    trials.add_command(_command)
