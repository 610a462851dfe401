"""Quality of verdicts, measured on a labelled corpus.

Scoring one verdict (`score_failure`, `score_healthy`: pure) is separate from adding up.
"""

import resource
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from os import sched_getaffinity
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from rich.console import RenderableType
from rich.text import Text

from eval.calibration import Calibration, JudgedConfidence, calibration
from eval.calibration import summary as calibration_summary
from eval.labels import FailureCase, HealthyCase, LabelledCase, LabelledLog, is_wrong_action, read_corpus
from eval.report import Cell, EvalReport, Grid
from logdoctor.text import decode
from logdoctor.types import Verdict

DiagnoseOne = Callable[[Path], Verdict]
KeptLines = Callable[[Path], set[int]]
"""Returns the numbers, from 1, of the lines that no filter rule removes."""

REMOVED_AFTER_HEADER = 0.99
"""Share of a healthy log's lines after its header that filter rules should remove."""
_NEAR = 1  # lines between a citation and the labelled line that still count as right
_QUOTED_CATEGORY = "Anomaly"  # its evidence may be metric lines, which the progress record quotes


class Metric(NamedTuple):
    """A figure of the report. `aim` is the least wanted share, or the most when `lower` is set."""

    title: str
    aim: float | None = None
    lower: bool = False


METRICS = {
    "outcome": Metric("outcome"),
    "reason": Metric("reason, strict", 0.95),
    "lenient": Metric("reason, lenient"),
    "category": Metric("category", 0.98),
    "fault": Metric("fault"),
    "recovery": Metric("recovery", 0.95),
    "wrong_actions": Metric("wrong actions", 0.02, lower=True),
    "evidence": Metric("evidence", 0.95),
    "quotes": Metric("quotes found in the log", 1.0),
    "first_rank": Metric("first rank"),
    "rank_invented": Metric("rank invented", lower=True),
    "node_precision": Metric("nodes, precision", 1.0),
    "node_recall": Metric("nodes, recall"),
    "false_alarms": Metric("false alarms", 0.0, lower=True),
    "survived": Metric("fault survived"),
    "lines_removed": Metric("lines removed"),
    "bytes_removed": Metric("bytes removed"),
    "after_header": Metric("removed after header", REMOVED_AFTER_HEADER),
    "cause_kept": Metric("cause lines kept", 1.0),
}
_BY_REASON = {
    "reason": "is",
    "lenient": "may",
    "fault": "fault",
    "recovery": "rec.",
    "wrong_actions": "bad",
    "evidence": "evid",
    "first_rank": "rank",
    "cause_kept": "kept",
}
"""The columns of the table by reason; the titles are short enough for a terminal."""
_REASON_TITLE = (
    "by labelled reason, %: reason is or may be said, fault, recovery, wrong actions (bad), evidence,"
    " first rank, cause lines kept"
)


class DiagnosedLog(NamedTuple):
    """One log with its verdict.

    `kept` are the residual's line numbers, `texts` the raw text of cited lines by number, `metric_rules` the ids of
    filter rules that read metrics, `citable` the metric lines that the progress record can quote.
    """

    verdict: Verdict
    kept: set[int]
    texts: Mapping[int, str]
    metric_rules: Collection[str] = ()
    citable: Collection[int] = ()


class MetricScore(NamedTuple):
    """One log's part of a metric: `hits` of `total`. If `missed`, it is listed with what was wanted and got."""

    metric: str
    hits: int
    total: int
    missed: bool = False
    wanted: str = ""
    got: str = ""


class Share(msgspec.Struct, frozen=True):
    """`hits` of `total`; `share` is their ratio, None when there was nothing to count."""

    hits: int
    total: int
    share: float | None


class Miss(msgspec.Struct, frozen=True):
    """A log for which a metric is wrong, and the label's reason."""

    file: str
    metric: str
    wanted: str
    got: str
    why: str


class DiagnosisCost(msgspec.Struct, frozen=True):
    """Cost of the diagnoses.

    `mb_per_second` (10^6 bytes) is one process's speed over all logs, each diagnosed on its own; on small logs the
    fixed cost of a diagnosis dominates. `peak_bytes` is the largest resident set of one process.
    """

    logs: int
    bytes: int
    seconds: float
    mb_per_second: float
    peak_bytes: int


class CorpusReport(EvalReport, frozen=True):
    """The scores of a corpus: each metric over all logs, by difficulty and by labelled reason. `calibration` is over
    the failures with a named reason."""

    folder: str
    failures: int
    healthy: int
    all: dict[str, Share]
    by_difficulty: dict[str, dict[str, Share]]
    by_reason: dict[str, dict[str, Share]]
    misses: list[Miss]
    calibration: Calibration
    cost: DiagnosisCost

    @property
    def name(self) -> str:
        return "corpus"

    def parts(self, details: bool = False) -> Iterator[RenderableType]:
        """Yield each metric by difficulty with its aim, then each reason, then the cost."""
        yield _by_metric(self).printed()
        if self.by_reason:
            yield _by_reason(self).printed()
        yield f"{calibration_summary(self.calibration)}."
        yield _cost_line(self.cost)
        if details:
            yield from _every_miss(self.misses)


# ---- scoring


def score_failure(case: FailureCase, seen: DiagnosedLog) -> list[MetricScore]:
    """Return the scores of the verdict on a failed job."""
    verdict = seen.verdict
    wanted_fault = "user" if case.user_fault else "not the user"
    return [
        _equal("outcome", "failed", verdict.outcome),
        _equal("reason", case.reason, verdict.reason),
        _one_of("lenient", (case.reason, *case.also_acceptable), verdict.reason),
        _equal("category", case.category, verdict.category),
        _check("fault", (verdict.fault == "user") == case.user_fault, wanted_fault, verdict.fault),
        *_recovery((case.recovery, *case.recovery_also), verdict.recovery),
        _evidence(case, seen),
        _quotes(seen),
        _first_rank(case, verdict),
        *_nodes(case, verdict),
        *_removed(verdict),
        _cause_kept(case, seen),
    ]


def score_healthy(case: HealthyCase, seen: DiagnosedLog) -> list[MetricScore]:
    """Return the scores of the verdict on a job that did not fail."""
    verdict = seen.verdict
    alarm = verdict.recovery != "none" or verdict.outcome == "failed"
    got = f"{verdict.outcome}, {verdict.recovery} ({verdict.reason})"
    scores = [
        _equal("outcome", case.outcome, verdict.outcome),
        _flag("false_alarms", alarm, f"{case.outcome}, none", got),
        _quotes(seen),
        *_removed(verdict),
        _after_header(seen),
    ]
    if case.fault is not None:
        scores.append(_equal("survived", case.fault, verdict.reason))
    return scores


def judged_confidence(case: LabelledCase, verdict: Verdict) -> JudgedConfidence | None:
    """Return a verdict's confidence and whether its reason is acceptable; None without a named reason."""
    if not isinstance(case, FailureCase) or verdict.outcome != "failed" or verdict.reason == "Unknown":
        return None
    return JudgedConfidence(verdict.confidence, verdict.reason in (case.reason, *case.also_acceptable))


def same_node(one: str, other: str) -> bool:
    """Return whether two names mean one host. Case does not matter, and a short name equals its full domain name."""
    one, other = one.lower(), other.lower()
    return one == other or _is_short_for(one, other) or _is_short_for(other, one)


def _is_short_for(short: str, full: str) -> bool:
    return "." not in short and not full.replace(".", "").isdigit() and full.startswith(f"{short}.")


def first_metric_line(verdict: Verdict, metric_rules: Collection[str]) -> int:
    """Return the line where the header ends: the first that a filter rule with metrics matches.

    Without one it is 1, so that no line counts as header.
    """
    taken = verdict.compression.rules
    return min((taken[rule].first for rule in metric_rules if rule in taken), default=1)


def _check(metric: str, right: bool, wanted: str, got: str) -> MetricScore:
    return MetricScore(metric, int(right), 1, not right, wanted, got)


def _equal(metric: str, wanted: str, got: str) -> MetricScore:
    return _check(metric, wanted == got, wanted, got)


def _one_of(metric: str, wanted: Sequence[str], got: str) -> MetricScore:
    return _check(metric, got in wanted, " or ".join(wanted), got)


def _flag(metric: str, raised: bool, wanted: str, got: str) -> MetricScore:
    """Return the score of an unwanted event."""
    return MetricScore(metric, int(raised), 1, raised, wanted, got)


def _recovery(right: Sequence[str], advised: str) -> list[MetricScore]:
    wrong = is_wrong_action(right, advised)
    return [
        _one_of("recovery", right, advised),
        _flag("wrong_actions", wrong, " or ".join(right), advised),
    ]


def _evidence(case: FailureCase, seen: DiagnosedLog) -> MetricScore:
    """Score whether a cited line is next to a labelled one, or holds a labelled text."""
    cited = [evidence.line for evidence in seen.verdict.evidence]
    near = any(_is_cited(line, cited) for line in case.evidence_lines)
    quoted = any(text in seen.texts.get(line, "") for line in cited for text in case.evidence_text)
    return _check("evidence", near or quoted, f"line {_list(case.evidence_lines)}", f"line {_list(cited)}")


def _is_cited(line: int, cited: Iterable[int]) -> bool:
    return any(abs(line - other) <= _NEAR for other in cited)


def _quotes(seen: DiagnosedLog) -> MetricScore:
    """Count the quotes that stand character for character at their line (law 3)."""
    evidence = seen.verdict.evidence
    false = [item for item in evidence if not item.quote or item.quote not in seen.texts.get(item.line, "")]
    got = "; ".join(f"line {item.line}: {item.quote}" for item in false)
    return MetricScore("quotes", len(evidence) - len(false), len(evidence), bool(false), "quotes as in the log", got)


def _first_rank(case: FailureCase, verdict: Verdict) -> MetricScore:
    wanted, got = case.first_failing_rank, verdict.first_rank
    if wanted is None:
        return _flag("rank_invented", got is not None, "no rank", f"rank {got}")
    return _check("first_rank", wanted == got, f"rank {wanted}", "no rank" if got is None else f"rank {got}")


def _nodes(case: FailureCase, verdict: Verdict) -> list[MetricScore]:
    named: list[str] = []
    for suspect in verdict.suspects:
        if suspect.node is not None and not _names_any(suspect.node, named):
            named.append(suspect.node)
    guilty = sum(_names_any(node, case.faulty_nodes) for node in named)
    found = sum(_names_any(node, named) for node in case.faulty_nodes)
    wanted, got = _list(case.faulty_nodes), _list(named)
    return [
        MetricScore("node_precision", guilty, len(named), guilty < len(named), wanted, got),
        MetricScore("node_recall", found, len(case.faulty_nodes), found < len(case.faulty_nodes), wanted, got),
    ]


def _names_any(node: str, others: Iterable[str]) -> bool:
    return any(same_node(node, other) for other in others)


def _removed(verdict: Verdict) -> list[MetricScore]:
    account = verdict.compression
    return [
        MetricScore("lines_removed", account.lines_in - account.lines_kept, account.lines_in),
        MetricScore("bytes_removed", account.bytes_in - account.bytes_kept, account.bytes_in),
    ]


def _after_header(seen: DiagnosedLog) -> MetricScore:
    begin = first_metric_line(seen.verdict, seen.metric_rules)
    total = max(seen.verdict.compression.lines_in - begin + 1, 0)
    left = sorted(line for line in seen.kept if line >= begin)
    missed = len(left) > total * (1 - REMOVED_AFTER_HEADER)
    wanted = f"at most {int(total * (1 - REMOVED_AFTER_HEADER))} of {total} lines left after line {begin}"
    got = f"{len(left)} left: {_list(left[:20])}"
    return MetricScore("after_header", total - len(left), total, missed, wanted, got)


def _cause_kept(case: FailureCase, seen: DiagnosedLog) -> MetricScore:
    cited = [evidence.line for evidence in seen.verdict.evidence]
    excused = case.category == _QUOTED_CATEGORY
    lost = [
        n
        for n in case.evidence_lines
        if n not in seen.kept and not (excused and (n in seen.citable or _is_cited(n, cited)))
    ]
    total = len(case.evidence_lines)
    return MetricScore("cause_kept", total - len(lost), total, bool(lost), "all kept", f"taken: line {_list(lost)}")


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items)) or "none"


# ---- running


class _Scored(NamedTuple):
    """The scores of one log, its verdict's confidence if that names a reason, and the cost of its diagnosis."""

    scores: list[MetricScore]
    confidence: JudgedConfidence | None
    bytes: int
    seconds: float
    peak_bytes: int


class _Tools(NamedTuple):
    diagnose_one: DiagnoseOne
    kept_lines: KeptLines
    citable_lines: KeptLines
    metric_rules: Collection[str]


_tools: _Tools | None = None  # of a worker process


def evaluate(
    folders: Sequence[Path],
    diagnose_one: DiagnoseOne,
    kept_lines: KeptLines,
    metric_rules: Collection[str] = (),
    citable_lines: KeptLines = lambda path: set(),
) -> CorpusReport:
    """Return the scores of one corpus or several together, diagnosed in one forked process per core.

    `metric_rules` are the ids of the filter rules that read metrics: they show where a log's header ends.
    `citable_lines` are those that the progress record can quote.
    """
    corpus = [labelled for folder in folders for labelled in read_corpus(folder)]
    parts = _Tools(diagnose_one, kept_lines, citable_lines, metric_rules)
    workers = min(len(sched_getaffinity(0)), len(corpus))
    with ProcessPoolExecutor(workers, get_context("fork"), initializer=_adopt, initargs=(parts,)) as pool:
        scored = list(pool.map(_examine, corpus))
    scores = [(labelled.case, one.scores) for labelled, one in zip(corpus, scored, strict=True)]
    confidence = [one.confidence for one in scored if one.confidence]
    return summarise(", ".join(map(str, folders)), scores, calibration(confidence), _cost(scored))


def _adopt(parts: _Tools) -> None:
    global _tools
    _tools = parts


def _examine(labelled: LabelledLog) -> _Scored:
    """Diagnose and score one log; only the diagnosis is timed."""
    assert _tools is not None
    path, case = labelled
    begin = time.perf_counter()
    verdict = _tools.diagnose_one(path)
    seconds = time.perf_counter() - begin
    peak = _peak_bytes()
    texts = _texts(path, {evidence.line for evidence in verdict.evidence})
    seen = DiagnosedLog(verdict, _tools.kept_lines(path), texts, _tools.metric_rules, _tools.citable_lines(path))
    scores = score_failure(case, seen) if isinstance(case, FailureCase) else score_healthy(case, seen)
    return _Scored(scores, judged_confidence(case, verdict), path.stat().st_size, seconds, peak)


def _texts(path: Path, numbers: Collection[int]) -> dict[int, str]:
    """Return a log's lines with these numbers, if it has them; only `\\n` ends a line."""
    with path.open("rb") as log:
        return {n: decode(raw.removesuffix(b"\n")) for n, raw in enumerate(log, 1) if n in numbers}


def _peak_bytes() -> int:
    """Return the largest resident set of this process and its finished children (Linux counts in KiB)."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in whose)


def _cost(scored: Sequence[_Scored]) -> DiagnosisCost:
    size, seconds = sum(one.bytes for one in scored), sum(one.seconds for one in scored)
    speed = size / 1e6 / seconds if seconds else 0.0
    return DiagnosisCost(len(scored), size, seconds, speed, max(one.peak_bytes for one in scored))


# ---- summing up


def summarise(
    folder: str, scored: Sequence[tuple[LabelledCase, list[MetricScore]]], calibrated: Calibration, cost: DiagnosisCost
) -> CorpusReport:
    """Return the report of all scores."""
    failures = [(case, scores) for case, scores in scored if isinstance(case, FailureCase)]
    return CorpusReport(
        folder=folder,
        failures=len(failures),
        healthy=len(scored) - len(failures),
        all=shares(score for _, scores in scored for score in scores),
        by_difficulty=_grouped((case.difficulty, scores) for case, scores in failures),
        by_reason=_grouped((case.reason, scores) for case, scores in failures),
        misses=[
            Miss(case.file, score.metric, score.wanted, score.got, case.why)
            for case, scores in scored
            for score in scores
            if score.missed
        ],
        calibration=calibrated,
        cost=cost,
    )


def shares(scores: Iterable[MetricScore]) -> dict[str, Share]:
    """Return the sum of each metric, in the order of `METRICS`."""
    sums = dict.fromkeys(METRICS, (0, 0))
    for score in scores:
        hits, total = sums[score.metric]
        sums[score.metric] = hits + score.hits, total + score.total
    return {name: Share(hits, total, hits / total if total else None) for name, (hits, total) in sums.items()}


def _grouped(scored: Iterable[tuple[str, list[MetricScore]]]) -> dict[str, dict[str, Share]]:
    groups: dict[str, list[MetricScore]] = {}
    for name, scores in scored:
        groups.setdefault(name, []).extend(scores)
    return {name: shares(groups[name]) for name in sorted(groups)}


# ---- showing


def meets_aim(metric: Metric, share: Share) -> bool | None:
    """Return whether a share reaches its aim; None without an aim or anything counted."""
    if metric.aim is None or share.share is None:
        return None
    return share.share <= metric.aim if metric.lower else share.share >= metric.aim


def _by_metric(report: CorpusReport) -> Grid:
    """Return a table of each metric over all logs and by difficulty, with its aim."""
    rows: list[list[Cell]] = []
    for name, metric in METRICS.items():
        share = report.all[name]
        if share.total:
            groups = [_percent(group[name]) for group in report.by_difficulty.values()]
            rows.append([metric.title, _judged(metric, share), *groups, _count(share), _aim(metric)])
    title = f"{report.folder}: {report.failures} failures, {report.healthy} healthy logs"
    return Grid(["metric", "all", *(name or "-" for name in report.by_difficulty), "count", "aim"], rows, title)


def _by_reason(report: CorpusReport) -> Grid:
    rows: list[list[Cell]] = [
        [reason, str(group["reason"].total), *(_judged(METRICS[name], group[name], unit="") for name in _BY_REASON)]
        for reason, group in report.by_reason.items()
    ]
    return Grid(["reason", "logs", *_BY_REASON.values()], rows, _REASON_TITLE)


def _cost_line(cost: DiagnosisCost) -> str:
    return (
        f"{cost.logs} logs, {cost.bytes / 1e6:.1f} MB in {cost.seconds:.2f} s of one process:"
        f" {cost.mb_per_second:.1f} MB/s, {1000 * cost.seconds / cost.logs:.0f} ms a log,"
        f" peak {cost.peak_bytes / 1e6:.0f} MB"
    )


def _every_miss(misses: Sequence[Miss]) -> Iterator[Text | str]:
    """Yield each miss: the log, what was wanted and got, and the label's reason."""
    by_file: dict[str, list[Miss]] = {}
    for miss in misses:
        by_file.setdefault(miss.file, []).append(miss)
    for file, some in by_file.items():
        yield Text(file, "bold")
        for miss in some:
            yield Text(f"  {METRICS[miss.metric].title}: wanted {miss.wanted}; got {miss.got}")
        yield Text(f"  why: {some[0].why}", "dim")
    yield f"{len(misses)} misses in {len(by_file)} logs"


_COLOUR: dict[bool | None, Literal["green", "red", ""]] = {True: "green", False: "red", None: ""}


def _judged(metric: Metric, share: Share, unit: str = " %") -> Text:
    return Text(_percent(share, unit), _COLOUR[meets_aim(metric, share)])


def _percent(share: Share, unit: str = " %") -> str:
    """Return the share in percent; only a full one is written as 100."""
    if share.share is None:
        return "-"
    if share.hits == share.total:
        return f"100{unit}"
    return f"{min(100 * share.share, 99.9):.1f}{unit}" if unit else f"{min(100 * share.share, 99):.0f}"


def _count(share: Share) -> str:
    return f"{share.hits:,} / {share.total:,}"


def _aim(metric: Metric) -> str:
    if metric.aim is None:
        return ""
    return f"{'<=' if metric.lower else '>='} {100 * metric.aim:g} %"
