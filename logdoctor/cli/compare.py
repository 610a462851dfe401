"""`logdoctor compare`: what changed between two tables of `logdoctor batch`."""

from pathlib import Path

import click

from logdoctor.cli.options import Place, place_options
from logdoctor.extras import require

_table = click.Path(exists=True, path_type=Path)


@click.command()
@click.argument("old", type=_table)
@click.argument("new", type=_table)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all changes.")
@place_options
def compare(old: Path, new: Path, as_json: bool, place: Place) -> None:
    """Compare two tables that `logdoctor batch` made.

    Shows the logs whose reason, recovery, suspects or outcome changed, by the rules responsible. Verdicts that people
    confirmed in the service or the data folder tell improvements from regressions.

    Exit codes: 0 nothing changed, 3 something changed, 2 could not work.
    """
    require("pyarrow")
    from logdoctor.cli.batch_results import compare_tables, known_truths, leave

    leave(compare_tables(old, new, known_truths(place), as_json))
