"""Commands that measure logdoctor itself, with code in `eval/`, which the wheel leaves out."""

import importlib
import sys
from pathlib import Path
from typing import Any

import click

from logdoctor.errors import CheckoutNeeded

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds the `logdoctor` package: in a checkout it has `eval/` as well."""


class CheckoutCommand(click.Command):
    """Stands for a command of `eval/commands.py` in `--help`, and runs it on demand."""

    def __init__(self, name: str, attribute: str, help: str) -> None:
        super().__init__(name, help=help)
        self._attribute = attribute

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the real command; raise `CheckoutNeeded` outside a checkout."""
        return _command(self._attribute, info_name).make_context(info_name, args, parent, **extra)


def _command(attribute: str, name: str | None) -> click.Command:
    if not (ROOT / "eval" / "commands.py").is_file():
        cause = "measures logdoctor with code and corpora that the installed package does not contain"
        raise CheckoutNeeded(f"command {name!r}", cause, "Clone the repository, run `make setup`, and run it there.")
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    command: click.Command = getattr(importlib.import_module("eval.commands"), attribute)
    return command
