"""`logdoctor serve`, and the senders `logdoctor run` and `logdoctor ship`."""

import sys
from pathlib import Path

import click
import msgspec

from logdoctor.cli.exits import stop_at_once
from logdoctor.cli.options import Folder, beside_data, env_file_option
from logdoctor.cli.worker import work
from logdoctor.settings import read_settings


@click.command(
    epilog="All else is set by variables or an env file (docs/settings.md); `logdoctor config` prints what is in force."
)
@env_file_option
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 picks a free one.")
@click.option("--data-dir", type=Folder(), help="Folder for logs and records.")
@beside_data
@click.option("--workers", type=click.IntRange(0, 1024), help="Processes that compress and judge; default: 1.")
@click.option("--role", type=click.Choice(["all", "web", "worker"]), help="What this process does; default: all.")
def serve(host: str | None, port: int | None, data_dir: Path | None, workers: int | None, role: str | None) -> None:
    """Receive logs while jobs run, and diagnose failures.

    Jobs send their logs over HTTP: see `logdoctor run` and `logdoctor ship`. The pages are at the same address.
    """
    stop_at_once()
    from logdoctor.web.serve import serve as serve_for_ever

    given = {"host": host, "port": port, "data_dir": data_dir, "serve_workers": workers, "role": role}
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = msgspec.structs.replace(read_settings(), **chosen)
    if settings.role == "worker":
        work(settings)
    else:
        serve_for_ever(settings)


# The sender parses its own options, because it also runs where only Python is installed.
_SENDER = {"ignore_unknown_options": True, "help_option_names": []}


@click.command("run", context_settings=_SENDER, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_command(arguments: tuple[str, ...]) -> None:
    """Run a command, send its output, restart it if wanted."""
    from logdoctor.job.recovery.__main__ import main as run

    sys.exit(run(["run", *arguments], "logdoctor"))


@click.command("ship", context_settings=_SENDER, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def ship_command(arguments: tuple[str, ...]) -> None:
    """Follow log files and send them to the service."""
    from logdoctor.job.send.__main__ import main as send

    sys.exit(send(["ship", *arguments], "logdoctor"))
