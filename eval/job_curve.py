"""How learned filter rules shrink the logs of your own jobs: the runs of each kind are read one after another.

A run is read in small pieces by the service's code, with the shipped rules and what was learned so far. Lessons take
place between two pieces, so nothing depends on how busy the machine is.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import RenderableType
from rich.text import Text

from eval.cause_lines import CauseLines
from eval.chart import LOGARITHMIC, Chart
from eval.learning_attempt import CountingAgent, LearningAttempt
from eval.report import Cell, EvalReport, Grid, percent
from logdoctor.compress.cut import cut
from logdoctor.compress.filter import Residual
from logdoctor.errors import InputError
from logdoctor.learning.filters.agent import LearningLimits, LogAgent
from logdoctor.learning.filters.book import Books
from logdoctor.learning.filters.guards import FilterGuards
from logdoctor.learning.filters.life import WatchTerms
from logdoctor.learning.filters.matching import taken
from logdoctor.learning.filters.proposal import Agent
from logdoctor.rules.scanner import Scanner
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.store.learning.model_calls import ModelCalls
from logdoctor.text import natural

PIECE = 4 << 10
"""Bytes of a log that are read at once."""
_BEGINNING = 0.2
"""Share of the first run in which nothing can have been learned yet."""
_AIM = 0.04  # most lines of a third run that may be kept, as a share
_REFUSALS = 10_000  # most refusals by vote that are examined
_NO_LIMIT = 1_000_000  # lessons per hour: here, months of jobs pass in minutes


class JobRun(msgspec.Struct, frozen=True):
    """One run of a job. `rest` and `rest_kept` count lines after its first fifth, `shipped_kept` what shipped rules
    alone would keep; `lessons` and `calls` count lessons and questions to the agent, `rules` new rules, `waiting` those
    of its kind that wait for a person."""

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


class JobsReport(EvalReport, frozen=True):
    """The runs of all kinds, and how many lines that name a cause were removed at any moment.

    `kept_by_run` has for each run the median over the kinds of the share of lines kept, and the largest; `rest_kept`
    the same for the first run after its first fifth. `shipped_removed` is the share of all lines that the shipped rules
    remove. `voted_out` counts patterns that too few runs of the agent found; `only_the_vote` names those of them that
    match a line of a cause and that no guard refuses. `tokens` are those sent to and received from a model.
    """

    agent: str
    kept_by_run: list[tuple[float, float]]
    rest_kept: tuple[float, float]
    shipped_removed: float
    cause_lines_removed: int
    cause_lines: list[str]
    runs: list[JobRun]
    refusals: dict[str, int]
    voted_out: int
    only_the_vote: list[str]
    tokens: tuple[int, int]

    @property
    def name(self) -> str:
        return "learn-jobs"

    def parts(self, details: bool = False) -> Iterator[RenderableType]:
        """Yield the share of lines kept by run, and the evidence lines that were removed."""
        yield _kept_grid(self).printed()
        yield from _summary(self)
        for line in self.cause_lines + self.only_the_vote:
            yield Text(f"  {line}", "red")

    def page(self) -> str:
        return f"{_INTRODUCTION}```\n{self.printed()}```\n"

    def chart(self) -> Chart:
        """Return the share of lines kept by run: kinds in grey, median and worst in colour."""
        kinds = _by_kind(self.runs).values()
        return Chart(
            title="Lines kept in each run of a job",
            subtitle=f"shipped rules and what was learned, agent: {self.agent}, {len(kinds)} kinds of jobs",
            foot=f"lines of causes removed: {self.cause_lines_removed}\u2003shipped rules alone remove"
            f" {percent(self.shipped_removed)} % of all lines",
            steps=[f"run {number}" for number in range(1, len(self.kept_by_run) + 1)],
            curves={
                "median": [both[0] for both in self.kept_by_run],
                "worst": [both[1] for both in self.kept_by_run],
            },
            scale=LOGARITHMIC,
            goals={"": _AIM},
            goal=f"aim: at most {100 * _AIM:g} % from the third run on",
            others=[[run.kept / max(run.lines, 1) for run in runs] for runs in kinds],
            others_name=f"{len(kinds)} kinds, middle",
        )


def measure(
    folder: Path,
    scanner: Scanner,
    guards: FilterGuards,
    writers: Callable[[ModelCalls], tuple[Agent, Agent | None]],
    causes: CauseLines,
    terms: WatchTerms,
    scratch: Path,
    votes: int,
    kinds_known: bool = True,
    on_run: Callable[[JobRun], None] = lambda run: None,
) -> JobsReport:
    """Return the curve of the jobs in `folder`, which has a folder of runs' logs per kind. Runs are in natural order;
    unless `kinds_known`, the log agent has to recognise their kinds. `scratch` is an empty folder for the database.
    Raises `InputError` when there are no logs."""
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
        counting = CountingAgent(adviser or agent, agent.free)
        first, second = (agent, counting) if adviser else (counting, None)
        limits = LearningLimits(votes, terms, lessons_per_hour=_NO_LIMIT)
        log_agent = LogAgent(Books(scanner, rules), rules, first, guards, limits, second)
        runs = []
        for kind, logs in kinds.items():
            for number, log in enumerate(logs, 1):
                attempt = LearningAttempt(kind if kinds_known else "", f"{kind}-{number}", log_agent)
                runs.append(_run(kind, number, log, scanner, attempt, log_agent, counting, rules, causes))
                on_run(runs[-1])
        name = f"{agent.name}, then {adviser.name}" if adviser else agent.name
        return _report(runs, causes, rules, ledger, guards, name)
    finally:
        records.close()


def _run(
    kind: str,
    number: int,
    log: Path,
    scanner: Scanner,
    attempt: LearningAttempt,
    agent: LogAgent,
    counting: CountingAgent,
    rules: LearnedRules,
    causes: CauseLines,
) -> JobRun:
    begin = time.perf_counter()
    calls, before = counting.calls, len(rules.list())
    data = log.read_bytes()
    lines = kept = rest = rest_kept = shipped_kept = read = 0
    for segment in cut("main", _pieces(data), PIECE):
        residual = attempt.read(segment)
        lines += segment.lines
        kept += len(residual.kept)
        shipped_kept += _by_shipped(residual, scanner)
        if read >= _BEGINNING * len(data):
            rest += segment.lines
            rest_kept += len(residual.kept)
        read += len(segment.data)
        attempt.learn(over=False)
        causes.look(attempt.kind, agent.books.scanner(attempt.kind))
    verdict = attempt.finish()
    causes.look(attempt.kind, agent.books.scanner(attempt.kind))
    return JobRun(
        kind,
        number,
        lines,
        kept,
        rest,
        rest_kept,
        shipped_kept,
        attempt.lessons,
        counting.calls - calls,
        len(rules.list()) - before,
        len(rules.list(attempt.kind, "proposed")),
        verdict.outcome,
        verdict.reason,
        round(time.perf_counter() - begin, 2),
    )


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[start : start + PIECE] for start in range(0, len(data), PIECE))


def _by_shipped(residual: Residual, scanner: Scanner) -> int:
    """Count the lines of a segment that would be kept without learned rules."""
    owner = residual.scan.owner[: len(residual.ends)]
    return int(((owner < 0) | (owner >= len(scanner.book.filters))).sum())


def _report(
    runs: Sequence[JobRun],
    causes: CauseLines,
    rules: LearnedRules,
    ledger: ModelCalls,
    guards: FilterGuards,
    agent: str,
) -> JobsReport:
    numbers = range(1, max(run.number for run in runs) + 1)
    active = [one for one in causes.caught.values() if one.status == "active" and not one.citable]
    voted_out = [refusal.pattern for refusal in rules.refusals.list(guard="vote", limit=_REFUSALS)]
    totals = ledger.totals()
    return JobsReport(
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


def _harmful(patterns: Sequence[str], causes: CauseLines, guards: FilterGuards) -> list[str]:
    """Return the patterns that match a line of a cause and that no guard refuses."""
    known = guards.evidence_taken(patterns)
    matched = taken(patterns, causes.texts())
    return [pattern for pattern, places in zip(patterns, matched, strict=True) if places and pattern not in known]


def _middle_and_worst(shares: Iterable[float]) -> tuple[float, float]:
    values = list(shares) or [0.0]
    return round(statistics.median(values), 4), round(max(values), 4)


def _by_kind(runs: Iterable[JobRun]) -> dict[str, list[JobRun]]:
    kinds: dict[str, list[JobRun]] = {}
    for run in runs:
        kinds.setdefault(run.kind, []).append(run)
    return kinds


def _kept_grid(report: JobsReport) -> Grid:
    """Return a table of the share of lines kept, by run, of each kind and of all."""
    numbers = range(1, len(report.kept_by_run) + 1)
    rows: list[list[Cell]] = []
    for kind, runs in _by_kind(report.runs).items():
        first, shares = runs[0], [_percent(run.kept, run.lines) for run in runs]
        shares += [""] * (len(numbers) - len(shares))
        asked = " ".join(str(run.calls) for run in runs)
        shipped, rest = _percent(first.shipped_kept, first.lines), _percent(first.rest_kept, first.rest)
        rows.append([kind, shipped, *shares, rest, asked])
    for name, place in (("median", 0), ("worst", 1)):
        cells = [name, "", *(percent(both[place]) for both in report.kept_by_run), percent(report.rest_kept[place]), ""]
        rows.append([Text(cell, "bold") for cell in cells])
    head = ["kind", "shipped", *map(str, numbers), "rest of 1", "asked"]
    return Grid(head, rows, f"lines kept, %, by run; agent: {report.agent}")


def _percent(part: int, whole: int) -> str:
    return percent(part / whole) if whole else ""


def _summary(report: JobsReport) -> Iterator[str]:
    refused = ", ".join(f"{guard} {count}" for guard, count in report.refusals.items())
    outcomes = Counter(run.outcome for run in report.runs)
    yield f"the shipped rules alone remove {percent(report.shipped_removed)} % of all lines"
    yield f"{report.cause_lines_removed} lines of causes removed; proposals refused: {refused or 'none'}"
    yield f"{report.voted_out} patterns voted out, of which {len(report.only_the_vote)} would have removed a cause"
    yield f"outcomes: {', '.join(f'{count} {outcome}' for outcome, count in outcomes.most_common())}"
    if any(report.tokens):
        later = sum(run.calls for run in report.runs if run.number > 1)
        yield f"tokens: {report.tokens[0]:,} in, {report.tokens[1]:,} out; calls after the first run: {later}"


_INTRODUCTION = """# What is kept of real jobs, run by run

`logdoctor eval learn-filters --jobs FOLDER --write eval`: the runs of each kind are read one after another by the code
of the service with the shipped rules; *shipped* is what these alone would keep of the first run, *rest of 1* what is
kept of the first run after its first fifth, *asked* how often the agent was asked in each run. The logs are not here:
they are complete logs of training runs that others published.

![Share of lines kept, run by run](learn-jobs.svg)

"""
