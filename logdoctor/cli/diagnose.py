"""`logdoctor diagnose`: find out why jobs failed, from their log files."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from logdoctor.cli.exits import COULD_NOT_WORK, FAILED, NOTHING_FAILED, complain
from logdoctor.cli.options import local_only, settings_with
from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.errors import LogdoctorError
from logdoctor.settings import read_settings

if TYPE_CHECKING:
    from logdoctor.attempts import AttemptFiles
    from logdoctor.types import Verdict

    Judge = Callable[[AttemptFiles | LogdoctorError, int], Verdict | LogdoctorError]


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per attempt and line.")
@click.option("--explain", is_flag=True, help="Also show follow-on errors and the lines that filter rules removed.")
@click.option("--died", is_flag=True, help="The job failed, whatever its log says.")
@click.option("--exit-code", type=int, metavar="N", help="The exit code of the job; 0 means that it did not fail.")
@click.option("--ask", is_flag=True, help="If no rule knows the cause, search past cases, then ask the model.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --ask: the data folder with the past cases.",
)
@local_only("it reads files of this machine; `logdoctor run` and `ship` send logs to a service")
def diagnose(
    paths: tuple[str, ...],
    as_json: bool,
    explain: bool,
    died: bool,
    exit_code: int | None,
    ask: bool,
    data_dir: Path | None,
) -> None:
    """Diagnose why the job behind each PATH failed.

    A PATH is a log file (plain, gzip or Zstandard), a folder with one file for each rank, or - for standard input.

    Where a log shows neither an end nor a failure, the outcome is `unknown`. Then --died or --exit-code says how the
    job ended; they apply to every PATH.
    """
    if paths.count("-") > 1:
        raise click.UsageError("Standard input (-) can be given only once.")
    if data_dir and not ask:
        raise click.UsageError("--data-dir needs --ask: rules alone use no data folder.")
    reported = ReportedEnd(exit_code=exit_code, died=died)
    if reported.contradicts_itself:
        raise click.UsageError("--died and --exit-code 0 contradict each other.")
    worst = NOTHING_FAILED
    for name, result in (
        _by_ladder(paths, data_dir, reported) if ask else _verdicts(paths, reported, show_progress=not as_json)
    ):
        if isinstance(result, LogdoctorError):
            complain(result)
            worst = COULD_NOT_WORK
            continue
        _print(name, result, as_json, explain)
        if result.outcome == "failed":
            worst = max(worst, FAILED)
    sys.exit(worst)


def _found(paths: tuple[str, ...]) -> "list[tuple[str, AttemptFiles | LogdoctorError]]":
    """Return the attempts behind paths with their names, or the error why there is none."""
    from logdoctor.attempts import attempts

    found: list[tuple[str, AttemptFiles | LogdoctorError]] = []
    for path in paths:
        try:
            found += [(attempt.name, attempt) for attempt in attempts(Path(path))]
        except LogdoctorError as error:
            found.append((path, error))
    return found


def _by_ladder(
    paths: tuple[str, ...], data_dir: Path | None, reported: ReportedEnd
) -> "Iterator[tuple[str, Verdict | LogdoctorError]]":
    """Yield each attempt's name and verdict by rules, past cases and the model, one after another.

    When a model does not answer, a warning is printed and the verdict by rules is kept.
    """
    from logdoctor import build
    from logdoctor.asking import Asking

    settings = settings_with(data_dir)
    scanner = build.scanner(settings)
    climbing = build.rungs(settings, scanner)
    taught, job = climbing.teacher.alive(), f"diagnose-{time.time_ns()}"
    asking = Asking(scanner, build.limits(settings), taught, climbing.ladder, job)
    for name, attempt in _found(paths):
        if isinstance(attempt, LogdoctorError):
            yield name, attempt
            continue
        try:
            question = asking.by_rule(attempt, reported)
        except LogdoctorError as error:
            yield name, error
            continue
        try:
            yield name, asking.ask(question)
        except LogdoctorError as error:
            complain(error)
            yield name, question.verdict


def _verdicts(
    paths: tuple[str, ...], reported: ReportedEnd, show_progress: bool
) -> "Iterator[tuple[str, Verdict | LogdoctorError]]":
    """Yield each attempt's name and verdict, or the error why it could not be read, in the order given."""
    from logdoctor import build

    settings = read_settings()
    scanner, limits = build.scanner(settings), build.limits(settings)
    found = _found(paths)

    def judge(attempt: "AttemptFiles | LogdoctorError", workers: int) -> "Verdict | LogdoctorError":
        from logdoctor import pipeline

        if isinstance(attempt, LogdoctorError):
            return attempt
        try:
            return pipeline.diagnose(attempt.streams, scanner, limits._replace(workers=workers), reported)
        except LogdoctorError as error:
            return error

    if len(found) == 1 or limits.workers == 1 or any(path == "-" for path in paths):
        yield from ((name, judge(attempt, limits.workers)) for name, attempt in found)
        return
    yield from _in_parallel(found, judge, limits.workers, show_progress)


def _in_parallel(
    found: "list[tuple[str, AttemptFiles | LogdoctorError]]", judge: "Judge", workers: int, show_progress: bool
) -> "Iterator[tuple[str, Verdict | LogdoctorError]]":
    """Diagnose many attempts: one process for each core, one attempt at a time in each."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from logdoctor import pipeline

    global _judge
    _judge = judge
    with (
        ProcessPoolExecutor(min(workers or pipeline.cores(), len(found)), mp_context=get_context("fork")) as pool,
        click.progressbar(
            length=len(found),
            label="diagnosing",
            file=sys.stderr,
            hidden=not (show_progress and sys.stderr.isatty()),
        ) as bar,
    ):
        for (name, _), result in zip(found, pool.map(_judge_alone, [attempt for _, attempt in found]), strict=True):
            bar.update(1)
            yield name, result


_judge: "Judge | None" = None  # set before workers are forked, so that they inherit the compiled rules


def _judge_alone(attempt: "AttemptFiles | LogdoctorError") -> "Verdict | LogdoctorError":
    assert _judge is not None
    return _judge(attempt, 1)


def _print(name: str, verdict: "Verdict", as_json: bool, explain: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(_json(verdict) + b"\n")
        sys.stdout.buffer.flush()
        return
    from logdoctor import show

    show.verdict(name, verdict, explain)


def _json(verdict: "Verdict") -> bytes:
    """Return a verdict on one line; bytes of a file's name that are not UTF-8 become question marks."""

    try:
        return msgspec.json.encode(verdict)
    except UnicodeEncodeError:
        import json

        return json.dumps(msgspec.to_builtins(verdict), ensure_ascii=False).encode("utf-8", "replace")
