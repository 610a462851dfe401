"""How good a model is at what the rules leave open, measured on a labelled corpus: right, steady, quick and cheap.

Each failure is read once, known to have failed, and climbs the ladder as often as is asked: by rule, by past case, by
the model where the rules are in doubt. Nothing is taken from what was asked before, and there are no past cases:
answers are the model's own, each time anew. With all rules few failures reach the model, so the rules may be left out,
or those of each failure's own reason.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval.corpus_score import FailureCase, Labelled, is_wrong_action, write_report
from eval.unseen import labelled_failures, scanner_without, without_reasons
from logdoctor import pipeline, taxonomy
from logdoctor.diagnose.decide import diagnose as judge
from logdoctor.diagnose.ending import FAILED
from logdoctor.diagnose.episodes import episodes
from logdoctor.errors import InputError, ModelError, ModelUnavailable
from logdoctor.failure_agent.ladder import Ladder
from logdoctor.failure_agent.question import Question
from logdoctor.llm.exchanges import Answered, Exchange
from logdoctor.pipeline import LogFile, ReadLimits
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Verdict
from logdoctor.whole_log import WholeLog

Rules = Literal["all", "none", "unseen"]
"""What the rules know: all, no reason at all, or all but the reason of the failure at hand."""

OVERHEAD = 0.3
"""Seconds that our own work around the call may take, p95."""

_LONGEST_WAIT = 30.0  # seconds that a model which is away, or asks to be left alone, is waited for, each time
_PATIENCE = 1800.0  # seconds that a question waits for it in all
_CHUNK = 1 << 20


class Calls:
    """Writes down what is said to a model, for this process; nothing is known again. Any thread may call."""

    def __init__(self) -> None:
        self._of: dict[str, list[Exchange]] = {}

    def enter(self, exchange: Exchange) -> None:
        """Keep an exchange."""
        self._of.setdefault(exchange.job, []).append(exchange)

    def cached(self, key: str) -> Answered | None:
        """Nothing: each repeat is to be answered anew."""
        return None

    def take(self, job: str) -> list[Exchange]:
        """The exchanges for a job, in order; they are forgotten here."""
        return self._of.pop(job, [])


class Seconds(msgspec.Struct, frozen=True):
    """What the stages took, in seconds: reading and rules, looking up past cases, the words before the first call, the
    calls, and all that is ours beside them (`own`: cases, words, proving, deciding)."""

    rules: float
    cases: float = 0.0
    brief: float = 0.0
    model: float = 0.0
    own: float = 0.0


class Trial(msgspec.Struct, frozen=True):
    """What came of one failure in one repeat. One that the rules decided was not `asked` about.

    `said` is the reason in the end and `by_rules` before; `failure` says why the model gave no answer, "" if it did.
    """

    folder: str
    file: str
    label: str
    repeat: int
    asked: bool
    by_rules: str
    said: str
    recovery: str
    decided: str
    confidence: float
    right: bool
    acceptable: bool
    category: bool
    recovered: bool
    wrong_action: bool
    calls: int
    tokens_in: int
    tokens_out: int
    dollars: float
    seconds: Seconds
    failure: str = ""
    quote: str = ""


class Shares(msgspec.Struct, frozen=True):
    """Of so many trials: the shares told right (`strict`: the label; `lenient`: or one that can be defended), of the
    right category and recovery, left Unknown, given a wrong reason, and given a wrong action."""

    trials: int
    strict: float
    lenient: float
    category: float
    recovery: float
    unknown: float
    wrong_reasons: float
    wrong_actions: float


class Spread(msgspec.Struct, frozen=True):
    """Milliseconds: the middle, and what 95 of 100 stay below."""

    p50: float
    p95: float


class Report(msgspec.Struct, frozen=True):
    """How a model did. `asked` are the shares over the trials in which it was asked, `all` those over all.

    `steady` is the share of failures asked about for which all repeats came to the same reason and recovery,
    `agreement` the mean share of repeats that came to the most frequent one; None when there was nothing to compare.
    `unanswered` trials had no usable answer. Tokens and dollars are sums; `..._per_question` are of one asked trial.
    """

    folders: tuple[str, ...]
    model: str
    prompt: str
    rules: Rules
    repeats: int
    failures: int
    questions: int
    all: Shares
    asked: Shares
    by_repeat: list[Shares]
    by_reason: dict[str, Shares]
    steady: float | None
    agreement: float | None
    calls: int
    calls_per_question: float
    unanswered: int
    tokens_in: int
    tokens_out: int
    tokens_per_question: float
    dollars: float
    dollars_per_question: float
    latency: dict[str, Spread]
    seconds: float
    trials: list[Trial]


# ---- running


class Prepared(NamedTuple):
    """A failure as the rules left it, and the seconds that took."""

    folder: str
    log: Labelled
    question: Question
    seconds: float


def read_failures(
    folders: Sequence[Path],
    rules: Rules,
    book: RuleBook,
    tables: Path,
    limits: ReadLimits,
    scratch: Path,
    cache: Path | None,
) -> list[Prepared]:
    """The failures of some corpora as rules that know so much leave them; `InputError` when there are none.

    `tables` are the knowledge tables of the book; those without a reason lie in `scratch`, which must stay.
    """
    failures = labelled_failures(folders)
    whole = None if rules == "unseen" else Scanner(book if rules == "all" else without_reasons(book, tables), cache)
    read: list[Prepared] = []
    for number, (reason, logs) in enumerate(failures.items()):
        (own := scratch / str(number)).mkdir()
        scanner = whole or scanner_without(reason, book, tables, own, cache)
        read += [prepared(folder, log, scanner, limits, len(read) + place) for place, (folder, log) in enumerate(logs)]
    return read


def prepared(folder: str, log: Labelled, scanner: Scanner, limits: ReadLimits, number: int) -> Prepared:
    """A labelled failure, read and judged by rules; `InputError` when it cannot be read."""
    begin = time.perf_counter()
    records = pipeline.records([LogFile("main", log.path)], scanner, limits)
    verdict = judge(records, scanner.book, reported=FAILED)
    seconds = time.perf_counter() - begin
    reported = episodes(records, scanner.book)
    whole = WholeLog({"main": lambda: _chunks(log.path)})
    return Prepared(folder, log, Question("", number, records, scanner.book, verdict, reported, whole), seconds)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(lambda: file.read(_CHUNK), b"")


class Asker:
    """Asks the ladder, and tells what that took. `wait` sleeps when the model asks to be left alone."""

    def __init__(self, ladder: Ladder, calls: Calls, wait: Callable[[float], None] = time.sleep) -> None:
        self._ladder, self._calls, self._wait = ladder, calls, wait

    def asks_about(self, one: Prepared) -> bool:
        """Whether the rules leave a failure so open that the model is asked."""
        return self._ladder.doubts(one.question.verdict)

    def trial(self, one: Prepared, repeat: int = 1) -> Trial:
        """What comes of a failure when it is asked about once more."""
        return self.climbed(one, repeat)[1]

    def climbed(self, one: Prepared, repeat: int = 1) -> tuple[Verdict, Trial]:
        """The verdict in the end, and what there is to tell of it."""
        job = f"{one.folder}/{one.log.case.file}#{repeat}"
        question = one.question._replace(job=job)
        begin = time.perf_counter()
        verdict = self._ladder.by_case(question)
        cases = time.perf_counter() - begin
        failure, spent, at = "", 0.0, time.time()
        if verdict is question.verdict and self.asks_about(one):
            begin = time.perf_counter()
            verdict, failure, waited = self._by_agent(question)
            spent = time.perf_counter() - begin - waited
        exchanges = self._calls.take(job)
        model = sum(exchange.seconds for exchange in exchanges)
        brief = min(max(exchanges[0].at - at, 0.0), spent) if exchanges else 0.0
        seconds = Seconds(one.seconds, cases, brief, model, cases + max(spent - model, 0.0))
        return verdict, _trial(one, repeat, verdict, exchanges, seconds, failure, self.asks_about(one))

    def _by_agent(self, question: Question) -> tuple[Verdict, str, float]:
        """The verdict, why there was no answer, and the seconds that were waited for one."""
        waited = 0.0
        while True:
            try:
                return self._ladder.by_agent(question), "", waited
            except ModelUnavailable as error:
                if waited >= _PATIENCE:
                    return question.verdict, str(error), waited
                pause = max(min(error.retry_after or 1.0, _LONGEST_WAIT), 0.1)
                self._wait(pause)
                waited += pause
            except ModelError as error:
                return question.verdict, str(error), waited


def run(
    failures: Sequence[Prepared], asker: Asker, repeats: int, parallel: int, tell: Callable[[int, int, Trial], None]
) -> list[Trial]:
    """The trials of all failures, each as often as is asked; `tell` hears how many of how many are done, and each.

    Only what the rules leave open is asked again; with more than one at a time, latencies include waiting for others.
    """
    open_ones = [one for one in failures if asker.asks_about(one)]
    sure = [asker.trial(one) for one in failures if not asker.asks_about(one)]
    trials = [msgspec.structs.replace(trial, repeat=n) for trial in sure for n in range(1, repeats + 1)]
    rounds = [(one, repeat) for repeat in range(1, repeats + 1) for one in open_ones]
    with ThreadPoolExecutor(max(1, parallel)) as pool:
        for done, trial in enumerate(pool.map(lambda pair: asker.trial(*pair), rounds), 1):
            trials.append(trial)
            tell(done, len(rounds), trial)
    return trials


def _trial(
    one: Prepared,
    repeat: int,
    verdict: Verdict,
    exchanges: Sequence[Exchange],
    seconds: Seconds,
    failure: str,
    asked: bool,
) -> Trial:
    case = one.log.case
    assert isinstance(case, FailureCase)
    right = verdict.outcome == "failed" and verdict.reason == case.reason
    acceptable = right or (verdict.outcome == "failed" and verdict.reason in case.also_acceptable)
    recoveries = (case.recovery, *case.recovery_also)
    return Trial(
        folder=one.folder,
        file=case.file,
        label=case.reason,
        repeat=repeat,
        asked=asked,
        by_rules=one.question.verdict.reason,
        said=verdict.reason,
        recovery=verdict.recovery,
        decided=verdict.decided_by.kind,
        confidence=verdict.confidence,
        right=right,
        acceptable=acceptable,
        category=verdict.category == case.category,
        recovered=verdict.recovery in recoveries,
        wrong_action=is_wrong_action(recoveries, verdict.recovery),
        calls=len(exchanges),
        tokens_in=sum(exchange.tokens_in for exchange in exchanges),
        tokens_out=sum(exchange.tokens_out for exchange in exchanges),
        dollars=sum(exchange.dollars for exchange in exchanges),
        seconds=seconds,
        failure=failure[:300],
        quote=verdict.evidence[0].quote[:200] if verdict.evidence else "",
    )


# ---- summing up


def summarise(
    folders: Sequence[str], model: str, prompt: str, rules: Rules, trials: Sequence[Trial], seconds: float
) -> Report:
    """The report of all trials, `seconds` being what they took by the clock; `InputError` when there are none."""
    if not trials:
        raise InputError(", ".join(folders), "no failures are labelled there", "Name another folder.")
    asked = [trial for trial in trials if trial.asked]
    repeats = max(trial.repeat for trial in trials)
    same = list(_same(asked))
    questions = max(len(asked), 1)
    calls = sum(trial.calls for trial in trials)
    tokens = sum(trial.tokens_in for trial in trials), sum(trial.tokens_out for trial in trials)
    dollars = sum(trial.dollars for trial in trials)
    compared = bool(same) and repeats > 1
    return Report(
        folders=tuple(folders),
        model=model,
        prompt=prompt,
        rules=rules,
        repeats=repeats,
        failures=len({(trial.folder, trial.file) for trial in trials}),
        questions=len(same),
        all=shares(trials),
        asked=shares(asked),
        by_repeat=[shares([trial for trial in asked if trial.repeat == n]) for n in range(1, repeats + 1)],
        by_reason={
            label: shares([trial for trial in asked if trial.label == label])
            for label in sorted({trial.label for trial in asked})
        },
        steady=sum(share == 1 for share in same) / len(same) if compared else None,
        agreement=sum(same) / len(same) if compared else None,
        calls=calls,
        calls_per_question=round(calls / questions, 3),
        unanswered=sum(bool(trial.failure) for trial in asked),
        tokens_in=tokens[0],
        tokens_out=tokens[1],
        tokens_per_question=round(sum(tokens) / questions, 1),
        dollars=round(dollars, 6),
        dollars_per_question=round(dollars / questions, 6),
        latency={
            "rules": spread(trial.seconds.rules for trial in trials),
            **{
                name: spread(getattr(trial.seconds, name) for trial in asked)
                for name in ("cases", "brief", "model", "own")
            },
        },
        seconds=round(seconds, 3),
        trials=list(trials),
    )


def shares(trials: Sequence[Trial]) -> Shares:
    """The shares of some trials; of none they are 0."""
    size = max(len(trials), 1)

    def share(hits: Iterable[bool]) -> float:
        return round(sum(hits) / size, 4)

    return Shares(
        trials=len(trials),
        strict=share(trial.right for trial in trials),
        lenient=share(trial.acceptable for trial in trials),
        category=share(trial.category for trial in trials),
        recovery=share(trial.recovered for trial in trials),
        unknown=share(trial.said == "Unknown" for trial in trials),
        wrong_reasons=share(trial.said in _NAMED and not trial.acceptable for trial in trials),
        wrong_actions=share(trial.wrong_action for trial in trials),
    )


_NAMED = frozenset(taxonomy.REASONS) - {"Unknown"}


def spread(seconds: Iterable[float]) -> Spread:
    """The middle and the 95th percentile (nearest rank) in milliseconds; 0 for nothing."""
    ordered = sorted(seconds) or [0.0]

    def rank(share: float) -> float:
        return round(1000 * ordered[max(math.ceil(share * len(ordered)), 1) - 1], 2)

    return Spread(rank(0.5), rank(0.95))


def _same(asked: Sequence[Trial]) -> Iterator[float]:
    """For each failure asked about, the share of its repeats that came to the most frequent reason and recovery."""
    said: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    for trial in asked:
        said.setdefault((trial.folder, trial.file), Counter())[trial.said, trial.recovery] += 1
    for counted in said.values():
        yield counted.most_common(1)[0][1] / counted.total()


# ---- showing

_KNOWN = {"all": "all rules", "none": "rules without reasons", "unseen": "rules without the failure's own reason"}
_SHARES = {
    "strict": "is",
    "lenient": "may",
    "category": "cat.",
    "recovery": "rec.",
    "unknown": "unkn.",
    "wrong_reasons": "wrong",
    "wrong_actions": "bad",
}
_LEGEND = (
    "%: reason is or may be said, category, recovery, left Unknown, wrong reasons, wrong actions (bad);"
    " asked: what reached the model, by label below"
)
_STAGES = {
    "rules": "reading and rules",
    "cases": "past cases (none here)",
    "brief": "before the first call",
    "model": "the model's calls",
    "own": "ours around the calls",
}


def render(report: Report, console: Console, with_failures: bool = False) -> None:
    """Print the shares, the stability, what it cost, the latency of each stage, and on wish each wrong answer."""
    title = f"{report.model}, {_KNOWN[report.rules]}: {report.failures} failures, {report.questions} asked about"
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in ("trials", *_SHARES.values()):
        table.add_column(name, justify="right")
    for name, some in _rows(report):
        table.add_row(name, str(some.trials), *_cells(some))
    console.print(table)
    console.print(_LEGEND, highlight=False)
    for line in summary(report):
        console.print(line, highlight=False)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("stage")
    table.add_column("p50", justify="right")
    table.add_column("p95", justify="right")
    for name, words in _STAGES.items():
        taken = report.latency[name]
        table.add_row(words, f"{taken.p50:,.0f} ms", f"{taken.p95:,.0f} ms")
    console.print(table)
    for trial in _missed(report) if with_failures else ():
        console.print(Text(f"{trial.folder}/{trial.file}, repeat {trial.repeat}: {trial.label}", "bold"))
        said = f"{trial.said}, {trial.recovery}{', a wrong action' if trial.wrong_action else ''}"
        console.print(Text(f"  {said}, by {trial.decided} {trial.confidence:.2f} {trial.failure}"))
        console.print(Text(f"  {trial.quote}", "dim"))


def _missed(report: Report) -> Iterator[Trial]:
    return (trial for trial in report.trials if trial.asked and not trial.acceptable)


def _rows(report: Report) -> Iterator[tuple[str, Shares]]:
    yield "all", report.all
    yield "asked", report.asked
    if report.repeats > 1:
        yield from ((f"repeat {n}", some) for n, some in enumerate(report.by_repeat, 1))
    yield from report.by_reason.items()


def _cells(some: Shares) -> list[str]:
    return [f"{100 * getattr(some, name):.1f}" if some.trials else "-" for name in _SHARES]


def summary(report: Report) -> list[str]:
    """Stability, calls, cost and our own time, in words."""
    own, aim = report.latency["own"], 1000 * OVERHEAD
    steady = "not measured" if report.steady is None else f"{100 * report.steady:.1f} %"
    agreement = "" if report.agreement is None else f" (mean agreement {100 * report.agreement:.1f} %)"
    return [
        f"same reason and recovery in all {report.repeats} repeats: {steady} of those asked about{agreement}",
        f"{report.calls} calls, {report.calls_per_question:.2f} a question; {report.unanswered} without an answer",
        f"{report.tokens_in:,} tokens in, {report.tokens_out:,} out, {report.tokens_per_question:,.0f} a question;"
        f" ${report.dollars:.4f}, ${100 * report.dollars_per_question:.4f} for 100 questions",
        f"our own time around the calls: p50 {own.p50:,.0f} ms, p95 {own.p95:,.0f} ms (the aim is {aim:g} ms),"
        f" {report.seconds:.0f} s in all",
    ]


def markdown(report: Report) -> str:
    """The report as a page in Markdown."""
    head = ["", "trials", *_SHARES.values()]
    rows = [head, ["---", *["--:"] * (len(head) - 1)]]
    rows += [[name, str(some.trials), *_cells(some)] for name, some in _rows(report)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    words = "\n".join(f"- {line[0].upper()}{line[1:]}." for line in summary(report))
    stages = "\n".join(
        f"| {words} | {report.latency[name].p50:,.0f} | {report.latency[name].p95:,.0f} |"
        for name, words in _STAGES.items()
    )
    return (
        f"# {report.model}: {_KNOWN[report.rules]}\n\n{report.failures} failures of {', '.join(report.folders)},"
        f" {report.questions} asked about, {report.repeats} times each; prompt {report.prompt[:12]}. In {_LEGEND}.\n\n"
        f"{table}\n\n{words}\n\n| stage | p50, ms | p95, ms |\n| --- | --: | --: |\n{stages}\n"
    )


class Diary:
    """The trials as they are made, a JSON line each in `NAME.trials.jsonl`: what was paid for is not lost.

    `InputError` when the folder cannot be written to: that is found before anything is paid.
    """

    def __init__(self, folder: Path, name: str) -> None:
        path = folder / f"{name}.trials.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
        except OSError as error:
            raise InputError(str(path), f"cannot be written ({error.strerror})", "Name another folder.") from error

    def enter(self, trial: Trial) -> None:
        """Write a trial down at once."""
        self._file.write(msgspec.json.encode(trial) + b"\n")
        self._file.flush()


def write(folder: Path, report: Report, name: str) -> None:
    """Write `NAME.json` and `NAME.md` to a folder; `InputError` when it cannot be written to."""
    write_report(folder, name, report, {"md": markdown(report)})
