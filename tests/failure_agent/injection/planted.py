"""Hostile lines, real logs to plant them in, and what of a verdict they must not move."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from eval.labels import FailureCase, LabelledLog, read_corpus
from logdoctor.text import origin
from logdoctor.types import Verdict
from tests.failure_agent.logs import QUOTA, STEPS

HERE = Path(__file__).parent
CORPUS = Path(__file__).parents[3] / "eval" / "corpus"


class Hostile(msgspec.Struct, frozen=True):
    """A line of a log that speaks to the model; `form` says how it is disguised, `encoding` how it is written."""

    id: str
    wants: str
    language: str
    form: str
    text: str
    encoding: str = "utf-8"

    @property
    def raw(self) -> bytes:
        """The line as it stands in a log, without its end."""
        return self.text.encode(self.encoding).replace(b"\n", b" ")


HOSTILE = tuple(msgspec.json.decode(row, type=Hostile) for row in (HERE / "lines.jsonl").read_bytes().splitlines())
FORMS = tuple({one.form: one for one in HOSTILE}.values())
"""A hostile line in each disguise: what a test tries that is not about single lines."""
LOGS = tuple(read_corpus(CORPUS))
FAILURES = tuple(log for log in LOGS if isinstance(log.case, FailureCase))
HEALTHY = tuple(log for log in LOGS if not isinstance(log.case, FailureCase))

Place = Callable[[LabelledLog, list[bytes]], int]
"""Where a line is planted: before which line of a log, by its place."""


def _evidence(log: LabelledLog) -> Sequence[int]:
    return log.case.evidence_lines if isinstance(log.case, FailureCase) else ()


PLACES: dict[str, Place] = {
    "first": lambda log, lines: 0,
    "before the cause": lambda log, lines: min(_evidence(log)) - 1,
    "behind the cause": lambda log, lines: min(_evidence(log)),
    "behind the last of its lines": lambda log, lines: max(_evidence(log)),
    "last": lambda log, lines: len(lines),
}


class Planted(NamedTuple):
    """A log with a hostile line at some place, and how far lines behind it moved."""

    text: bytes
    at: int


def planted(log: LabelledLog, hostile: bytes, place: str, as_neighbour: bool) -> Planted:
    """The log with the line; `as_neighbour` puts the marks of the line before it (rank, host, time) in front."""
    lines = log.path.read_bytes().split(b"\n")
    if not lines[-1]:
        lines.pop()
    at = min(PLACES[place](log, lines), len(lines))
    neighbour = lines[max(at - 1, 0)]
    line = marks(neighbour) + hostile if as_neighbour else hostile
    lines.insert(at, line)
    return Planted(b"\n".join(lines) + b"\n", at + 1)


def marks(line: bytes) -> bytes:
    """The marks before the message of a line."""
    text = line.decode("utf-8", "replace")
    message = origin(text).message
    return text[: len(text) - len(message)].encode()


def everywhere(log: LabelledLog, some: Sequence[Hostile], every: int) -> bytes:
    """The log with hostile lines in turn behind every so many lines, with the marks of those before them."""
    lines = log.path.read_bytes().split(b"\n")
    told: list[bytes] = []
    for number, line in enumerate(lines):
        told.append(line)
        if number % every == every - 1 and number + 1 < len(lines):
            told.append(marks(line) + some[number // every % len(some)].raw)
    return b"\n".join(told)


def said(verdict: Verdict) -> dict[str, Any]:
    """What a verdict says that a person or a program acts on, but for the numbers of lines."""
    return {
        "outcome": verdict.outcome,
        "reason": verdict.reason,
        "fault": verdict.fault,
        "recovery": verdict.recovery,
        "confidence": verdict.confidence,
        "suggestion": verdict.suggestion,
        "suspects": [(suspect.node, suspect.rank, suspect.gpu) for suspect in verdict.suspects],
        "first_rank": verdict.first_rank,
        "decided": (verdict.decided_by.kind, verdict.decided_by.rule),
        "evidence": [(item.rule, item.quote) for item in verdict.evidence],
        "symptoms": [(symptom.reason, symptom.explained_by) for symptom in verdict.symptoms],
        "fingerprint": verdict.fingerprint,
    }


UNKNOWN = (
    *STEPS,
    QUOTA,
    "[rank3]: Traceback (most recent call last):",
    '[rank3]:   File "/opt/app/train.py", line 88, in main',
    "[rank3]:     batch = cache.lease(key)",
    "[rank3]: RuntimeError: the storage lease 17 of vol-9 is gone",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
)
"""A failure of which no rule knows the cause, nor its structure tells it."""


def unknown(hostile: Sequence[bytes], marks_of_rank: bytes = b"[rank3]: ") -> bytes:
    """A failure that no rule knows, with hostile lines before its error, before its report, behind it, and last."""
    lines = [line.encode() for line in UNKNOWN]
    error = lines.index(QUOTA.encode())
    told = [marks_of_rank + line for line in hostile]
    return b"\n".join([*lines[:error], *told, *lines[error : error + 1], *told, *lines[error + 1 :], *hostile]) + b"\n"
