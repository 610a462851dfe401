"""`logdoctor config`: print the settings in force and their sources."""

import sys
from collections.abc import Iterable

import click
import msgspec

from logdoctor.cli.exits import COULD_NOT_WORK, complain, plain
from logdoctor.cli.options import env_file_option
from logdoctor.settings import SECTIONS, InForce, in_force, lenient_settings


@click.command()
@env_file_option
@click.option("--set", "only_set", is_flag=True, help="Only what is not the default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array, with the meaning of each setting.")
def config(only_set: bool, as_json: bool) -> None:
    """Print the settings in force.

    Each line has a setting, its source (the environment, the env file, or the default), and its value. Secrets are only
    reported as set or not. Options of other commands, such as `serve --port`, override all of these.

    Exit codes: 0 all are valid, 2 a variable is unknown or has an invalid value.
    """
    settings, errors = lenient_settings()
    found = [one for one in in_force(settings) if one.source != "default" or not only_set]
    click.echo(
        msgspec.json.format(msgspec.json.encode(found)).decode() if as_json else "\n".join(_table(found, not only_set))
    )
    for error in errors:
        complain(error)
    sys.exit(COULD_NOT_WORK if errors else 0)


def _table(found: Iterable[InForce], with_sections: bool) -> Iterable[str]:
    """Yield a line for each setting, and one for each section."""
    found = list(found)
    width = max((len(one.name) for one in found), default=0)
    begins = {f"LOGDOCTOR_{name.upper()}": title for name, title in SECTIONS.items()}
    for one in found:
        if with_sections and one.name in begins:
            yield f"# {begins[one.name]}"
        value = "(secret)" if one.value is None else plain(one.value) or "-"
        yield f"{one.name:<{width}} {one.source:<12} {value}"
