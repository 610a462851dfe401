"""The command line.

Heavy parts are imported inside the commands, so that `--help` stays fast.
"""

import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from logdoctor.errors import LogdoctorError
from logdoctor.settings import read_settings

if TYPE_CHECKING:
    from logdoctor.attempts import Attempt
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
def diagnose(paths: tuple[str, ...], as_json: bool, explain: bool) -> None:
    """Say why the job behind each PATH failed.

    A PATH is a log file (plain, gzip or Zstandard), a folder with one file for each rank, or - for
    standard input.
    """
    if paths.count("-") > 1:
        raise click.UsageError("standard input (-) can be read only once.")
    worst = NOTHING_FAILED
    for name, result in _verdicts(paths, show_progress=not as_json):
        if isinstance(result, LogdoctorError):
            _complain(result)
            worst = COULD_NOT_WORK
            continue
        _print(name, result, as_json, explain)
        if result.outcome == "failed":
            worst = max(worst, FAILED)
    sys.exit(worst)


def _verdicts(paths: tuple[str, ...], show_progress: bool) -> "Iterator[tuple[str, Verdict | LogdoctorError]]":
    """Each attempt's name and verdict, or why it could not be read, in the order given."""
    from logdoctor import build
    from logdoctor.attempts import attempts

    settings = read_settings()
    scanner, limits = build.scanner(settings), build.limits(settings)
    found: list[tuple[str, Attempt | LogdoctorError]] = []
    for path in paths:
        try:
            found += [(attempt.name, attempt) for attempt in attempts(Path(path))]
        except LogdoctorError as error:
            found.append((path, error))

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


@cli.group()
def rules() -> None:
    """Look at the rules and check them."""


@rules.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each rule, a line each.")
def rules_list(as_json: bool) -> None:
    """List all rules."""
    from logdoctor import build, show

    show.rules(build.rule_book(read_settings()), as_json)


@rules.command("show")
@click.argument("rule_id")
def rules_show(rule_id: str) -> None:
    """Print one rule with its examples."""
    from logdoctor import build, show

    show.rule(build.rule_book(read_settings()).rule(rule_id))


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
def rules_why(line: str) -> None:
    """Show which rules hit LINE, and why others that match it do not count."""
    from logdoctor import build
    from logdoctor.rules.why import why

    for finding in why(build.unchecked_scanner(read_settings()), line):
        click.echo(finding)


@cli.command("eval")
@click.argument("corpus", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The whole report as one JSON object.")
@click.option("--failures", "with_failures", is_flag=True, help="List each miss: wanted, got, and why the label is so.")
def evaluate_command(corpus: Path, as_json: bool, with_failures: bool) -> None:
    """Score the diagnoses of a labelled CORPUS folder."""
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


_data_dir = click.option(
    "--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Data folder of the service."
)


def _tokens(data_dir: Path | None) -> "Tokens":
    import msgspec

    from logdoctor import build
    from logdoctor.store.tokens import Tokens

    settings = read_settings()
    settings = msgspec.structs.replace(settings, data_dir=data_dir) if data_dir else settings
    return Tokens(build.records(settings).database)


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
    import time

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
