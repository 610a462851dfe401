"""`python -m logdoctor.job.send run|ship`: the sender alone, for a node with nothing but Python."""

import argparse
import shlex
import sys
from collections.abc import Sequence

from logdoctor.errors import LogdoctorError, SendError
from logdoctor.job.send.environment import Environment, read_environment
from logdoctor.job.send.sources import sources
from logdoctor.job.send.target import Facts, ShippingTarget, make_target, named_after

COULD_NOT_WORK = 2
_TEXTS = {
    "name": "name of the job for people",
    "user": "user who submitted the job",
    "framework": "training framework, such as megatron",
    "launcher": "what starts the job, such as slurm or kubernetes",
    "image": "container image of the job",
    "checkpoint_dir": "folder of the checkpoints",
    "parent": "JOB/ATTEMPT that this one continues",
    "nodelist": "nodes of the job, such as gpu-[01-08]",
}
_NUMBERS = {"nodes": "number of nodes", "ranks_per_node": "ranks per node", "gpus": "number of GPUs"}


def main(arguments: Sequence[str] | None = None, program: str = "python -m logdoctor.job.send") -> int:
    """Run the sender and return its exit code; for `run` it is the command's. Also called by `logdoctor run` and
    `ship`."""
    given = _parser(program).parse_args(arguments)
    try:
        return run_given(given) if given.task == "run" else _ship(given)
    except LogdoctorError as error:
        print(f"logdoctor: {error}", file=sys.stderr)
        return COULD_NOT_WORK


def facts(given: dict[str, object], labels: Sequence[str], command: Sequence[str] = ()) -> Facts:
    """Return the facts about a job given as options, without None; `SendError` for a label without `=`."""
    found: dict[str, object] = {key: value for key, value in given.items() if value is not None}
    if command:
        found.setdefault("command", shlex.join(command)[:4096].encode("utf-8", "replace").decode())
    for label in labels:
        if not label.partition("=")[0] or "=" not in label:
            raise SendError(
                f"--label {label[:80]!r}", "is not in the form KEY=VALUE", "Write --label team=llm, for example."
            )
    if labels:
        found["labels"] = {label.partition("=")[0]: label.partition("=")[2] for label in labels}
    return found  # type: ignore[return-value] # texts and labels


def run_given(given: argparse.Namespace) -> int:
    """Run the command of `run` once and return its exit code; `SendError` when it cannot begin."""
    from logdoctor.job.send.run import run

    command = command_of(given)
    environment = read_environment()
    return run(
        command,
        target_of(given, environment, command),
        sources=lambda: sources(environment),
        witness_seconds=environment.witness_seconds,
        spool_folders=environment.spool_folders,
        spool_bytes=given.spool_bytes,
        drain_seconds=given.drain_seconds,
        slurm_job=environment.slurm_job,
        tells_verdict=environment.is_first,
    )


def command_of(given: argparse.Namespace) -> list[str]:
    """Return the command of `run`; `SendError` without one."""
    command = given.command_line[1:] if given.command_line[:1] == ["--"] else given.command_line
    if not command:
        raise SendError("run", "no command was given", "Put it after --: logdoctor run -- python train.py")
    return list(command)


def _ship(given: argparse.Namespace) -> int:
    environment = read_environment()
    if given.resume:
        from logdoctor.job.send.resume import GIVE_UP_SECONDS as RESUME_SECONDS
        from logdoctor.job.send.resume import resume

        token = make_target(environment, job="resume", token_file=given.token_file).token
        patience = RESUME_SECONDS if given.give_up_seconds is None else given.give_up_seconds
        if given.moved_from and not given.url:
            raise SendError("--from", "needs --url", "It says which service is at that URL now.")
        folders = environment.spool_folders[:1] if environment.names_spool else environment.spool_folders
        return resume(folders, url=given.url, token=token, moved_from=given.moved_from, give_up_seconds=patience)
    from logdoctor.job.send.ship import GIVE_UP_SECONDS, ship

    if not given.files:
        raise SendError("ship", "no file was given", "Name files, folders or patterns, or give --resume.")
    if given.end and given.follow:
        raise SendError("--end", "needs --no-follow", "A file that is followed has no end.")
    return ship(
        given.files,
        target_of(given, environment),
        spool_folders=environment.spool_folders,
        follow=given.follow,
        stream_from=given.stream_from,
        end=given.end,
        exit_code=given.exit_code,
        state_file=given.state,
        give_up_seconds=GIVE_UP_SECONDS if given.give_up_seconds is None else given.give_up_seconds,
    )


def target_of(given: argparse.Namespace, environment: Environment, command: Sequence[str] = ()) -> ShippingTarget:
    """Return where options and environment send logs; `SendError` when that is unusable."""
    options = {key: getattr(given, key) for key in (*_TEXTS, *_NUMBERS, "command")}
    return make_target(
        environment,
        job=given.job or environment.job or (named_after(command) if command else None),
        attempt=given.attempt,
        attempt_key=given.attempt_key,
        stream=getattr(given, "stream", None),
        url=given.url,
        token_file=given.token_file,
        metadata=facts(options, given.label, command),
    )


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description="Send logs to the service.", allow_abbrev=False)
    tasks = parser.add_subparsers(dest="task", required=True)
    run = tasks.add_parser(
        "run",
        allow_abbrev=False,
        help="run a command and send its output to the service",
        usage="%(prog)s [OPTIONS] -- COMMAND...",
        description="Run a command and send its output to the service. Exits with the exit code of the command.",
    )
    add_run_options(run)
    run.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command to run")
    ship = tasks.add_parser(
        "ship",
        allow_abbrev=False,
        help="follow log files and send them to the service",
        usage="%(prog)s --job JOB [OPTIONS] FILE...",
        description="Follow log files and send each as a stream to the service, until it is stopped.",
    )
    _common(ship)
    ship.add_argument("files", nargs="*", metavar="FILE", help="a file, a folder or a pattern such as '/logs/*.log'")
    ship.add_argument(
        "--follow",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="follow the files, like tail -F; default: follow",
    )
    ship.add_argument(
        "--stream-from",
        choices=("path", "name", "host"),
        default="path",
        help="what a stream is named after: the path, the name, or the host in the path; default: path",
    )
    ship.add_argument("--end", action="store_true", help="end the attempt when everything is sent")
    ship.add_argument("--exit-code", type=int, help="with --end: the exit code of the job")
    ship.add_argument(
        "--state", metavar="FILE", help="file that records what has been sent; default: one in the spool folder"
    )
    ship.add_argument(
        "--give-up-seconds",
        type=float,
        help="give up after so many seconds without progress; default: 300, with --resume 30",
    )
    ship.add_argument("--resume", action="store_true", help="send what earlier runs left in the spool folder")
    ship.add_argument(
        "--from",
        dest="moved_from",
        default="",
        metavar="URL",
        help="with --resume and --url: also send what was meant for this URL, because the service has moved",
    )
    return parser


def add_run_options(run: argparse.ArgumentParser) -> None:
    """Add the options of `run` to a parser."""
    _common(run)
    run.add_argument("--stream", help="name of the stream; default: the host, and the rank if there is one")
    run.add_argument(
        "--spool-bytes",
        type=positive,
        default=1 << 30,
        help="most bytes to buffer while the service cannot be reached",
    )
    run.add_argument(
        "--drain-seconds", type=float, default=30.0, help="how long to go on sending after the command has ended"
    )


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job", help="name of the job; default: LOGDOCTOR_JOB, SLURM_JOB_ID, or that of the command")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--attempt", type=int, help="number of the attempt; default: assigned by the service from the key"
    )
    which.add_argument(
        "--attempt-key", help="key that all processes of one attempt share; default: from Slurm, or random"
    )
    parser.add_argument("--url", help="URL of the service; default: LOGDOCTOR_URL or http://127.0.0.1:8080")
    parser.add_argument("--token-file", help="file with the token; default: LOGDOCTOR_TOKEN")
    for text, meaning in _TEXTS.items():
        parser.add_argument(f"--{text.replace('_', '-')}", help=meaning)
    parser.add_argument("--command", help="command that starts the job; default: the command given to run")
    for number, meaning in _NUMBERS.items():
        parser.add_argument(f"--{number.replace('_', '-')}", type=positive, help=meaning)
    parser.add_argument(
        "--label", action="append", default=[], metavar="KEY=VALUE", help="a label of the job; repeatable"
    )


def positive(text: str) -> int:
    """Parse an option's number; 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
