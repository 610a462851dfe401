"""How honest verdicts are on failures that no rule knows: each reason is taken away in turn.

For every labelled reason all diagnosis rules that claim it and all rows of the knowledge tables that name it are left
out, and its failures are diagnosed with the rest. The class of an exception or the course of the job may still give the
right reason, and `Unknown` is the honest answer; naming another reason is the mistake that is counted.
"""

import csv
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from rich.console import RenderableType
from rich.text import Text

from eval.labels import FailureCase, LabelledLog, is_wrong_action, read_corpus
from eval.report import EvalReport, Grid, bullets, percent
from logdoctor import taxonomy
from logdoctor.errors import InputError
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import DiagnosisRule
from logdoctor.types import Verdict

AIM = 0.05
"""Largest share of failures that may be given a reason of another category than their label's."""

Judge = Callable[[Path, Scanner], Verdict]
AnswerKind = Literal["right", "acceptable", "family", "unknown", "unnoticed", "wrong"]


class UnseenAnswer(msgspec.Struct, frozen=True):
    """The verdict on one failure whose reason no rule knew.

    `kind`: right; another acceptable reason (`acceptable`); a wrong reason of the label's category (`family`);
    `unknown`; no failure noticed at all (`unnoticed`); or a wrong reason of another category (`wrong`).
    """

    folder: str
    file: str
    label: str
    said: str
    kind: AnswerKind
    outcome: str
    decided: str
    recovery: str
    wrong_action: bool
    quote: str


class UnseenCounts(msgspec.Struct, frozen=True):
    """Failures by kind of answer; `wrong_reasons` counts every wrong reason, in the label's category or not. Shares are
    of all failures."""

    failures: int
    right: int
    acceptable: int
    family: int
    unknown: int
    unnoticed: int
    wrong: int
    wrong_share: float
    wrong_reasons: int
    wrong_reasons_share: float
    wrong_actions: int
    wrong_actions_share: float


class UnseenReport(EvalReport, frozen=True):
    """The counts over all failures, by folder and by label, and every failure with a wrong answer."""

    folders: tuple[str, ...]
    all: UnseenCounts
    by_folder: dict[str, UnseenCounts]
    by_reason: dict[str, UnseenCounts]
    missed: list[UnseenAnswer]

    @property
    def name(self) -> str:
        return "unseen"

    def parts(self, details: bool = False) -> Iterator[RenderableType]:
        """Yield the counts by label, both readings of wrong, and every wrong answer."""
        yield _counts_grid(self).printed()
        yield from summary(self)
        for one in self.missed if details else ():
            yield from _answer_lines(one)

    def page(self) -> str:
        head = ["log", "label", "said", "kind", "by", "action"]
        rows = [[one.file, one.label, one.said, one.kind, one.decided, one.recovery] for one in self.missed]
        missed = Grid(head, rows, left=range(len(head)))
        return (
            f"{_INTRODUCTION}{_counts_grid(self).markdown()}\n\n{bullets(summary(self))}\n\n"
            f"## Wrong answers\n\n{missed.markdown()}\n"
        )


# ---- taking away


def without_reason(book: RuleBook, tables: Path, reason: str, folder: Path) -> RuleBook:
    """Return the rules of a book that know nothing of a reason. Its knowledge tables, without the reason's rows, are
    written to `folder`, which must live as long as the book."""
    for table in sorted(tables.glob("*.tsv")):
        (folder / table.name).write_text("".join(_other_rows(table, reason)), encoding="utf-8")
    diagnoses = tuple(rule for rule in book.diagnoses if rule.verdict.reason != reason)
    return RuleBook((*book.filters, *diagnoses), folder)


def without_reasons(book: RuleBook, tables: Path) -> RuleBook:
    """Return the rules of a book that claim no reason: they know how jobs end, not why."""
    return RuleBook((*book.filters, *(rule for rule in book.diagnoses if not _claims_reason(rule))), tables)


def _claims_reason(rule: DiagnosisRule) -> bool:
    return bool(rule.verdict.lookup) or (bool(rule.verdict.reason) and rule.verdict.role != "note")


def _other_rows(table: Path, reason: str) -> Iterator[str]:
    """Yield a table's lines without the rows of a reason."""
    column: int | None = None
    for line in table.read_text(encoding="utf-8").splitlines(keepends=True):
        cells = next(csv.reader([line.rstrip("\n")], delimiter="\t", quoting=csv.QUOTE_NONE), [])
        if line.startswith("#"):
            yield line
        elif column is None:
            column = cells.index("reason")
            yield line
        elif cells[column] != reason:
            yield line


# ---- running


class _Unlearning(NamedTuple):
    scanner: Scanner
    tables: Path
    judge: Judge


_unlearning: _Unlearning | None = None  # of a worker process


def run(folders: Sequence[Path], scanner: Scanner, tables: Path, judge: Judge, workers: int = 0) -> UnseenReport:
    """Return the report over the failures of the corpora, reasons spread over one forked process per core.

    `scanner` has all rules, `tables` are its book's knowledge tables. One worker runs in this process.
    """
    failures = labelled_failures(folders)
    workers = min(workers or len(os.sched_getaffinity(0)), len(failures))
    parts = _Unlearning(scanner, tables, judge)
    if workers == 1:
        _adopt(parts)
        answers = [_of_reason(reason, logs) for reason, logs in failures.items()]
    else:
        with ProcessPoolExecutor(workers, get_context("fork"), initializer=_adopt, initargs=(parts,)) as pool:
            answers = list(pool.map(_of_reason, failures, failures.values()))
    return summarise([str(folder) for folder in folders], [one for some in answers for one in some])


def labelled_failures(folders: Sequence[Path]) -> dict[str, list[tuple[str, LabelledLog]]]:
    """Return the logs of failed jobs by label, with their corpus folders; `InputError` without any."""
    logs = [(str(folder), log) for folder in folders for log in read_corpus(folder)]
    failed = sorted((log for log in logs if isinstance(log[1].case, FailureCase)), key=_label)
    if not failed:
        raise InputError(", ".join(map(str, folders)), "no failures are labelled there", "Name another folder.")
    return {reason: list(some) for reason, some in groupby(failed, _label)}


def _label(log: tuple[str, LabelledLog]) -> str:
    case = log[1].case
    return case.reason if isinstance(case, FailureCase) else ""


def _adopt(parts: _Unlearning) -> None:
    global _unlearning
    _unlearning = parts


def _of_reason(reason: str, logs: Sequence[tuple[str, LabelledLog]]) -> list[UnseenAnswer]:
    """Return the answers for a reason's failures by rules that do not know it."""
    assert _unlearning is not None
    with tempfile.TemporaryDirectory(prefix="logdoctor-unseen-") as folder:
        scanner = scanner_without(reason, _unlearning.scanner, _unlearning.tables, Path(folder))
        return [answer_of(folder_, log, _unlearning.judge(log.path, scanner)) for folder_, log in logs]


def scanner_without(reason: str, scanner: Scanner, tables: Path, folder: Path) -> Scanner:
    """Return the compiled rules that know nothing of a reason; see `without_reason`."""
    return Scanner(without_reason(scanner.book, tables, reason, folder), scanner.cache)


# ---- scoring


def answer_of(folder: str, log: LabelledLog, verdict: Verdict) -> UnseenAnswer:
    """Return how right a verdict on a labelled failure is."""
    case = log.case
    assert isinstance(case, FailureCase)
    return UnseenAnswer(
        folder,
        case.file,
        case.reason,
        verdict.reason,
        _kind(case, verdict),
        verdict.outcome,
        verdict.decided_by.rule or verdict.decided_by.kind,
        verdict.recovery,
        is_wrong_action((case.recovery, *case.recovery_also), verdict.recovery),
        verdict.evidence[0].quote[:200] if verdict.evidence else "",
    )


def _kind(case: FailureCase, verdict: Verdict) -> AnswerKind:
    if verdict.outcome != "failed":
        return "unnoticed"
    if verdict.reason == case.reason:
        return "right"
    if verdict.reason in case.also_acceptable:
        return "acceptable"
    if verdict.reason == "Unknown":
        return "unknown"
    return "family" if taxonomy.REASONS[verdict.reason].category == case.category else "wrong"


def count(some: Sequence[UnseenAnswer]) -> UnseenCounts:
    """Count the kinds of answers."""
    kinds: dict[str, int] = dict.fromkeys(("right", "acceptable", "family", "unknown", "unnoticed", "wrong"), 0)
    for one in some:
        kinds[one.kind] += 1
    wrong_reasons = kinds["wrong"] + kinds["family"]
    actions = sum(one.wrong_action for one in some)
    size = len(some) or 1
    return UnseenCounts(
        failures=len(some),
        **kinds,
        wrong_share=round(kinds["wrong"] / size, 4),
        wrong_reasons=wrong_reasons,
        wrong_reasons_share=round(wrong_reasons / size, 4),
        wrong_actions=actions,
        wrong_actions_share=round(actions / size, 4),
    )


def summarise(folders: Sequence[str], some: Sequence[UnseenAnswer]) -> UnseenReport:
    """Return the report of all answers."""
    return UnseenReport(
        folders=tuple(folders),
        all=count(some),
        by_folder=_grouped(some, lambda one: one.folder),
        by_reason=_grouped(some, lambda one: one.label),
        missed=[one for one in some if one.kind in ("family", "unnoticed", "wrong") or one.wrong_action],
    )


def _grouped(some: Iterable[UnseenAnswer], key: Callable[[UnseenAnswer], str]) -> dict[str, UnseenCounts]:
    groups: dict[str, list[UnseenAnswer]] = {}
    for one in some:
        groups.setdefault(key(one), []).append(one)
    return {name: count(groups[name]) for name in sorted(groups)}


# ---- showing

_COLUMNS = {
    "failures": "logs",
    "right": "right",
    "acceptable": "may",
    "family": "family",
    "unknown": "Unknown",
    "unnoticed": "unseen",
    "wrong": "wrong",
    "wrong_actions": "bad action",
}


def _counts_grid(report: UnseenReport) -> Grid:
    groups = [*report.by_reason.items(), *(report.by_folder.items() if len(report.by_folder) > 1 else ())]
    rows = [[name, *_cells(counted)] for name, counted in (*groups, ("all", report.all))]
    title = "each reason taken away in turn: what is said of its failures"
    return Grid(["labelled reason", *_COLUMNS.values()], rows, title)


def _cells(counted: UnseenCounts) -> list[str]:
    values: Mapping[str, int] = msgspec.structs.asdict(counted)
    return [str(values[name]) if values[name] else "" for name in _COLUMNS]


def _answer_lines(one: UnseenAnswer) -> Iterator[Text]:
    action = ", a wrong action" if one.wrong_action else ""
    yield Text(f"{one.folder}/{one.file}: {one.label}", "bold")
    yield Text(f"  {one.kind}: {one.outcome}, {one.said}, {one.recovery}{action} by {one.decided}")
    yield Text(f"  {one.quote}", "dim")


def summary(report: UnseenReport) -> list[str]:
    """Return the figures as sentences: both readings of wrong, and the wrong actions."""
    counted = report.all
    aim = f"the aim is at most {100 * AIM:g} %"
    return [
        f"wrong, of another category than the label: {counted.wrong} of {counted.failures}"
        f" ({percent(counted.wrong_share)} %; {aim})",
        f"wrong, any reason that is neither the label nor acceptable: {counted.wrong_reasons} of"
        f" {counted.failures} ({percent(counted.wrong_reasons_share)} %)",
        f"failures that were not noticed: {counted.unnoticed}; wrong actions: {counted.wrong_actions}"
        f" ({percent(counted.wrong_actions_share)} %)",
    ]


_INTRODUCTION = """# Unseen causes

`logdoctor eval unseen`: leave one reason out. For each reason of the labels all diagnosis rules that claim it and all
rows of the knowledge tables that name it are taken away, and its failures are diagnosed with what is left, without a
model and without past cases.

- *right*: the label, given by the class of an exception or by the course of the job; *may*: another acceptable reason.
- *family*: a wrong reason of the same category (infrastructure, framework, script, anomaly) as the label.
- *Unknown*: the honest answer. *unseen*: the failure was not noticed, the job counts as running or completed.
- *wrong*: a reason of another category. *bad action*: a restart where only a fix helps, or the reverse.

"""
