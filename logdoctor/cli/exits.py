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
    """A group of commands whose exit code 1 is a result for scripts (see `exit_codes`)."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the given command. Fail with a hint at `diagnose` when a log was given instead."""
        if self.get_command(ctx, args[0]) is None and os.path.exists(args[0]):
            ctx.fail(
                f"{plain(args[0])} is no command. Diagnose it with: logdoctor diagnose {shlex.quote(plain(args[0]))}"
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the given command."""
        with exit_codes(), translated():
            return super().invoke(ctx)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Map errors to exit codes. They are 130 after Ctrl-C; 2 for unexpected errors, unanswered prompts and unwritable
    output; 0 when the reader of the output has gone. Errors of logdoctor and of usage pass through."""
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
    """Return why standard output cannot be written; None if it can. A write `error` is returned as it is, because that
    output is lost already; errors of opened files have a name."""
    if isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITABLE:
        return error
    if sys.stdout is None or sys.stdout.closed:  # nobody reads it
        return None
    try:
        sys.stdout.flush()
    except OSError as unwritten:
        return unwritten
    return None


def _leave_output(error: OSError) -> None:
    """Print why the output cannot be written, and drop the rest. Exit at once when its reader has gone."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        sys.exit(NOTHING_FAILED)
    complain(LogdoctorError("the output", f"cannot be written ({error.strerror})", "Write it elsewhere."))


def stop_at_once() -> None:
    """Exit with 0 on SIGTERM or SIGINT during the start of a service. It holds nothing yet, and a requested stop is no
    failure. An exception could be swallowed by a library that catches all."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(NOTHING_FAILED))


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Exit with 130 after Ctrl-C, and print advice."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\nInterrupted. {advice}", err=True)
        sys.exit(INTERRUPTED)


def complain(error: LogdoctorError) -> None:
    """Print an error."""
    click.echo(f"logdoctor: {plain(str(error))}", err=True)


def plain(text: str) -> str:
    """Return text without unprintable characters, which could control the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
