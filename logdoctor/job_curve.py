"""How a service's filter rules shrink the logs of anyone's jobs: the runs of each kind come one after another.

A run is read in small pieces by the code of the service, with the shipped rules and what was learned so far; a lesson
is held between two pieces when one is due, so nothing depends on how busy a machine is.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from logdoctor.compress.cut import cut
from logdoctor.compress.filter import Residual
from logdoctor.errors import InputError
from logdoctor.learn.book import Books
from logdoctor.learn.guards import Guards
from logdoctor.learn.life import Terms
from logdoctor.learn.log_agent import Limits, LogAgent
from logdoctor.learn.proposal import Agent
from logdoctor.learning_curve import Causes, Counting, Pupil
from logdoctor.rules.scanner import Scanner
from logdoctor.store.learned import LearnedRules
from logdoctor.store.records import Records
from logdoctor.text import natural

PIECE = 4 << 10
"""Bytes of a log that come at once."""
_BEGINNING = 0.2
"""Share of the first run in which nothing can have been learned yet."""
_NO_LIMIT = 1_000_000  # lessons in an hour: in this run months of jobs pass in minutes


class Run(msgspec.Struct, frozen=True):
    """One run of a job: its lines, how many were kept, how many of those behind its first fifth, and how many the
    shipped rules alone would keep; what was learned from it, how often the agent was asked, and its verdict."""

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
    verdict: str
    seconds: float


class Report(msgspec.Struct, frozen=True):
    """The runs of all kinds, and how many lines that tell of a cause were taken at any moment.

    `kept_by_run` has for each run the median over the kinds of the share of lines kept, and the largest; `rest_kept`
    the same of the first run behind its first fifth. `shipped_removed` is the share of all lines that the shipped rules
    take.
    """

    kept_by_run: list[tuple[float, float]]
    rest_kept: tuple[float, float]
    shipped_removed: float
    cause_lines_removed: int
    cause_lines: list[str]
    runs: list[Run]
    refusals: dict[str, int]


def measure(
    folder: Path,
    scanner: Scanner,
    guards: Guards,
    agent: Agent,
    causes: Causes,
    terms: Terms,
    scratch: Path,
    votes: int,
    tell: Callable[[Run], None] = lambda run: None,
) -> Report:
    """The curve of the jobs in `folder`, which has a folder for each kind and in it the logs of its runs, in their
    natural order. `scratch` is an empty folder for the database. `InputError` when there are no logs."""
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
        counting = Counting(agent, agent.free)
        log_agent = LogAgent(
            Books(scanner, rules), rules, counting, guards, Limits(votes, terms, lessons_per_hour=_NO_LIMIT)
        )
        runs = []
        for kind, logs in kinds.items():
            for number, log in enumerate(logs, 1):
                runs.append(_run(kind, number, log, scanner, log_agent, counting, rules, causes))
                tell(runs[-1])
        return _report(runs, causes, rules)
    finally:
        records.close()


def _run(
    kind: str,
    number: int,
    log: Path,
    scanner: Scanner,
    agent: LogAgent,
    counting: Counting,
    rules: LearnedRules,
    causes: Causes,
) -> Run:
    begin = time.perf_counter()
    calls, before = counting.calls, len(rules.list(kind))
    pupil = Pupil(kind, f"run-{number}", agent)
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
        causes.look(kind, agent.books.scanner(kind))
    verdict = pupil.finish()
    causes.look(kind, agent.books.scanner(kind))
    said = verdict.outcome if verdict.reason == "None" else f"{verdict.outcome}, {verdict.reason}"
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
        len(rules.list(kind)) - before,
        len(rules.list(kind, "proposed")),
        said,
        round(time.perf_counter() - begin, 2),
    )


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[start : start + PIECE] for start in range(0, len(data), PIECE))


def _by_shipped(residual: Residual, scanner: Scanner) -> int:
    """How many lines of a segment would be kept if nothing had been learned."""
    owner = residual.scan.owner[: len(residual.ends)]
    return int(((owner < 0) | (owner >= len(scanner.book.filters))).sum())


def _report(runs: Sequence[Run], causes: Causes, rules: LearnedRules) -> Report:
    numbers = range(1, max(run.number for run in runs) + 1)
    active = [one for one in causes.caught.values() if one.status == "active" and not one.citable]
    return Report(
        [_middle_and_worst(run.kept / max(run.lines, 1) for run in runs if run.number == n) for n in numbers],
        _middle_and_worst(run.rest_kept / run.rest for run in runs if run.number == 1 and run.rest),
        round(1 - sum(run.shipped_kept for run in runs) / max(sum(run.lines for run in runs), 1), 4),
        len(active),
        [f"{one.file}:{one.line} {one.rule}: {one.text[:200]}" for one in active],
        list(runs),
        rules.refusal_counts(),
    )


def _middle_and_worst(shares: Iterable[float]) -> tuple[float, float]:
    values = list(shares) or [0.0]
    return round(statistics.median(values), 4), round(max(values), 4)


def render(report: Report, console: Console) -> None:
    """Print the share of lines kept, run by run, of each kind and of all."""
    numbers = range(1, len(report.kept_by_run) + 1)
    table = Table(title=Text("lines kept, %, by run"), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("kind", overflow="fold")
    for name in ("shipped", *(f"run {n}" for n in numbers), "rest of 1", "lessons", "verdict of the last"):
        table.add_column(name, justify="left" if name.startswith("verdict") else "right")
    by_kind: dict[str, list[Run]] = {}
    for run in report.runs:
        by_kind.setdefault(run.kind, []).append(run)
    for kind, runs in by_kind.items():
        shares = [f"{100 * run.kept / max(run.lines, 1):.1f}" for run in runs]
        shares += [""] * (len(numbers) - len(shares))
        first = runs[0]
        rest = f"{100 * first.rest_kept / first.rest:.1f}" if first.rest else ""
        shipped = f"{100 * first.shipped_kept / max(first.lines, 1):.1f}"
        table.add_row(kind, shipped, *shares, rest, " ".join(str(run.lessons) for run in runs), runs[-1].verdict)
    for row, place in (("median", 0), ("worst", 1)):
        shares = [f"{100 * both[place]:.1f}" for both in report.kept_by_run]
        table.add_row(row, "", *shares, f"{100 * report.rest_kept[place]:.1f}", "", "", style="bold")
    console.print(table)
    told = ", ".join(f"{guard} {count}" for guard, count in report.refusals.items())
    later = sum(run.calls for run in report.runs if run.number > 1)
    console.print(
        f"the shipped rules alone take {100 * report.shipped_removed:.1f} % of all lines; "
        f"{report.cause_lines_removed} cause lines taken; the agent was asked {later} times in later runs; "
        f"refused: {told or 'none'}",
        highlight=False,
    )
    for line in report.cause_lines:
        console.print(Text(f"  {line}", "red"))
