"""How honest the verdicts are on failures of a kind that nothing knows: each reason is taken away in turn.

For every reason of the labels all diagnosis rules that claim it and all rows of the knowledge tables that name it are
left out, and its failures are diagnosed with what remains. Right is then what the class of an exception or the course
of the job says by itself, and `Unknown` is the honest answer; what must not happen is another reason's name.
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
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval.corpus_score import FailureCase, Labelled, is_wrong_action, read_corpus, write_report
from logdoctor import taxonomy
from logdoctor.errors import InputError
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import DiagnosisRule
from logdoctor.types import Verdict

AIM = 0.05
"""The most failures of an unseen reason that may be called by the name of another one."""

Judge = Callable[[Path, Scanner], Verdict]
Kind = Literal["right", "acceptable", "family", "unknown", "unnoticed", "wrong"]


class Told(msgspec.Struct, frozen=True):
    """What was said of one failure whose reason nothing knew.

    `kind`: right; another label that can be defended (`acceptable`); a wrong reason of the label's category
    (`family`); `unknown`; no failure seen at all (`unnoticed`); or a wrong reason of another category (`wrong`).
    """

    folder: str
    file: str
    label: str
    said: str
    kind: Kind
    outcome: str
    decided: str
    recovery: str
    wrong_action: bool
    quote: str


class Count(msgspec.Struct, frozen=True):
    """How many failures were told how; `wrong_reasons` is every wrong reason that was claimed, in the label's category
    or not; the shares are of all failures."""

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


class Report(msgspec.Struct, frozen=True):
    """The counts over all failures, by folder and by label, and every failure that was not told right."""

    folders: tuple[str, ...]
    all: Count
    by_folder: dict[str, Count]
    by_reason: dict[str, Count]
    missed: list[Told]


# ---- taking away


def without_reason(book: RuleBook, tables: Path, reason: str, folder: Path) -> RuleBook:
    """The rules of a book that know nothing of a reason; its knowledge tables, without the reason's rows, lie in
    `folder`, which must live as long as the book."""
    for table in sorted(tables.glob("*.tsv")):
        (folder / table.name).write_text("".join(_other_rows(table, reason)), encoding="utf-8")
    diagnoses = tuple(rule for rule in book.diagnoses if rule.verdict.reason != reason)
    return RuleBook((*book.filters, *diagnoses), folder)


def without_reasons(book: RuleBook, tables: Path) -> RuleBook:
    """The rules of a book that claim no reason at all: what is left knows how jobs end, not why."""
    return RuleBook((*book.filters, *(rule for rule in book.diagnoses if not _claims_reason(rule))), tables)


def _claims_reason(rule: DiagnosisRule) -> bool:
    return bool(rule.verdict.lookup) or (bool(rule.verdict.reason) and rule.verdict.role != "note")


def _other_rows(table: Path, reason: str) -> Iterator[str]:
    """The lines of a table but the rows of a reason."""
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


class _Parts(NamedTuple):
    book: RuleBook
    tables: Path
    judge: Judge
    cache: Path | None


_parts: _Parts | None = None  # of a worker process


def run(
    folders: Sequence[Path], book: RuleBook, tables: Path, judge: Judge, cache: Path | None, workers: int = 0
) -> Report:
    """The report over the failures of some corpora; reasons are shared out to forked processes, one for each core.

    `tables` are the knowledge tables of the book, `cache` keeps compiled rules. One worker works in this process.
    """
    failures = labelled_failures(folders)
    workers = min(workers or len(os.sched_getaffinity(0)), len(failures))
    parts = _Parts(book, tables, judge, cache)
    if workers == 1:
        _adopt(parts)
        told = [_of_reason(reason, logs) for reason, logs in failures.items()]
    else:
        with ProcessPoolExecutor(workers, get_context("fork"), initializer=_adopt, initargs=(parts,)) as pool:
            told = list(pool.map(_of_reason, failures, failures.values()))
    return summarise([str(folder) for folder in folders], [one for some in told for one in some])


def labelled_failures(folders: Sequence[Path]) -> dict[str, list[tuple[str, Labelled]]]:
    """The logs of failed jobs by labelled reason, each with the folder of its corpus; `InputError` for none."""
    logs = [(str(folder), log) for folder in folders for log in read_corpus(folder)]
    failed = sorted((log for log in logs if isinstance(log[1].case, FailureCase)), key=_label)
    if not failed:
        raise InputError(", ".join(map(str, folders)), "no failures are labelled there", "Name another folder.")
    return {reason: list(some) for reason, some in groupby(failed, _label)}


def _label(log: tuple[str, Labelled]) -> str:
    case = log[1].case
    return case.reason if isinstance(case, FailureCase) else ""


def _adopt(parts: _Parts) -> None:
    global _parts
    _parts = parts


def _of_reason(reason: str, logs: Sequence[tuple[str, Labelled]]) -> list[Told]:
    """What is said of the failures of a reason by rules that do not know it."""
    assert _parts is not None
    with tempfile.TemporaryDirectory(prefix="logdoctor-unseen-") as folder:
        scanner = scanner_without(reason, _parts.book, _parts.tables, Path(folder), _parts.cache)
        return [told(folder_, log, _parts.judge(log.path, scanner)) for folder_, log in logs]


def scanner_without(reason: str, book: RuleBook, tables: Path, folder: Path, cache: Path | None) -> Scanner:
    """The compiled rules that know nothing of a reason; see `without_reason`."""
    return Scanner(without_reason(book, tables, reason, folder), cache)


# ---- scoring


def told(folder: str, log: Labelled, verdict: Verdict) -> Told:
    """What a verdict says of a labelled failure."""
    case = log.case
    assert isinstance(case, FailureCase)
    return Told(
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


def _kind(case: FailureCase, verdict: Verdict) -> Kind:
    if verdict.outcome != "failed":
        return "unnoticed"
    if verdict.reason == case.reason:
        return "right"
    if verdict.reason in case.also_acceptable:
        return "acceptable"
    if verdict.reason == "Unknown":
        return "unknown"
    return "family" if taxonomy.REASONS[verdict.reason].category == case.category else "wrong"


def count(some: Sequence[Told]) -> Count:
    """The sums of what was told."""
    kinds: dict[str, int] = dict.fromkeys(("right", "acceptable", "family", "unknown", "unnoticed", "wrong"), 0)
    for one in some:
        kinds[one.kind] += 1
    wrong_reasons = kinds["wrong"] + kinds["family"]
    actions = sum(one.wrong_action for one in some)
    size = len(some) or 1
    return Count(
        failures=len(some),
        **kinds,
        wrong_share=round(kinds["wrong"] / size, 4),
        wrong_reasons=wrong_reasons,
        wrong_reasons_share=round(wrong_reasons / size, 4),
        wrong_actions=actions,
        wrong_actions_share=round(actions / size, 4),
    )


def summarise(folders: Sequence[str], some: Sequence[Told]) -> Report:
    """The report of all that was told."""
    return Report(
        folders=tuple(folders),
        all=count(some),
        by_folder=_grouped(some, lambda one: one.folder),
        by_reason=_grouped(some, lambda one: one.label),
        missed=[one for one in some if one.kind in ("family", "unnoticed", "wrong") or one.wrong_action],
    )


def _grouped(some: Iterable[Told], key: Callable[[Told], str]) -> dict[str, Count]:
    groups: dict[str, list[Told]] = {}
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


def render(report: Report, console: Console, with_failures: bool = False) -> None:
    """Print the counts by label, both readings of what is wrong, and on wish each failure that was not told right."""
    title = "each reason taken away in turn: what is said of its failures"
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("labelled reason", no_wrap=True)
    for name in _COLUMNS.values():
        table.add_column(name, justify="right")
    for reason, counted in _rows(report):
        table.add_row(reason, *_cells(counted))
    console.print(table)
    for line in summary(report):
        console.print(line, highlight=False)
    for one in report.missed if with_failures else ():
        action = ", a wrong action" if one.wrong_action else ""
        console.print(Text(f"{one.folder}/{one.file}: {one.label}", "bold"))
        console.print(Text(f"  {one.kind}: {one.outcome}, {one.said}, {one.recovery}{action} by {one.decided}"))
        console.print(Text(f"  {one.quote}", "dim"))


def _rows(report: Report) -> Iterator[tuple[str, Count]]:
    yield from report.by_reason.items()
    if len(report.by_folder) > 1:
        yield from report.by_folder.items()
    yield "all", report.all


def _cells(counted: Count) -> list[str]:
    values: Mapping[str, int] = msgspec.structs.asdict(counted)
    return [str(values[name]) if values[name] else "" for name in _COLUMNS]


def summary(report: Report) -> list[str]:
    """The figures in words: both readings of what is wrong, and the wrong actions."""
    counted = report.all
    aim = f"the aim is at most {100 * AIM:g} %"
    return [
        f"wrong, of another category than the label: {counted.wrong} of {counted.failures}"
        f" ({_percent(counted.wrong_share)}; {aim})",
        f"wrong, any reason that is neither the label nor one that can be defended: {counted.wrong_reasons} of"
        f" {counted.failures} ({_percent(counted.wrong_reasons_share)})",
        f"failures that were not seen as such: {counted.unnoticed}; wrong actions: {counted.wrong_actions}"
        f" ({_percent(counted.wrong_actions_share)})",
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


_INTRODUCTION = """# Unseen causes

`logdoctor eval unseen`: leave one reason out. For each reason of the labels all diagnosis rules that claim it and all
rows of the knowledge tables that name it are taken away, and its failures are diagnosed with what is left, without a
model and without past cases.

- *right*: the label all the same, said by the class of an exception or by the course of the job; *may*: another label
  that can be defended.
- *family*: a wrong reason of the same category (infrastructure, framework, script, anomaly) as the label.
- *Unknown*: the honest answer. *unseen*: the failure was not noticed, the job is taken for one that runs or ended.
- *wrong*: a reason of another category. *bad action*: a restart where only a fix helps, or the reverse.

"""


def markdown(report: Report) -> str:
    """The report as a page in Markdown."""
    head = ["labelled reason", *_COLUMNS.values()]
    rows = [head, ["---", *["--:"] * (len(head) - 1)], *([name, *_cells(counted)] for name, counted in _rows(report))]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    words = "\n".join(f"- {line[0].upper()}{line[1:]}." for line in summary(report))
    missed = "\n".join(
        f"| {one.file} | {one.label} | {one.said} | {one.kind} | {one.decided} | {one.recovery} |"
        for one in report.missed
    )
    heading = "| log | label | said | kind | by | action |\n| --- | --- | --- | --- | --- | --- |"
    return f"{_INTRODUCTION}{table}\n\n{words}\n\n## What was not told right\n\n{heading}\n{missed}\n"


def write(folder: Path, report: Report, name: str = "unseen") -> None:
    """Write `unseen.json` and `unseen.md` to a folder; `InputError` when it cannot be written to."""
    write_report(folder, name, report, {"md": markdown(report)})
