"""`python -m logdoctor.job.recovery run`: `logdoctor run` with `--restart`, for a node with nothing but Python."""

import argparse
import math
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from logdoctor.errors import LogdoctorError, SendError
from logdoctor.job.recovery import contract, done, steps
from logdoctor.job.recovery.checkpoints import Checkpoints, FaultTolerantCheckpoints, NoCheckpoints
from logdoctor.job.recovery.death import death_of, leave_death
from logdoctor.job.recovery.deciding import Limits, explained
from logdoctor.job.recovery.judging import FirstOf, Judge, LocalJudge, ServiceJudge, can_diagnose, print_verdict
from logdoctor.job.recovery.lease import Lease, LeaseTaken
from logdoctor.job.recovery.node_tests import NOBODY, NodeTests
from logdoctor.job.recovery.running import Ended, Grace, Signals, aside
from logdoctor.job.recovery.supervisor import By, Options, Parts, Supervisor, job_folder
from logdoctor.job.recovery.watching import REASONS, FirstLook, LocalLook, Look, ServiceLook, Watching
from logdoctor.job.recovery.witness.states import States, states_of
from logdoctor.job.recovery.witness.taking import WAYS, Witness
from logdoctor.job.send.__main__ import COULD_NOT_WORK, add_run_options, command_of, positive, run_given, target_of
from logdoctor.job.send.child import die_by
from logdoctor.job.send.client import answers
from logdoctor.job.send.copy import NEWEST, read_copy
from logdoctor.job.send.environment import Environment, read_environment
from logdoctor.job.send.notices import ShippingNotices
from logdoctor.job.send.run import GIVEN_UP
from logdoctor.job.send.sources import sources
from logdoctor.job.send.target import ShippingTarget

FindCheckpoints = Callable[[str], Checkpoints]
"""Reads the checkpoints in a folder."""

_MOST_KEY = 180  # characters: leaves room for the attempt number
_SETTLING = 15.0  # seconds that the service's policy may take to propose actions
_STEP_SECONDS = 5  # CPU seconds for finding the last step in an output
_DRAIN_SHARE = 0.8  # of the wait for an unreachable service; the rest is for fetching its verdict
_DRAIN_BESIDE = 10.0  # seconds on top of those for sending the rest


def read_checkpoints(folder: str) -> Checkpoints:
    """Return the checkpoints in a folder; `SendError` where only the sender is installed."""
    try:
        from logdoctor.job.recovery.catalogue.supervised import FolderCheckpoints
    except ModuleNotFoundError as error:
        raise SendError("--checkpoints", "needs more than the sender", "Install logdoctor here.") from error
    return FolderCheckpoints(folder)


def main(
    arguments: Sequence[str] | None = None,
    program: str = "python -m logdoctor.job.recovery",
    find_checkpoints: FindCheckpoints = read_checkpoints,
) -> int:
    """Run `run` and return the command's exit code; with `--restart` one of `contract` where that says more."""
    given = options_of(sys.argv[1:] if arguments is None else arguments, program)
    if given.explain:
        print(f"After each attempt of a job the first row that applies decides.\n\n{explained(_limits(given))}")
        return 0
    try:
        return _supervised(given, find_checkpoints) if given.restart else _once(given)
    except LeaseTaken as error:
        print(f"logdoctor: {error}", file=sys.stderr)
        return contract.HELD
    except LogdoctorError as error:
        print(f"logdoctor: {error}", file=sys.stderr)
        return COULD_NOT_WORK


def options_of(arguments: Sequence[str], program: str = "logdoctor") -> argparse.Namespace:
    """Parse a command line; `SystemExit` for an unknown option."""
    return _parser(program).parse_args(arguments)


def _limits(given: argparse.Namespace) -> Limits:
    return Limits(
        max_restarts=given.max_restarts,
        no_progress=given.no_progress,
        doubt=given.doubt,
        restart_unknown=given.restart_unknown,
        delay=given.delay,
    )


def _once(given: argparse.Namespace) -> int:
    defaults = vars(options_of(["run"]))
    for name in _RESTART_ONLY:
        if getattr(given, name) != defaults[name]:
            raise SendError(f"--{name.replace('_', '-')}", "needs --restart", "Nothing is restarted without that.")
    environment = read_environment()
    named = given.url or environment.names_service
    if named or not can_diagnose() or answers(environment.url):
        return run_given(given)
    return _alone(given, environment)


def _alone(given: argparse.Namespace, environment: Environment) -> int:
    """Run the command without a service: send nothing, and print the verdict on a failure here."""
    from logdoctor.job.send.run import run

    command = command_of(given)
    try:
        folder: str | None = tempfile.mkdtemp(prefix="logdoctor-run-")
    except OSError:  # the command still runs
        folder = None

    def ended(code: int, _was_asked: bool) -> None:
        if folder:
            try:
                if code and code not in GIVEN_UP and environment.is_first:
                    print_verdict(folder, code)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    return run(
        command,
        None,
        spool_folders=(),
        spool_bytes=given.spool_bytes,
        slurm_job=environment.slurm_job,
        copy_folder=folder,
        sources=lambda: sources(environment),
        witness_seconds=environment.witness_seconds,
        ended=ended,
    )


class _Asked(NamedTuple):
    """What was asked for: options, command, environment, and where logs go."""

    given: argparse.Namespace
    command: Sequence[str]
    environment: Environment
    target: ShippingTarget


def _supervised(given: argparse.Namespace, find_checkpoints: FindCheckpoints) -> int:
    """Supervise the command as the options say; return its exit code, or die of the signal that killed it."""
    command, environment = command_of(given), read_environment()
    asked = _Asked(given, command, environment, target_of(given, environment, command))
    options = _options(asked)
    folder = job_folder(_states(given, environment), asked.target.job)
    lease = Lease(folder, asked.target.job)
    signals = Signals()
    parts = _parts(asked, folder, signals, options, find_checkpoints)
    ended = Supervisor(folder, asked.target.job, asked.target.attempt_key, options, parts).supervise()
    lease.release()
    return _as_the_command(ended, signals) if isinstance(ended, Ended) else ended


def _parts(asked: _Asked, folder: str, signals: Signals, options: Options, find_checkpoints: FindCheckpoints) -> Parts:
    """Return the parts of a supervisor; without a URL nothing is sent, and the output is diagnosed here."""
    given = asked.given
    target = asked.target if given.url or asked.environment.names_service else None

    away_seconds = given.away_seconds if can_diagnose() else math.inf

    def away_until(key: str) -> float:
        death = death_of(folder, key)
        return (death.at if death else time.monotonic()) + away_seconds

    def run_once(key: str, further: Sequence[str]) -> int:
        from logdoctor.job.send.run import run

        def ended(code: int, was_asked: bool) -> None:  # the supervisor may be dead by then
            if code == 0 and not was_asked:
                done.mark(os.path.join(folder, done.MARK))

        return run(
            [*asked.command, *further],
            target._replace(attempt_key=key, key_is_made_up=False) if target else None,
            spool_folders=asked.environment.spool_folders,
            spool_bytes=given.spool_bytes,
            sources=lambda: sources(asked.environment, key),
            witness_seconds=asked.environment.witness_seconds,
            drain_seconds=given.drain_seconds,
            away_seconds=_DRAIN_SHARE * away_seconds,
            slurm_job=asked.environment.slurm_job,
            copy_folder=folder,
            asides_folder=folder if given.end_on else None,
            died=lambda status: leave_death(folder, key, status),
            ended=ended,
        )

    pattern = steps.declared(asked.environment.progress)

    def last_step() -> int | None:
        found = aside(lambda: str(steps.last_step(read_copy(folder), pattern)), signals, _STEP_SECONDS)
        return int(found) if found.isdecimal() else None

    judges: list[Judge] = [LocalJudge(folder)]
    where = f"The output that it is about: {os.path.join(folder, NEWEST)}"
    if target:
        asks = ServiceJudge(target, given.verdict_seconds, signals.sleep, not options.key_is_whole, away_until)
        judges.insert(0, asks)
    notices = ShippingNotices()
    found = (
        FaultTolerantCheckpoints(find_checkpoints(given.checkpoints), notices.say)
        if given.checkpoints
        else NoCheckpoints()
    )
    nodes = NodeTests(target, min(_SETTLING, given.nodes_seconds / 4)) if target else lambda _: NOBODY
    return Parts(
        run_once,
        FirstOf(judges),
        nodes,
        found,
        signals,
        notices,
        _watch(asked, folder, target, notices, options.stacks),
        lambda: f"Its page: {asks.page}" if target else where,
        last_step,
        pattern is not None,
    )


def _watch(
    asked: _Asked, folder: str, target: ShippingTarget | None, notices: ShippingNotices, stacks: tuple[str, ...]
) -> Callable[[str, float], int] | None:
    """Return what watches a running attempt; None when nothing may end it early."""
    reasons = _chosen("--end-on", asked.given.end_on, tuple(REASONS), "reason")
    if stacks and "hang" not in reasons:
        raise SendError("--stacks", "is for jobs that hang", "Give --end-on hang, too.")
    if not reasons:
        return None
    witness = Witness(folder, stacks, notices.say).lines if stacks else None

    def look_at(key: str, times: float) -> Look:
        if target is None or (times > 1 and can_diagnose()):  # the service has only the usual patience
            return LocalLook(folder, times)
        return FirstLook(ServiceLook(target, key), LocalLook(folder))

    def states(key: str) -> States:
        return states_of(key, folder, notices.say)

    is_for_hangs = "hang" in reasons
    return Watching(
        folder, look_at, reasons, notices.say, asked.given.dry_run, witness, states if is_for_hangs else None
    ).watch


def _chosen(option: str, given: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list; `SendError` for an unknown one."""
    names = tuple(filter(None, (name.strip() for name in given.split(","))))
    for name in names:
        if name not in known:
            raise SendError(f"{option} {name[:40]!r}", f"is no such {what}", f"Choose of {', '.join(known)}.")
    return names


def _options(asked: _Asked) -> Options:
    """Return how the job is supervised; `SendError` for an unusable option."""
    given, environment, target = asked.given, asked.environment, asked.target
    if given.attempt is not None:
        raise SendError("--attempt", "does not go with --restart", "Every attempt gets a number of its own.")
    if len(target.attempt_key) > _MOST_KEY:
        raise SendError("--attempt-key", "is too long", f"Use at most {_MOST_KEY} characters.")
    if environment.in_step:
        raise SendError("--restart", "is in a task of a step of Slurm", "Put it around srun, in the batch script.")
    by: By = given.restart_by or ("slurm" if environment.batch else "here")
    if by == "slurm" and environment.batch is None:
        raise SendError("--restart-by slurm", "is not in a batch script", "SLURM_JOB_ID is not set.")
    return Options(
        _limits(given),
        by,
        given.dry_run,
        Grace(given.grace, given.drain_seconds + _DRAIN_BESIDE + environment.witness_seconds),
        given.nodes_seconds,
        _words("--resume-arg", given.resume_arg, "{checkpoint}"),
        _words("--skip-arg", given.skip_arg, "{ranges}"),
        given.skip_batches,
        by == "exit-code" and not target.key_is_made_up,
        environment.batch,
        _chosen("--stacks", given.stacks or environment.stacks, WAYS, "way"),
        environment.master_port,
    )


def _words(option: str, template: str | None, place: str) -> tuple[str, ...]:
    """Split a template into words; `SendError` when it cannot be used."""
    if template is None:
        return ()
    try:
        words = tuple(shlex.split(template))
    except ValueError as error:
        raise SendError(f"{option} {template[:80]!r}", f"cannot be read ({error})", "Close its quotes.") from error
    if not any(place in word for word in words):
        raise SendError(f"{option} {template[:80]!r}", f"does not contain {place}", f"Write {option} '--x {place}'.")
    return words


def _states(given: argparse.Namespace, environment: Environment) -> str:
    folder = given.state or environment.state_folder
    if not folder:
        raise SendError("--state", "no folder is known for the state of the job", "Give --state, or set HOME.")
    return os.path.abspath(folder)


def _as_the_command(ended: Ended, signals: Signals) -> int:
    """Return the command's exit code, or die of the signal that killed it."""
    if os.WIFSIGNALED(ended.status):
        signals.forget()
        die_by(os.WTERMSIG(ended.status))
    return ended.code


_RESTART_ONLY = (
    "max_restarts", "no_progress", "resume_arg", "skip_arg", "skip_batches", "checkpoints", "dry_run",
    "end_on", "stacks", "restart_unknown", "restart_by", "doubt", "delay", "grace", "nodes_seconds", "verdict_seconds",
    "away_seconds", "state",
)  # fmt: skip


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, allow_abbrev=False)
    run = parser.add_subparsers(dest="task", required=True).add_parser(
        "run",
        allow_abbrev=False,
        help="run a command and send its output to the service",
        usage="%(prog)s [OPTIONS] [--restart] -- COMMAND...",
        description="Run a command and send its output to the service. Exits with the exit code of the command. With "
        "--restart it is started again where its verdict says that this helps. Without a URL, and with no service on "
        "this machine, nothing is sent, and a failure is diagnosed here.",
    )
    add_run_options(run)
    _add_restart_options(run)
    run.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command to run")
    return parser


def _add_restart_options(run: argparse.ArgumentParser) -> None:
    add = run.add_argument_group("starting it again", "see docs/recovery.md").add_argument
    add("--restart", action="store_true", help="start the command again where its verdict says that this helps")
    add("--explain", action="store_true", help="print by which rules it is decided what follows, and run nothing")
    add("--dry-run", action="store_true", help="say after the first attempt what would be done, and do not do it")
    add("--max-restarts", type=positive, default=8, help="most restarts without progress; default: 8")
    add("--no-progress", type=positive, default=3, help="attempts without progress that end alike; default: 3")
    add("--end-on", metavar="REASONS", default="", help="end it while it runs: hang, loss-spike, or both")
    add("--stacks", metavar="WAYS", default="", help="ask ranks where they hang: faulthandler, py-spy, flight-recorder")
    add("--restart-unknown", action="store_true", help="start it again although the cause is unknown")
    add("--doubt", type=_share, default=0.7, help="a verdict less sure than this waits for a person; default: 0.7")
    add("--delay", type=_seconds, default=10.0, help="first wait before a restart without progress; it doubles")
    add("--grace", type=_seconds, default=60.0, help="seconds to save after SIGTERM or SIGINT; default: 60")
    add("--checkpoints", metavar="FOLDER", help="folder of the checkpoints; the best one is chosen")
    add("--resume-arg", metavar="TEXT", help="arguments that load a checkpoint, such as '--load {checkpoint}'")
    add("--skip-arg", metavar="TEXT", help="arguments that leave batches out, such as '--skip {ranges}'")
    add("--skip-batches", type=positive, default=200, help="batches left out from a loss spike on; default: 200")
    add("--restart-by", choices=("here", "slurm", "exit-code"), help="who starts it; default: slurm in a batch script")
    add("--verdict-seconds", type=_seconds, default=120.0, help="how long to wait for the verdict of the service")
    add("--away-seconds", type=_seconds, default=10.0, help="how long to wait for a service that does not answer")
    add("--nodes-seconds", type=_seconds, default=600.0, help="how long to wait for the tests of nodes")
    add("--state", metavar="FOLDER", help="folder for records of jobs; default: LOGDOCTOR_STATE_DIR")


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1e7:
        raise argparse.ArgumentTypeError("must be a number of seconds")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError("must be from 0 to 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
