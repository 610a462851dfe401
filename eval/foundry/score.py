"""Scores of diagnoses on a set: what each system says of a log, held against the truth.

A price is put on each answer, for a job on 64 GPUs; the hours are assumptions, stated in `PRICES`.
"""

import importlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from eval.foundry.cases import Case
from eval.foundry.run import entered
from eval.labels import RESTARTS, is_wrong_action
from eval.report import Cell, Grid, percent
from logdoctor import taxonomy

GPUS = 64
PRICES = {
    "right": 0.0,
    "needless restart": 0.5,  # starts up, runs into the same fault, and a person is called then
    "waits": 2.0,  # a person looks at what a restart would have mended
    "unnoticed": 4.0,  # a dead job that counts as alive holds its GPUs until somebody wonders
    "alarm": 1.0,  # a sound job is stopped and looked at
}
"""Hours for which the GPUs of a job are lost."""
CONFIDENT = 0.8


class Row(msgspec.Struct, frozen=True):
    """The label of a case, as `eval.foundry.run` enters it."""

    id: str
    file: str
    split: str
    case: Case
    why: str
    outcome: str = "failed"
    reason: str = "None"
    also_acceptable: tuple[str, ...] = ()
    recovery: str = "none"
    recovery_also: tuple[str, ...] = ()
    evidence_lines: tuple[int, ...] = ()
    evidence_text: tuple[str, ...] = ()
    first_failing_rank: int | None = None
    detail: str = ""
    uncertain: str = ""
    code: int | None = None


class Answer(NamedTuple):
    """What a system says of a log. `texts` are those of the cited `lines`, `quote` is for people."""

    outcome: str
    reason: str
    recovery: str
    lines: Sequence[int] = ()
    texts: Sequence[str] = ()
    first_rank: int | None = None
    confidence: float = 0.0
    detail: str = ""


class Marks(NamedTuple):
    """What is right about an answer; None where there is nothing to be right about."""

    row: Row
    answer: Answer
    seconds: float
    strict: bool | None = None
    lenient: bool | None = None
    cause: bool | None = None
    rank: bool | None = None
    rank_wrong: bool | None = None
    detail: bool | None = None
    noticed: bool | None = None
    action: bool | None = None
    confident: bool | None = None
    alarm: bool | None = None
    price: str = "right"


def mark(row: Row, answer: Answer, seconds: float = 0.0) -> Marks:
    """Return what is right about an answer."""
    alarmed = answer.outcome == "failed"
    if row.outcome != "failed":
        alarmed = alarmed or answer.recovery != "none"
        return Marks(row, answer, seconds, alarm=alarmed, price="alarm" if alarmed else "right")
    lenient = answer.reason in (row.reason, *row.also_acceptable)
    rank = row.first_failing_rank
    return Marks(
        row,
        answer,
        seconds,
        strict=None if row.uncertain else answer.reason == row.reason,
        lenient=lenient,
        cause=_cites(row, answer) if row.evidence_lines else None,
        rank=None if rank is None else answer.first_rank == rank,
        rank_wrong=None if rank is None else answer.first_rank not in (None, rank),
        detail=any(word.lower() in answer.detail.lower() for word in row.detail.split("|")) if row.detail else None,
        noticed=alarmed,
        action=not is_wrong_action((row.recovery, *row.recovery_also), answer.recovery),
        confident=answer.confidence >= CONFIDENT and answer.reason != "Unknown" and not lenient,
        price=_price(row, answer),
    )


def _cites(row: Row, answer: Answer) -> bool:
    near = any(abs(line - other) <= 1 for line in answer.lines for other in row.evidence_lines)
    return near or any(text in quote for text in row.evidence_text for quote in answer.texts)


def _price(row: Row, answer: Answer) -> str:
    if answer.outcome != "failed":
        return "unnoticed"
    if answer.recovery in RESTARTS:
        return "right" if row.recovery in RESTARTS else "needless restart"
    return "waits" if row.recovery in RESTARTS else "right"


# ---- systems

Diagnose = Callable[[Path, Row], Answer]


def _logdoctor(with_code: bool) -> Diagnose:
    """Diagnose with the shipped rules, without a model; with the exit code, as `logdoctor run` knows it, or without."""
    from logdoctor import pipeline, wiring
    from logdoctor.diagnose.ending import NOTHING, ReportedEnd
    from logdoctor.pipeline import LogFile
    from logdoctor.settings import read_settings

    settings = read_settings()
    scanner, limits = wiring.scanner(settings), wiring.limits(settings)._replace(workers=1)

    def diagnose(path: Path, row: Row) -> Answer:
        end = ReportedEnd(exit_code=row.code) if with_code and row.code is not None else NOTHING
        found = pipeline.diagnose([LogFile("main", path)], scanner, limits, end)
        cited = found.evidence
        return Answer(
            found.outcome, found.reason, found.recovery, [one.line for one in cited], [one.quote for one in cited],
            found.first_rank, found.confidence, f"{found.detail} {found.why}",
        )  # fmt: skip

    return diagnose


_RAISED = re.compile(rb"(?:^|[\s\]:|])((?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt))(?::|$)")


def _last_error() -> Diagnose:
    """Take the class of the last exception in the log for the reason: what anybody does first."""

    def diagnose(path: Path, row: Row) -> Answer:
        for number, line in reversed(list(enumerate(path.read_bytes().split(b"\n"), 1))):
            if found := _RAISED.search(line):
                reason = taxonomy.reason_of_exception(found[1].decode())
                return Answer(
                    "failed", reason, taxonomy.REASONS[reason].recovery, [number], [line.decode(errors="replace")]
                )
        return Answer("unknown", "None", "none")

    return diagnose


_GPUALERT = {
    "GPU out-of-memory (CUDA OOM)": "Out of Memory Error",
    "NCCL communication error": "NCCL Remote Error",
    "CUDA runtime error": "CUDA Error",
    "System out-of-memory (RAM)": "Out of Memory Error",
    "Segmentation fault": "Unknown",
    "File not found": "File Not Found Error",
    "Permission denied": "Permission Error",
    "Missing Python module": "Import Error",
    "Division by zero": "Zero Division Error",
    "Tensor device mismatch": "Runtime Error",
    "NaN detected in loss": "Loss Spike",
    "Process killed by OS (OOM)": "Out of Memory Error",
    "Assertion failed": "Assertion Error",
    "Python RuntimeError": "Runtime Error",
    "Python exception (traceback)": "Unknown",
}


def _gpualert() -> Diagnose:
    """Ask gpualert 0.1.6, which names one of 15 labels, no line, no rank and no action."""
    parse_errors: Any = importlib.import_module("gpualert.parse_errors").parse_errors

    def diagnose(path: Path, row: Row) -> Answer:
        said = parse_errors("", path.read_text(errors="replace"), 0).partition("\n")[0]
        return (
            Answer("failed", _GPUALERT[said], "ask_human", confidence=0.9)
            if said
            else Answer("unknown", "None", "none")
        )

    return diagnose


SYSTEMS: dict[str, Callable[[], Diagnose]] = {
    "logdoctor": lambda: _logdoctor(False),
    "logdoctor-exit-code": lambda: _logdoctor(True),
    "last-error": _last_error,
    "gpualert": _gpualert,
}


# ---- adding up

_COLUMNS = {
    "reason, strict": "strict", "reason, lenient": "lenient", "detail": "detail", "cause line": "cause",
    "first rank": "rank", "wrong rank": "rank_wrong", "noticed": "noticed", "right action": "action",
    "confident and wrong": "confident", "alarms": "alarm",
}  # fmt: skip
_WANTED = ("lenient", "cause", "action", "noticed")
_UNWANTED = ("rank_wrong", "alarm")


def read_rows(folder: Path) -> list[tuple[Path, Row]]:
    """Return the logs of a set with their labels."""
    rows = []
    for kind in ("failures", "healthy"):
        if (path := folder / kind / "cases.jsonl").exists():
            decoded = (msgspec.json.decode(line, type=Row) for line in path.read_bytes().splitlines())
            rows += [(folder / kind / row.file, row) for row in decoded]
    return sorted(rows, key=lambda one: one[1].id)


def share(marks: Iterable[Marks], field: str) -> str:
    """Return the percentage of answers with a mark, and of how many."""
    given = [getattr(one, field) for one in marks if getattr(one, field) is not None]
    return f"{percent(sum(given) / len(given))} ({len(given)})" if given else "-"


def table(by_name: dict[str, list[Marks]], first: str) -> str:
    """Return a table of all figures, a row for each name."""
    rows: list[list[Cell]] = []
    for name, marks in by_name.items():
        hours = GPUS * sum(PRICES[one.price] for one in marks) / max(len(marks), 1)
        speed = 1000 * sum(one.seconds for one in marks) / max(len(marks), 1)
        rows.append([name, *(share(marks, field) for field in _COLUMNS.values()), f"{hours:.1f}", f"{speed:.0f}"])
    return Grid([first, *_COLUMNS, "GPU hours a job", "ms a log"], rows).markdown()


def grouped(marks: Iterable[Marks], key: Callable[[Row], str]) -> dict[str, list[Marks]]:
    """Return the marks by a key of their cases, in order."""
    found: dict[str, list[Marks]] = {}
    for one in sorted(marks, key=lambda one: key(one.row)):
        found.setdefault(key(one.row), []).append(one)
    return found


def misses(marks: Iterable[Marks]) -> Iterator[str]:
    """Yield a line for each answer with something wrong about it."""
    for one in marks:
        wrong = [name for name in _WANTED if getattr(one, name) is False]
        wrong += [name for name in _UNWANTED if getattr(one, name)]
        if wrong:
            row, said = one.row, one.answer
            place = f"rank {row.first_failing_rank} lines {list(row.evidence_lines[:4])}"
            wanted = f"{row.outcome}/{row.reason}/{row.recovery} {place}"
            got = f"{said.outcome}/{said.reason}/{said.recovery} rank {said.first_rank} lines {list(said.lines[:4])}"
            how = f"{row.case.fault} in {row.case.program}, {row.case.launcher}, {row.case.style}"
            quote = said.texts[0][:160] if said.texts else ""
            yield f"{row.file} {how}: wrong {', '.join(wrong)}; wanted {wanted}; got {got} {quote!r}"


def page(marks: dict[str, list[Marks]], void: int) -> str:
    """Return all tables."""
    every = next(iter(marks.values()), [])
    failed = sum(one.row.outcome == "failed" for one in every)
    first = next(iter(marks))
    prices = ", ".join(f"{name} {hours:g} h" for name, hours in PRICES.items())
    parts = [
        "# Scores on failures that really happened",
        f"{failed} failures and {len(every) - failed} runs in which nothing fails or a fault is survived; {void} runs"
        " that did not go as planned are left out. In percent, with the number of cases. *Strict* is without the cases"
        f" whose truth is uncertain. Prices for a job on {GPUS} GPUs: {prices}.",
        table(marks, "system"),
        *(
            f"## {first}, by {name}\n\n{table(grouped(marks[first], key), name)}"
            for name, key in (
                ("split", lambda row: row.split),
                ("program", lambda row: row.case.program),
                ("way of logging", lambda row: row.case.style),
                ("launcher", lambda row: row.case.launcher),
                ("fault", lambda row: row.case.fault),
            )
        ),
    ]
    return "\n\n".join(parts) + "\n"


def score_all(
    folder: Path, systems: Sequence[str], split: str, site: Path | None, write: Path | None, missed: Path | None
) -> None:
    """Print the scores of systems on a set, and write them and what each got wrong."""
    if site:
        sys.path.append(str(site))
    rows = [(path, row) for path, row in read_rows(folder) if split in ("", row.split)]
    marks: dict[str, list[Marks]] = {}
    for name in systems:
        diagnose = SYSTEMS[name]()
        for path, row in rows:
            begin = time.perf_counter()
            answer = diagnose(path, row)
            marks.setdefault(name, []).append(mark(row, answer, time.perf_counter() - begin))
    void = sum(kind == "void" for kind in entered(folder).values())
    print(text := page(marks, void))
    if write:
        write.write_text(text)
    if missed:
        missed.write_text("".join(f"{name} {line}\n" for name in systems for line in misses(marks[name])))
