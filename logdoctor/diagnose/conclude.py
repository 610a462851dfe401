"""Verdicts from a root cause found by a past case or the Failure Agent.

The case or the agent gives a reason and the lines that prove it. Quotes, suspects, symptoms, progress and line counts
are made here as for any other verdict. A root cause whose lines cannot be quoted is rejected (law 3).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from logdoctor import taxonomy
from logdoctor.diagnose import suspects
from logdoctor.diagnose.ends import first_rank
from logdoctor.diagnose.examine import examine
from logdoctor.diagnose.findings import LogFinding, claim
from logdoctor.diagnose.verdict import CitedLine, Examined, write
from logdoctor.rules.load import RuleBook
from logdoctor.types import Alternative, Record, Verdict


class RootCause(NamedTuple):
    """A reason for a failure, or "None" for a job that did not fail, and its proof.

    An empty recovery, fault or suggestion stands for the taxonomy's, an empty `detail` for what the line says. `places`
    are lines as (stream name, number), the one that names the failure first. `decided` is `case/` and its number, or
    `agent`.
    """

    reason: str
    recovery: str
    fault: str
    confidence: float
    why: str
    suggestion: str
    places: tuple[tuple[str, int], ...]
    kind: Literal["case", "agent"]
    decided: str
    model: str = ""
    prompt: str = ""
    alternatives: tuple[Alternative, ...] = ()
    detail: str = ""


def conclude(records: Sequence[Record], book: RuleBook, conclusion: RootCause) -> Verdict:
    """Return the verdict of a conclusion; `Unknown` when none of its lines can be quoted."""
    case = examine(records, book)
    numbers = {reading.record.stream: number for number, reading in enumerate(case.readings)}
    places = [
        CitedLine(numbers[stream], line, conclusion.decided) for stream, line in conclusion.places if stream in numbers
    ]
    places = [place for place in places if case.readings[place.stream].text(place.line) is not None]
    cause = _cause(case, places[0], conclusion) if places and conclusion.reason != "None" else None
    isolates = cause is not None and cause.recovery == "isolate_and_restart"
    verdict = write(
        case,
        conclusion.reason if places else "Unknown",
        _outcome(case) if places and conclusion.reason == "None" else "failed",
        confidence=conclusion.confidence if places else 0.0,
        why=conclusion.why if places else "No line proves this conclusion.",
        places=places,
        decided=(conclusion.kind, conclusion.decided) if places else ("nobody", ""),
        print_of=(cause.origin.message if cause else "", cause.frames if cause else ()),
        symptoms=[found for found in case.judgement.symptoms if cause is None or found.line != cause.line],
        recovery=conclusion.recovery if places else "",
        fault=conclusion.fault if places else "",
        suggestion=conclusion.suggestion if places else "",
        suspected=suspects.name(case.readings, case.found, cause) if cause and isolates else (),
        first_rank=first_rank(case.found, cause, case.readings, case.judgement.ends) if cause else None,
        cause=cause,
        detail=conclusion.detail if places else "",
    )
    if verdict.reason == "Unknown":
        return verdict
    decided = msgspec.structs.replace(verdict.decided_by, model=conclusion.model, prompt=conclusion.prompt)
    return msgspec.structs.replace(verdict, decided_by=decided, alternatives=conclusion.alternatives)


def _outcome(case: Examined) -> str:
    """Return the outcome of a job that did not fail."""
    if case.outcomes("completed"):
        return "completed"
    return "running" if any(len(course.steps) for course in case.courses) else "unknown"


def _cause(case: Examined, place: CitedLine, conclusion: RootCause) -> LogFinding | None:
    """Return the line that names the failure as a finding, with what it explains."""
    default = taxonomy.REASONS[conclusion.reason]
    known = next((found for found in case.found if (found.stream, found.line) == place[:2]), None)
    found = known or claim(case.readings, place.stream, place.line)
    return found and found._replace(
        reason=conclusion.reason,
        name=found.name or conclusion.reason,
        role="cause",
        recovery=conclusion.recovery or default.recovery,
        fault=conclusion.fault or default.fault,
        explains=tuple({symptom.reason for symptom in case.judgement.symptoms if symptom.role != "cause"}),
    )
