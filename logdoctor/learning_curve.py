"""How fast filter rules are learned, and whether they ever hurt: jobs arrive one after another, and no filter rule
is there when the first one comes.

The parts are those of the service (`LogAgent` with its miner, `FilterGuards`, `LearnedRules` in a database, `Books`); a
job is read as the service reads it; only the thread is missing, so that a run can be repeated. After every change of
any rule book the scanner that changed is tried on all logs of failed jobs, whatever their kind.
"""

import hashlib
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import regex
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from logdoctor import pipeline
from logdoctor.compress.cut import cut, newlines_of
from logdoctor.compress.excerpt import Recorder, excerpt
from logdoctor.compress.filter import Residual, compress
from logdoctor.compress.leftovers import Leftovers, shape
from logdoctor.compress.progress import Gauges
from logdoctor.curve_chart import Chart, draw
from logdoctor.diagnose.decide import diagnose
from logdoctor.errors import InputError
from logdoctor.evaluate import FailureCase, read_corpus, write_report
from logdoctor.log_agent.agent import Left as Unexplained
from logdoctor.log_agent.agent import Limits, LogAgent
from logdoctor.log_agent.book import Books
from logdoctor.log_agent.guards import FilterGuards
from logdoctor.log_agent.life import WatchTerms
from logdoctor.log_agent.matching import taken
from logdoctor.log_agent.miner import Miner
from logdoctor.log_agent.proposal import Agent, Answer, FilterCandidate, Judgement, Proposal, Sample
from logdoctor.rules import marks
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import FilterRule
from logdoctor.store.learned import LearnedRules, Source
from logdoctor.store.records import Records
from logdoctor.text import ANSI, decode
from logdoctor.types import Segment, Verdict

FRAMEWORKS = (
    *("megatron", "megatron_deepspeed", "deepspeed", "internevo", "hf_trainer", "llamafactory", "torchtitan", "nemo"),
    *("composer", "nanotron", "olmo", "colossalai", "verl", "metaseq", "lightning"),
)
"""Those that `biglog.py` can imitate."""
DEFAULT = FRAMEWORKS[:8]
AIM = 0.99
"""Share of the regular lines of a job that are to be removed when it is the third of its kind."""
_SEGMENT = 1 << 20
_OFTEN = 10  # lines of a shape that make it a regular one of a log that nobody generated
_SHOWN = 20  # groups of lines that are left, and lines of evidence that were taken, in a report
_CITED_IS_KEPT = "Anomaly"  # as in `evaluate`: their evidence may be metric lines, which the progress record quotes
_NO_LIMIT = 1_000_000  # lessons in an hour: in this run months of jobs pass in minutes

_LIMITS = pipeline.Limits(_SEGMENT, 1, 1 << 30, 1000)
Flags = npt.NDArray[np.bool_]


class Setup(msgspec.Struct, frozen=True):
    """How a learning curve was measured; with `approve` a reviewer approves after each job the rules that wait."""

    frameworks: tuple[str, ...] = DEFAULT
    healthy: bool = True
    mb: float = 8.0
    jobs: int = 4
    seed: int = 7
    runs: int = 5
    watched_jobs: int = 2
    watched_lines: int = 10
    approve: bool = False


class Job(msgspec.Struct, frozen=True):
    """One job: how many of its lines are regular or rare and how many of these were removed, what was learned from
    it, and how many rules of its kind took lines or were watched when it was over.

    `marked` are regular lines that bear a mark of trouble and were not removed: a rule for them waits for a human.
    `calls` is how often the agent was asked, its judge included; `seconds` are those of reading and learning.
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
        """The share of the regular lines that was removed; 1 when there are none."""
        return self.regular_removed / self.regular if self.regular else 1.0

    @property
    def share_without_marks(self) -> float:
        """The share without the lines that no rule may take before a human has approved it."""
        learnable = self.regular - self.marked
        return self.regular_removed / learnable if learnable else 1.0


class Left(msgspec.Struct, frozen=True):
    """Regular lines of one shape that were not removed: how many, one of them, and why its rules did not take it."""

    lines: int
    example: str
    why: str


class Caught(msgspec.Struct, frozen=True):
    """A line of evidence that a learned rule matched: whose, where, and whether the progress record can quote it."""

    kind: str
    rule: str
    status: str
    file: str
    line: int
    text: str
    citable: bool


class Report(msgspec.Struct, frozen=True):
    """The learning curve of each kind of job, and what must not happen.

    `removed_by_job` is the share of regular lines that were removed in the first job of a kind, the second, ... In
    generated logs all lines but the rare ones are regular; in others those whose shape occurs at least ten times in
    the log and that bear no mark of trouble. Rare are the one-off warnings that the generator counts; in other logs
    lines that warn and whose shape occurs once.

    `without_marks` is the share of those that bear no mark of trouble: a rule for the others waits for a human.

    `cause_lines_removed` counts the pairs of an evidence line of the failure corpus and a learned rule that took it
    at any moment, whatever the rule's kind; `cause_lines_citable` those beside them whose line is a metric line that
    the progress record quotes, and `cause_lines_watched` those of rules in shadow. `caught` names them.
    `second_job_model_calls` is how often a model would have been asked during the second job of a kind.
    """

    removed_by_job: dict[str, list[float]]
    without_marks: dict[str, list[float]]
    cause_lines_removed: int
    cause_lines_citable: int
    cause_lines_watched: int
    rare_lines_removed: int
    second_job_model_calls: dict[str, int]
    moments: int
    jobs: list[Job]
    refusals: dict[str, int]
    left: dict[str, list[Left]]
    caught: list[Caught]
    setup: Setup
    seconds: float


def run(
    scanner: Scanner,
    guards: FilterGuards,
    corpus: Path,
    folder: Path,
    setup: Setup | None = None,
    tell: Callable[[Job], None] = lambda job: None,
) -> Report:
    """The learning curve of the kinds in `setup`, read with the diagnosis rules of `scanner`, which has no filter
    rules. `corpus` is the labelled corpus with its `biglog.py`, `folder` an empty one for logs and the database;
    `tell` is called with each job when it is over. `InputError` when the corpus is not complete."""
    setup = setup or Setup()
    begin = time.perf_counter()
    sources = _sources(corpus, folder, setup)
    records = Records(f"sqlite:///{folder / 'curve.db'}")
    try:
        course = _Course(LearnedRules(records.database), scanner, guards, Causes(corpus / "failures"), setup)
        for number in range(1, setup.jobs + 1):
            for kind, log in sources.items():
                job = course.run(kind, number, log(number))
                tell(job)
        return _report(course, setup, time.perf_counter() - begin)
    finally:
        records.close()


class _Log(NamedTuple):
    """A log, and which of its lines are regular and which are rare."""

    data: bytes
    regular: Flags
    rare: Flags


_Make = Callable[[int], _Log]
"""The log of the n-th job of a kind."""


def _sources(corpus: Path, folder: Path, setup: Setup) -> dict[str, _Make]:
    """How the logs of each kind are made."""
    generator = corpus / "biglog.py"
    if not generator.is_file():
        raise InputError(str(generator), "is missing", "Name the corpus that biglog.py lies in.")
    kinds: dict[str, _Make] = {}
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


def _generated(generator: Path, folder: Path, framework: str, mb: float, seed: int) -> _Log:
    """A log of a framework by the generator, which also tells the numbers of the rare lines."""
    log, index = folder / "job.log", folder / "job.json"
    command = [sys.executable, str(generator), "--framework", framework, "--mb", f"{mb:g}", "--seed", str(seed)]
    done = subprocess.run(
        [*command, "--out", str(log), "--index", str(index)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        cause = (done.stderr.strip().split("\n") or [""])[-1]
        raise InputError(str(generator), f"could not write a log ({cause})", f"Run {' '.join(command)} yourself.")
    data, told = log.read_bytes(), json.loads(index.read_bytes())
    rare = np.zeros(told["lines"], np.bool_)
    rare[np.array(told["rare_line_numbers"], np.int64) - 1] = True
    log.unlink()
    return _Log(data, ~rare, rare)


_WARNING = regex.compile(rb"(?i)\bwarn")


def _real(data: bytes) -> _Log:
    """A log that nobody generated: its regular lines are of a shape that is frequent, and bear no mark of trouble;
    its rare ones stand alone and warn of something."""
    lines = [ANSI.sub(b"", line) for line in data.removesuffix(b"\n").split(b"\n")]
    shapes = [shape(line) for line in lines]
    often = Counter(shapes)
    troubled = [marks.is_error_like(decode(line)) for line in lines]
    regular = [often[key] >= _OFTEN and not marked for key, marked in zip(shapes, troubled, strict=True)]
    rare = [
        often[key] == 1 and (marked or bool(_WARNING.search(line)))
        for key, marked, line in zip(shapes, troubled, lines, strict=True)
    ]
    return _Log(data, np.array(regular, np.bool_), np.array(rare, np.bool_))


_DAY = rb"(?P<day>(?<!\d)20\d\d[-/]\d\d[-/]\d\d(?!\d))"
_LONG = rb"(?P<long>(?<![\w.:/-])[1-9]\d{4,17}(?![\w:/-]))"
_FRACTION = rb"(?P<fraction>(?<=(?<![\w.])\d\.|(?<![\w.])\d\d\.|(?<![\w.])\d\d\d\.)\d+(?![\w.]))"
_CHANGING = regex.compile(rb"|".join((_DAY, _LONG, _FRACTION)))


def resubmitted(data: bytes, times: int) -> bytes:
    """The log as it might look when its job is submitted again: of the same length, with other numbers.

    Days move on, whole numbers of five digits and more (process ids, bytes, tokens) grow by the same amount, and the
    digits behind a decimal point are others. Smaller whole numbers stay, because steps, ranks, versions and counts of
    nought are among them. The same number becomes the same other one.
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


class Counting:
    """An agent that counts how often it is asked: each of its runs and its judge would be a call of a model, and it is
    asked like one unless it is `free`."""

    def __init__(self, agent: Agent, free: bool = False) -> None:
        self._agent, self.free = agent, free
        self.name, self.room, self.groups = agent.name, agent.room, agent.groups
        self.calls = 0

    def propose(self, sample: Sample, run: int) -> Answer:
        self.calls += 1
        return self._agent.propose(sample, run)

    def singly(self, sample: Sample, places: Collection[int]) -> list[Proposal]:
        return self._agent.singly(sample, places)

    def judge(self, sample: Sample, candidates: Sequence[FilterCandidate], runs: int) -> list[Judgement]:
        self.calls += 1
        return self._agent.judge(sample, candidates, runs)


class Pupil:
    """One attempt that is read and learned from, as the watch and the learner of the service do it together; `kind` is
    "" for a job of which nothing is told."""

    def __init__(self, kind: str, job: str, agent: LogAgent) -> None:
        self.lessons = 0
        self._attempt, self._agent = (job, 1), agent
        self._source = Source(job, 1, kind)
        self._begin(kind)
        self._adopt(agent.books.scanner(kind))
        self.recorder = Recorder("main", f"{job}/1/main", self.scanner)

    def _begin(self, kind: str) -> None:
        self.kind, self._leftovers = kind, Leftovers(self._agent.known(kind))

    def _adopt(self, scanner: Scanner) -> None:
        self.scanner, self._gauges = scanner, Gauges(scanner.book)

    def read(self, segment: Segment) -> Residual:
        """What is left of a segment by the rules as they stand now."""
        if (scanner := self._agent.books.scanner(self.kind)) is not self.scanner:
            self._adopt(scanner)
            self.recorder.adopt(scanner)
        residual = compress(segment, self.scanner)
        self.recorder.add(excerpt(residual, self.scanner, self._gauges), 0)
        self._leftovers.add(residual)
        return residual

    def learn(self, over: bool) -> None:
        """Have a lesson when there are lines enough for one."""
        self._agent.earn(self.kind, {rule: matched for rule, (matched, _) in self.recorder.hits().items()})
        left = self._leftovers
        found = Unexplained(left.lines_in, left.unexplained, self.lessons, left.taught)
        due = self._agent.is_due(found, over) and self._agent.has_room(self.lessons)
        if not due and (self._agent.knows(self.kind) or not left.is_worth_a_look()):
            return
        groups = left.groups()
        kind = self._agent.recognised(self.kind, groups) or (
            self._agent.new_kind(self._attempt[0], groups) if due else ""
        )
        if kind != self.kind:
            self._begin(kind)
            due = due and (self._agent.agent.free or not self._agent.knows(kind))
        if not due:
            return
        self._leftovers.count_anew()
        self.lessons += 1
        self._agent.learn(self.kind, self._attempt, groups, self._source)

    def finish(self) -> Verdict:
        """The verdict; it is entered what the rules did, after a last lesson."""
        verdict = diagnose([self.recorder.record()], self.scanner.book)
        hits = self.recorder.hits()
        self.learn(over=True)
        self._agent.carry(self.kind, self._leftovers.groups())
        self._agent.settle(self.kind, self._attempt, hits, verdict, True, time.time())
        return verdict


class _Course:
    """All jobs of all kinds, one after another, and what came of them."""

    def __init__(
        self, rules: LearnedRules, scanner: Scanner, guards: FilterGuards, causes: "Causes", setup: Setup
    ) -> None:
        self.rules, self.causes = rules, causes
        self._counting = Counting(Miner())
        terms = WatchTerms(setup.watched_jobs, setup.watched_lines)
        limits = Limits(setup.runs, terms, lessons_per_hour=_NO_LIMIT)
        self._agent = LogAgent(Books(scanner, rules), rules, self._counting, guards, limits)
        self._approve = setup.approve
        self.jobs: list[Job] = []
        self.left: dict[str, list[Left]] = {}
        """What was left of the last job of each kind."""

    def run(self, kind: str, number: int, log: _Log) -> Job:
        """One job from its first line to its verdict."""
        begin = time.perf_counter()
        before = self._statuses(kind)
        calls, looked = self._counting.calls, self.causes.seconds
        pupil = Pupil(kind, f"{kind.replace('/', '-')}-{number}", self._agent)
        removed, marked = (np.zeros(len(log.regular), np.bool_) for _ in range(2))
        remains = _Remains(log)
        for segment in _segments(log.data):
            residual = pupil.read(segment)
            if segment.piece is None:
                count, first, scan = len(residual.ends), segment.line - 1, residual.scan
                removed[first : first + count] = scan.owner[:count] >= 0
                marked[first : first + count] = (scan.owner[:count] < 0) & (scan.strong | scan.weak)[:count]
            remains.add(residual)
            pupil.learn(over=False)
            self._look()
        verdict = pupil.finish()
        if self._approve:
            self._review(kind)
        self._look()
        after = self._statuses(kind)
        waiting = [rule.pattern for rule in self.rules.list(kind, "proposed")]
        self.left[kind] = remains.left(pupil.scanner, waiting)
        job = Job(
            kind,
            number,
            len(removed),
            int(log.regular.sum()),
            int((removed & log.regular).sum()),
            int((marked & log.regular).sum()),
            int(log.rare.sum()),
            int((removed & log.rare).sum()),
            pupil.lessons,
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
        """Approve the rules that wait for a human."""
        for rule in self.rules.list(kind, "proposed"):
            self.rules.approve(rule.id, "reviewer", "approved in the measurement", time.time())
        self._agent.books.refresh()

    def _look(self) -> None:
        for kind in self._agent.books.kinds:
            self.causes.look(kind, self._agent.books.scanner(kind))

    def _statuses(self, kind: str) -> Counter[str]:
        return Counter(rule.status for rule in self.rules.list(kind))


def _segments(data: bytes) -> Iterator[Segment]:
    """The log as it comes in: block after block."""
    blocks = (data[start : start + _SEGMENT] for start in range(0, len(data), _SEGMENT))
    return cut("main", blocks, _SEGMENT)


class _Remains:
    """Regular lines that are left, by shape."""

    def __init__(self, log: _Log) -> None:
        self._log = log
        self._counts: Counter[int] = Counter()
        self._examples: dict[int, str] = {}

    def add(self, residual: Residual) -> None:
        """Count the lines that are left of a segment."""
        if residual.segment.piece is not None:
            return
        first = residual.segment.line - 1
        for place in residual.kept[self._log.regular[first + residual.kept]].tolist():
            line = residual.line(place)
            key = shape(line)
            self._counts[key] += 1
            self._examples.setdefault(key, decode(line))

    def left(self, scanner: Scanner, waiting: Sequence[str]) -> list[Left]:
        """The largest groups; `waiting` are patterns that wait for a human."""
        return [
            Left(count, self._examples[key][:400], _why(self._examples[key], scanner, waiting))
            for key, count in self._counts.most_common(_SHOWN)
        ]


def _why(line: str, scanner: Scanner, waiting: Sequence[str]) -> str:
    """What the rules say of a line that none took."""
    matching = scanner.matching(line)
    statuses = {rule.status for rule in scanner.book.learned if not matching.isdisjoint(rule.patterns)}
    diagnoses = [rule.id for rule in scanner.book.diagnoses if not matching.isdisjoint(rule.when.any)]
    if diagnoses:
        return f"hit by {diagnoses[0]}"
    if any(taken(waiting, [line])):
        return "its rule waits for approval"
    if marks.is_error_like(line):
        return "looks like trouble"
    return f"its rule is in {min(statuses)}" if statuses else "no rule matches it"


# ---- causes


class Causes:
    """The logs of failed jobs with their evidence, and what learned rules made of them at any moment.

    Evidence is what the labels name and, with a `judge`, what its verdicts cite for what it says.
    """

    def __init__(self, *folders: Path, judge: Scanner | None = None) -> None:
        self._lines: list[tuple[int, int, Path, FailureCase]] = []
        """For each evidence line its place among the lines of all logs, its number in its own, that and its label."""
        parts: list[bytes] = []
        first = 0
        for path, case in (labelled for folder in folders for labelled in read_corpus(folder)):
            data = path.read_bytes()
            parts.append(data if data.endswith(b"\n") else data + b"\n")
            if isinstance(case, FailureCase):
                cited = {*case.evidence_lines, *(_cited(path, judge) if judge else ())}
                self._lines += [(first + number - 1, number, path, case) for number in sorted(cited)]
            first += parts[-1].count(b"\n")
        joined = b"".join(parts)
        self._segment = Segment("failures", joined, 0, 1, newlines_of(joined))
        self._last: dict[str, Scanner] = {}
        self.caught: dict[tuple[str, str, str, int], Caught] = {}
        self.moments, self.seconds = 0, 0.0

    def texts(self) -> list[str]:
        """The evidence lines."""
        ends = self._segment.newlines
        starts = np.concatenate(([0], ends[:-1] + 1))
        return [decode(bytes(self._segment.data[starts[place] : ends[place]])) for place, *_ in self._lines]

    def look(self, kind: str, scanner: Scanner) -> None:
        """Try the rules of a kind on all logs, unless they are those that were tried last.

        One pass over all logs at once: what a line hits does not depend on its neighbours.
        """
        if self._last.get(kind) is scanner:
            return
        begin = time.perf_counter()
        self._last[kind] = scanner
        self.moments += 1
        residual = compress(self._segment, scanner)
        first = len(scanner.book.filters) - len(scanner.book.learned)
        for status, column in (("active", residual.scan.owner), ("shadow", residual.scan.shadow)):
            for place, number, path, case in self._lines:
                if column[place] >= first:
                    rule = scanner.book.filters[int(column[place])]
                    text = decode(residual.raw(place))[:400]
                    citable = case.category == _CITED_IS_KEPT and _is_citable(path, number, rule, scanner)
                    self._catch(Caught(kind, rule.id, status, case.file, number, text, citable))
        self.seconds += time.perf_counter() - begin

    def _catch(self, caught: Caught) -> None:
        """Write down that a rule matched a line; that it could not be cited at some moment outweighs others."""
        key = (caught.rule, caught.status, caught.file, caught.line)
        if key not in self.caught or not caught.citable:
            self.caught[key] = caught


def _cited(path: Path, judge: Scanner) -> list[int]:
    """The lines that the verdict on a log cites for what they say."""
    verdict = diagnose(pipeline.records([pipeline.Stream("main", path)], judge, _LIMITS), judge.book)
    return [one.line for one in verdict.evidence if not one.rule.startswith("progress/")]


def _is_citable(path: Path, number: int, rule: FilterRule, scanner: Scanner) -> bool:
    """Whether the progress record quotes a line that a rule takes, or would if the rule were active: as a metric line
    with a loss, or as the first or last that tells of progress."""
    if rule.status != "active":
        return bool(rule.metrics)
    record = pipeline.records([pipeline.Stream("main", path)], scanner, _LIMITS)[0]
    milestones = {milestone.line for span in record.spans.values() for milestone in span}
    return number in milestones or any(number in part.lines for part in record.texts)


# ---- summing up


def _report(course: _Course, setup: Setup, seconds: float) -> Report:
    caught = list(course.causes.caught.values())
    active = [one for one in caught if one.status == "active"]
    kinds = list(dict.fromkeys(job.kind for job in course.jobs))
    return Report(
        {kind: [round(job.share, 5) for job in course.jobs if job.kind == kind] for kind in kinds},
        {kind: [round(job.share_without_marks, 5) for job in course.jobs if job.kind == kind] for kind in kinds},
        sum(not one.citable for one in active),
        sum(one.citable for one in active),
        sum(one.status == "shadow" and not one.citable for one in caught),
        sum(job.rare_removed for job in course.jobs),
        {job.kind: job.calls for job in course.jobs if job.number == 2},
        course.causes.moments,
        course.jobs,
        course.rules.refusals.counts(),
        {kind: left for kind, left in course.left.items() if left},
        caught[:_SHOWN],
        setup,
        round(seconds, 1),
    )


# ---- showing


_COLUMNS = ("without marks", "lessons", "rules", "waiting", "asked in job 2")


def render(report: Report, console: Console) -> None:
    """Print the curve of each kind, what must not have happened, and what is left."""
    numbers = range(1, report.setup.jobs + 1)
    title = f"regular lines removed, %, by job of a kind ({report.seconds:.0f} s)"
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("kind", no_wrap=True)
    for number in numbers:
        table.add_column(f"job {number}", justify="right")
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for kind, shares in report.removed_by_job.items():
        table.add_row(kind, *map(_judged, shares, numbers), *_learned(report, kind))
    console.print(table)
    console.print(_summary(report), highlight=False)
    if report.refusals:
        told = ", ".join(f"{guard} {count}" for guard, count in report.refusals.items())
        console.print(f"proposals refused: {told}", highlight=False)
    for caught in report.caught:
        console.print(Text(f"  {caught.file}:{caught.line} {caught.status} {caught.rule}: {caught.text[:200]}", "red"))
    for kind, left in report.left.items():
        if report.removed_by_job[kind][-1] < AIM:
            console.print(Text(f"{kind}, left of its last job:", "bold"))
            for one in left[:5]:
                console.print(Text(f"  {one.lines:,} lines ({one.why}): {one.example[:200]!r}"))


def _judged(share: float, number: int) -> Text:
    colour = "" if number < 3 else "green" if share >= AIM else "red"
    return Text(_percent(share), colour)


def _percent(share: float) -> str:
    """The share in percent; only a full one reads 100."""
    return "100" if share >= 1 else f"{math.floor(share * 10_000) / 100:.2f}"


def _learned(report: Report, kind: str) -> list[str]:
    """Share of the last job without marked lines, lessons in each job, rules that take or are watched in the end,
    those that wait, calls in the second job."""
    jobs = [job for job in report.jobs if job.kind == kind]
    last = jobs[-1]
    lessons = " ".join(str(job.lessons) for job in jobs)
    unmarked = _percent(report.without_marks[kind][-1])
    asked = report.second_job_model_calls.get(kind, 0)
    return [unmarked, lessons, f"{last.active} + {last.shadow}", str(last.waiting), str(asked)]


def _summary(report: Report) -> str:
    calls = sum(report.second_job_model_calls.values())
    return (
        f"{report.cause_lines_removed} cause lines removed ({report.cause_lines_citable} more that are metric lines and"
        f" are quoted; {report.cause_lines_watched} matched in shadow; {report.moments} rule books tried),"
        f" {report.rare_lines_removed} rare lines removed, {calls} calls in second jobs"
    )


def markdown(report: Report) -> str:
    """The report as a table in Markdown."""
    numbers = range(1, report.setup.jobs + 1)
    head = ["kind", *(f"job {n}" for n in numbers), *_COLUMNS, "most of what is left"]
    rows = [head, ["---", *["--:"] * (len(head) - 2), "---"]]
    for kind, shares in report.removed_by_job.items():
        left = report.left.get(kind, [])
        rows.append([kind, *map(_percent, shares), *_learned(report, kind), _told(left[0]) if left else ""])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    refused = ", ".join(f"{guard} {count}" for guard, count in report.refusals.items())
    return f"{table}\n\n{_summary(report)}.\n\nProposals refused, by guard: {refused or 'none'}.\n"


def _told(left: Left) -> str:
    text = regex.sub(r"[^ -~]+", " ", left.example[-60:]).replace("`", "'").replace("|", "\\|").strip()
    return f"{left.lines:,} × `{text}` ({left.why})"  # noqa: RUF001 # a sign of multiplication is meant


_INTRODUCTION = """# Learning curve of the filter rules

`logdoctor eval learn-filters`: the Log Agent without a model (templates mined by Drain3) begins with no filter
rule and sees jobs one after another, those of all kinds by turns. A job of a framework is a log that `biglog.py`
writes with a seed of its own; a healthy log of the corpus is submitted again and again, each time with other
numbers. Jobs are read in pieces of 1 MiB by the rules as they stand at that moment, a lesson comes when enough
lines are unexplained, and a verdict ends the job: all by the code of the service.

- *Regular* lines: of generated logs all but the rare ones; of healthy logs those whose shape occurs at least ten
  times in the log and that bear no mark of trouble. *Rare* lines: the one-off warnings that the generator counts;
  in healthy logs lines that warn and whose shape occurs once.
- Rules take lines as soon as one job has shown them enough, or when the job that taught them ended well; a log that
  comes as one piece is read before anything is learned from it.
- *Without marks*: the share of the last job without the regular lines that look like trouble; their rules *wait*
  for a human, and nobody approves any here.
- *Rules*: those that take lines + those that are watched when the last job is over. *Asked in job 2*: how often a
  model would have been called while the second job of a kind ran.
- Cause lines: after every change of a rule book its rules are tried on all logs of `corpus/failures`, whatever
  their framework, and the evidence lines that they take are counted. Metric lines that the progress record quotes
  are told apart.

![Share of regular lines left, job by job](learn-filters.svg)

"""


def write(folder: Path, report: Report, more: Report | None = None) -> None:
    """Write `learn-filters.json`, `.svg` and `.md` to a folder; the last also tells of `more`, a run over other kinds.

    `InputError` when the folder cannot be written to.
    """
    also = f"\n## {_kinds(more)}\n\n{markdown(more)}" if more else ""
    contents = {
        "svg": svg(report),
        "md": f"{_INTRODUCTION}## {_kinds(report)}\n\n{markdown(report)}{also}",
    }
    write_report(folder, "learn-filters", report, contents)


# ---- drawing


def svg(report: Report) -> str:
    """The curves as a picture: the share of regular lines that is left, job by job, on a logarithmic scale. Those of
    logs that nobody generated are grey and share one name."""
    left = {kind: [1 - share for share in shares] for kind, shares in report.removed_by_job.items()}
    named = [kind for kind in left if kind in report.setup.frameworks]
    others = [left[kind] for kind in left if kind not in named]
    calls = sum(report.second_job_model_calls.values())
    return draw(
        Chart(
            "Regular lines left in each job of a kind",
            f"no filter rule at the start, offline agent, {_kinds(report)}",
            f"cause lines removed: {report.cause_lines_removed}\u2003rare lines removed: {report.rare_lines_removed}"
            f"\u2003model calls in second jobs: {calls}",
            "job",
            (1 - AIM, f"aim: at most {100 * (1 - AIM):g} % from the third job on"),
            {kind: left[kind] for kind in named},
            others,
            f"{len(others)} healthy logs, middle",
        )
    )


def _kinds(report: Report) -> str:
    generated = len(report.setup.frameworks)
    others = len(report.removed_by_job) - generated
    told = [f"{generated} frameworks, {report.setup.mb:g} MB a job"] if generated else []
    return ", ".join([*told, f"{others} healthy logs"] if others else told)
