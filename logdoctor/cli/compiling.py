"""A message on standard error while rules are compiled for more than a moment."""

import sys
import time

import click

_MOMENT = 0.5  # seconds


class CompilingLine:
    """Counts the compiled parts of the rules. On a terminal the line is redrawn and removed at the end; elsewhere it is
    printed once."""

    def __init__(self) -> None:
        self._begin = 0.0
        self._width = 0

    def __call__(self, done: int, total: int) -> None:
        """Show how many parts are compiled."""
        if done == 0:
            self._begin = time.monotonic()
        if not self._width and (done == total or time.monotonic() - self._begin < _MOMENT):
            return
        text = f"compiling rules, once for this machine: {done} of {total} parts"
        if sys.stderr.isatty():
            click.echo("\r" + (text if done < total else "").ljust(self._width), nl=False, err=True)
            if done == total:
                click.echo("\r", nl=False, err=True)
        elif not self._width:
            click.echo(f"logdoctor: {text}", err=True)
        self._width = len(text)
