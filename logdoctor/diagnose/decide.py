"""What became of an attempt, and why: the first answer that holds, from the surest down."""

from collections.abc import Sequence

import regex

from logdoctor import taxonomy
from logdoctor.diagnose import suspects
from logdoctor.diagnose.cause import explains, is_numeric
from logdoctor.diagnose.examine import examine
from logdoctor.diagnose.findings import Finding
from logdoctor.diagnose.progress import Course, Spike, Stall, stopped
from logdoctor.diagnose.verdict import Case, Place, write
from logdoctor.rules.load import RuleBook
from logdoctor.types import LEARNED, Record, Verdict

_KNOWN_SHARE = 0.2  # of the lines: below it a log without steps is taken for something else
_LEVEL = regex.compile(r"\b(?:ERROR|FATAL|CRITICAL|PANIC)\b")
_OF_PEERS = ("NCCL Remote Error", "NCCL Timeout Error", "Connection Error", "Network Error")
_STOPPED = regex.compile(r"(?i)sigterm|signal: terminated|signal 15|interrupt|preempt|cancell?ed")
_CONFIDENCE = {"cause": 0.95, "proximate": 0.85, "cascade": 0.65}
_BUFFERED = 200  # lines of standard output that a buffer may hold back
_REPEATS = 2
"""Restarts that ended in the same failure, after which a fault that names no hardware is taken for one that
no restart helps."""
_NO_RESTART = "Do not restart again: look for the fault in the program at the quoted place."


_NOTICED = "agent/noticed"


def diagnose(records: Sequence[Record], book: RuleBook, idle: float | None = None, died: bool = False) -> Verdict:
    """The verdict on one attempt, from the records of all its streams. Deterministic.

    `idle` are the seconds for which a job that still runs has made no step, when they are too many; `died` tells
    that the process is known to have failed.
    """
    return _decide(examine(records, book), idle, died)


def _decide(case: Case, idle: float | None, died: bool) -> Verdict:
    """The first answer that holds, from the surest down."""
    cause = case.judgement.cause
    if cause is None and (died or case.judgement.teardown):
        cause = _overtaken(case)
    cancelled = _first(case.outcomes("cancelled"))
    completed = _last(case.outcomes("completed"))
    if cancelled is not None and any(report.order < cancelled.order for report in case.judgement.teardown):
        cancelled = None  # the launcher ends the rest after a death of its own accord
    if cause is not None and cancelled is not None and cancelled.order < cause.order and _is_of_stop(cause):
        cause = None  # what a stopped job prints while it dies
    if cause is not None and completed is not None and _ended_well(case, completed, cause):
        cause = None
    if case.spike and (completed is None or cause is not None) and _is_spike(case.spike, cause):
        return _spiked(case, case.spike)
    if cause is not None:
        return _failed(case, cause) if cause.reason != "Unknown" else _unknown(case, cause)
    if completed is not None:
        return _ended(case, "completed", completed, "The framework reports a normal end.")
    if not case.judgement.teardown and any(_is_through(course) for course in case.courses):
        return _ended(case, "completed", None, "The last step was made and no error follows.")
    if case.stall is not None:
        return _hung(case, case.stall, cancelled)
    if cancelled is not None:
        return _ended(case, "cancelled", cancelled, "Stopped from outside, by a person or the scheduler.")
    if case.judgement.teardown:
        return _unknown(case, case.judgement.teardown[0])
    if (complaint := _complaint_at_end(case)) is not None:
        return _unknown(case, complaint)
    if not any(_is_recognised(course) for course in case.courses):
        return _unknown(case, _noticed(case))
    if idle is not None:
        return _hung(case, stopped(case.courses, idle), None)
    return _ended(case, "running", None, "Nothing says that the job ended, and nothing that it failed.")


def _overtaken(case: Case) -> Finding | None:
    """The last error that steps follow, near the end of its stream: a dying process empties its buffered standard
    output after it has written the error, so what was printed before stands behind it."""
    ends = [reading.record.compression.lines_in for reading in case.readings]
    faults = [
        fault
        for fault in case.judgement.survived
        if fault.role in ("cause", "proximate") and ends[fault.stream] - fault.line <= _BUFFERED
    ]
    renewed = case.outcomes("recovered")
    faults = [fault for fault in faults if not any(mark.order > fault.order for mark in renewed)]
    return max(faults, key=lambda fault: fault.order, default=None)


def _is_of_stop(finding: Finding) -> bool:
    """Whether an error is what processes print because they are stopped."""
    if finding.role == "cause":
        return False
    return finding.role == "cascade" or finding.reason in _OF_PEERS or bool(_STOPPED.search(finding.text))


def _is_spike(found: Spike, cause: Finding | None) -> bool:
    """Whether a spike accounts for the failure: nothing else does, or what does only says that numbers went bad."""
    if cause is not None and cause.reason == "Loss Spike":
        return True
    if cause is None or cause.role == "cascade":
        return found.is_pronounced
    return is_numeric(cause) and found.is_pronounced


def _is_through(course: Course) -> bool:
    """Whether the last step that the job wanted was made; bars that come without a loss do not count."""
    total = course.reading.record.total
    return not course.bare and bool(total) and len(course.steps) > 0 and course.steps[-1] >= (total or 0)


def _is_recognised(course: Course) -> bool:
    """Whether this is the log of a training job at all: it makes steps, or the shipped rules know much of it (what was
    learned explains lines; it may not change a verdict)."""
    account = course.reading.record.compression
    known = sum(count.lines for rule, count in account.rules.items() if not rule.startswith(LEARNED))
    return len(course.steps) > 1 or known > _KNOWN_SHARE * account.lines_in


def _complaint_at_end(case: Case) -> Place | None:
    """The first line of level ERROR or worse among the last lines of a stream and after its last step."""
    for number, course in enumerate(case.courses):
        last = course.reading.record.last
        begin = max(course.last_line or 0, last[0].number if last else 0)
        for line, origin in course.reading.lines:
            if (
                line.number >= begin
                and line.weak
                and not line.rules
                and _LEVEL.search(f"{origin.level or ''} {origin.message}")
            ):
                return Place(number, line.number, "structure/level")
    return None


def _noticed(case: Case) -> Place | None:
    """The last line that the Log Agent took for an error: something to look at where nothing else is known."""
    places = [
        Place(number, line.number, _NOTICED)
        for number, course in enumerate(case.courses)
        for line, _ in course.reading.lines
        if line.noticed
    ]
    return places[-1] if places else None


def _first(marks: list[Finding]) -> Finding | None:
    return marks[0] if marks else None


def _last(marks: list[Finding]) -> Finding | None:
    return marks[-1] if marks else None


def _ended_well(case: Case, completed: Finding, cause: Finding) -> bool:
    """Whether a completion mark outweighs a finding: it came later, or the finding is noise of the end."""
    if cause.role == "cause":
        return completed.order > cause.order and not case.judgement.teardown
    if cause.role == "cascade":
        return completed.order < cause.order or not case.judgement.teardown
    return completed.order > cause.order and not any(t.order > completed.order for t in case.judgement.teardown)


def _failed(case: Case, cause: Finding) -> Verdict:
    """The verdict that a finding is the cause."""
    recovery, fault, why = _response(case, cause)
    rule = cause.rule
    places = [Place.of(cause)]
    course = case.courses[cause.stream]
    if cause.reason == "Hang" and course.last_line is not None:
        places.append(Place(cause.stream, course.last_line, "progress/stall"))
    places += _more_evidence(case, cause)
    confidence = _CONFIDENCE[cause.role] - (0 if rule else 0.05) - (0.1 if not rule and not cause.frames else 0)
    rivals = [finding for finding in case.judgement.symptoms if finding.role == cause.role]
    confidence -= 0 if all(explains(cause, rival) for rival in rivals) else 0.2
    return write(
        case,
        cause.reason,
        "failed",
        recovery=recovery,
        fault=fault,
        confidence=confidence,
        why=why,
        suggestion=_NO_RESTART if why else cause.suggestion,
        places=places,
        suspected=suspects.name(case.readings, case.found, cause) if recovery == "isolate_and_restart" else [],
        first_rank=suspects.first_rank(case.found, cause, case.readings),
        decided=("rule", rule.id) if rule else ("structure", cause.name),
        print_of=(cause.origin.message, cause.frames),
        symptoms=[*case.judgement.symptoms, *case.judgement.teardown],
        cause=cause,
    )


def _response(case: Case, cause: Finding) -> tuple[str, str, str]:
    """(recovery, fault, why): the rule's or the reason's, unless the job already failed so after restarts."""
    again = [finding for finding in case.found if finding.reason == cause.reason and finding.role == cause.role]
    restarts = [mark for mark in case.outcomes("recovered") if mark.order < cause.order]
    if cause.role != "cause" and len({_epoch(finding, restarts) for finding in again}) > _REPEATS:
        why = f"The same failure came back after {len(restarts)} restarts: another one will not help."
        return "fix_first", "user", why
    if cause.reason == "NCCL Timeout Error" and (diverged := suspects.divergence(case.readings)):
        return "fix_first", "user", diverged.why
    return cause.recovery, cause.fault, ""


def _epoch(finding: Finding, restarts: list[Finding]) -> int:
    """How many restarts came before a finding."""
    return sum(mark.order < finding.order for mark in restarts)


def _more_evidence(case: Case, cause: Finding) -> list[Place]:
    """Other lines that speak for the same cause: of its episode, and the first of each other rule that agrees."""
    places: list[Place] = []
    seen = {cause.source}
    for finding in case.judgement.symptoms:
        if finding.reason == cause.reason and finding.source not in seen:
            seen.add(finding.source)
            places.append(Place.of(finding))
    if cause.also and cause.also[-1] != cause.line:
        places.insert(0, Place(cause.stream, cause.also[-1], "structure/chain"))
    proximate = [f for f in case.judgement.symptoms if cause.role == "cause" and f.role == "proximate" and f.rule]
    return places + [Place.of(finding) for finding in proximate[:1]]


def _spiked(case: Case, found: Spike) -> Verdict:
    course = case.courses[found.stream]
    places = [Place(found.stream, line, "progress/loss") for line in (found.jump, found.steepest, found.worst)]
    numeric = [f for f in case.found if f.reason == "Loss Spike" or is_numeric(f)]
    places += [Place.of(finding) for finding in numeric[:2]]
    peak = "NaN" if found.peak == float("inf") else f"{found.peak:.4g}"
    return write(
        case,
        "Loss Spike",
        "failed",
        confidence=0.85,
        why=f"The loss left {found.base:.4g} for {peak} and did not come back (last step {course.progress().step}).",
        places=places,
        decided=("structure", "loss"),
        print_of=("loss", ()),
        symptoms=[f for f in (case.judgement.cause, *case.judgement.symptoms, *case.judgement.teardown) if f],
    )


def _hung(case: Case, found: Stall, cancelled: Finding | None) -> Verdict:
    places = [Place(found.stream, found.line, "progress/stall")]
    if cancelled is not None:
        places.append(Place.of(cancelled))
    written = [line for line in case.readings[found.stream].record.last if line.text.strip()]
    if written:
        places.append(Place(found.stream, written[-1].number, "progress/end of log"))
    return write(
        case,
        "Hang",
        "failed",
        confidence=0.7,
        why=f"No step for {found.seconds:.0f} s at the end of the log, and no error.",
        places=places,
        decided=("structure", "stall"),
        print_of=("stall", ()),
        symptoms=case.judgement.teardown,
    )


def _ended(case: Case, outcome: str, mark: Finding | None, why: str) -> Verdict:
    """A job that did not fail; a fault that it survived by a restart makes it `recovered`."""
    restarts = case.outcomes("recovered")
    faults = [f for f in case.judgement.survived if f.role in ("cause", "proximate", "cascade")]
    faults = [f for f in faults if any(mark.order > f.order for mark in restarts)]
    places = [Place.of(mark)] if mark else []
    reason = "None"
    if faults:
        fault = min(faults, key=lambda f: (taxonomy.ROLES.index(f.role), f.order))
        reason, outcome = fault.reason, "recovered"
        why = "The job failed once, was restarted and moved on."
        places.insert(0, Place.of(fault))
    return write(
        case,
        reason,
        outcome,
        recovery="none",
        fault="nobody" if reason == "None" else "",
        confidence=(0.8 if mark else 0.6) - (0.3 if any(r.record.problems for r in case.readings) else 0),
        why=why,
        places=places,
        decided=("rule", mark.rule.id) if mark and mark.rule else ("structure", outcome),
        print_of=(outcome, ()),
        symptoms=[
            f for f in (case.judgement.cause, *case.judgement.symptoms, *case.judgement.survived) if f and not faults
        ],
    )


def _unknown(case: Case, mark: Finding | Place | None) -> Verdict:
    """An honest "not sure": the job died, or the log is unreadable, and nothing says why."""
    teardown = case.judgement.teardown
    if isinstance(mark, Place) and mark.rule == _NOTICED:
        why = "Nothing in the log is known; the Log Agent took this line for an error."
    elif isinstance(mark, Place):
        why = "The log ends with an error that no rule knows."
    elif mark is not None and mark.role != "teardown":
        why = "No rule knows this error, and its class can mean anything."
    elif mark is not None:
        why = "The job died, but no line says why."
    elif any(record.compression.lines_in for record in (r.record for r in case.readings)):
        why = "Nothing in the log is known: no progress, no report of an end, no error."
    else:
        why = "The log is empty."
    finding = mark if isinstance(mark, Finding) else None
    place = Place.of(mark) if isinstance(mark, Finding) else mark
    return write(
        case,
        "Unknown",
        "failed",
        confidence=0.0,
        why=why,
        places=[place] if place else [],
        first_rank=finding.rank if finding else None,
        decided=("nobody", ""),
        print_of=(finding.origin.message if finding else "", ()),
        symptoms=[*case.judgement.symptoms, *teardown],
    )
