"""The command line.

Heavy parts are imported inside the commands, so that `--help` stays fast.
"""

import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from logdoctor.errors import ConfirmationRefused, LogdoctorError, RuleRefused, StoreError
from logdoctor.settings import data_folder, read_settings
from logdoctor.taxonomy import FAULTS, REASONS, RECOVERIES

if TYPE_CHECKING:
    from logdoctor.attempts import Attempt
    from logdoctor.evaluate_model import Rules
    from logdoctor.live.confirming import Ruling
    from logdoctor.settings import Settings
    from logdoctor.store.archive import Archive
    from logdoctor.store.confirmed import Confirmation, Confirmed
    from logdoctor.store.learned import Learned, LearnedRules
    from logdoctor.store.records import Records, StoredVerdict
    from logdoctor.store.tokens import Tokens
    from logdoctor.types import Verdict

    Judge = Callable[[Attempt | LogdoctorError, int], Verdict | LogdoctorError]

NOTHING_FAILED, FAILED, COULD_NOT_WORK = 0, 1, 2


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="logdoctor")
def cli() -> None:
    """Finds the cause of a failed LLM training job in its log.

    Exit codes: 0 no failure found, 1 a failure was diagnosed, 2 could not work.
    """


@cli.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each attempt, a line each.")
@click.option("--explain", is_flag=True, help="Also show what was explained away and what the filter rules took.")
@click.option("--ask", is_flag=True, help="When no rule knows the cause look among past cases, then ask the model.")
@click.option(
    "--data-dir", type=click.Path(file_okay=False, path_type=Path), help="With --ask: data folder with the past cases."
)
def diagnose(paths: tuple[str, ...], as_json: bool, explain: bool, ask: bool, data_dir: Path | None) -> None:
    """Say why the job behind each PATH failed.

    A PATH is a log file (plain, gzip or Zstandard), a folder with one file for each rank, or - for
    standard input.
    """
    if paths.count("-") > 1:
        raise click.UsageError("standard input (-) can be read only once.")
    if data_dir and not ask:
        raise click.UsageError("--data-dir is for --ask: rules alone need no data folder.")
    worst = NOTHING_FAILED
    for name, result in _asked(paths, data_dir) if ask else _verdicts(paths, show_progress=not as_json):
        if isinstance(result, LogdoctorError):
            _complain(result)
            worst = COULD_NOT_WORK
            continue
        _print(name, result, as_json, explain)
        if result.outcome == "failed":
            worst = max(worst, FAILED)
    sys.exit(worst)


def _found(paths: tuple[str, ...]) -> "list[tuple[str, Attempt | LogdoctorError]]":
    """The attempts behind paths with their names, or why there is none."""
    from logdoctor.attempts import attempts

    found: list[tuple[str, Attempt | LogdoctorError]] = []
    for path in paths:
        try:
            found += [(attempt.name, attempt) for attempt in attempts(Path(path))]
        except LogdoctorError as error:
            found.append((path, error))
    return found


def _asked(paths: tuple[str, ...], data_dir: Path | None) -> "Iterator[tuple[str, Verdict | LogdoctorError]]":
    """Each attempt's name and verdict by rules, past cases and the model, one after another.

    A model that does not answer is complained about, and the verdict by rules stays.
    """
    from logdoctor import build
    from logdoctor.asking import Asking

    settings = _settings(data_dir)
    scanner = build.scanner(settings)
    climbing = build.rungs(settings, scanner)
    taught, job = climbing.teacher.alive(), f"diagnose-{time.time_ns()}"
    asking = Asking(scanner, build.limits(settings), taught, climbing.ladder, job)
    for name, attempt in _found(paths):
        if isinstance(attempt, LogdoctorError):
            yield name, attempt
            continue
        try:
            question = asking.by_rule(attempt)
        except LogdoctorError as error:
            yield name, error
            continue
        try:
            yield name, asking.ask(question)
        except LogdoctorError as error:
            _complain(error)
            yield name, question.verdict


def _verdicts(paths: tuple[str, ...], show_progress: bool) -> "Iterator[tuple[str, Verdict | LogdoctorError]]":
    """Each attempt's name and verdict, or why it could not be read, in the order given."""
    from logdoctor import build

    settings = read_settings()
    scanner, limits = build.scanner(settings), build.limits(settings)
    found = _found(paths)

    def judge(attempt: "Attempt | LogdoctorError", workers: int) -> "Verdict | LogdoctorError":
        from logdoctor import pipeline

        if isinstance(attempt, LogdoctorError):
            return attempt
        try:
            return pipeline.diagnose(attempt.streams, scanner, limits._replace(workers=workers))
        except LogdoctorError as error:
            return error

    if len(found) == 1 or limits.workers == 1 or any(path == "-" for path in paths):
        yield from ((name, judge(attempt, limits.workers)) for name, attempt in found)
        return
    yield from _in_parallel(found, judge, limits.workers, show_progress)


def _in_parallel(
    found: "list[tuple[str, Attempt | LogdoctorError]]", judge: "Judge", workers: int, show_progress: bool
) -> "Iterator[tuple[str, Verdict | LogdoctorError]]":
    """Many attempts: one process for each core, one attempt at a time in each."""
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


def _judge_alone(attempt: "Attempt | LogdoctorError") -> "Verdict | LogdoctorError":
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
    """A verdict on one line; bytes of a file's name that are not UTF-8 come out as question marks."""
    import msgspec

    try:
        return msgspec.json.encode(verdict)
    except UnicodeEncodeError:
        import json

        return json.dumps(msgspec.to_builtins(verdict), ensure_ascii=False).encode("utf-8", "replace")


_data_dir = click.option(
    "--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Data folder of the service."
)


def _settings(data_dir: Path | None) -> "Settings":
    import msgspec

    settings = read_settings()
    return msgspec.structs.replace(settings, data_dir=data_dir) if data_dir else settings


def _served(data_dir: Path | None) -> "Settings":
    """The settings with the data folder; `StoreError` when it has no database: none is made to look into it."""
    settings = _settings(data_dir)
    if not _has_records(settings):
        raise StoreError(str(data_folder(settings)), "holds no records", "Name the service's folder with --data-dir.")
    return settings


def _learned(data_dir: Path | None) -> "LearnedRules":
    """The learned rules of the data folder; `StoreError` when there is no database."""
    from logdoctor import build

    return build.learned_rules(_served(data_dir))


def _learned_if_any(data_dir: Path | None) -> "LearnedRules | None":
    """The learned rules; None when there is no database, unless a folder was named."""
    return _learned(data_dir) if data_dir or _has_records(read_settings()) else None


def _has_records(settings: "Settings") -> bool:
    return bool(settings.database_url) or (data_folder(settings) / "logdoctor.db").exists()


@cli.group()
def rules() -> None:
    """Look at the rules, check them, and decide about those that were learned."""


_STATUSES = ("proposed", "shadow", "active", "retired")
_kind = click.option("--kind", help="Only rules learned from jobs of this kind.")


@rules.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each rule, a line each.")
@click.option("--learned/--shipped", default=None, help="Only learned rules, or only those that came with logdoctor.")
@click.option("--waiting", is_flag=True, help="Only learned rules that wait for a human.")
@click.option("--status", type=click.Choice(_STATUSES), help="Only rules of this status.")
@_kind
@click.option("--agent", help="Only rules learned by this agent.")
@_data_dir
def rules_list(
    as_json: bool,
    learned: bool | None,
    waiting: bool,
    status: str | None,
    kind: str | None,
    agent: str | None,
    data_dir: Path | None,
) -> None:
    """List the rules, shipped and learned."""
    from logdoctor import build, show

    if waiting and status not in (None, "proposed", "shadow"):
        raise click.UsageError("rules that wait are `proposed`, or in `shadow`.")
    narrow = waiting or kind is not None or agent is not None
    if narrow and learned is False:
        raise click.UsageError("--waiting, --kind and --agent are for learned rules.")
    alone = bool(learned or narrow)
    found = None if learned is False else _learned(data_dir) if alone else _learned_if_any(data_dir)
    if not alone:
        show.rules(build.rule_book(read_settings()), as_json, status)
    if found is not None:
        every = found.list(kind, status, agent)
        show.learned_rules([one for one in every if show.waits(one)] if waiting else every, as_json, alone)


@rules.command("show")
@click.argument("rule_id")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; of a learned rule with its events.")
@_data_dir
def rules_show(rule_id: str, as_json: bool, data_dir: Path | None) -> None:
    """Print one rule.

    Of a learned rule also where it comes from, its votes, its hits and all its steps.
    """
    from logdoctor import build, show

    if rule_id.startswith("learned/"):
        found = _learned(data_dir)
        show.learned_rule(found.one(rule_id), found.events(rule_id, limit=500), as_json)
    else:
        show.rule(build.rule_book(read_settings()).rule(rule_id), as_json)


@rules.command("check")
def rules_check() -> None:
    """Verify every rule with the examples it carries."""
    from logdoctor import build
    from logdoctor.rules.check import check

    scanner = build.unchecked_scanner(read_settings())
    problems = check(scanner.book, scanner)
    for problem in problems:
        click.echo(str(problem))
    book = scanner.book
    click.echo(f"{len(book.filters)} filter rules, {len(book.diagnoses)} diagnosis rules, {len(problems)} problems")
    sys.exit(COULD_NOT_WORK if problems else 0)


@rules.command("why")
@click.argument("line")
@_kind
@_data_dir
def rules_why(line: str, kind: str | None, data_dir: Path | None) -> None:
    """Show what the rules do to LINE, and why.

    Which hit it, why others that match it do not count, and why it stays when none takes it.
    """
    from logdoctor import build, show
    from logdoctor.review.why import why_learned

    line = os.fsencode(line).decode("utf-8", "replace").removesuffix("\n")
    if "\n" in line:
        raise click.UsageError("LINE must be one line.")
    found = _learned(data_dir) if kind is not None else _learned_if_any(data_dir)
    show.why(why_learned(build.unchecked_scanner(read_settings()), found.list(kind) if found else [], line))


_ids = click.argument("ids", nargs=-1, required=True, metavar="ID...")
_why = click.option("--why", default="", help="The reason, for those who ask later.")
_by = click.option("--by", help="Who takes the step; default: your login name.")


@rules.command("approve")
@_ids
@_why
@_by
@click.option(
    "--from", "seen_as", type=click.Choice(_STATUSES[:2]), help="Only if it has this status: one step, not two."
)
@_data_dir
def rules_approve(ids: tuple[str, ...], why: str, by: str | None, seen_as: str | None, data_dir: Path | None) -> None:
    """Let learned rules go a step further.

    Proposed and retired ones come into shadow, where they are watched; those in shadow become active.

    A rule that waits because its lines look like trouble may take such lines from then on.
    """
    _steps(ids, data_dir, lambda found, rule_id: found.approve(rule_id, by or _login(), why, time.time(), seen_as))


@rules.command("retire")
@_ids
@_why
@_by
@_data_dir
def rules_retire(ids: tuple[str, ...], why: str, by: str | None, data_dir: Path | None) -> None:
    """Stop learned rules; approve brings them back."""
    _steps(ids, data_dir, lambda found, rule_id: found.retire(rule_id, by or _login(), why, time.time()))


@rules.command("undo")
@_ids
@_why
@_by
@_data_dir
def rules_undo(ids: tuple[str, ...], why: str, by: str | None, data_dir: Path | None) -> None:
    """Take back the latest step of rules, whoever took it."""
    _steps(ids, data_dir, lambda found, rule_id: found.undo(rule_id, by or _login(), why, time.time()))


def _steps(ids: tuple[str, ...], data_dir: Path | None, step: "Callable[[LearnedRules, str], Learned]") -> None:
    """Take a step with each rule; one that cannot take it does not keep the others from it."""
    from logdoctor import show

    found = _learned(data_dir)
    refused = False
    for rule_id in dict.fromkeys(ids):
        try:
            before = found.one(rule_id).status
            show.step(before, step(found, rule_id))
        except RuleRefused as error:
            _complain(error)
            refused = True
    sys.exit(COULD_NOT_WORK if refused else 0)


def _login() -> str:
    """The login name of who runs this, which no variable can change."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


@rules.command("export")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--status", type=click.Choice(_STATUSES), default="active", show_default=True, help="Rules to export.")
@_kind
@click.option("--force", is_flag=True, help="Overwrite files that hold something else.")
@_data_dir
def rules_export(folder: Path, status: str, kind: str | None, force: bool, data_dir: Path | None) -> None:
    """Write learned rules to files.

    Each goes to a YAML file below FOLDER/filter/learned: for review, for `rules import`, or to be copied below rules/.
    """
    from logdoctor.review.files import export

    found = _learned(data_dir)
    exported = export(found.list(kind, status), found, folder, force)
    click.echo(f"{len(exported.written)} rules written, {len(exported.same)} were there already")


@rules.command("import")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@click.option("--kind", help="Kind of jobs of rules that name none in their `scope`.")
@_by
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each rule, a line each.")
@_data_dir
def rules_import(
    paths: tuple[Path, ...], kind: str | None, by: str | None, as_json: bool, data_dir: Path | None
) -> None:
    """Enter rules of files, when the guards let them pass.

    PATHs are YAML files or folders of them. The rules begin in shadow, or wait for a human.
    Of a file with a rule that is refused nothing is entered.
    """
    from functools import partial

    from logdoctor import build, show
    from logdoctor.review.files import MOST_RULES, content_of, files_below
    from logdoctor.review.imports import File, import_files

    found, settings = _learned(data_dir), _settings(data_dir)
    files = [File(str(path), partial(content_of, path)) for path in files_below(paths)]
    scanner, records = build.scanner(settings), build.records(settings)
    guards = build.guards(settings, scanner.book, records)
    others = build.diagnosis_guards(scanner, records)
    told = import_files(files, kind, guards, found, by or _login(), time.time(), MOST_RULES, others)
    show.imported(told, as_json)
    sys.exit(COULD_NOT_WORK if any(one.outcome in ("refused", "held") for one in told) else 0)


@cli.group()
def cases() -> None:
    """Look at past failures, and say what failures were."""


_REASON = click.Choice([name for name in REASONS if name != "Unknown"], case_sensitive=False)
_verdict = click.argument("verdict", metavar="VERDICT")
_fix = click.option("--fix", default="", help="What fixed it.")
_comment = click.option("--comment", default="", help="Anything else.")
_suggestion = click.option("--suggestion", default="", help="What to do next time.")


def _confirmed(data_dir: Path | None) -> "Confirmed":
    """What was confirmed, of the data folder; `StoreError` when there is no database."""
    from logdoctor import build
    from logdoctor.store.confirmed import Confirmed

    return Confirmed(build.records(_served(data_dir)).database)


@cases.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each case, a line each.")
@click.option("--reason", help="Only cases of this reason.")
@click.option("--withdrawn", is_flag=True, help="Also those that were withdrawn or replaced.")
@_data_dir
def cases_list(as_json: bool, reason: str | None, withdrawn: bool, data_dir: Path | None) -> None:
    """List past cases, the newest first."""
    from logdoctor import show

    found = _confirmed(data_dir)

    def every() -> "Iterator[Confirmation]":
        cursor = None
        while True:
            page = found.page(cursor, 500, reason, withdrawn)
            yield from page.items
            if (cursor := page.next) is None:
                return

    show.cases(every(), as_json)


@cases.command("show")
@click.argument("case_id", type=click.IntRange(1), metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@_data_dir
def cases_show(case_id: int, as_json: bool, data_dir: Path | None) -> None:
    """Print one past case: what it was, who says so, what fixed it, and the lines that prove it."""
    from logdoctor import show

    show.case(_confirmed(data_dir).one(case_id), as_json)


@cases.command("confirm")
@_verdict
@_fix
@_comment
@_suggestion
@_by
@_data_dir
def cases_confirm(verdict: str, fix: str, comment: str, suggestion: str, by: str | None, data_dir: Path | None) -> None:
    """Say that a verdict is right.

    VERDICT is its number, or JOB/ATTEMPT for the one that stands.
    It becomes a case, which decides about failures that look the same.
    """
    from logdoctor.live.confirming import Ruling

    _say(verdict, by, data_dir, Ruling(fix=fix, comment=comment, suggestion=suggestion))


@cases.command("correct")
@_verdict
@click.option("--reason", required=True, type=_REASON, metavar="REASON", help="What it was, such as 'Key Error'.")
@click.option("--recovery", type=click.Choice(RECOVERIES[:-1]), help="What to do; default: as usual for the reason.")
@click.option("--fault", type=click.Choice(FAULTS), help="Whose fault; default: as usual for the reason.")
@click.option("--line", "lines", multiple=True, metavar="STREAM:NUMBER", help="A line that proves it; repeatable.")
@_fix
@_comment
@_suggestion
@_by
@_data_dir
def cases_correct(
    verdict: str,
    reason: str,
    recovery: str | None,
    fault: str | None,
    lines: tuple[str, ...],
    fix: str,
    comment: str,
    suggestion: str,
    by: str | None,
    data_dir: Path | None,
) -> None:
    """Say what a failure was instead.

    VERDICT is its number, or JOB/ATTEMPT for the one that stands.
    Without --line the lines count that look worst.
    """
    from logdoctor.live.confirming import Ruling

    evidence = tuple(_line(line) for line in lines)
    _say(verdict, by, data_dir, Ruling(reason, recovery or "", fault or "", fix, comment, suggestion, evidence))


def _line(text: str) -> tuple[str, int]:
    stream, _, number = text.rpartition(":")
    if not stream or not number.isascii() or not number.isdecimal() or len(number) > 15:
        raise click.UsageError(f"--line {text!r} is not STREAM:NUMBER.")
    return stream, int(number)


def _say(verdict: str, by: str | None, data_dir: Path | None, ruling: "Ruling") -> None:
    """Enter what a person says of a verdict; a running service teaches it."""
    from functools import partial

    from logdoctor import build, show
    from logdoctor.compress.kept import revived
    from logdoctor.live.confirming import confirmation
    from logdoctor.store.archive import Archive
    from logdoctor.store.confirmed import Confirmed

    settings = _served(data_dir)
    records = build.records(settings)
    stored = _stored(records, verdict)
    confirmed = Confirmed(records.database)
    scanner, past = build.scanner(settings), confirmed.kept(stored.job, stored.attempt)
    known = revived(past.lines, scanner) if past is not None else []
    text_of = partial(_archived_line, Archive(data_folder(settings) / "archive"), stored.job, stored.attempt)
    new = confirmation(stored, known, scanner.book, by or _login(), ruling, text_of)
    show.entered(confirmed.add(new, time.time()))


def _stored(records: "Records", verdict: str) -> "StoredVerdict":
    """The verdict with a number, or the one that stands on JOB/ATTEMPT."""
    from logdoctor.store.names import checked, checked_attempt

    job, _, number = verdict.rpartition("/")
    if not number.isascii() or not number.isdecimal() or len(number) > 18:
        raise click.UsageError(f"{verdict!r} is neither the number of a verdict nor JOB/ATTEMPT.")
    if job:
        found = records.current(checked("job", job), checked_attempt(int(number)))
    else:
        found = records.verdict(int(number))
    if found is None:
        raise ConfirmationRefused(f"verdict {verdict}", "does not exist", "Look at the page of the job.")
    return found


def _archived_line(archive: "Archive", job: str, attempt: int, stream: str, number: int) -> str | None:
    """A raw line of an attempt; None when its archive does not have it."""
    from logdoctor.store.archive import lines_of
    from logdoctor.store.names import Key
    from logdoctor.text import decode

    if number < 1 or stream not in archive.streams(job, attempt):
        return None
    file = archive.open(Key(job, attempt, stream))
    begin, chunks = file.from_line(number, file.offset)
    found = lines_of(chunks, begin, number, number, 1 << 20).lines
    return decode(found[0]) if found else None


@cases.command("withdraw")
@click.argument("case_id", type=click.IntRange(1), metavar="ID")
@_why
@_by
@_data_dir
def cases_withdraw(case_id: int, why: str, by: str | None, data_dir: Path | None) -> None:
    """Let a case decide nothing any more; it stays on record."""
    withdrawn = _confirmed(data_dir).withdraw(case_id, by or _login(), why, time.time())
    click.echo(f"case {withdrawn.id} decides nothing any more")


@cases.command("reindex")
@_data_dir
def cases_reindex(data_dir: Path | None) -> None:
    """Build the vectors anew by which past cases are searched.

    They are made of the cases in the database, so nothing is lost. Needed when they are damaged; another embedding
    model makes them anew by itself.
    """
    from logdoctor import build

    click.echo(f"{build.past_cases(_served(data_dir)).reindex()} cases indexed")


class _Measures(click.Group):
    """A group whose first argument may also be what its command `corpus` takes."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """The arguments with the command in front."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["corpus", *args]
        return super().parse_args(context, args)


@cli.group("eval", cls=_Measures)
def measure() -> None:
    """Score the diagnoses of a labelled corpus (`logdoctor eval FOLDER`), or how well filter rules are learned."""


@measure.command("learn-filters")
@click.option("--corpus", type=click.Path(path_type=Path), default=Path("eval/corpus"), show_default=True)
@click.option(
    "--frameworks", metavar="LIST", help="Frameworks of biglog.py with commas, or `all`.  [default: 8 of them]"
)
@click.option("--mb", type=click.FloatRange(0.1), default=8.0, show_default=True, help="Size of a generated log.")
@click.option("--jobs", type=click.IntRange(3), default=4, show_default=True, help="Jobs of each kind.")
@click.option("--seed", type=int, default=7, show_default=True)
@click.option("--healthy/--no-healthy", default=True, show_default=True, help="Also the healthy logs of the corpus.")
@click.option("--json", "as_json", is_flag=True, help="The whole report as one JSON object.")
@click.option(
    "--write",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write JSON, picture and tables here, one of all frameworks.",
)
def learn_filters(
    corpus: Path,
    frameworks: str | None,
    mb: float,
    jobs: int,
    seed: int,
    healthy: bool,
    as_json: bool,
    write: Path | None,
) -> None:
    """Learn filter rules from nothing, job after job, and tell what they remove."""
    import logging
    import tempfile

    import msgspec
    import structlog
    from rich.console import Console

    from logdoctor import build, learning_curve

    chosen: tuple[str, ...] = learning_curve.DEFAULT
    if frameworks:
        chosen = learning_curve.FRAMEWORKS if frameworks == "all" else tuple(frameworks.split(","))
        if unknown := [name for name in chosen if name not in learning_curve.FRAMEWORKS]:
            raise click.UsageError(f"there is no framework {unknown[0]!r}; use {', '.join(learning_curve.FRAMEWORKS)}.")
    setup = learning_curve.Setup(frameworks=chosen, healthy=healthy, mb=mb, jobs=jobs, seed=seed)
    scanner, guards = build.unlearned(read_settings())
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        report = learning_curve.run(scanner, guards, corpus, Path(folder), setup)
        if write:
            every = msgspec.structs.replace(setup, frameworks=learning_curve.FRAMEWORKS, healthy=False)
            learning_curve.write(write, report, learning_curve.run(scanner, guards, corpus, Path(other), every))
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        learning_curve.render(report, Console())


@measure.command("replay")
@click.option(
    "--corpus",
    "corpora",
    multiple=True,
    type=click.Path(path_type=Path),
    default=(Path("eval/corpus"), Path("eval/validation")),
    show_default=True,
    help="Labelled corpus, the first with its biglog.py; repeatable.",
)
@click.option("--failures", type=click.IntRange(1), default=2500, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--llm", metavar="URL", default="", help="Model server to ask last.  [default: none is asked]")
@click.option("--model", default="", help="Name of the model.")
@click.option("--json", "as_json", is_flag=True, help="The whole report as one JSON object.")
@click.option(
    "--write", type=click.Path(file_okay=False, path_type=Path), help="Write JSON, picture and tables to this folder."
)
def replay_command(
    corpora: tuple[Path, ...], failures: int, seed: int, llm: str, model: str, as_json: bool, write: Path | None
) -> None:
    """Let failures come one by one, with no diagnosis rule at the start, and tell how many are handled."""
    import logging
    import tempfile
    from functools import partial

    import msgspec
    import structlog
    from rich.console import Console

    from logdoctor import build
    from logdoctor.replay import run, show
    from logdoctor.replay.kinds import kinds

    if bool(llm) != bool(model):
        raise click.UsageError("--llm and --model belong together.")
    given = msgspec.structs.replace(read_settings(), llm_base_url=llm, llm_model=model)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    scanner = build.undiagnosing(given)
    join = partial(build.climbing, given, scanner, build.Model(given))
    setup = run.Setup(failures, seed, model)
    with tempfile.TemporaryDirectory() as folder:
        known = kinds(corpora, Path(folder))
        report = run.run(known, scanner, build.limits(given), join, Path(folder), given.learn_jobs, setup)
    if write:
        show.write(write, report)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        show.render(report, Console())


@measure.command("unseen")
@click.argument("folders", metavar="[FOLDER]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The whole report as one JSON object.")
@click.option("--failures", "with_failures", is_flag=True, help="List each failure that was not told right.")
@click.option("--write", type=click.Path(file_okay=False, path_type=Path), help="Write JSON and a page here.")
@click.option("--llm", metavar="URL", help="Ask a model about what is left open, at this URL.")
@click.option("--model", help="Its name there.")
def unseen_command(
    folders: tuple[Path, ...],
    as_json: bool,
    with_failures: bool,
    write: Path | None,
    llm: str | None,
    model: str | None,
) -> None:
    """Take away all that is known of each reason in turn, and tell what is then said of its failures.

    Each FOLDER is a labelled corpus.  [default: eval/corpus eval/validation]
    """
    if llm or model:
        folders = folders or (Path("eval/corpus"), Path("eval/validation"))
        _measure_model(folders, llm, model, "unseen", 1, 1, as_json, with_failures, write)
        return
    import msgspec
    from rich.console import Console

    from logdoctor import build, pipeline, unseen
    from logdoctor.pipeline import Stream
    from logdoctor.settings import cache_folder, rules_folder

    settings = read_settings()
    limits = build.limits(settings)._replace(workers=1)
    report = unseen.run(
        folders or (Path("eval/corpus"), Path("eval/validation")),
        build.rule_book(settings),
        rules_folder(settings) / "knowledge",
        lambda path, scanner: pipeline.diagnose([Stream("main", path)], scanner, limits),
        cache_folder(settings) / "unseen",
    )
    if write:
        unseen.write(write, report)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        unseen.render(report, Console(), with_failures)


@measure.command("corpus", hidden=True)
@click.argument("corpus", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The whole report as one JSON object.")
@click.option("--failures", "with_failures", is_flag=True, help="List each miss: wanted, got, and why the label is so.")
@click.option("--llm", metavar="URL", help="Ask a model about what the rules leave open, at this URL.")
@click.option("--model", help="Its name there.")
@click.option("--repeats", type=click.IntRange(1, 100), default=3, show_default=True, help="How often it is asked.")
@click.option("--without-rules", "known", flag_value="none", help="With --llm: no rule knows a reason.")
@click.option("--only-unseen", "known", flag_value="unseen", help="With --llm: no rule knows a failure's own reason.")
@click.option("--parallel", type=click.IntRange(1, 64), default=1, show_default=True, help="Questions at one time.")
@click.option("--write", type=click.Path(file_okay=False, path_type=Path), help="With --llm: write the report here.")
def evaluate_command(
    corpus: Path,
    as_json: bool,
    with_failures: bool,
    llm: str | None,
    model: str | None,
    repeats: int,
    known: "Rules | None",
    parallel: int,
    write: Path | None,
) -> None:
    """Score the diagnoses of a labelled CORPUS folder.

    With --llm: how well, how steadily and at what cost a model diagnoses what the rules leave open.
    """
    if llm or model:
        _measure_model((corpus,), llm, model, known or "all", repeats, parallel, as_json, with_failures, write)
        return
    if known or write:
        raise click.UsageError("--without-rules, --only-unseen and --write are for --llm.")
    import msgspec
    from rich.console import Console

    from logdoctor import build, evaluate, pipeline
    from logdoctor.pipeline import Stream

    settings = read_settings()
    scanner, limits = build.scanner(settings), build.limits(settings)._replace(workers=1)
    report = evaluate.evaluate(
        corpus,
        lambda path: pipeline.diagnose([Stream("main", path)], scanner, limits),
        lambda path: pipeline.kept_lines(path, scanner),
        metric_rules=scanner.book.progress_rules(),
        citable_lines=lambda path: pipeline.citable_lines(path, scanner, limits),
    )
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
        return
    evaluate.render(report, Console())
    if with_failures:
        evaluate.render_misses(report, Console())


def _measure_model(
    folders: tuple[Path, ...],
    url: str | None,
    model: str | None,
    known: "Rules",
    repeats: int,
    parallel: int,
    as_json: bool,
    with_failures: bool,
    write: Path | None,
) -> None:
    """Print how a model does on what rules leave open, with the key and prices of the settings."""
    import tempfile

    import msgspec
    from rich.console import Console

    from logdoctor import build, evaluate_model
    from logdoctor.consult.ladder import Ladder
    from logdoctor.settings import cache_folder, rules_folder

    if not url or not model:
        raise click.UsageError("--llm and --model need each other.")
    settings = msgspec.structs.replace(read_settings(), llm_base_url=url, llm_model=model)
    calls, limits = evaluate_model.Calls(), build.limits(settings)._replace(workers=1)
    agent = build.agent_to_measure(settings, calls)
    asker = evaluate_model.Asker(Ladder(None, 0.0, 0, agent.conclude), calls)
    tables, cache = rules_folder(settings) / "knowledge", cache_folder(settings) / "unseen"
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="logdoctor-eval-") as scratch:
        book = build.rule_book(settings)
        read = evaluate_model.read_failures(folders, known, book, tables, limits, Path(scratch), cache)
        trials = evaluate_model.run(read, asker, repeats, parallel, _tell if sys.stderr.isatty() else lambda *_: None)
    report = evaluate_model.summarise(
        [str(folder) for folder in folders], model, agent.prompt.version, known, trials, time.perf_counter() - begin
    )
    if write:
        evaluate_model.write(write, report, f"{'unseen' if known == 'unseen' else 'corpus'}-{_file_name(model)}")
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        evaluate_model.render(report, Console(), with_failures)


def _tell(done: int, total: int) -> None:
    click.echo(f"\r{done} of {total} questions", nl=done == total, err=True)


def _file_name(model: str) -> str:
    """The name of a model as part of a file's name."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in model)[:80]


@cli.command("schema")
def schema() -> None:
    """Print the JSON Schema of a verdict."""
    import msgspec

    from logdoctor.types import Verdict

    click.echo(msgspec.json.format(msgspec.json.encode(msgspec.json.schema(Verdict)), indent=2).decode())


@cli.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL, to be sourced."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "logdoctor", "_LOGDOCTOR_COMPLETE").source())


@cli.command()
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Folder for logs and records.")
def serve(host: str | None, port: int | None, data_dir: Path | None) -> None:
    """Take logs over HTTP while jobs run, and say why they died."""
    import msgspec

    from logdoctor.web.serve import serve as serve_for_ever

    given = {"host": host, "port": port, "data_dir": data_dir}
    chosen = {name: value for name, value in given.items() if value is not None}
    serve_for_ever(msgspec.structs.replace(read_settings(), **chosen))


_SENDER = {"ignore_unknown_options": True, "help_option_names": []}


@cli.command("run", context_settings=_SENDER, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_command(arguments: tuple[str, ...]) -> None:
    """Run a command and send what it prints to the service: run --job J -- COMMAND..."""
    _send("run", arguments)


@cli.command("ship", context_settings=_SENDER, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def ship_command(arguments: tuple[str, ...]) -> None:
    """Follow log files and send them to the service: ship --job J FILE..."""
    _send("ship", arguments)


def _send(task: str, arguments: tuple[str, ...]) -> None:
    """The sender reads its own options, because it also runs where nothing but Python is installed."""
    from logdoctor.send.__main__ import main as send

    sys.exit(send([task, *arguments], "logdoctor"))


@cli.group()
def tokens() -> None:
    """Make, list and revoke the tokens of the service."""


def _tokens(data_dir: Path | None) -> "Tokens":
    from logdoctor import build
    from logdoctor.store.tokens import Tokens

    return Tokens(build.records(_settings(data_dir)).database)


@tokens.command("create")
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, required=True, help="ingest, read, operate or admin; repeatable.")
@click.option("--prefix", "prefixes", multiple=True, help="Only jobs whose names begin so; repeatable.")
@click.option("--days", type=click.FloatRange(min=0, min_open=True), help="Days after which it expires.")
@_data_dir
def tokens_create(
    name: str, scopes: tuple[str, ...], prefixes: tuple[str, ...], days: float | None, data_dir: Path | None
) -> None:
    """Make a token and print its secret, which cannot be read again."""
    expires = time.time() + days * 86_400 if days else None
    _, secret = _tokens(data_dir).create(name, scopes, prefixes, expires)
    click.echo(secret)


@tokens.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each token, a line each.")
@_data_dir
def tokens_list(as_json: bool, data_dir: Path | None) -> None:
    """List all tokens, without their secrets."""
    from logdoctor import show

    show.tokens(_tokens(data_dir).list(), as_json)


@tokens.command("revoke")
@click.argument("name")
@_data_dir
def tokens_revoke(name: str, data_dir: Path | None) -> None:
    """Make a token useless, within seconds."""
    _tokens(data_dir).revoke(name)
    click.echo(f"revoked {name}")


def _complain(error: LogdoctorError) -> None:
    """Print an error, without what a file's name may hold to steer the terminal."""
    plain = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in str(error))
    click.echo(f"logdoctor: {plain}", err=True)


def main() -> None:
    """Run the command line; errors raised on purpose are printed and exit with code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows only ASCII, a file's name that is not UTF-8
    try:
        cli.main(prog_name="logdoctor", standalone_mode=True)
    except LogdoctorError as error:
        _complain(error)
        sys.exit(COULD_NOT_WORK)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has gone
        sys.exit(NOTHING_FAILED)


if __name__ == "__main__":
    main()
