"""How well a model diagnoses what the rules leave open, on a labelled corpus: right, steady, quick and cheap.

Each failure is read once, with its end known to be a failure, and climbs the ladder once per repeat: by rule, by past
case, by the model where the rules are in doubt. Answers are neither cached nor taken from past cases: the model gives
each one again. With all rules few failures reach the model, so all rules that name a reason may be left out, or those
of each failure's own reason.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from rich.console import RenderableType
from rich.text import Text

from eval.labels import FailureCase, LabelledLog, is_wrong_action
from eval.report import EvalReport, Grid, bullets, percent
from eval.unseen import labelled_failures, scanner_without, without_reasons
from logdoctor import pipeline, taxonomy
from logdoctor.compress.whole_log import WholeLog
from logdoctor.diagnose.decide import diagnose as judge
from logdoctor.diagnose.ending import FAILED
from logdoctor.errors import InputError, ModelError, ModelUnavailable
from logdoctor.failure_agent.ladder import Ladder
from logdoctor.failure_agent.question import Question
from logdoctor.pipeline import LogFile, ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Verdict
from logdoctor.types.models import Answered, Exchange

Rules = Literal["all", "read", "none", "unseen"]
"""Rules in use: all, all with a model that reads each failure, too, those that name no reason, or all but those of the
failure's own reason."""

OVERHEAD = 0.3
"""Seconds that our own work around the calls may take, p95."""

_LONGEST_WAIT = 30.0  # longest wait, in seconds, for a model that is away or rate limited
_PATIENCE = 1800.0  # seconds that a question waits for it in total
_CHUNK = 1 << 20


class ModelCalls:
    """Records exchanges with a model in memory; never answers from them. Any thread may call."""

    def __init__(self) -> None:
        self._of: dict[str, list[Exchange]] = {}

    def enter(self, exchange: Exchange) -> None:
        """Keep an exchange."""
        self._of.setdefault(exchange.job, []).append(exchange)

    def cached(self, key: str) -> Answered | None:
        """Return None: the model answers each repeat again."""
        return None

    def take(self, job: str) -> list[Exchange]:
        """Return and forget a job's exchanges, in order."""
        return self._of.pop(job, [])


class StageSeconds(msgspec.Struct, frozen=True):
    """Seconds of the stages: reading and rules, looking up past cases, the prompt before the first call, the calls, and
    our own work around them (`own`: cases, prompts, grounding, deciding)."""

    rules: float
    cases: float = 0.0
    brief: float = 0.0
    model: float = 0.0
    own: float = 0.0


class ModelTrial(msgspec.Struct, frozen=True):
    """The result of one failure in one repeat. One that the rules decided was not `asked` about.

    `said` is the final reason and `by_rules` that of the rules; `failure` says why the model gave no answer, "" if it
    gave one.
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
    seconds: StageSeconds
    failure: str = ""
    quote: str = ""


class TrialShares(msgspec.Struct, frozen=True):
    """Shares of `trials`: right (`strict`: the label; `lenient`: or an acceptable one), right category and recovery,
    left Unknown, wrong reason, wrong action."""

    trials: int
    strict: float
    lenient: float
    category: float
    recovery: float
    unknown: float
    wrong_reasons: float
    wrong_actions: float


class Percentiles(msgspec.Struct, frozen=True):
    """Milliseconds: the median and the 95th percentile."""

    p50: float
    p95: float


class ModelReport(EvalReport, frozen=True):
    """A model's results. `asked` are the shares over the trials in which it was asked, `all` those over all.

    `steady` is the share of failures asked about for which all repeats gave the same reason and recovery, `agreement`
    the mean share of repeats that gave the most frequent one; None when there was nothing to compare. `unanswered`
    trials had no usable answer. Tokens and dollars are sums; `..._per_question` are of one asked trial.
    """

    folders: tuple[str, ...]
    model: str
    prompt: str
    rules: Rules
    repeats: int
    failures: int
    questions: int
    all: TrialShares
    asked: TrialShares
    by_repeat: list[TrialShares]
    by_reason: dict[str, TrialShares]
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
    latency: dict[str, Percentiles]
    seconds: float
    trials: list[ModelTrial]

    @property
    def name(self) -> str:
        return report_name(self.model, self.rules)

    def parts(self, details: bool = False) -> Iterator[RenderableType]:
        """Yield the shares, the stability, the cost, the latency of each stage, and every wrong answer."""
        yield _shares_grid(self).printed()
        yield _LEGEND
        yield from summary(self)
        yield _stages_grid(self, " ms").printed()
        for trial in _missed(self) if details else ():
            yield from _trial_lines(trial)

    def page(self) -> str:
        return (
            f"# {self.model}: {_KNOWN[self.rules]}\n\n{self.failures} failures of {', '.join(self.folders)},"
            f" {self.questions} asked about, {self.repeats} times each; prompt {self.prompt[:12]}. In {_LEGEND}.\n\n"
            f"{_shares_grid(self).markdown()}\n\n{bullets(summary(self))}\n\n{_stages_grid(self).markdown()}\n"
        )


def report_name(model: str, rules: Rules) -> str:
    """Return the file name of a model's report, with dashes for invalid characters."""
    plain = "".join(c if c.isalnum() or c in "._-" else "-" for c in model)[:80]
    return f"{rules if rules in ('unseen', 'read') else 'corpus'}-{plain}"


# ---- running


class PreparedFailure(NamedTuple):
    """A failure after the rules, and the seconds that took."""

    folder: str
    log: LabelledLog
    question: Question
    seconds: float


def read_failures(
    folders: Sequence[Path],
    rules: Rules,
    scanner: Scanner,
    tables: Path,
    limits: ReadLimits,
    scratch: Path,
) -> list[PreparedFailure]:
    """Return the failures of the corpora as `rules` leave them; `InputError` without any.

    `scanner` has all rules, `tables` are its book's knowledge tables; those without a reason are written to `scratch`,
    which must stay.
    """
    failures = labelled_failures(folders)
    whole = Scanner(without_reasons(scanner.book, tables), scanner.cache) if rules == "none" else scanner
    read: list[PreparedFailure] = []
    for number, (reason, logs) in enumerate(failures.items()):
        (own := scratch / str(number)).mkdir()
        taught = scanner_without(reason, scanner, tables, own) if rules == "unseen" else whole
        read += [prepared(folder, log, taught, limits, len(read) + place) for place, (folder, log) in enumerate(logs)]
    return read


def prepared(folder: str, log: LabelledLog, scanner: Scanner, limits: ReadLimits, number: int) -> PreparedFailure:
    """Return a labelled failure, read and judged by rules; `InputError` if it cannot be read."""
    begin = time.perf_counter()
    records = pipeline.records([LogFile("main", log.path)], scanner, limits)
    verdict = judge(records, scanner.book, reported=FAILED)
    seconds = time.perf_counter() - begin
    whole = WholeLog({"main": lambda: _chunks(log.path)})
    return PreparedFailure(folder, log, Question("", number, records, scanner.book, verdict, whole, FAILED), seconds)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(lambda: file.read(_CHUNK), b"")


class Asker:
    """Asks the ladder and measures the cost. `wait` sleeps when the model is rate limited or away; `clock` gives
    seconds since the epoch."""

    def __init__(
        self,
        ladder: Ladder,
        calls: ModelCalls,
        wait: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ladder, self._calls, self._wait, self._clock = ladder, calls, wait, clock

    def asks_about(self, one: PreparedFailure) -> bool:
        """Return whether the ladder asks the model about a failure."""
        return self._ladder.is_for_model(one.question)

    def trial(self, one: PreparedFailure, repeat: int = 1) -> ModelTrial:
        """Return the result of a failure in one repeat."""
        return self.climbed(one, repeat)[1]

    def climbed(self, one: PreparedFailure, repeat: int = 1) -> tuple[Verdict, ModelTrial]:
        """Return the final verdict and the trial."""
        job = f"{one.folder}/{one.log.case.file}#{repeat}"
        question = replace(one.question, job=job)
        begin = self._clock()
        verdict = self._ladder.by_case(question)
        at = self._clock()
        failure, spent, cases = "", 0.0, at - begin
        if verdict is question.verdict and self.asks_about(one):
            verdict, failure, waited = self._by_agent(question)
            spent = self._clock() - at - waited
        exchanges = self._calls.take(job)
        model = sum(exchange.seconds for exchange in exchanges)
        brief = min(max(exchanges[0].at - at, 0.0), spent) if exchanges else 0.0
        seconds = StageSeconds(one.seconds, cases, brief, model, cases + max(spent - model, 0.0))
        return verdict, _trial(one, repeat, verdict, exchanges, seconds, failure, self.asks_about(one))

    def _by_agent(self, question: Question) -> tuple[Verdict, str, float]:
        """Return the verdict, why there was no answer, and the seconds spent waiting."""
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
    failures: Sequence[PreparedFailure],
    asker: Asker,
    repeats: int,
    parallel: int,
    on_trial: Callable[[int, int, ModelTrial], None],
) -> list[ModelTrial]:
    """Return the trials of all failures, each `repeats` times.

    `on_trial` is called with the number done, the number in all, and the trial. Only what the rules leave open is asked
    again. With `parallel` over 1, latencies include waiting for others.
    """
    open_ones = [one for one in failures if asker.asks_about(one)]
    sure = [asker.trial(one) for one in failures if not asker.asks_about(one)]
    trials = [msgspec.structs.replace(trial, repeat=n) for trial in sure for n in range(1, repeats + 1)]
    rounds = [(one, repeat) for repeat in range(1, repeats + 1) for one in open_ones]
    with ThreadPoolExecutor(max(1, parallel)) as pool:
        for done, trial in enumerate(pool.map(lambda pair: asker.trial(*pair), rounds), 1):
            trials.append(trial)
            on_trial(done, len(rounds), trial)
    return trials


def _trial(
    one: PreparedFailure,
    repeat: int,
    verdict: Verdict,
    exchanges: Sequence[Exchange],
    seconds: StageSeconds,
    failure: str,
    asked: bool,
) -> ModelTrial:
    case = one.log.case
    assert isinstance(case, FailureCase)
    right = verdict.outcome == "failed" and verdict.reason == case.reason
    acceptable = right or (verdict.outcome == "failed" and verdict.reason in case.also_acceptable)
    recoveries = (case.recovery, *case.recovery_also)
    return ModelTrial(
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
    folders: Sequence[str], model: str, prompt: str, rules: Rules, trials: Sequence[ModelTrial], seconds: float
) -> ModelReport:
    """Return the report of all trials, which took `seconds` of wall time; `InputError` without any."""
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
    return ModelReport(
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
            "rules": percentiles(trial.seconds.rules for trial in trials),
            **{
                name: percentiles(getattr(trial.seconds, name) for trial in asked)
                for name in ("cases", "brief", "model", "own")
            },
        },
        seconds=round(seconds, 3),
        trials=list(trials),
    )


def shares(trials: Sequence[ModelTrial]) -> TrialShares:
    """Return the shares of the trials; 0 without any."""
    size = max(len(trials), 1)

    def share(hits: Iterable[bool]) -> float:
        return round(sum(hits) / size, 4)

    return TrialShares(
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


def percentiles(seconds: Iterable[float]) -> Percentiles:
    """Return the median and the 95th percentile (nearest rank) in milliseconds; 0 for none."""
    ordered = sorted(seconds) or [0.0]

    def rank(share: float) -> float:
        return round(1000 * ordered[max(math.ceil(share * len(ordered)), 1) - 1], 2)

    return Percentiles(rank(0.5), rank(0.95))


def _same(asked: Sequence[ModelTrial]) -> Iterator[float]:
    """Yield, per failure asked about, the share of repeats that gave the commonest reason and recovery."""
    said: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    for trial in asked:
        said.setdefault((trial.folder, trial.file), Counter())[trial.said, trial.recovery] += 1
    for counted in said.values():
        yield counted.most_common(1)[0][1] / counted.total()


# ---- showing

_KNOWN = {
    "all": "all rules",
    "read": "all rules, and a second reader",
    "none": "rules without reasons",
    "unseen": "rules without the failure's own reason",
}
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


def _missed(report: ModelReport) -> Iterator[ModelTrial]:
    return (trial for trial in report.trials if trial.asked and not trial.acceptable)


def _trial_lines(trial: ModelTrial) -> Iterator[Text]:
    said = f"{trial.said}, {trial.recovery}{', a wrong action' if trial.wrong_action else ''}"
    yield Text(f"{trial.folder}/{trial.file}, repeat {trial.repeat}: {trial.label}", "bold")
    yield Text(f"  {said}, by {trial.decided} {trial.confidence:.2f} {trial.failure}")
    yield Text(f"  {trial.quote}", "dim")


def _shares_grid(report: ModelReport) -> Grid:
    rows = [
        [name, str(some.trials), *(percent(getattr(some, field)) if some.trials else "-" for field in _SHARES)]
        for name, some in _groups(report)
    ]
    title = f"{report.model}, {_KNOWN[report.rules]}: {report.failures} failures, {report.questions} asked about"
    return Grid(["", "trials", *_SHARES.values()], rows, title)


def _groups(report: ModelReport) -> Iterator[tuple[str, TrialShares]]:
    yield "all", report.all
    yield "asked", report.asked
    if report.repeats > 1:
        yield from ((f"repeat {n}", some) for n, some in enumerate(report.by_repeat, 1))
    yield from report.by_reason.items()


def _stages_grid(report: ModelReport, unit: str = "") -> Grid:
    """Return the latency of each stage in milliseconds; `unit` follows each number."""
    head = ["stage", *("p50", "p95")] if unit else ["stage", "p50, ms", "p95, ms"]
    taken = [(words, report.latency[name]) for name, words in _STAGES.items()]
    return Grid(head, [[words, f"{one.p50:,.0f}{unit}", f"{one.p95:,.0f}{unit}"] for words, one in taken])


def summary(report: ModelReport) -> list[str]:
    """Return stability, calls, cost and our own time as sentences."""
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


class TrialLog:
    """Appends trials to `NAME.trials.jsonl` as they are made, so that nothing paid for is lost.

    Raises `InputError` when the folder cannot be written to, before anything is paid.
    """

    def __init__(self, folder: Path, name: str) -> None:
        path = folder / f"{name}.trials.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
        except OSError as error:
            raise InputError(str(path), f"cannot be written ({error.strerror})", "Name another folder.") from error

    def enter(self, trial: ModelTrial) -> None:
        """Append a trial at once."""
        self._file.write(msgspec.json.encode(trial) + b"\n")
        self._file.flush()
