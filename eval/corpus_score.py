"""How good the verdicts are, measured on a labelled corpus.

A corpus is a folder with `failures/` and `healthy/`, or one of the two; each holds logs and a `cases.jsonl`
with a label per log (fields: `eval/corpus/README.md`). Three steps, apart from each other: reading labels
(`read_corpus`), scoring one verdict (`score_failure`, `score_healthy`: pure), and showing the sums.
"""

import resource
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from os import sched_getaffinity
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval.calibration import Calibration, Weighed, calibration
from eval.calibration import summary as calibration_summary
from logdoctor import taxonomy
from logdoctor.errors import InputError
from logdoctor.text import decode
from logdoctor.types import Category, Outcome, Recovery, Verdict

DiagnoseOne = Callable[[Path], Verdict]
KeptLines = Callable[[Path], set[int]]
"""Line numbers, counted from 1, that no filter rule takes."""

RESTARTS = frozenset({"restart", "isolate_and_restart", "rollback_and_skip"})
REMOVED_AFTER_HEADER = 0.99
"""Share of a healthy log's lines behind its header that filter rules should take."""
_NEAR = 1  # lines a citation may stand beside the labelled line
_CITED_IS_KEPT = "Anomaly"  # their evidence may be metric lines, which live on in the progress record


class Metric(NamedTuple):
    """A figure of the report. `aim` is the least share that is wanted, or the most when `lower` is set."""

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
    "quotes": Metric("quotes stand in the log", 1.0),
    "first_rank": Metric("first rank"),
    "rank_invented": Metric("rank named where none is known", lower=True),
    "node_precision": Metric("nodes, precision", 1.0),
    "node_recall": Metric("nodes, recall"),
    "false_alarms": Metric("false alarms on healthy logs", 0.0, lower=True),
    "survived": Metric("fault a recovered job survived"),
    "lines_removed": Metric("lines removed"),
    "bytes_removed": Metric("bytes removed"),
    "after_header": Metric("removed after header, healthy", REMOVED_AFTER_HEADER),
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
"""The columns of the table by reason, with titles that fit a terminal."""
_REASON_TITLE = (
    "by labelled reason, %: reason is or may be said, fault, recovery, wrong actions (bad), evidence,"
    " first rank, cause lines kept"
)


class FailureCase(msgspec.Struct, frozen=True):
    """The label of a log of a failed job; `ValueError` for a reason that is not in the taxonomy."""

    id: str
    file: str
    reason: str
    category: Category
    user_fault: bool
    recovery: Recovery
    evidence_lines: tuple[int, ...]
    evidence_text: tuple[str, ...] = ()
    also_acceptable: tuple[str, ...] = ()
    recovery_also: tuple[Recovery, ...] = ()
    faulty_nodes: tuple[str, ...] = ()
    first_failing_rank: int | None = None
    difficulty: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        for reason in (self.reason, *self.also_acceptable):
            if reason not in taxonomy.REASONS:
                raise ValueError(f"reason {reason!r} is not in the taxonomy")


class HealthyCase(msgspec.Struct, frozen=True):
    """The label of a log of a job that did not fail. `fault` is the reason a recovered job survived."""

    id: str
    file: str
    outcome: Outcome
    fault: str | None = None
    why: str = ""


Case = FailureCase | HealthyCase


class Labelled(NamedTuple):
    """A log and its label."""

    path: Path
    case: Case


class Seen(NamedTuple):
    """What was made of one log.

    `kept` are the line numbers of the residual, `texts` the raw text of the cited lines by their number,
    `metric_rules` the ids of the filter rules that read metrics, `citable` the metric lines that the progress
    record can quote.
    """

    verdict: Verdict
    kept: set[int]
    texts: Mapping[int, str]
    metric_rules: Collection[str] = ()
    citable: Collection[int] = ()


class Mark(NamedTuple):
    """What one log adds to one metric: `hits` of `total`. A `missed` one is listed with wanted and got."""

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
    """A log for which a metric is wrong, and the label's reason for what was wanted."""

    file: str
    metric: str
    wanted: str
    got: str
    why: str


class Cost(msgspec.Struct, frozen=True):
    """What the diagnoses took.

    `mb_per_second` (10^6 bytes) is one process's speed over all logs, each diagnosed on its own; on small
    logs the fixed cost of a diagnosis prevails. `peak_bytes` is the largest resident set of one process.
    """

    logs: int
    bytes: int
    seconds: float
    mb_per_second: float
    peak_bytes: int


class Report(msgspec.Struct, frozen=True):
    """The scores of a corpus: each metric over all logs, by difficulty and by labelled reason, and whether confidence
    means what it says, over the failures of which a reason is named."""

    folder: str
    failures: int
    healthy: int
    all: dict[str, Share]
    by_difficulty: dict[str, dict[str, Share]]
    by_reason: dict[str, dict[str, Share]]
    misses: list[Miss]
    calibration: Calibration
    cost: Cost


# ---- reading labels


def read_corpus(folder: Path) -> list[Labelled]:
    """The logs of a corpus with their labels; `InputError` names what is missing or not readable."""
    if not folder.is_dir():
        raise InputError(str(folder), "is not a folder", "Name a folder with failures/ or healthy/ in it.")
    places = [place for place in (folder / "failures", folder / "healthy") if place.is_dir()] or [folder]
    return [labelled for place in places for labelled in _read_cases(place / "cases.jsonl")]


def _read_cases(path: Path) -> Iterator[Labelled]:
    try:
        rows = path.read_bytes().split(b"\n")
    except OSError as error:
        cause = f"cannot be read ({error.strerror})"
        raise InputError(str(path), cause, "A corpus needs its labels.") from error
    if not any(row.strip() for row in rows):
        raise InputError(str(path), "holds no cases", "A corpus needs its labels.")
    for number, row in enumerate(rows, 1):
        if not row.strip():
            continue
        case = _read_case(row, f"{path}, line {number}")
        log = path.parent / case.file
        if not log.is_file():
            cause = f"there is no such log, but case {case.id!r} names it"
            raise InputError(str(log), cause, f"Mend {path}.")
        yield Labelled(log, case)


def _read_case(row: bytes, place: str) -> Case:
    try:
        fields: Any = msgspec.json.decode(row)
        if isinstance(fields, dict) and "outcome" in fields:
            return msgspec.convert(fields, HealthyCase)
        return msgspec.convert(fields, FailureCase)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(place, f"is not a case ({error})", "See README.md of eval/corpus.") from error


# ---- scoring


def score_failure(case: FailureCase, seen: Seen) -> list[Mark]:
    """What the verdict on a failed job adds to each metric."""
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


def score_healthy(case: HealthyCase, seen: Seen) -> list[Mark]:
    """What the verdict on a job that did not fail adds to each metric."""
    verdict = seen.verdict
    alarm = verdict.recovery != "none" or verdict.outcome == "failed"
    got = f"{verdict.outcome}, {verdict.recovery} ({verdict.reason})"
    marks = [
        _equal("outcome", case.outcome, verdict.outcome),
        _flag("false_alarms", alarm, f"{case.outcome}, none", got),
        _quotes(seen),
        *_removed(verdict),
        _after_header(seen),
    ]
    if case.fault is not None:
        marks.append(_equal("survived", case.fault, verdict.reason))
    return marks


def weigh(case: Case, verdict: Verdict) -> Weighed | None:
    """How sure a verdict is that names a reason for a failure, and whether that can be defended."""
    if not isinstance(case, FailureCase) or verdict.outcome != "failed" or verdict.reason == "Unknown":
        return None
    return Weighed(verdict.confidence, verdict.reason in (case.reason, *case.also_acceptable))


def is_wrong_action(right: Collection[str], advised: str) -> bool:
    """Whether a restart is advised where none can help, or a fix where a restart would do.

    `ask_human` and `none` act on nothing: they miss the recovery but are not wrong actions.
    """
    restart_is_right = not RESTARTS.isdisjoint(right)
    if advised in RESTARTS:
        return not restart_is_right
    return advised == "fix_first" and advised not in right and restart_is_right


def same_node(one: str, other: str) -> bool:
    """Whether two names mean one host: case does not count, and a short name equals its full domain name."""
    one, other = one.lower(), other.lower()
    return one == other or _is_short_for(one, other) or _is_short_for(other, one)


def _is_short_for(short: str, full: str) -> bool:
    return "." not in short and not full.replace(".", "").isdigit() and full.startswith(f"{short}.")


def first_metric_line(verdict: Verdict, metric_rules: Collection[str]) -> int:
    """The line where the header ends: the first that a filter rule with metrics takes.

    1, so that no line counts as header, when no such rule takes a line.
    """
    taken = verdict.compression.rules
    return min((taken[rule].first for rule in metric_rules if rule in taken), default=1)


def _check(metric: str, right: bool, wanted: str, got: str) -> Mark:
    return Mark(metric, int(right), 1, not right, wanted, got)


def _equal(metric: str, wanted: str, got: str) -> Mark:
    return _check(metric, wanted == got, wanted, got)


def _one_of(metric: str, wanted: Sequence[str], got: str) -> Mark:
    return _check(metric, got in wanted, " or ".join(wanted), got)


def _flag(metric: str, raised: bool, wanted: str, got: str) -> Mark:
    """A metric that counts what should not be."""
    return Mark(metric, int(raised), 1, raised, wanted, got)


def _recovery(right: Sequence[str], advised: str) -> list[Mark]:
    wrong = is_wrong_action(right, advised)
    return [
        _one_of("recovery", right, advised),
        _flag("wrong_actions", wrong, " or ".join(right), advised),
    ]


def _evidence(case: FailureCase, seen: Seen) -> Mark:
    """Right when a cited line is next to a labelled one, or holds a labelled text."""
    cited = [evidence.line for evidence in seen.verdict.evidence]
    near = any(_is_cited(line, cited) for line in case.evidence_lines)
    told = any(text in seen.texts.get(line, "") for line in cited for text in case.evidence_text)
    return _check("evidence", near or told, f"line {_list(case.evidence_lines)}", f"line {_list(cited)}")


def _is_cited(line: int, cited: Iterable[int]) -> bool:
    return any(abs(line - other) <= _NEAR for other in cited)


def _quotes(seen: Seen) -> Mark:
    """How many quotes stand character for character at their line (law 3)."""
    evidence = seen.verdict.evidence
    false = [item for item in evidence if not item.quote or item.quote not in seen.texts.get(item.line, "")]
    got = "; ".join(f"line {item.line}: {item.quote}" for item in false)
    return Mark("quotes", len(evidence) - len(false), len(evidence), bool(false), "quotes as in the log", got)


def _first_rank(case: FailureCase, verdict: Verdict) -> Mark:
    wanted, got = case.first_failing_rank, verdict.first_rank
    if wanted is None:
        return _flag("rank_invented", got is not None, "no rank", f"rank {got}")
    return _check("first_rank", wanted == got, f"rank {wanted}", "no rank" if got is None else f"rank {got}")


def _nodes(case: FailureCase, verdict: Verdict) -> list[Mark]:
    named: list[str] = []
    for suspect in verdict.suspects:
        if suspect.node is not None and not _names_any(suspect.node, named):
            named.append(suspect.node)
    guilty = sum(_names_any(node, case.faulty_nodes) for node in named)
    found = sum(_names_any(node, named) for node in case.faulty_nodes)
    wanted, got = _list(case.faulty_nodes), _list(named)
    return [
        Mark("node_precision", guilty, len(named), guilty < len(named), wanted, got),
        Mark("node_recall", found, len(case.faulty_nodes), found < len(case.faulty_nodes), wanted, got),
    ]


def _names_any(node: str, others: Iterable[str]) -> bool:
    return any(same_node(node, other) for other in others)


def _removed(verdict: Verdict) -> list[Mark]:
    account = verdict.compression
    return [
        Mark("lines_removed", account.lines_in - account.lines_kept, account.lines_in),
        Mark("bytes_removed", account.bytes_in - account.bytes_kept, account.bytes_in),
    ]


def _after_header(seen: Seen) -> Mark:
    begin = first_metric_line(seen.verdict, seen.metric_rules)
    total = max(seen.verdict.compression.lines_in - begin + 1, 0)
    left = sorted(line for line in seen.kept if line >= begin)
    missed = len(left) > total * (1 - REMOVED_AFTER_HEADER)
    wanted = f"at most {int(total * (1 - REMOVED_AFTER_HEADER))} of {total} lines left after line {begin}"
    got = f"{len(left)} left: {_list(left[:20])}"
    return Mark("after_header", total - len(left), total, missed, wanted, got)


def _cause_kept(case: FailureCase, seen: Seen) -> Mark:
    cited = [evidence.line for evidence in seen.verdict.evidence]
    excused = case.category == _CITED_IS_KEPT
    lost = [
        n
        for n in case.evidence_lines
        if n not in seen.kept and not (excused and (n in seen.citable or _is_cited(n, cited)))
    ]
    total = len(case.evidence_lines)
    return Mark("cause_kept", total - len(lost), total, bool(lost), "all kept", f"taken: line {_list(lost)}")


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items)) or "none"


# ---- running


class _Scored(NamedTuple):
    """The marks of one log, how sure its verdict is if that names a reason, and what its diagnosis took."""

    marks: list[Mark]
    weighed: Weighed | None
    bytes: int
    seconds: float
    peak_bytes: int


class _Parts(NamedTuple):
    diagnose_one: DiagnoseOne
    kept_lines: KeptLines
    citable_lines: KeptLines
    metric_rules: Collection[str]


_parts: _Parts | None = None  # of a worker process


def evaluate(
    folders: Sequence[Path],
    diagnose_one: DiagnoseOne,
    kept_lines: KeptLines,
    metric_rules: Collection[str] = (),
    citable_lines: KeptLines = lambda path: set(),
) -> Report:
    """The scores of one corpus or of several together; logs are diagnosed in one forked process per core.

    `metric_rules` are the ids of the filter rules that read metrics: they tell where a log's header ends.
    `citable_lines` are those that the progress record can quote.
    """
    corpus = [labelled for folder in folders for labelled in read_corpus(folder)]
    parts = _Parts(diagnose_one, kept_lines, citable_lines, metric_rules)
    workers = min(len(sched_getaffinity(0)), len(corpus))
    with ProcessPoolExecutor(workers, get_context("fork"), initializer=_adopt, initargs=(parts,)) as pool:
        scored = list(pool.map(_examine, corpus))
    marks = [(labelled.case, one.marks) for labelled, one in zip(corpus, scored, strict=True)]
    weighed = [one.weighed for one in scored if one.weighed]
    return summarise(", ".join(map(str, folders)), marks, calibration(weighed), _cost(scored))


def _adopt(parts: _Parts) -> None:
    global _parts
    _parts = parts


def _examine(labelled: Labelled) -> _Scored:
    """One log diagnosed and scored; only the diagnosis is timed."""
    assert _parts is not None
    path, case = labelled
    begin = time.perf_counter()
    verdict = _parts.diagnose_one(path)
    seconds = time.perf_counter() - begin
    peak = _peak_bytes()
    texts = _texts(path, {evidence.line for evidence in verdict.evidence})
    seen = Seen(verdict, _parts.kept_lines(path), texts, _parts.metric_rules, _parts.citable_lines(path))
    marks = score_failure(case, seen) if isinstance(case, FailureCase) else score_healthy(case, seen)
    return _Scored(marks, weigh(case, verdict), path.stat().st_size, seconds, peak)


def _texts(path: Path, numbers: Collection[int]) -> dict[int, str]:
    """The lines of a log with these numbers, if it has them; a line is what `\\n` ends."""
    with path.open("rb") as log:
        return {n: decode(raw.removesuffix(b"\n")) for n, raw in enumerate(log, 1) if n in numbers}


def _peak_bytes() -> int:
    """The largest resident set of this process and of any child it waited for (Linux counts it in KiB)."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in whose)


def _cost(scored: Sequence[_Scored]) -> Cost:
    size, seconds = sum(one.bytes for one in scored), sum(one.seconds for one in scored)
    speed = size / 1e6 / seconds if seconds else 0.0
    return Cost(len(scored), size, seconds, speed, max(one.peak_bytes for one in scored))


# ---- summing up


def summarise(folder: str, scored: Sequence[tuple[Case, list[Mark]]], calibrated: Calibration, cost: Cost) -> Report:
    """The report of all marks."""
    failures = [(case, marks) for case, marks in scored if isinstance(case, FailureCase)]
    return Report(
        folder=folder,
        failures=len(failures),
        healthy=len(scored) - len(failures),
        all=shares(mark for _, marks in scored for mark in marks),
        by_difficulty=_grouped((case.difficulty, marks) for case, marks in failures),
        by_reason=_grouped((case.reason, marks) for case, marks in failures),
        misses=[
            Miss(case.file, mark.metric, mark.wanted, mark.got, case.why)
            for case, marks in scored
            for mark in marks
            if mark.missed
        ],
        calibration=calibrated,
        cost=cost,
    )


def shares(marks: Iterable[Mark]) -> dict[str, Share]:
    """The marks of each metric added up, in the order of `METRICS`."""
    sums = dict.fromkeys(METRICS, (0, 0))
    for mark in marks:
        hits, total = sums[mark.metric]
        sums[mark.metric] = hits + mark.hits, total + mark.total
    return {name: Share(hits, total, hits / total if total else None) for name, (hits, total) in sums.items()}


def _grouped(scored: Iterable[tuple[str, list[Mark]]]) -> dict[str, dict[str, Share]]:
    groups: dict[str, list[Mark]] = {}
    for name, marks in scored:
        groups.setdefault(name, []).extend(marks)
    return {name: shares(groups[name]) for name in sorted(groups)}


# ---- showing


def write_report(folder: Path, name: str, report: msgspec.Struct, texts: Mapping[str, str]) -> None:
    """Write a report as `NAME.json` to a folder, and what tells of it by suffix; `InputError` when that fails."""
    data = msgspec.json.format(msgspec.json.encode(report)).decode() + "\n"
    try:
        for suffix, content in {"json": data, **texts}.items():
            (folder / f"{name}.{suffix}").write_text(content, encoding="utf-8")
    except OSError as error:
        raise InputError(str(folder), f"cannot be written ({error.strerror})", "Name another folder.") from error


def render(report: Report, console: Console) -> None:
    """Print the report: each metric by difficulty with its aim, then each reason, then the cost."""
    console.print(_main_table(report))
    if report.by_reason:
        console.print(_reason_table(report))
    console.print(f"{calibration_summary(report.calibration)}.", highlight=False)
    cost = report.cost
    console.print(
        f"{cost.logs} logs, {cost.bytes / 1e6:.1f} MB in {cost.seconds:.2f} s of one process:"
        f" {cost.mb_per_second:.1f} MB/s, {1000 * cost.seconds / cost.logs:.0f} ms a log,"
        f" peak {cost.peak_bytes / 1e6:.0f} MB",
        highlight=False,
    )


def render_misses(report: Report, console: Console) -> None:
    """Print each miss: the log, what was wanted, what was got, and why the label says so."""
    by_file: dict[str, list[Miss]] = {}
    for miss in report.misses:
        by_file.setdefault(miss.file, []).append(miss)
    for file, misses in by_file.items():
        console.print(Text(file, "bold"))
        for miss in misses:
            console.print(Text(f"  {METRICS[miss.metric].title}: wanted {miss.wanted}; got {miss.got}"))
        console.print(Text(f"  why: {misses[0].why}", "dim"))
    console.print(f"{len(report.misses)} misses in {len(by_file)} logs", highlight=False)


def meets_aim(metric: Metric, share: Share) -> bool | None:
    """Whether a share reaches what is wanted; None when nothing is wanted or nothing was counted."""
    if metric.aim is None or share.share is None:
        return None
    return share.share <= metric.aim if metric.lower else share.share >= metric.aim


def _main_table(report: Report) -> Table:
    title = f"{report.folder}: {report.failures} failures, {report.healthy} healthy logs"
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("metric")
    for name in ("all", *report.by_difficulty, "count", "aim"):
        table.add_column(Text(name or "-"), justify="right")
    for name, metric in METRICS.items():
        share = report.all[name]
        if share.total:
            parts = [_percent(group[name]) for group in report.by_difficulty.values()]
            table.add_row(metric.title, _judged(metric, share), *parts, _count(share), _aim(metric))
    return table


def _reason_table(report: Report) -> Table:
    table = Table(title=_REASON_TITLE, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("reason", no_wrap=True)
    table.add_column("logs", justify="right")
    for short in _BY_REASON.values():
        table.add_column(short, justify="right")
    for reason, group in report.by_reason.items():
        cells = [_judged(METRICS[name], group[name], unit="") for name in _BY_REASON]
        table.add_row(reason, str(group["reason"].total), *cells)
    return table


_COLOUR: dict[bool | None, Literal["green", "red", ""]] = {True: "green", False: "red", None: ""}


def _judged(metric: Metric, share: Share, unit: str = " %") -> Text:
    return Text(_percent(share, unit), _COLOUR[meets_aim(metric, share)])


def _percent(share: Share, unit: str = " %") -> str:
    """The share in percent; only a full one reads 100."""
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
