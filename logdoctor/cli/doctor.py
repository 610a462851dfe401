"""`logdoctor doctor`: check an installation, and repair its stored data."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from logdoctor.cli.exits import COULD_NOT_WORK, complain
from logdoctor.cli.options import beside_data, data_dir_option
from logdoctor.errors import LogdoctorError
from logdoctor.settings import lenient_settings

if TYPE_CHECKING:
    from logdoctor.store.keeping.checks import Check

HEALTHY, PROBLEMS = 0, 1


@click.command()
@click.option("--repair", "repairs", is_flag=True, help="Repair what is stored; only while no service runs.")
@click.option("--dry-run", is_flag=True, help="With --repair: say what would be done, and do nothing.")
@click.option("--deep", is_flag=True, help="Read every object of the archive.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per check and line.")
@data_dir_option
@beside_data
def doctor(repairs: bool, dry_run: bool, deep: bool, as_json: bool, data_dir: Path | None) -> None:
    """Check settings, machine, database and archive.

    Each line says ok, warning or problem, and what to do next. A service may run meanwhile, but not with --repair,
    which lists the objects of the archive that the database does not know, and deletes those that hold no data of their
    own. Damaged data is left as it is.

    Exit codes: 0 all is well, 1 there are problems, 2 could not work.
    """
    from logdoctor.wiring.checkup import checkup, repair

    settings, errors = lenient_settings()
    if data_dir:
        settings = msgspec.structs.replace(settings, data_dir=data_dir)
    if dry_run and not repairs:
        raise click.UsageError("--dry-run needs --repair.")
    if repairs:
        if errors:
            complain(errors[0])
            sys.exit(COULD_NOT_WORK)
        try:
            repair(settings, lambda step: click.echo(f"{'dry run: ' if dry_run else ''}{step}", err=as_json), dry_run)
        except LogdoctorError as error:
            complain(error)
            sys.exit(COULD_NOT_WORK)
    sys.exit(PROBLEMS if told(checkup(settings, errors, deep), as_json) else HEALTHY)


def told(checks: "Iterable[Check]", as_json: bool = False) -> bool:
    """Print checks as they are made; return whether there are problems."""
    bad = False
    for check in checks:
        bad |= check.state == "problem"
        if as_json:
            click.echo(msgspec.json.encode(check._asdict()).decode())
            continue
        plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in check.found)
        click.echo(f"{check.state:<8} {check.name}: {plain}{f'. {check.next_step}' if check.next_step else ''}")
    return bad
