"""The command line.

Heavy parts are imported inside the commands, so that `--help` stays fast.
"""

# ruff: noqa: E402 -- Ctrl-C is handled before the imports, which take most of the time
import io
import os
import signal
import sys
import threading

_guards = (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if _guards:  # Ctrl-C during the imports: nothing to report or clean up
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import click

from logdoctor.cli.backup import backup, restore
from logdoctor.cli.batch import batch
from logdoctor.cli.cases import cases
from logdoctor.cli.checkout import CheckoutCommand
from logdoctor.cli.checkpoints import checkpoints
from logdoctor.cli.compare import compare
from logdoctor.cli.compiling import CompilingLine
from logdoctor.cli.config import config
from logdoctor.cli.describe import completion, schema
from logdoctor.cli.diagnose import diagnose
from logdoctor.cli.doctor import doctor
from logdoctor.cli.exits import COULD_NOT_WORK, ExitCodeGroup, complain, exit_codes
from logdoctor.cli.incidents import incidents
from logdoctor.cli.mcp import mcp
from logdoctor.cli.nodes import nodes
from logdoctor.cli.notify import notify
from logdoctor.cli.options import env_file_option
from logdoctor.cli.report import report
from logdoctor.cli.rules import rules
from logdoctor.cli.runs import runs
from logdoctor.cli.serving import run_command, serve, ship_command
from logdoctor.cli.tokens import tokens
from logdoctor.cli.trials import trials
from logdoctor.cli.worker import worker
from logdoctor.errors import LogdoctorError
from logdoctor.extras import translated
from logdoctor.rules import compiling

if _guards:
    signal.signal(signal.SIGINT, signal.default_int_handler)

measure = CheckoutCommand(
    "eval",
    "measure",
    "Measure how well logdoctor diagnoses and learns.\n\n"
    "`logdoctor eval FOLDER` scores the diagnoses of a labelled corpus.",
)


@click.group(cls=ExitCodeGroup, context_settings={"help_option_names": ["-h", "--help"]})
@env_file_option
@click.version_option(package_name="logdoctor")
def cli() -> None:
    """Find the cause of a failed LLM training job in its log.

    Start with `logdoctor diagnose train.log`. A service, `logdoctor serve`, diagnoses jobs while they run, and keeps
    records in its data folder; `run` and `ship` send it logs.

    `cases`, `incidents`, `nodes`, `notify`, `report`, `rules` and `runs` show its records and act on them: with --url
    or LOGDOCTOR_URL they ask the service, else they use the data folder. `backup`, `doctor`, `restore`, `tokens` and
    `worker` work on the data folder itself. The other commands need neither.

    Exit codes: 0 no failure found, 1 a failure was diagnosed, 2 could not work, 130 interrupted.
    """


for _command in (
    diagnose,
    batch,
    compare,
    rules,
    cases,
    incidents,
    runs,
    nodes,
    notify,
    checkpoints,
    trials,
    measure,
    report,
    schema,
    completion,
    mcp,
    serve,
    worker,
    run_command,
    ship_command,
    tokens,
    config,
    doctor,
    backup,
    restore,
):
    cli.add_command(_command)


def main() -> None:
    """Run the command line; print `LogdoctorError` and exit with code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for ASCII-only terminals and file names that are not UTF-8
    compiling.watch(CompilingLine())
    try:
        with exit_codes(), translated():
            cli.main(prog_name="logdoctor", standalone_mode=True)
    except LogdoctorError as error:
        complain(error)
        sys.exit(COULD_NOT_WORK)
