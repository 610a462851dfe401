"""Exit codes and error messages of commands."""

import sys
import traceback
from typing import Any

import click

from logdoctor.errors import LogdoctorError
from logdoctor.extras import translated

NOTHING_FAILED, FAILED, COULD_NOT_WORK = 0, 1, 2


class ExitCodeGroup(click.Group):
    """A group of commands whose exit code 1 is a result that scripts act on: unexpected errors, interruptions and
    unanswered questions exit with 2."""

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
    """Print an error, without characters of a file's name that could steer the terminal."""
    plain = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in str(error))
    click.echo(f"logdoctor: {plain}", err=True)
