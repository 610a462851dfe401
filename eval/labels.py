"""The labels of a corpus: the truth about each log.

A corpus is a folder with `failures/` and `healthy/`, or one of the two; each holds logs and a `cases.jsonl` with a
label per log (fields: `eval/corpus/README.md`).
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from logdoctor import taxonomy
from logdoctor.errors import InputError
from logdoctor.types import Category, Outcome, Recovery

RESTARTS = frozenset({"restart", "isolate_and_restart", "rollback_and_skip"})


class FailureCase(msgspec.Struct, frozen=True):
    """The label of a failed job's log. Raises `ValueError` for a reason that is not in the taxonomy."""

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
    """The label of the log of a job that did not fail. `fault` is the reason that a recovered job survived."""

    id: str
    file: str
    outcome: Outcome
    fault: str | None = None
    why: str = ""


LabelledCase = FailureCase | HealthyCase


class LabelledLog(NamedTuple):
    """A log and its label."""

    path: Path
    case: LabelledCase


def read_corpus(folder: Path) -> list[LabelledLog]:
    """Return the logs of a corpus with their labels; `InputError` names what is missing or unreadable."""
    if not folder.is_dir():
        raise InputError(str(folder), "is not a folder", "Name a folder with failures/ or healthy/ in it.")
    places = [place for place in (folder / "failures", folder / "healthy") if place.is_dir()] or [folder]
    return [labelled for place in places for labelled in _read_cases(place / "cases.jsonl")]


def _read_cases(path: Path) -> Iterator[LabelledLog]:
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
            raise InputError(str(log), cause, f"Fix {path}.")
        yield LabelledLog(log, case)


def _read_case(row: bytes, place: str) -> LabelledCase:
    try:
        fields: Any = msgspec.json.decode(row)
        if isinstance(fields, dict) and "outcome" in fields:
            return msgspec.convert(fields, HealthyCase)
        return msgspec.convert(fields, FailureCase)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(place, f"is not a case ({error})", "See README.md of eval/corpus.") from error


def is_wrong_action(right: Collection[str], advised: str) -> bool:
    """Return whether a restart is advised where none helps, or a fix where a restart would do.

    `ask_human` and `none` act on nothing: they miss the recovery but are not wrong actions.
    """
    restart_is_right = not RESTARTS.isdisjoint(right)
    if advised in RESTARTS:
        return not restart_is_right
    return advised == "fix_first" and advised not in right and restart_is_right
