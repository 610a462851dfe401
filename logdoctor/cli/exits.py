"""How commands end: exit codes, and complaints."""

import click

from logdoctor.errors import LogdoctorError

NOTHING_FAILED, FAILED, COULD_NOT_WORK = 0, 1, 2


def complain(error: LogdoctorError) -> None:
    """Print an error, without what a file's name may hold to steer the terminal."""
    plain = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in str(error))
    click.echo(f"logdoctor: {plain}", err=True)
