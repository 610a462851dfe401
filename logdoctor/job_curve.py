"""How a service's filter rules shrink the logs of anyone's jobs: the runs of each kind come one after another.

A run is read in small pieces by the code of the service, with the shipped rules and what was learned so far; a lesson
is held between two pieces when one is due, so nothing depends on how busy a machine is.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from logdoctor.compress.cut import cut
from logdoctor.compress.filter import Residual
from logdoctor.curve_chart import Chart, draw
from logdoctor.errors import InputError
from logdoctor.evaluate import write_report
from logdoctor.learning_curve import Causes, Counting, Pupil
from logdoctor.log_agent.agent import Limits, LogAgent
from logdoctor.log_agent.book import Books
from logdoctor.log_agent.guards import FilterGuards
from logdoctor.log_agent.life import WatchTerms
from logdoctor.log_agent.matching import taken
from logdoctor.log_agent.proposal import Agent
from logdoctor.rules.scanner import Scanner
from logdoctor.store.learned import LearnedRules
from logdoctor.store.model_calls import ModelCalls
from logdoctor.store.records import Records
from logdoctor.text import natural

PIECE = 4 << 10
"""Bytes of a log that come at once."""
_BEGINNING = 0.2
"""Share of the first run in which nothing can have been learned yet."""
_AIM = 0.04  # share of the lines of a third run that may be kept, at most
_REFUSALS = 10_000  # of a vote that are looked at
_NO_LIMIT = 1_000_000  # lessons in an hour: in this run months of jobs pass in minutes


class Run(msgspec.Struct, frozen=True):
    """One run of a job: its lines, how many were kept, how many of those behind its first fifth, and how many the
    shipped rules alone would keep; what was learned from it, how often the agent was asked, how many rules of its kind
    wait for a person, and what its verdict says."""

    kind: str
    number: int
    lines: int
    kept: int
    rest: int
    rest_kept: int
    shipped_kept: int
    lessons: int
    calls: int
    rules: int
    waiting: int
    outcome: str
    reason: str
    seconds: float


class Report(msgspec.Struct, frozen=True):
    """The runs of all kinds, and how many lines that tell of a cause were taken at any moment.

    `kept_by_run` has for each run the median over the kinds of the share of lines kept, and the largest; `rest_kept`
    the same of the first run behind its first fifth. `shipped_removed` is the share of all lines that the shipped rules
    take. `voted_out` counts patterns that too few runs of the agent found; `only_the_vote` names those of them that
    take a line of a cause and that no guard knows better. `tokens` went to and came from a model.
    """

    agent: str
    kept_by_run: list[tuple[float, float]]
    rest_kept: tuple[float, float]
    shipped_removed: float
    cause_lines_removed: int
    cause_lines: list[str]
    runs: list[Run]
    refusals: dict[str, int]
    voted_out: int
    only_the_vote: list[str]
    tokens: tuple[int, int]


def measure(
    folder: Path,
    scanner: Scanner,
    guards: FilterGuards,
    writers: Callable[[ModelCalls], tuple[Agent, Agent | None]],
    causes: Causes,
    terms: WatchTerms,
    scratch: Path,
    votes: int,
    told: bool = True,
    tell: Callable[[Run], None] = lambda run: None,
) -> Report:
    """The curve of the jobs in `folder`, which has a folder for each kind and in it the logs of its runs, in their
    natural order. Unless it is `told` which are of one kind, that has to be recognised. `scratch` is an empty folder
    for the database. `InputError` when there are no logs."""
    kinds = {
        path.name: sorted(filter(Path.is_file, path.iterdir()), key=lambda log: natural(log.name))
        for path in sorted(folder.iterdir())
        if path.is_dir()
    }
    if not any(kinds.values()):
        raise InputError(str(folder), "holds no logs", "Put the logs of each kind of job into a folder of their own.")
    records = Records(f"sqlite:///{scratch / 'curve.db'}")
    try:
        rules = LearnedRules(records.database)
        ledger = ModelCalls(records.database)
        agent, adviser = writers(ledger)
        counting = Counting(adviser or agent, agent.free)
        first, second = (agent, counting) if adviser else (counting, None)
        limits = Limits(votes, terms, lessons_per_hour=_NO_LIMIT)
        log_agent = LogAgent(Books(scanner, rules), rules, first, guards, limits, second)
        runs = []
        for kind, logs in kinds.items():
            for number, log in enumerate(logs, 1):
                pupil = Pupil(kind if told else "", f"{kind}-{number}", log_agent)
                runs.append(_run(kind, number, log, scanner, pupil, log_agent, counting, rules, causes))
                tell(runs[-1])
        name = f"{agent.name}, then {adviser.name}" if adviser else agent.name
        return _report(runs, causes, rules, ledger, guards, name)
    finally:
        records.close()


def _run(
    kind: str,
    number: int,
    log: Path,
    scanner: Scanner,
    pupil: Pupil,
    agent: LogAgent,
    counting: Counting,
    rules: LearnedRules,
    causes: Causes,
) -> Run:
    begin = time.perf_counter()
    calls, before = counting.calls, len(rules.list())
    data = log.read_bytes()
    lines = kept = rest = rest_kept = shipped_kept = read = 0
    for segment in cut("main", _pieces(data), PIECE):
        residual = pupil.read(segment)
        lines += segment.lines
        kept += len(residual.kept)
        shipped_kept += _by_shipped(residual, scanner)
        if read >= _BEGINNING * len(data):
            rest += segment.lines
            rest_kept += len(residual.kept)
        read += len(segment.data)
        pupil.learn(over=False)
        causes.look(pupil.kind, agent.books.scanner(pupil.kind))
    verdict = pupil.finish()
    causes.look(pupil.kind, agent.books.scanner(pupil.kind))
    return Run(
        kind,
        number,
        lines,
        kept,
        rest,
        rest_kept,
        shipped_kept,
        pupil.lessons,
        counting.calls - calls,
        len(rules.list()) - before,
        len(rules.list(pupil.kind, "proposed")),
        verdict.outcome,
        verdict.reason,
        round(time.perf_counter() - begin, 2),
    )


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[start : start + PIECE] for start in range(0, len(data), PIECE))


def _by_shipped(residual: Residual, scanner: Scanner) -> int:
    """How many lines of a segment would be kept if nothing had been learned."""
    owner = residual.scan.owner[: len(residual.ends)]
    return int(((owner < 0) | (owner >= len(scanner.book.filters))).sum())


def _report(
    runs: Sequence[Run], causes: Causes, rules: LearnedRules, ledger: ModelCalls, guards: FilterGuards, agent: str
) -> Report:
    numbers = range(1, max(run.number for run in runs) + 1)
    active = [one for one in causes.caught.values() if one.status == "active" and not one.citable]
    voted_out = [refusal.pattern for refusal in rules.refusals.list(guard="vote", limit=_REFUSALS)]
    totals = ledger.totals()
    return Report(
        agent,
        [_middle_and_worst(run.kept / max(run.lines, 1) for run in runs if run.number == n) for n in numbers],
        _middle_and_worst(run.rest_kept / run.rest for run in runs if run.number == 1 and run.rest),
        round(1 - sum(run.shipped_kept for run in runs) / max(sum(run.lines for run in runs), 1), 4),
        len(active),
        [f"{one.file}:{one.line} {one.rule}: {one.text[:200]}" for one in active],
        list(runs),
        rules.refusals.counts(),
        len(voted_out),
        _harmful(voted_out, causes, guards),
        (sum(total.tokens_in for total in totals), sum(total.tokens_out for total in totals)),
    )


def _harmful(patterns: Sequence[str], causes: Causes, guards: FilterGuards) -> list[str]:
    """Those of some patterns that take a line of a cause, without a guard that knows of it."""
    known = guards.evidence_taken(patterns)
    matched = taken(patterns, causes.texts())
    return [pattern for pattern, places in zip(patterns, matched, strict=True) if places and pattern not in known]


def _middle_and_worst(shares: Iterable[float]) -> tuple[float, float]:
    values = list(shares) or [0.0]
    return round(statistics.median(values), 4), round(max(values), 4)


def render(report: Report, console: Console) -> None:
    """Print the share of lines kept, run by run, of each kind and of all."""
    numbers = range(1, len(report.kept_by_run) + 1)
    title = Text(f"lines kept, %, by run; agent: {report.agent}")
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("kind", no_wrap=True, overflow="ellipsis")
    for name in ("shipped", *map(str, numbers), "rest of 1", "asked"):
        table.add_column(name, justify="right")
    by_kind: dict[str, list[Run]] = {}
    for run in report.runs:
        by_kind.setdefault(run.kind, []).append(run)
    for kind, runs in by_kind.items():
        shares = [_percent(run.kept, run.lines) for run in runs]
        shares += [""] * (len(numbers) - len(shares))
        first, asked = runs[0], " ".join(str(run.calls) for run in runs)
        table.add_row(
            kind, _percent(first.shipped_kept, first.lines), *shares, _percent(first.rest_kept, first.rest), asked
        )
    for row, place in (("median", 0), ("worst", 1)):
        shares = [f"{100 * both[place]:.1f}" for both in report.kept_by_run]
        table.add_row(row, "", *shares, f"{100 * report.rest_kept[place]:.1f}", "", style="bold")
    console.print(table)
    for line in _told(report):
        console.print(line, highlight=False, markup=False)
    for line in report.cause_lines + report.only_the_vote:
        console.print(Text(f"  {line}", "red"))


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else ""


def _told(report: Report) -> Iterator[str]:
    """What is to be said beside the table."""
    refused = ", ".join(f"{guard} {count}" for guard, count in report.refusals.items())
    said = Counter(run.outcome for run in report.runs)
    yield f"the shipped rules alone take {100 * report.shipped_removed:.1f} % of all lines"
    yield f"{report.cause_lines_removed} lines of causes taken; proposals refused: {refused or 'none'}"
    yield f"{report.voted_out} patterns voted out, of which {len(report.only_the_vote)} would have taken a cause"
    yield f"outcomes: {', '.join(f'{count} {outcome}' for outcome, count in said.most_common())}"
    if any(report.tokens):
        later = sum(run.calls for run in report.runs if run.number > 1)
        yield f"tokens: {report.tokens[0]:,} asked, {report.tokens[1]:,} answered; calls behind the first run: {later}"


def write(folder: Path, report: Report) -> None:
    """Write `learn-jobs.json`, `.svg` and `.md` to a folder; `InputError` when it cannot be written to."""
    write_report(folder, "learn-jobs", report, {"svg": svg(report), "md": markdown(report)})


def svg(report: Report) -> str:
    """The share of lines kept by run as a picture: of each kind in grey, the median and the worst of all in colour."""
    by_kind: dict[str, list[float]] = {}
    for run in report.runs:
        by_kind.setdefault(run.kind, []).append(run.kept / max(run.lines, 1))
    return draw(
        Chart(
            "Lines kept in each run of a job",
            f"shipped rules and what was learned, agent: {report.agent}, {len(by_kind)} kinds of jobs",
            f"lines of causes taken: {report.cause_lines_removed}\u2003shipped rules alone take"
            f" {100 * report.shipped_removed:.1f} % of all lines",
            "run",
            (_AIM, f"aim: at most {100 * _AIM:g} % from the third run on"),
            {"median": [both[0] for both in report.kept_by_run], "worst": [both[1] for both in report.kept_by_run]},
            list(by_kind.values()),
            f"{len(by_kind)} kinds, middle",
        )
    )


def markdown(report: Report) -> str:
    """The report as text: what was measured, the picture, the table of all kinds."""
    console = Console(width=110, record=True, file=StringIO())
    render(report, console)
    return (
        "# What is kept of real jobs, run by run\n\n"
        "`logdoctor eval learn-filters --jobs FOLDER --write eval`: the runs of each kind come one after another to\n"
        "the code of the service with the shipped rules; *shipped* is what these alone would keep of the first run,\n"
        "*rest of 1* what is kept of the first run behind its first fifth, *asked* how often the agent was asked in\n"
        "each run. The logs are not here: they are complete logs of training runs that others published.\n\n"
        "![Share of lines kept, run by run](learn-jobs.svg)\n\n"
        f"```\n{console.export_text()}```\n"
    )
