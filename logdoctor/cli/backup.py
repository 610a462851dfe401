"""`logdoctor backup` and `logdoctor restore`."""

import sys
from pathlib import Path

import click

from logdoctor.cli.doctor import HEALTHY, PROBLEMS, told
from logdoctor.cli.options import beside_data, data_dir_option, served_settings, settings_with


@click.command()
@click.argument("to", type=click.Path(file_okay=False, path_type=Path))
@data_dir_option
@beside_data
def backup(to: Path, data_dir: Path | None) -> None:
    """Copy the database and the archive into the new folder TO.

    The service may run meanwhile. Files of the archive become hard links where TO is on the same file system: copy TO
    to another disk. With PostgreSQL, pg_dump writes the database, and a file lists the objects of the archive.
    """
    from logdoctor.wiring.copies import made

    click.echo("\n".join(made(served_settings(data_dir), to)))


@click.command()
@click.argument("source", metavar="FROM", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--newer", is_flag=True, help="also over an archive that holds logs written after the backup")
@data_dir_option
@beside_data
def restore(source: Path, newer: bool, data_dir: Path | None) -> None:
    """Restore a backup, and check it.

    It is copied FROM a folder into an empty data folder.

    Exit codes: 0 all is well, 1 there are problems, 2 could not work.
    """
    from logdoctor.wiring.checkup import stored
    from logdoctor.wiring.copies import restored

    settings = settings_with(data_dir)
    click.echo("\n".join(restored(settings, source, newer)))
    sys.exit(PROBLEMS if told(stored(settings, deep=True)) else HEALTHY)
