"""The commands that measure: `logdoctor eval` and `logdoctor nodes simulate`. See `logdoctor/cli/checkout.py`."""

import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import structlog
from rich.console import Console

from eval import corpus_score, message_coverage, model_score, unseen
from eval.cause_lines import CauseLines
from eval.harvest.messages import coverage
from eval.replay.kinds import kinds
from eval.replay.report import ReplaySetup
from eval.report import EvalReport
from eval.simulate_nodes import simulate
from logdoctor import pipeline, wiring
from logdoctor.diagnose.ending import FAILED
from logdoctor.failure_agent.ladder import Ladder
from logdoctor.pipeline import LogFile
from logdoctor.settings import read_settings, rules_folder

_BOTH = (Path("eval/corpus"), Path("eval/validation"))
_as_json = click.option("--json", "as_json", is_flag=True, help="The whole report as one JSON object.")


def _publish(
    report: EvalReport, as_json: bool, write: Path | None = None, annex: str = "", details: bool = False
) -> None:
    """Write the report to a folder if one is given, and print it."""
    if write:
        report.write(write, annex)
    if as_json:
        click.echo(report.json())
    else:
        report.show(Console(), details)


class _Measures(click.Group):
    """A group whose command `corpus` may be left out: folders may be the first arguments."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, with `corpus` in front unless they name a command."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["corpus", *args]
        return super().parse_args(context, args)


@click.group("eval", cls=_Measures)
def measure() -> None:
    """Measure how well logdoctor diagnoses and learns.

    `logdoctor eval FOLDER` scores the diagnoses of a labelled corpus.
    """


@measure.command("learn-filters")
@click.option("--corpus", type=click.Path(path_type=Path), default=Path("eval/corpus"), show_default=True)
@click.option(
    "--frameworks", metavar="LIST", help="Frameworks of biglog.py, separated by commas, or `all`.  [default: 8 of them]"
)
@click.option("--mb", type=click.FloatRange(0.1), default=8.0, show_default=True, help="Size of each generated log.")
@click.option("--times", type=click.IntRange(3), default=4, show_default=True, help="Jobs per kind.")
@click.option(
    "--jobs",
    "jobs_folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Your own jobs instead: a folder for each kind with the logs of its runs.",
)
@click.option("--untold", is_flag=True, help="With --jobs: kinds are not given and have to be recognised.")
@click.option(
    "--failures",
    "failed",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --jobs: more labelled failures, of which no line may be removed; repeatable.",
)
@click.option("--seed", type=int, default=7, show_default=True)
@click.option("--healthy/--no-healthy", default=True, show_default=True, help="Also the healthy logs of the corpus.")
@_as_json
@click.option(
    "--write",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write JSON, chart and tables here, one for all frameworks.",
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
    """Learn filter rules from nothing, job after job.

    Shows what they remove.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if jobs_folder is not None:
        kinds_known = not untold
        _learn_jobs(jobs_folder, kinds_known, (corpus / "failures", *failed), as_json, write)
        return
    from eval import learning_curve  # it needs the extra `service`, as do the imports below
    from logdoctor.wiring import learning

    chosen: tuple[str, ...] = learning_curve.DEFAULT
    if frameworks:
        chosen = learning_curve.FRAMEWORKS if frameworks == "all" else tuple(frameworks.split(","))
        if unknown := [name for name in chosen if name not in learning_curve.FRAMEWORKS]:
            raise click.UsageError(f"there is no framework {unknown[0]!r}; use {', '.join(learning_curve.FRAMEWORKS)}.")
    setup = learning_curve.LearningSetup(frameworks=chosen, healthy=healthy, mb=mb, jobs=times, seed=seed)
    scanner, guards = learning.unlearned(read_settings())
    annex = ""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        report = learning_curve.run(scanner, guards, corpus, Path(folder), setup)
        if write:
            every = msgspec.structs.replace(setup, frameworks=learning_curve.FRAMEWORKS, healthy=False)
            annex = f"\n{learning_curve.section(learning_curve.run(scanner, guards, corpus, Path(other), every))}"
    _publish(report, as_json, write, annex)


def _learn_jobs(folder: Path, kinds_known: bool, failed: Sequence[Path], as_json: bool, write: Path | None) -> None:
    """Measure learning over the runs of one's own jobs, with the agent of the settings."""
    from eval import job_curve
    from logdoctor.learning.filters.life import WatchTerms
    from logdoctor.wiring import learning, models

    settings = read_settings()
    scanner = wiring.scanner(settings)
    with tempfile.TemporaryDirectory() as scratch:
        report = job_curve.measure(
            folder,
            scanner,
            learning.unlearned(settings)[1],
            lambda ledger: learning.rule_writers(settings, lambda: models.guarded(settings, ledger)),
            CauseLines(*failed, judge=scanner),
            WatchTerms(settings.learn_jobs, settings.learn_lines),
            Path(scratch),
            settings.learn_runs,
            kinds_known,
        )
    _publish(report, as_json, write)


@measure.command("replay")
@click.option(
    "--corpus",
    "corpora",
    multiple=True,
    type=click.Path(path_type=Path),
    default=_BOTH,
    show_default=True,
    help="Labelled corpus, the first with its biglog.py; repeatable.",
)
@click.option("--failures", type=click.IntRange(1), default=2500, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--llm", metavar="URL", default="", help="Model server to ask last.  [default: none is asked]")
@click.option("--model", default="", help="Name of the model.")
@_as_json
@click.option(
    "--write", type=click.Path(file_okay=False, path_type=Path), help="Write JSON, chart and tables to this folder."
)
def replay_command(
    corpora: tuple[Path, ...], failures: int, seed: int, llm: str, model: str, as_json: bool, write: Path | None
) -> None:
    """Replay failures one by one, with no rule at the start.

    Diagnosis rules are learned on the way. Shows how many failures are handled.
    """
    if bool(llm) != bool(model):
        raise click.UsageError("--llm and --model belong together.")
    from eval.replay import run as replay
    from logdoctor.wiring import models
    from logdoctor.wiring.failures import climbing

    given = msgspec.structs.replace(read_settings(), llm_base_url=llm, llm_model=model)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    scanner = wiring.undiagnosing(given)
    join = partial(climbing, given, scanner, models.Model(given))
    setup = ReplaySetup(failures, seed, model)
    with tempfile.TemporaryDirectory() as folder:
        known = kinds(corpora, Path(folder))
        report = replay.run(known, scanner, wiring.limits(given), join, Path(folder), given.learn_jobs, setup)
    _publish(report, as_json, write)


@measure.command("unseen")
@click.argument("folders", metavar="[FOLDER]...", nargs=-1, type=click.Path(path_type=Path))
@_as_json
@click.option("--failures", "with_failures", is_flag=True, help="List each failure whose answer is not right.")
@click.option("--write", type=click.Path(file_okay=False, path_type=Path), help="Write JSON and a page here.")
@click.option("--llm", metavar="URL", help="Ask the model at this URL about what is left open.")
@click.option("--model", help="Name of the model.")
def unseen_command(
    folders: tuple[Path, ...],
    as_json: bool,
    with_failures: bool,
    write: Path | None,
    llm: str | None,
    model: str | None,
) -> None:
    """Diagnose failures of a reason that nothing knows.

    Takes away all that is known of each reason in turn, and shows the verdicts on its failures.

    Each FOLDER is a labelled corpus.  [default: eval/corpus eval/validation]
    """
    if llm or model:
        _measure_model(folders or _BOTH, llm, model, "unseen", 1, 1, as_json, with_failures, write)
        return

    settings = read_settings()
    limits = wiring.limits(settings)._replace(workers=1)
    report = unseen.run(
        folders or _BOTH,
        wiring.unchecked_scanner(settings),
        rules_folder(settings) / "knowledge",
        lambda path, scanner: pipeline.diagnose([LogFile("main", path)], scanner, limits, FAILED),
    )
    _publish(report, as_json, write, details=with_failures)


@measure.command("knowledge")
@click.argument("trees", metavar="NAME=PATH...", nargs=-1, required=True)
@click.option("--undecided", type=click.IntRange(0), default=0, metavar="N", help="List N undecided messages of each.")
@_as_json
@click.option(
    "--write",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write knowledge.json and knowledge.md to this folder.",
)
def knowledge_command(trees: tuple[str, ...], undecided: int, as_json: bool, write: Path | None) -> None:
    """Count the known messages that the rules decide.

    Shows how many of the messages that programs can print are decided by the rules.

    NAME is a source that a module of eval/harvest reads, PATH its git mirror, checkout or installed package.
    """
    readers = message_coverage.readers()
    messages: list[Any] = []
    for tree in trees:
        name, found, path = tree.partition("=")
        if not found or name not in readers:
            raise click.UsageError(f"there is no source {name!r}; known are {', '.join(sorted(readers))}.")
        if not Path(path).exists():
            raise click.UsageError(f"{path} does not exist.")
        messages += readers[name](Path(path))
    found_by = coverage(messages, wiring.scanner(read_settings()))
    if write:
        write.mkdir(parents=True, exist_ok=True)
    _publish(message_coverage.summarise(found_by), as_json, write)
    for one in found_by if undecided and not as_json else ():
        click.echo(f"\n{one.source}: undecided")
        for message in one.undecided[:undecided]:
            click.echo(f"  {message.place}: {message.text}")


@measure.command("corpus", hidden=True)
@click.argument("folders", metavar="CORPUS...", nargs=-1, required=True, type=click.Path(path_type=Path))
@_as_json
@click.option("--failures", "with_failures", is_flag=True, help="List each miss: wanted, got, and why the label is so.")
@click.option("--llm", metavar="URL", help="Ask a model about what the rules leave open, at this URL.")
@click.option("--model", help="Its name there.")
@click.option("--repeats", type=click.IntRange(1, 100), default=3, show_default=True, help="How often it is asked.")
@click.option("--without-rules", "known", flag_value="none", help="With --llm: no rule knows a reason.")
@click.option("--only-unseen", "known", flag_value="unseen", help="With --llm: no rule knows a failure's own reason.")
@click.option("--second-reader", "known", flag_value="read", help="With --llm: it reads each failure, too.")
@click.option("--parallel", type=click.IntRange(1, 64), default=1, show_default=True, help="Questions at one time.")
@click.option("--write", type=click.Path(file_okay=False, path_type=Path), help="With --llm: write the report here.")
def evaluate_command(
    folders: tuple[Path, ...],
    as_json: bool,
    with_failures: bool,
    llm: str | None,
    model: str | None,
    repeats: int,
    known: model_score.Rules | None,
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
        raise click.UsageError("--without-rules, --only-unseen, --second-reader and --write are for --llm.")

    settings = read_settings()
    scanner, limits = wiring.scanner(settings), wiring.limits(settings)._replace(workers=1)
    report = corpus_score.evaluate(
        folders,
        lambda path: pipeline.diagnose([LogFile("main", path)], scanner, limits),
        lambda path: pipeline.kept_lines(path, scanner),
        metric_rules=scanner.book.progress_rules(),
        citable_lines=lambda path: pipeline.citable_lines(path, scanner, limits),
    )
    _publish(report, as_json, details=with_failures)


def _measure_model(
    folders: tuple[Path, ...],
    url: str | None,
    model: str | None,
    known: model_score.Rules,
    repeats: int,
    parallel: int,
    as_json: bool,
    with_failures: bool,
    write: Path | None,
) -> None:
    """Measure a model on what rules leave open, with the key and prices of the settings."""
    if not url or not model:
        raise click.UsageError("--llm and --model need each other.")
    from logdoctor.wiring.failures import agent_to_measure

    settings = msgspec.structs.replace(read_settings(), llm_base_url=url, llm_model=model)
    calls, limits = model_score.ModelCalls(), wiring.limits(settings)._replace(workers=1)
    agent = agent_to_measure(settings, calls)
    new = (lambda question: True) if known == "read" else None
    asker = model_score.Asker(Ladder(None, 0.0, 0, agent.conclude, settings.agent_below, new, model), calls)
    log = model_score.TrialLog(write, model_score.report_name(model, known)) if write else None

    def on_trial(done: int, total: int, trial: model_score.ModelTrial) -> None:
        if log:
            log.enter(trial)
        if sys.stderr.isatty():
            click.echo(f"\r{done} of {total} questions", nl=done == total, err=True)

    scanner, tables = wiring.unchecked_scanner(settings), rules_folder(settings) / "knowledge"
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="logdoctor-eval-") as scratch:
        read = model_score.read_failures(folders, known, scanner, tables, limits, Path(scratch))
        trials = model_score.run(read, asker, repeats, parallel, on_trial)
    report = model_score.summarise(
        [str(folder) for folder in folders], model, agent.prompt.version, known, trials, time.perf_counter() - begin
    )
    _publish(report, as_json, write, details=with_failures)


@click.command("simulate")
@click.option("--nodes", "count", type=click.IntRange(1, 10_000), required=True, help="Nodes of a cluster.")
@click.option("--faulty", type=click.IntRange(0), required=True, help="Faulty ones among them.")
@click.option("--trials", type=click.IntRange(1, 10_000_000), default=1000, show_default=True)
@click.option("--intermittent", type=click.FloatRange(0, 1), help="Chance that a fault shows in one gather.")
@click.option("--repeats", type=click.IntRange(1, 1000), default=1, show_default=True, help="Gathers of a world.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def simulate_nodes(
    count: int, faulty: int, trials: int, intermittent: float | None, repeats: int, seed: int, as_json: bool
) -> None:
    """Measure how exact tests of nodes are, in simulation.

    Compares ours with those of DLRover, on simulated clusters with faults at random nodes.

    Figures are shares of the trials: all nodes right (exact), a healthy node convicted, a faulty one called healthy
    (missed), some node left undecided (indeterminate); and the mean number of rounds.
    """
    if intermittent is not None and intermittent != intermittent:  # NaN passes every range check
        raise click.UsageError("--intermittent is not a number.")
    if faulty > count:
        raise click.UsageError("--faulty cannot be more than --nodes.")
    _publish(simulate(count, faulty, trials, intermittent, repeats, seed), as_json)
