"""Exit codes and error messages of commands."""

import errno
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from logdoctor.errors import LogdoctorError
from logdoctor.extras import translated

NOTHING_FAILED, FAILED, COULD_NOT_WORK, INTERRUPTED = 0, 1, 2, 130
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)


class ExitCodeGroup(click.Group):
    """A group of commands whose exit code 1 is a result that scripts act on (see `exit_codes`)."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that was given; a log in its place is named with the command that diagnoses it."""
        if self.get_command(ctx, args[0]) is None and os.path.exists(args[0]):
            ctx.fail(
                f"{plain(args[0])} is no command. Diagnose it with: logdoctor diagnose {shlex.quote(plain(args[0]))}"
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was given."""
        with exit_codes(), translated():
            return super().invoke(ctx)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Exit with 130 after Ctrl-C; with 2 after unexpected errors, unanswered questions, and when the output cannot be
    written; with 0 when its reader has gone. Errors of logdoctor and of usage are left as they are."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        sys.exit(INTERRUPTED)
    except (click.Abort, EOFError):
        click.echo("Aborted!", err=True)
    except (click.ClickException, click.exceptions.Exit, LogdoctorError):
        raise
    except SystemExit:
        if (lost := _lost_output()) is None:
            raise
        _leave_output(lost)
    except Exception as error:  # noqa: BLE001 -- Python's own status would be 1
        if (lost := _lost_output(error)) is None:
            traceback.print_exception(error)
        else:
            _leave_output(lost)
    else:
        if (lost := _lost_output()) is None:
            return
        _leave_output(lost)
    sys.exit(COULD_NOT_WORK)


def _lost_output(error: Exception | None = None) -> OSError | None:
    """Return why the standard output cannot be written, if it cannot; `error` may be of such a try, which took what
    was to be written with it: those of files that are opened have a name."""
    if isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITABLE:
        return error
    if sys.stdout is None or sys.stdout.closed:  # nobody wants to read it
        return None
    try:
        sys.stdout.flush()
    except OSError as unwritten:
        return unwritten
    return None


def _leave_output(error: OSError) -> None:
    """Say why the output cannot be written, and drop what is left of it; exit at once when nobody reads any more."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        sys.exit(NOTHING_FAILED)
    complain(LogdoctorError("the output", f"cannot be written ({error.strerror})", "Write it elsewhere."))


def stop_at_once() -> None:
    """Let SIGTERM and SIGINT end a service that only starts, and holds nothing yet, as they end one that runs: to stop
    when told to is no failure. An exception would be lost where it comes up in a library that catches all."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(NOTHING_FAILED))


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """End with the exit code of shells after Ctrl-C, and say what to do then."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\nInterrupted. {advice}", err=True)
        sys.exit(INTERRUPTED)


def complain(error: LogdoctorError) -> None:
    """Print an error."""
    click.echo(f"logdoctor: {plain(str(error))}", err=True)


def plain(text: str) -> str:
    """Return text without characters of a file's name that could steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
