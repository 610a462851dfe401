"""`logdoctor eval`: how well jobs are diagnosed, rules are learned, and a model does."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from logdoctor.settings import read_settings

if TYPE_CHECKING:
    from logdoctor.evaluate_model import Rules, Trial


class _Measures(click.Group):
    """A group whose first argument may also be what its command `corpus` takes."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """The arguments with the command in front."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["corpus", *args]
        return super().parse_args(context, args)


@click.group("eval", cls=_Measures)
def measure() -> None:
    """Score the diagnoses of a labelled corpus (`logdoctor eval FOLDER`), or how well filter rules are learned."""


@measure.command("learn-filters")
@click.option("--corpus", type=click.Path(path_type=Path), default=Path("eval/corpus"), show_default=True)
@click.option(
    "--frameworks", metavar="LIST", help="Frameworks of biglog.py with commas, or `all`.  [default: 8 of them]"
)
@click.option("--mb", type=click.FloatRange(0.1), default=8.0, show_default=True, help="Size of a generated log.")
@click.option("--times", type=click.IntRange(3), default=4, show_default=True, help="Jobs of each kind.")
@click.option(
    "--jobs",
    "jobs_folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Your own jobs instead: a folder for each kind, in it the logs of its runs.",
)
@click.option("--untold", is_flag=True, help="With --jobs: their kinds are not told and have to be recognised.")
@click.option(
    "--failures",
    "failed",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --jobs: labelled failures beside those of the corpus, no line of which may be taken; repeatable.",
)
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
    times: int,
    jobs_folder: Path | None,
    untold: bool,
    failed: tuple[Path, ...],
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

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if jobs_folder is not None:
        _learn_jobs(jobs_folder, not untold, (corpus / "failures", *failed), as_json, write)
        return
    chosen: tuple[str, ...] = learning_curve.DEFAULT
    if frameworks:
        chosen = learning_curve.FRAMEWORKS if frameworks == "all" else tuple(frameworks.split(","))
        if unknown := [name for name in chosen if name not in learning_curve.FRAMEWORKS]:
            raise click.UsageError(f"there is no framework {unknown[0]!r}; use {', '.join(learning_curve.FRAMEWORKS)}.")
    setup = learning_curve.Setup(frameworks=chosen, healthy=healthy, mb=mb, jobs=times, seed=seed)
    scanner, guards = build.unlearned(read_settings())
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        report = learning_curve.run(scanner, guards, corpus, Path(folder), setup)
        if write:
            every = msgspec.structs.replace(setup, frameworks=learning_curve.FRAMEWORKS, healthy=False)
            learning_curve.write(write, report, learning_curve.run(scanner, guards, corpus, Path(other), every))
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        learning_curve.render(report, Console())


def _learn_jobs(folder: Path, told: bool, failed: Sequence[Path], as_json: bool, write: Path | None) -> None:
    """Let the runs of jobs come one after another, and tell what is kept of each. The agent is that of the settings."""
    import tempfile

    import msgspec
    from rich.console import Console

    from logdoctor import build, job_curve
    from logdoctor.learning_curve import Causes
    from logdoctor.log_agent.life import WatchTerms

    settings = read_settings()
    scanner = build.scanner(settings)
    with tempfile.TemporaryDirectory() as scratch:
        report = job_curve.measure(
            folder,
            scanner,
            build.unlearned(settings)[1],
            lambda ledger: build.rule_writers(settings, lambda: build.guarded(settings, ledger)),
            Causes(*failed, judge=scanner),
            WatchTerms(settings.learn_jobs, settings.learn_lines),
            Path(scratch),
            settings.learn_runs,
            told,
        )
    if write:
        job_curve.write(write, report)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        job_curve.render(report, Console())


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
    from logdoctor.diagnose.ending import FAILED
    from logdoctor.pipeline import Stream
    from logdoctor.settings import cache_folder, rules_folder

    settings = read_settings()
    limits = build.limits(settings)._replace(workers=1)
    report = unseen.run(
        folders or (Path("eval/corpus"), Path("eval/validation")),
        build.rule_book(settings),
        rules_folder(settings) / "knowledge",
        lambda path, scanner: pipeline.diagnose([Stream("main", path)], scanner, limits, FAILED),
        cache_folder(settings) / "unseen",
    )
    if write:
        unseen.write(write, report)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        unseen.render(report, Console(), with_failures)


@measure.command("knowledge")
@click.argument("trees", metavar="NAME=PATH...", nargs=-1, required=True)
@click.option("--undecided", type=click.IntRange(0), default=0, metavar="N", help="List N undecided messages of each.")
@click.option("--json", "as_json", is_flag=True, help="The whole report as one JSON object.")
@click.option(
    "--write",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write knowledge.json and knowledge.md to this folder.",
)
def knowledge_command(trees: tuple[str, ...], undecided: int, as_json: bool, write: Path | None) -> None:
    """Tell how many of the messages that programs can print are decided by the rules.

    NAME is a source that a module of eval/harvest reads, PATH its git mirror, checkout or installed package.
    """
    import json

    from rich.console import Console
    from rich.table import Table

    from logdoctor import build

    harvest = _harvest()
    messages: list[Any] = []
    for tree in trees:
        name, found, path = tree.partition("=")
        if not found or name not in harvest.sources:
            raise click.UsageError(f"there is no source {name!r}; known are {', '.join(sorted(harvest.sources))}.")
        if not Path(path).exists():
            raise click.UsageError(f"{path} does not exist.")
        messages += harvest.sources[name](Path(path))
    found_by = harvest.coverage(messages, build.scanner(read_settings()))
    rows = [(one.source, one.messages, one.decided, one.decided / max(one.messages, 1)) for one in found_by]
    report = {
        "sources": [
            {
                "source": one.source,
                "messages": one.messages,
                "decided": one.decided,
                "share": round(one.decided / max(one.messages, 1), 4),
                "rules": dict(one.rules.most_common()),
            }
            for one in found_by
        ]
    }
    if write:
        write.mkdir(parents=True, exist_ok=True)
        (write / "knowledge.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        lines = ["| source | messages | decided | share |", "|---|---:|---:|---:|"]
        lines += [f"| {name} | {number:,} | {decided:,} | {share:.1%} |" for name, number, decided, share in rows]
        head = "# Messages that programs can print, and how many of them the rules decide on purpose\n\n"
        (write / "knowledge.md").write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    if as_json:
        click.echo(json.dumps(report))
        return
    table = Table("source")
    for heading in ("messages", "decided", "share"):
        table.add_column(heading, justify="right")
    for name, number, decided, share in rows:
        table.add_row(name, f"{number:,}", f"{decided:,}", f"{share:.1%}")
    Console().print(table)
    for one in found_by if undecided else ():
        click.echo(f"\n{one.source}: undecided")
        for message in one.undecided[:undecided]:
            click.echo(f"  {message.place}: {message.text}")


class _Harvest(NamedTuple):
    """The readers of eval/harvest by source, and what holds their messages against the rules."""

    sources: dict[str, Callable[[Path], Iterable[Any]]]
    coverage: Callable[..., list[Any]]


def _harvest() -> _Harvest:
    """The harvest modules of the checkout that this package lies in; a usage error outside of one."""
    import importlib
    import pkgutil

    root = Path(__file__).resolve().parents[2]
    if not (root / "eval" / "harvest").is_dir():
        raise click.UsageError("this needs a checkout of the sources: there is no eval/harvest beside the package.")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    names = [module.name for module in pkgutil.iter_modules([str(root / "eval" / "harvest")])]
    modules = [importlib.import_module(f"eval.harvest.{name}") for name in names]
    sources = {name: read for module in modules for name, read in getattr(module, "SOURCES", {}).items()}
    return _Harvest(sources, importlib.import_module("eval.harvest.messages").coverage)


@measure.command("corpus", hidden=True)
@click.argument("folders", metavar="CORPUS...", nargs=-1, required=True, type=click.Path(path_type=Path))
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
    folders: tuple[Path, ...],
    as_json: bool,
    with_failures: bool,
    llm: str | None,
    model: str | None,
    repeats: int,
    known: "Rules | None",
    parallel: int,
    write: Path | None,
) -> None:
    """Score the diagnoses of labelled CORPUS folders.

    With --llm: how well, how steadily and at what cost a model diagnoses what the rules leave open.
    """
    if llm or model:
        _measure_model(folders, llm, model, known or "all", repeats, parallel, as_json, with_failures, write)
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
        folders,
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
    from logdoctor.failure_agent.ladder import Ladder
    from logdoctor.settings import cache_folder, rules_folder

    if not url or not model:
        raise click.UsageError("--llm and --model need each other.")
    settings = msgspec.structs.replace(read_settings(), llm_base_url=url, llm_model=model)
    calls, limits = evaluate_model.Calls(), build.limits(settings)._replace(workers=1)
    agent = build.agent_to_measure(settings, calls)
    asker = evaluate_model.Asker(Ladder(None, 0.0, 0, agent.conclude, settings.agent_below), calls)
    name = f"{'unseen' if known == 'unseen' else 'corpus'}-{_file_name(model)}"
    diary = evaluate_model.Diary(write, name) if write else None

    def tell(done: int, total: int, trial: "Trial") -> None:
        if diary:
            diary.enter(trial)
        if sys.stderr.isatty():
            click.echo(f"\r{done} of {total} questions", nl=done == total, err=True)

    tables, cache = rules_folder(settings) / "knowledge", cache_folder(settings) / "unseen"
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="logdoctor-eval-") as scratch:
        book = build.rule_book(settings)
        read = evaluate_model.read_failures(folders, known, book, tables, limits, Path(scratch), cache)
        trials = evaluate_model.run(read, asker, repeats, parallel, tell)
    report = evaluate_model.summarise(
        [str(folder) for folder in folders], model, agent.prompt.version, known, trials, time.perf_counter() - begin
    )
    if write:
        evaluate_model.write(write, report, name)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        evaluate_model.render(report, Console(), with_failures)


def _file_name(model: str) -> str:
    """The name of a model as part of a file's name."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in model)[:80]
