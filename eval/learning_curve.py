"""How fast filter rules are learned from nothing, and whether they ever hurt: jobs arrive one after another.

The parts are those of the service (`LogAgent` with its miner, `FilterGuards`, `LearnedRules` in a database, `Books`),
and a job is read as the service reads it; only the thread is missing, so that a run is repeatable. After every change
of any rule book the changed scanner is tried on all logs of failed jobs, whatever their kind.
"""

import hashlib
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import regex
from rich.console import RenderableType
from rich.text import Text

from eval.cause_lines import CaughtLine, CauseLines
from eval.chart import LOGARITHMIC, Chart
from eval.learning_attempt import CountingAgent, LearningAttempt
from eval.report import Cell, EvalReport, Grid
from logdoctor.compress.cut import cut
from logdoctor.compress.filter import Residual
from logdoctor.compress.leftovers import shape
from logdoctor.errors import InputError
from logdoctor.learning.filters.agent import LearningLimits, LogAgent
from logdoctor.learning.filters.book import Books
from logdoctor.learning.filters.guards import FilterGuards
from logdoctor.learning.filters.life import WatchTerms
from logdoctor.learning.filters.matching import taken
from logdoctor.learning.filters.miner import Miner
from logdoctor.rules import marks
from logdoctor.rules.scanner import Scanner
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.text import ANSI, decode
from logdoctor.types import Segment

FRAMEWORKS = (
    *("megatron", "megatron_deepspeed", "deepspeed", "internevo", "hf_trainer", "llamafactory", "torchtitan", "nemo"),
    *("composer", "nanotron", "olmo", "colossalai", "verl", "metaseq", "lightning"),
)
"""Frameworks that `biglog.py` can imitate."""
DEFAULT = FRAMEWORKS[:8]
AIM = 0.99
"""Share of a job's regular lines to be removed when it is the third of its kind."""
_SEGMENT = 1 << 20
_OFTEN = 10  # fewest lines of a shape that is regular in a real log
_SHOWN = 20  # most groups of lines left, and of evidence lines removed, in a report
_NO_LIMIT = 1_000_000  # lessons per hour: here, months of jobs pass in minutes

Flags = npt.NDArray[np.bool_]


class LearningSetup(msgspec.Struct, frozen=True):
    """How a learning curve was measured; with `approve` a reviewer approves waiting rules after each job."""

    frameworks: tuple[str, ...] = DEFAULT
    healthy: bool = True
    mb: float = 8.0
    jobs: int = 4
    seed: int = 7
    runs: int = 5
    watched_jobs: int = 2
    watched_lines: int = 10
    approve: bool = False


class LearnedJob(msgspec.Struct, frozen=True):
    """One job: its regular and rare lines, how many of each were removed, what was learned from it, and its kind's
    rules when it was over.

    `marked` are regular lines that look like trouble and were not removed: a rule for them waits for a person. `calls`
    counts questions to the agent, its judge included; `seconds` are those of reading and learning.
    """

    kind: str
    number: int
    lines: int
    regular: int
    regular_removed: int
    marked: int
    rare: int
    rare_removed: int
    lessons: int
    calls: int
    added: int
    shadow: int
    active: int
    waiting: int
    verdict: str
    seconds: float

    @property
    def share(self) -> float:
        """The share of regular lines that was removed; 1 without any."""
        return self.regular_removed / self.regular if self.regular else 1.0

    @property
    def share_without_marks(self) -> float:
        """The share without the lines that no rule may remove before a person has approved it."""
        learnable = self.regular - self.marked
        return self.regular_removed / learnable if learnable else 1.0


class LinesLeft(msgspec.Struct, frozen=True):
    """Regular lines of one shape that were not removed: how many, one of them, and why."""

    lines: int
    example: str
    why: str


class LearningReport(EvalReport, frozen=True):
    """The learning curve of each kind of job, and what must not happen.

    `removed_by_job` is the share of regular lines that were removed in the first job of a kind, the second, ... In
    generated logs all lines but the rare ones are regular; in others those whose shape occurs at least ten times in the
    log and that do not look like trouble. Rare are the one-off warnings that the generator counts; in other logs lines
    that warn and whose shape occurs once.

    `without_marks` is the share of those that do not look like trouble: a rule for the others waits for a person.

    `cause_lines_removed` counts the pairs of an evidence line of the failure corpus and a learned rule that removed it
    at any moment, whatever the rule's kind; `cause_lines_citable` counts apart metric lines that the progress record
    quotes, and `cause_lines_watched` those of rules in shadow. `caught` lists them. `second_job_model_calls` is how
    often a model would have been asked during the second job of a kind.
    """

    removed_by_job: dict[str, list[float]]
    without_marks: dict[str, list[float]]
    cause_lines_removed: int
    cause_lines_citable: int
    cause_lines_watched: int
    rare_lines_removed: int
    second_job_model_calls: dict[str, int]
    moments: int
    jobs: list[LearnedJob]
    refusals: dict[str, int]
    left: dict[str, list[LinesLeft]]
    caught: list[CaughtLine]
    setup: LearningSetup
    seconds: float

    @property
    def name(self) -> str:
        return "learn-filters"

    def parts(self, details: bool = False) -> Iterator[RenderableType]:
        """Yield the curve of each kind, what must not have happened, and what is left."""
        yield _curve_grid(self).printed()
        yield _summary(self)
        if self.refusals:
            yield f"proposals refused: {_refused(self.refusals)}"
        for caught in self.caught:
            yield Text(f"  {caught.file}:{caught.line} {caught.status} {caught.rule}: {caught.text[:200]}", "red")
        for kind, left in self.left.items():
            if self.removed_by_job[kind][-1] < AIM:
                yield Text(f"{kind}, left of its last job:", "bold")
                yield from (f"  {one.lines:,} lines ({one.why}): {one.example[:200]!r}" for one in left[:5])

    def page(self) -> str:
        return f"{_INTRODUCTION}{section(self)}"

    def chart(self) -> Chart:
        """Return the share of regular lines left, by job; real logs are grey and share a name."""
        left = {kind: [1 - share for share in shares] for kind, shares in self.removed_by_job.items()}
        others = [shares for kind, shares in left.items() if kind not in self.setup.frameworks]
        calls = sum(self.second_job_model_calls.values())
        return Chart(
            title="Regular lines left in each job of a kind",
            subtitle=f"no filter rule at the start, offline agent, {_kinds(self)}",
            foot=f"cause lines removed: {self.cause_lines_removed}\u2003rare lines removed: {self.rare_lines_removed}"
            f"\u2003model calls in second jobs: {calls}",
            steps=[f"job {number}" for number in range(1, self.setup.jobs + 1)],
            curves={kind: shares for kind, shares in left.items() if kind in self.setup.frameworks},
            scale=LOGARITHMIC,
            goals={"": 1 - AIM},
            goal=f"aim: at most {100 * (1 - AIM):g} % from the third job on",
            others=others,
            others_name=f"{len(others)} healthy logs, middle",
        )


def run(
    scanner: Scanner,
    guards: FilterGuards,
    corpus: Path,
    folder: Path,
    setup: LearningSetup | None = None,
    on_job: Callable[[LearnedJob], None] = lambda job: None,
) -> LearningReport:
    """Return the learning curve of the kinds in `setup`, with the diagnosis rules of `scanner`.

    `scanner` has no filter rules; `corpus` is the labelled corpus with its `biglog.py`, `folder` an empty one for logs
    and the database; `on_job` is called with each finished job. Raises `InputError` when the corpus is incomplete.
    """
    setup = setup or LearningSetup()
    begin = time.perf_counter()
    sources = _sources(corpus, folder, setup)
    records = Records(f"sqlite:///{folder / 'curve.db'}")
    try:
        jobs = _LearningRun(LearnedRules(records.database), scanner, guards, CauseLines(corpus / "failures"), setup)
        for number in range(1, setup.jobs + 1):
            for kind, log in sources.items():
                job = jobs.run(kind, number, log(number))
                on_job(job)
        return _report(jobs, setup, time.perf_counter() - begin)
    finally:
        records.close()


class _MarkedLog(NamedTuple):
    """A log, and which of its lines are regular and which are rare."""

    data: bytes
    regular: Flags
    rare: Flags


_LogMaker = Callable[[int], _MarkedLog]
"""Returns the log of the n-th job of a kind."""


def _sources(corpus: Path, folder: Path, setup: LearningSetup) -> dict[str, _LogMaker]:
    """Return the makers of each kind's logs."""
    generator = corpus / "biglog.py"
    if not generator.is_file():
        raise InputError(str(generator), "is missing", "Name the corpus that biglog.py lies in.")
    kinds: dict[str, _LogMaker] = {}
    for place, name in enumerate(setup.frameworks):
        seed = setup.seed + 1000 * place
        kinds[name] = lambda number, name=name, seed=seed: _generated(  # type: ignore[misc]
            generator, folder, name, setup.mb, seed + number
        )
    for path in sorted((corpus / "healthy").glob("*.log")) if setup.healthy else ():
        kinds[f"healthy/{path.stem}"] = lambda number, path=path: _real(  # type: ignore[misc]
            resubmitted(path.read_bytes(), number - 1)
        )
    return kinds


def _generated(generator: Path, folder: Path, framework: str, mb: float, seed: int) -> _MarkedLog:
    """Return a framework's log from the generator, which also gives the rare lines."""
    log, index = folder / "job.log", folder / "job.json"
    command = [sys.executable, str(generator), "--framework", framework, "--mb", f"{mb:g}", "--seed", str(seed)]
    done = subprocess.run(
        [*command, "--out", str(log), "--index", str(index)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        cause = (done.stderr.strip().split("\n") or [""])[-1]
        raise InputError(str(generator), f"could not write a log ({cause})", f"Run {' '.join(command)} yourself.")
    data, indexed = log.read_bytes(), json.loads(index.read_bytes())
    rare = np.zeros(indexed["lines"], np.bool_)
    rare[np.array(indexed["rare_line_numbers"], np.int64) - 1] = True
    log.unlink()
    return _MarkedLog(data, ~rare, rare)


_WARNING = regex.compile(rb"(?i)\bwarn")


def _real(data: bytes) -> _MarkedLog:
    """Mark the lines of a real log: regular ones are frequent and do not look like trouble. Rare ones have a shape of
    their own and warn of something."""
    lines = [ANSI.sub(b"", line) for line in data.removesuffix(b"\n").split(b"\n")]
    shapes = [shape(line) for line in lines]
    often = Counter(shapes)
    troubled = [marks.is_error_like(decode(line)) for line in lines]
    regular = [often[key] >= _OFTEN and not marked for key, marked in zip(shapes, troubled, strict=True)]
    rare = [
        often[key] == 1 and (marked or bool(_WARNING.search(line)))
        for key, marked, line in zip(shapes, troubled, lines, strict=True)
    ]
    return _MarkedLog(data, np.array(regular, np.bool_), np.array(rare, np.bool_))


_DAY = rb"(?P<day>(?<!\d)20\d\d[-/]\d\d[-/]\d\d(?!\d))"
_LONG = rb"(?P<long>(?<![\w.:/-])[1-9]\d{4,17}(?![\w:/-]))"
_FRACTION = rb"(?P<fraction>(?<=(?<![\w.])\d\.|(?<![\w.])\d\d\.|(?<![\w.])\d\d\d\.)\d+(?![\w.]))"
_CHANGING = regex.compile(rb"|".join((_DAY, _LONG, _FRACTION)))


def resubmitted(data: bytes, times: int) -> bytes:
    """Return a log as its job might print it when submitted again, of the same length.

    Days move on, whole numbers of five digits and more (process ids, bytes, tokens) grow by the same amount, and the
    digits behind a decimal point are others. Smaller whole numbers stay, because steps, ranks, versions and zero counts
    are among them. Equal numbers stay equal.
    """
    if not times:
        return data

    def changed(match: regex.Match[bytes]) -> bytes:
        text: bytes = match.group()
        if match.lastgroup == "day":
            return text[:-2] + b"%02d" % ((int(text[-2:]) + times - 1) % 28 + 1)
        if match.lastgroup == "long":
            low = 10 ** (len(text) - 1)
            return b"%d" % (low + (int(text) - low + 137 * times) % (9 * low))
        digest = hashlib.blake2b(text, digest_size=32, salt=times.to_bytes(4, "big")).digest()
        return bytes(48 + value % 10 for value in digest * (len(text) // 32 + 1))[: len(text)]

    return _CHANGING.sub(changed, data)


# ---- jobs


class _LearningRun:
    """All jobs of all kinds, one after another, and their results."""

    def __init__(
        self, rules: LearnedRules, scanner: Scanner, guards: FilterGuards, causes: CauseLines, setup: LearningSetup
    ) -> None:
        self.rules, self.causes = rules, causes
        self._counting = CountingAgent(Miner())
        terms = WatchTerms(setup.watched_jobs, setup.watched_lines)
        limits = LearningLimits(setup.runs, terms, lessons_per_hour=_NO_LIMIT)
        self._agent = LogAgent(Books(scanner, rules), rules, self._counting, guards, limits)
        self._approve = setup.approve
        self.jobs: list[LearnedJob] = []
        self.left: dict[str, list[LinesLeft]] = {}
        """Lines left of the last job of each kind."""

    def run(self, kind: str, number: int, log: _MarkedLog) -> LearnedJob:
        """Read one job from its first line to its verdict; return its figures."""
        begin = time.perf_counter()
        before = self._statuses(kind)
        calls, looked = self._counting.calls, self.causes.seconds
        attempt = LearningAttempt(kind, f"{kind.replace('/', '-')}-{number}", self._agent)
        removed, marked = (np.zeros(len(log.regular), np.bool_) for _ in range(2))
        remains = _RegularLinesLeft(log)
        for segment in _segments(log.data):
            residual = attempt.read(segment)
            if segment.piece is None:
                count, first, scan = len(residual.ends), segment.line - 1, residual.scan
                removed[first : first + count] = scan.owner[:count] >= 0
                marked[first : first + count] = (scan.owner[:count] < 0) & (scan.strong | scan.weak)[:count]
            remains.add(residual)
            attempt.learn(over=False)
            self._look()
        verdict = attempt.finish()
        if self._approve:
            self._review(kind)
        self._look()
        after = self._statuses(kind)
        waiting = [rule.pattern for rule in self.rules.list(kind, "proposed")]
        self.left[kind] = remains.left(attempt.scanner, waiting)
        job = LearnedJob(
            kind,
            number,
            len(removed),
            int(log.regular.sum()),
            int((removed & log.regular).sum()),
            int((marked & log.regular).sum()),
            int(log.rare.sum()),
            int((removed & log.rare).sum()),
            attempt.lessons,
            self._counting.calls - calls,
            after.total() - before.total(),
            after["shadow"],
            after["active"],
            after["proposed"],
            verdict.outcome if verdict.reason == "None" else f"{verdict.outcome}, {verdict.reason}",
            round(time.perf_counter() - begin - (self.causes.seconds - looked), 2),
        )
        self.jobs.append(job)
        return job

    def _review(self, kind: str) -> None:
        """Approve the rules that wait for a person."""
        for rule in self.rules.list(kind, "proposed"):
            self.rules.approve(rule.id, "reviewer", "approved in the measurement", time.time())
        self._agent.books.refresh()

    def _look(self) -> None:
        for kind in self._agent.books.kinds:
            self.causes.look(kind, self._agent.books.scanner(kind))

    def _statuses(self, kind: str) -> Counter[str]:
        return Counter(rule.status for rule in self.rules.list(kind))


def _segments(data: bytes) -> Iterator[Segment]:
    """Yield the log as it arrives, block by block."""
    blocks = (data[start : start + _SEGMENT] for start in range(0, len(data), _SEGMENT))
    return cut("main", blocks, _SEGMENT)


class _RegularLinesLeft:
    """Regular lines that are left, by shape."""

    def __init__(self, log: _MarkedLog) -> None:
        self._log = log
        self._counts: Counter[int] = Counter()
        self._examples: dict[int, str] = {}

    def add(self, residual: Residual) -> None:
        """Count a segment's remaining lines."""
        if residual.segment.piece is not None:
            return
        first = residual.segment.line - 1
        for place in residual.kept[self._log.regular[first + residual.kept]].tolist():
            line = residual.line(place)
            key = shape(line)
            self._counts[key] += 1
            self._examples.setdefault(key, decode(line))

    def left(self, scanner: Scanner, waiting: Sequence[str]) -> list[LinesLeft]:
        """Return the largest groups; `waiting` are patterns that wait for a person."""
        return [
            LinesLeft(count, self._examples[key][:400], _why(self._examples[key], scanner, waiting))
            for key, count in self._counts.most_common(_SHOWN)
        ]


def _why(line: str, scanner: Scanner, waiting: Sequence[str]) -> str:
    """Return why no rule removed a line."""
    matching = scanner.matching([line])[0]
    statuses = {rule.status for rule in scanner.book.learned if not matching.isdisjoint(rule.patterns)}
    diagnoses = [rule.id for rule in scanner.book.diagnoses if not matching.isdisjoint(rule.when.any)]
    if diagnoses:
        return f"hit by {diagnoses[0]}"
    if any(taken(waiting, [line])):
        return "its rule waits for approval"
    if marks.is_error_like(line):
        return "looks like trouble"
    return f"its rule is in {min(statuses)}" if statuses else "no rule matches it"


# ---- summing up


def _report(run: _LearningRun, setup: LearningSetup, seconds: float) -> LearningReport:
    caught = list(run.causes.caught.values())
    active = [one for one in caught if one.status == "active"]
    kinds = list(dict.fromkeys(job.kind for job in run.jobs))
    return LearningReport(
        {kind: [round(job.share, 5) for job in run.jobs if job.kind == kind] for kind in kinds},
        {kind: [round(job.share_without_marks, 5) for job in run.jobs if job.kind == kind] for kind in kinds},
        sum(not one.citable for one in active),
        sum(one.citable for one in active),
        sum(one.status == "shadow" and not one.citable for one in caught),
        sum(job.rare_removed for job in run.jobs),
        {job.kind: job.calls for job in run.jobs if job.number == 2},
        run.causes.moments,
        run.jobs,
        run.rules.refusals.counts(),
        {kind: left for kind, left in run.left.items() if left},
        caught[:_SHOWN],
        setup,
        round(seconds, 1),
    )


# ---- showing


_COLUMNS = ("without marks", "lessons", "rules", "waiting", "asked in job 2")


def _curve_grid(report: LearningReport) -> Grid:
    numbers = range(1, report.setup.jobs + 1)
    rows: list[list[Cell]] = [
        [kind, *map(_judged, shares, numbers), *_learned(report, kind)]
        for kind, shares in report.removed_by_job.items()
    ]
    title = f"regular lines removed, %, by job of a kind ({report.seconds:.0f} s)"
    return Grid(["kind", *(f"job {number}" for number in numbers), *_COLUMNS], rows, title)


def _with_what_is_left(report: LearningReport) -> Grid:
    """Return the curve without colours, and each kind's largest group of lines left."""
    grid = _curve_grid(report)
    largest = [report.left.get(str(row[0]), [])[:1] for row in grid.rows]
    rows = [[*row, _described(left[0]) if left else ""] for row, left in zip(grid.rows, largest, strict=True)]
    return Grid([*grid.head, "most of what is left"], rows, left=(0, len(grid.head)))


def _judged(share: float, number: int) -> Text:
    colour = "" if number < 3 else "green" if share >= AIM else "red"
    return Text(_percent(share), colour)


def _percent(share: float) -> str:
    """Return the share in percent; only a full one is written as 100."""
    return "100" if share >= 1 else f"{math.floor(share * 10_000) / 100:.2f}"


def _learned(report: LearningReport, kind: str) -> list[str]:
    """Return the figures of a kind for its columns, `_COLUMNS`."""
    jobs = [job for job in report.jobs if job.kind == kind]
    last = jobs[-1]
    lessons = " ".join(str(job.lessons) for job in jobs)
    unmarked = _percent(report.without_marks[kind][-1])
    asked = report.second_job_model_calls.get(kind, 0)
    return [unmarked, lessons, f"{last.active} + {last.shadow}", str(last.waiting), str(asked)]


def _summary(report: LearningReport) -> str:
    calls = sum(report.second_job_model_calls.values())
    return (
        f"{report.cause_lines_removed} cause lines removed ({report.cause_lines_citable} more that are metric lines and"
        f" are quoted; {report.cause_lines_watched} matched in shadow; {report.moments} rule books tried),"
        f" {report.rare_lines_removed} rare lines removed, {calls} calls in second jobs"
    )


def _described(left: LinesLeft) -> str:
    text = regex.sub(r"[^ -~]+", " ", left.example[-60:]).replace("`", "'").replace("|", "\\|").strip()
    return f"{left.lines:,} × `{text}` ({left.why})"  # noqa: RUF001 # a sign of multiplication is meant


_INTRODUCTION = """# Learning curve of the filter rules

`logdoctor eval learn-filters`: the Log Agent without a model (templates mined by Drain3) begins with no filter
rule and sees jobs one after another, kind by kind in turn. A job of a framework is a log that `biglog.py`
writes with a seed of its own; a healthy log of the corpus is submitted again and again, each time with other
numbers. Jobs are read in pieces of 1 MiB by the rules as they stand at that moment, a lesson comes when enough
lines are unexplained, and a verdict ends the job: all by the code of the service.

- *Regular* lines: of generated logs all but the rare ones; of healthy logs those whose shape occurs at least ten
  times in the log and that do not look like trouble. *Rare* lines: the one-off warnings that the generator counts;
  in healthy logs lines that warn and whose shape occurs once.
- Rules become active as soon as one job has shown enough lines, or when the job they were learned from ended well; a
  log that arrives as one piece is read before anything is learned from it.
- *Without marks*: the share of the last job without the regular lines that look like trouble; their rules *wait*
  for a human, and nobody approves any here.
- *Rules*: active + in shadow when the last job is over. *Asked in job 2*: how often a
  model would have been called while the second job of a kind ran.
- Cause lines: after every change of a rule book its rules are tried on all logs of `corpus/failures`, whatever
  their framework, and the evidence lines that they remove are counted. Metric lines that the progress record quotes
  are counted apart.

![Share of regular lines left, job by job](learn-filters.svg)

"""


def section(report: LearningReport) -> str:
    """Return the figures of one run under a heading, in Markdown."""
    refused = _refused(report.refusals)
    return (
        f"## {_kinds(report)}\n\n{_with_what_is_left(report).markdown()}\n\n{_summary(report)}.\n\n"
        f"Proposals refused, by guard: {refused or 'none'}.\n"
    )


def _refused(refusals: Mapping[str, int]) -> str:
    return ", ".join(f"{guard} {count}" for guard, count in refusals.items())


def _kinds(report: LearningReport) -> str:
    generated = len(report.setup.frameworks)
    others = len(report.removed_by_job) - generated
    counted = [f"{generated} frameworks, {report.setup.mb:g} MB a job"] if generated else []
    return ", ".join([*counted, f"{others} healthy logs"] if others else counted)
