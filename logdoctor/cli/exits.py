"""How commands end: exit codes, and complaints."""

import sys
import traceback
from typing import Any

import click

from logdoctor.errors import LogdoctorError
from logdoctor.extras import translated

NOTHING_FAILED, FAILED, COULD_NOT_WORK = 0, 1, 2


class ExitCodeGroup(click.Group):
    """Commands whose exit code 1 is a finding that scripts act on: what nobody expected, an interruption and a question
    answered with no end with 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with translated():
                return super().invoke(ctx)
        except (click.Abort, KeyboardInterrupt, EOFError):
            click.echo("Aborted!", err=True)
        except (click.ClickException, click.exceptions.Exit, LogdoctorError, BrokenPipeError):
            raise
        except Exception:  # noqa: BLE001 -- Python's own status would be 1
            traceback.print_exc()
        sys.exit(COULD_NOT_WORK)


def complain(error: LogdoctorError) -> None:
    """Print an error, without what a file's name may hold to steer the terminal."""
    plain = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in str(error))
    click.echo(f"logdoctor: {plain}", err=True)
