"""`logdoctor worker`: a process that compresses and judges the logs that others receive."""

import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from logdoctor.cli.options import beside_data, data_dir_option, env_file_option, settings_with

if TYPE_CHECKING:
    from logdoctor.settings import Settings


@click.command()
@env_file_option
@data_dir_option
@beside_data
@click.option("--workers", type=click.IntRange(0, 1024), help="Processes that compress and judge.")
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Let them run on the Ray cluster there, and end; `auto`: on the one of this machine.",
)
@click.option("--until-eof", is_flag=True, hidden=True, help="End when the standard input does.")
def worker(data_dir: Path | None, workers: int | None, ray: str | None, until_eof: bool) -> None:
    """Compress and judge the logs that a service receives.

    A worker shares the database and the archive with `logdoctor serve` and with other workers. Start as many as there
    are cores, on any number of machines; each takes its share of the jobs, and takes over those of a dead worker within
    ten seconds. It stops on SIGTERM.

    With --ray they are actors that Ray places and restarts. Repeat the command with another number to scale up or down,
    and with --workers 0 to stop all. Their machines need the same version of logdoctor.
    """
    settings = settings_with(data_dir)
    count = max(settings.serve_workers, 1) if workers is None else workers
    if ray is not None:
        _scale(settings, ray, count)
    elif count == 0:
        raise click.UsageError("--workers 0 is for --ray: it stops the workers there.")
    else:
        work(msgspec.structs.replace(settings, serve_workers=count), until_eof)


def _scale(settings: "Settings", address: str, count: int) -> None:
    """Scale the workers on a Ray cluster to a number, and print where they run."""
    from logdoctor.wiring.ray_workers import scale

    for name, node in scale(settings, address, count).items():
        click.echo(f"{name} runs on node {node[:12]}")
    if not count:
        click.echo("no worker runs")


def work(settings: "Settings", until_eof: bool = False) -> None:
    """Work until SIGTERM or SIGINT, or until standard input ends. A signal during the start lets the worker take what
    waits, and end then."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # before what takes seconds to load
        signal.signal(number, lambda *_: stopping.set())
    from logdoctor.web.serve import collect_rarely, configure_logging, return_memory, write_privately
    from logdoctor.wiring import running

    configure_logging()
    return_memory()
    write_privately()
    working = running.worker(settings)
    working.start()
    collect_rarely()
    if until_eof:
        threading.Thread(target=_await_end, args=[stopping], daemon=True).start()
    stopping.wait()
    working.stop()


def _await_end(stopping: threading.Event) -> None:
    """Wait for the end of standard input, which means that the parent process has ended."""
    sys.stdin.read()
    stopping.set()
