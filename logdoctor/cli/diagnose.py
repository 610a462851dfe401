"""`logdoctor diagnose`: find out why jobs failed, from their log files."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from logdoctor.cli.exits import COULD_NOT_WORK, FAILED, NOTHING_FAILED, complain, plain
from logdoctor.cli.options import local_only, settings_with
from logdoctor.errors import LogdoctorError
from logdoctor.settings import read_settings

if TYPE_CHECKING:
    from logdoctor.diagnose.ending import ReportedEnd
    from logdoctor.pipeline.attempts import AttemptFiles
    from logdoctor.types import Verdict

    Found = list[tuple[str, AttemptFiles | LogdoctorError]]
    Judge = Callable[[AttemptFiles | LogdoctorError, int], Verdict | LogdoctorError]

_MANY = 200  # streams of an attempt from which on reading progress is shown
_FEW = 5  # attempts up to which each has a panel
_NEIGHBOURS = 8  # logs that one process reads in turn: logs side by side print the same lines


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per attempt and line.")
@click.option(
    "--explain", is_flag=True, help="Also show whole quotes, why this cause and no other, and filtered lines."
)
@click.option("--ranks", is_flag=True, help="Also show the fate of every rank.")
@click.option("--short", is_flag=True, help="Print one line per attempt; default for more than five.")
@click.option("--each", is_flag=True, help="Every log in a folder is a job of its own.")
@click.option("--died", is_flag=True, help="The job failed, whatever its log says.")
@click.option("--exit-code", type=int, metavar="N", help="The exit code of the job; 0 means that it did not fail.")
@click.option("--follow", is_flag=True, help="Read standard input while it comes; also say when the job hangs.")
@click.option("--supervised", type=float, hidden=True, metavar="TIMES", help="With --follow, for a supervisor.")
@click.option("--beside", type=click.Path(path_type=Path), hidden=True, help="For a supervisor: witnesses kept there.")
@click.option("--ask", is_flag=True, help="If no rule knows the cause, search past cases, then ask the model.")
@click.option("--show-prompt", is_flag=True, help="With --ask: print what a model is sent of each failure; ask none.")
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
    ranks: bool,
    short: bool,
    each: bool,
    died: bool,
    exit_code: int | None,
    follow: bool,
    supervised: float | None,
    beside: Path | None,
    ask: bool,
    show_prompt: bool,
    data_dir: Path | None,
) -> None:
    """Diagnose why the job behind each PATH failed.

    A PATH is a log file (plain, gzip or Zstandard), a folder with one file for each rank, or - for standard input. With
    --each every log in a folder is a job of its own. `logdoctor batch` makes a table of them (CSV, Parquet) with a
    summary, and resumes an interrupted run.

    Where a log shows neither an end nor a failure, the outcome is `unknown`. Then --died or --exit-code says how the
    job ended; they apply to every PATH.

    With --follow a job is judged while it runs: a hang or a bad loss is printed at once, and the verdict on the whole
    log when its output ends.
    """
    from logdoctor.diagnose.ending import ReportedEnd

    if paths.count("-") > 1:
        raise click.UsageError("Standard input (-) can be given only once.")
    if (data_dir or show_prompt) and not ask:
        raise click.UsageError("--data-dir and --show-prompt need --ask: rules alone use no data folder and no model.")
    if short and (as_json or explain):
        raise click.UsageError("--short does not go with --json or --explain.")
    reported = ReportedEnd(exit_code=exit_code, died=died)
    if reported.contradicts_itself:
        raise click.UsageError("--died and --exit-code 0 contradict each other.")
    if follow:
        if paths != ("-",) or ask:
            raise click.UsageError("--follow reads standard input alone, without --ask: logdoctor diagnose --follow -")
        sys.exit(_followed(reported, as_json, explain, supervised))
    found = _found(paths, each)
    if beside:
        found = [(name, _with_witnesses(attempt, beside)) for name, attempt in found]
    short = short or (len(found) > _FEW and not explain and not ranks)
    worst = NOTHING_FAILED
    for name, result in (
        _by_ladder(found, data_dir, reported, show_prompt)
        if ask
        else _verdicts(found, reported, show_progress=not as_json)
    ):
        if isinstance(result, LogdoctorError):
            complain(result)
            worst = COULD_NOT_WORK
            continue
        if not show_prompt:
            _print(name, result, as_json, explain, ranks, short)
        if result.outcome == "failed":
            worst = max(worst, FAILED)
    sys.exit(worst)


def _followed(reported: "ReportedEnd", as_json: bool, explain: bool, supervised: float | None) -> int:
    """Judge standard input while it arrives; return the exit code. A supervisor also gets `{"suspect": true}` when a
    hang is suspected, and may extend the wait for hangs by the factor `supervised`."""
    from logdoctor.cli.growing import follow

    def told(verdict: "Verdict") -> None:
        _print("-", verdict, as_json, explain)

    def suspected(is_suspect: bool) -> None:
        if supervised is not None:
            click.echo(json.dumps({"suspect": is_suspect}))

    try:
        verdict = follow(reported, told, supervised or 1.0, suspected)
    except LogdoctorError as error:
        complain(error)
        return COULD_NOT_WORK
    _print("-", verdict, as_json, explain)
    return FAILED if verdict.outcome == "failed" else NOTHING_FAILED


def _found(paths: tuple[str, ...], each: bool) -> "Found":
    """Return the named attempts behind paths, or the error for a path without one."""
    from logdoctor.pipeline.attempts import attempts
    from logdoctor.pipeline.batch.sources import each_log

    found: Found = []
    for path in paths:
        try:
            if each and os.path.isdir(path):
                found += [(path if isinstance(one, LogdoctorError) else one.name, one) for one in each_log(path)]
                continue
            some = attempts(Path(path))
            found += [(attempt.name, attempt) for attempt in some]
            _say_what_is_taken(path, some)
        except LogdoctorError as error:
            found.append((path, error))
    return found


def _with_witnesses(attempt: "AttemptFiles | LogdoctorError", folder: Path) -> "AttemptFiles | LogdoctorError":
    """Add the streams that were kept beside a copy of an output."""
    from logdoctor.job.send.witnesses import kept
    from logdoctor.pipeline import LogFile

    if isinstance(attempt, LogdoctorError):
        return attempt
    streams = (LogFile(name, Path(path), name) for name, path in sorted(kept(str(folder)).items()))
    return attempt._replace(streams=(*attempt.streams, *streams))


def _say_what_is_taken(path: str, some: "list[AttemptFiles]") -> None:
    """Print that logs of a folder count as one job, unless their names show it."""
    from logdoctor.pipeline.batch.sources import are_of_one_job

    streams = [stream.name for stream in some[0].streams]
    tops = sorted({stream.split("/")[0] for stream in streams})
    if len(tops) > 1 and not are_of_one_job(tops):
        said = f"{len(streams):,} logs are taken for one job; with --each every log is a job of its own"
        click.echo(f"logdoctor: {plain(path)}: {said}.", err=True)


def _is_piped(attempt: "AttemptFiles | LogdoctorError") -> bool:
    return not isinstance(attempt, LogdoctorError) and str(attempt.streams[0].path) == "-"


def _by_ladder(
    found: "Found", data_dir: Path | None, reported: "ReportedEnd", show_prompt: bool
) -> "Iterator[tuple[str, Verdict | LogdoctorError]]":
    """Yield each attempt's name and verdict by rules, past cases and the model, in turn.

    When a model does not answer, print a warning and keep the verdict by rules. With `show_prompt` ask none, and print
    what it would be sent of each failure.
    """
    from logdoctor import wiring
    from logdoctor.pipeline.asking import Asking
    from logdoctor.wiring import failures

    settings = settings_with(data_dir)
    scanner = wiring.scanner(settings)
    climbing = failures.rungs(settings, scanner)
    taught, job = climbing.teacher.alive(), f"diagnose-{time.time_ns()}"
    asking = Asking(scanner, wiring.limits(settings), taught, climbing.ladder, job)
    for name, attempt in found:
        if isinstance(attempt, LogdoctorError):
            yield name, attempt
            continue
        try:
            question = asking.by_rule(attempt, reported)
        except LogdoctorError as error:
            yield name, error
            continue
        try:
            if show_prompt and climbing.prompt_for and question.verdict.outcome == "failed":
                click.echo(climbing.prompt_for(question))
            yield name, question.verdict if show_prompt else asking.ask(question)
        except LogdoctorError as error:
            complain(error)
            yield name, question.verdict


def _verdicts(
    found: "Found", reported: "ReportedEnd", show_progress: bool
) -> "Iterator[tuple[str, Verdict | LogdoctorError]]":
    """Yield each attempt's name and verdict, or its read error, in the order given."""
    from logdoctor import wiring

    settings = read_settings()
    scanner, limits = wiring.scanner(settings), wiring.limits(settings)

    def judge(attempt: "AttemptFiles | LogdoctorError", workers: int) -> "Verdict | LogdoctorError":
        from logdoctor import pipeline

        if isinstance(attempt, LogdoctorError):
            return attempt
        try:
            with _reading(len(attempt.streams), show_progress and workers != 1) as done:
                chosen = limits._replace(workers=workers)
                return pipeline.diagnose(attempt.streams, scanner, chosen, reported, done=done)
        except LogdoctorError as error:
            return error

    if len(found) == 1 or limits.workers == 1 or any(_is_piped(attempt) for _, attempt in found):
        yield from ((name, judge(attempt, limits.workers)) for name, attempt in found)
        return
    yield from _in_parallel(found, judge, limits.workers, show_progress)


@contextmanager
def _reading(streams: int, show_progress: bool) -> "Iterator[Callable[[int], None]]":
    """Yield a callback for the number of streams read. It shows progress when there are many."""
    if not show_progress or streams <= _MANY or not sys.stderr.isatty():
        yield lambda count: None
        return
    with click.progressbar(length=streams, label="reading", file=sys.stderr) as bar:
        yield lambda count: bar.update(count - bar.pos)


def _in_parallel(
    found: "Found", judge: "Judge", workers: int, show_progress: bool
) -> "Iterator[tuple[str, Verdict | LogdoctorError]]":
    """Diagnose many attempts, one process per core and one attempt at a time in each. The results come in order."""
    from logdoctor import pipeline
    from logdoctor.pipeline.batch.processes import Died, worked

    done: dict[int, Verdict | LogdoctorError] = {}
    count = 0
    with click.progressbar(
        length=len(found),
        label="diagnosing",
        file=sys.stderr,
        hidden=not (show_progress and sys.stderr.isatty()),
    ) as bar:
        places = range(len(found))
        processes = workers or pipeline.cores()
        for place, result in worked(lambda place: judge(found[place][1], 1), places, processes, _NEIGHBOURS):
            bar.update(1)
            done[place] = result.of(found[place][0]) if isinstance(result, Died) else result
            while count in done:
                yield found[count][0], done.pop(count)
                count += 1


def _print(
    name: str, verdict: "Verdict", as_json: bool, explain: bool, ranks: bool = False, short: bool = False
) -> None:
    if as_json:
        from logdoctor.types import as_json as encoded

        sys.stdout.buffer.write(encoded(verdict) + b"\n")
        sys.stdout.buffer.flush()
        return
    from logdoctor.words import panel

    if short:
        click.echo(panel.line(name, verdict))
    else:
        panel.show(name, verdict, explain, ranks)
