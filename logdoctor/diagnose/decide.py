"""Decide how an attempt ended and why: the first answer that holds wins, from the surest down."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np
import regex

from logdoctor import taxonomy
from logdoctor.diagnose import ending, missing, suspects
from logdoctor.diagnose.cause import explains, is_numeric
from logdoctor.diagnose.confidence import confidence
from logdoctor.diagnose.courses import courses
from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.diagnose.ends import End, first_of, first_rank, killer, last_frame, of_report
from logdoctor.diagnose.examine import examine
from logdoctor.diagnose.fates import fates
from logdoctor.diagnose.findings import LogFinding
from logdoctor.diagnose.progress import Spike, Stall, StreamCourse, stopped
from logdoctor.diagnose.verdict import CitedLine, Examined, write
from logdoctor.diagnose.weighing import why_not
from logdoctor.diagnose.witnesses import separate
from logdoctor.rules.load import RuleBook
from logdoctor.types import LEARNED, Alternative, EarlierRun, Outcome, Record, Verdict

_KNOWN_SHARE = 0.2  # share of explained lines below which a log without steps is not a training log
_LEVEL = regex.compile(r"\b(?:ERROR|FATAL|CRITICAL|PANIC)\b")
_OF_PEERS = ("NCCL Remote Error", "NCCL Timeout Error", "Connection Error", "Network Error")
_NO_TEXT = regex.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f-\x9f\N{REPLACEMENT CHARACTER}]")
_BINARY = 0.1  # share of these characters from which on lines are binary
_STOPPED = regex.compile(r"(?i)sigterm|signal: terminated|signal 15|interrupt|preempt|cancell?ed")
_DOUBTFUL = 0.5  # the highest confidence in a cause that later steps or a good end contradict
_LAST_WORDS = 3  # ordinary lines after an error that show that its program went on
_BUFFERED = 200  # lines of standard output that a buffer may hold back
_OUTLIVED = {False: 200, True: 1000}
"""Ordinary lines after the last sign of a failure that show that the job went on; the key is whether it has a
traceback."""
_MOMENT = 5.0  # seconds
_AT_ONCE = 2  # ordinary lines between an error and a Ctrl-C of the same moment
_LONG = 100  # fewest steps of a bar that is the work of a program
_REPEATS = 2
"""Restarts that ended in the same failure, after which no further one is recommended, except for a hardware fault."""
_BY_SCHEDULER = 0.9  # confidence in the scheduler's account of a kill
_AFTER_KILL = (
    "Restart from the last checkpoint; the kernel log, memory.events of its cgroup and the scheduler may say who sent"
    " the signal, most often the OOM killer."
)
_AFTER_CRASH = (
    "Restart from the last checkpoint; if it crashes there again, look at the frame that is quoted, or a core dump."
)
_OF_SERVER = "] API server: "
_NO_RESTART = "Do not restart again: look for the bug in the program at the quoted place."


_AT_EXIT = regex.compile(
    r"(?i)exception in thread|(?:handle|file|socket|loop|pool|queue) (?:is|has been|was) (?:already )?closed"
    r"|already (?:closed|destroyed)|broken pipe|bad file descriptor|resource_tracker|leaked|interpreter shutdown"
    r"|cannot schedule new"
)
"""What threads, sockets and pools complain of when a program ends before them."""
_ANNOUNCED = regex.compile(r"(?i)exception (?:in thread|ignored)|process \S+:$")
"""Announcements before the traceback of a thread or a child."""
_HELPER = regex.compile(r"in thread .*(?:_pin_memory|QueueFeeder|QueueManager|_handle_(?:workers|tasks|results))")
_LOST = regex.compile(r"(?:ConnectionResetError|ConnectionAbortedError|BrokenPipeError|EOFError)\b")
"""Helper threads of a program, and what they raise when their peers are gone."""
_NOTICED = "agent/noticed"
_RIVALS = 3
_OWN_WORD = 0.8  # confidence in a cause within the program from which on its own log decides


def diagnose(
    records: Sequence[Record],
    book: RuleBook,
    idle: float | None = None,
    reported: ReportedEnd = ending.NOTHING,
    runs: bool = False,
) -> Verdict:
    """Return the verdict on one attempt from the records of all its streams. Deterministic.

    `idle` is how many seconds a job that still runs has gone without a step, when that is too long; `reported` is its
    end as reported by the scheduler, the launcher or the sender. While it `runs`, its loss may still recover.
    """
    records, coverage, state = separate(records)
    reported = reported._replace(state=reported.state or state or None)
    case = examine(records, book, reported.failed, reported.was_killed)
    if runs and case.spike and not case.spike.is_lasting:
        case = case._replace(spike=None)
    verdict = ending.with_ending(_decide(case, idle, reported), reported)
    beside = {record.stream for record in records if record.is_witness}
    if verdict.outcome == "failed" and verdict.evidence and verdict.evidence[0].stream in beside:
        alone = diagnose([record for record in records if not record.is_witness], book, idle, reported, runs)
        if _explains_itself(alone):
            rival = Alternative(verdict.reason, f"{verdict.evidence[0].stream}: {verdict.evidence[0].quote[:200]}")
            others = (rival, *(one for one in alone.alternatives if one.reason != rival.reason))[:4]
            return msgspec.structs.replace(alone, alternatives=others, coverage=coverage)
        said = taxonomy.title(alone.reason, alone.outcome, alone.detail)
        told = f"{verdict.evidence[0].stream} says so; by the log alone: {said}."
        verdict = msgspec.structs.replace(verdict, why=f"{verdict.why} {told}".strip())
    runs_before = tuple(_earlier(run, book) for run in case.earlier)
    return msgspec.structs.replace(
        verdict,
        runs=runs_before,
        courses=courses(case),
        coverage=coverage,
        fates=fates(case, verdict) if verdict.outcome == "failed" else (),
    )


def _explains_itself(alone: Verdict) -> bool:
    """Return whether a program's own log names a cause in the program itself, which no other source overturns."""
    is_own = taxonomy.REASONS.get(alone.reason, taxonomy.REASONS["Unknown"]).category == "Script"
    return alone.outcome == "failed" and is_own and alone.reason != "Unknown" and alone.confidence >= _OWN_WORD


def undiagnosed(
    records: Sequence[Record], book: RuleBook, error: Exception, reported: ReportedEnd = ending.NOTHING
) -> Verdict:
    """Return the verdict on an attempt whose diagnosis failed with an internal error. It rests on the reported end
    alone and lists the error as a problem."""
    said = f"could not be diagnosed ({type(error).__name__}: {str(error)[:200]}): report it, with the log if you can"
    bare = [
        Record(one.stream, one.file, compression=one.compression, problems=[*one.problems, said]) for one in records
    ]
    return diagnose(bare, book, reported=reported)


def _earlier(run: Record, book: RuleBook) -> EarlierRun:
    """Return how an earlier run ended; its outcome is never `running`."""
    verdict = diagnose([run], book)
    outcome: Outcome = "unknown" if verdict.outcome == "running" else verdict.outcome
    proof = verdict.evidence[0] if verdict.evidence else None
    return EarlierRun(
        run.lines[0].number,
        outcome,
        verdict.reason,
        verdict.detail,
        proof.line if proof else 0,
        proof.quote if proof else "",
        verdict.confidence,
        verdict.decided_by.kind,
    )


def _decide(case: Examined, idle: float | None, reported: ReportedEnd) -> Verdict:
    """Return the verdict of the first answer that holds, from the surest down."""
    known = case.judgement.cause
    if _nature(case) and (known is None or not case.readings[known.stream].record.is_witness):
        return _unread(case, None)
    cause, most = _plausible_cause(case, reported)
    end = case.judgement.end
    cancelled, completed = case.first("cancelled"), case.last("completed")

    @cache
    def complaint() -> CitedLine | None:
        return _complaint_at_end(case, reported.failed)

    if cancelled is not None and _is_of_itself(cancelled) and (said := complaint()) and _is_answered(cancelled, said):
        cancelled = None  # a server shuts down in order even after its engine died
    if cancelled is not None and _OF_SERVER in cancelled.text and not all(course.bare for course in case.own):
        cancelled = None  # a server beside a training job was stopped
    if cancelled is not None and not _is_by_hand(cancelled) and _is_of_a_death(cancelled, case, reported):
        cancelled = None  # the launcher ends the other processes after one dies
    if cause is not None and cancelled is not None and _is_by_stop(case, cause, cancelled):
        cause = None  # output of a stopped job while it dies
    if completed is not None and completed.name in ("end", "figures"):
        if cancelled is not None or _is_troubled(case, completed) or complaint() is not None:
            completed = None  # what a script prints after its program died
    elif completed is not None and cancelled is not None and not completed.rule and cancelled.order < completed.order:
        completed = None  # output of a stopped job, too
    is_through = not case.judgement.teardown and any(map(_is_through, case.courses))
    if cause is not None and (completed is not None or is_through):
        errors = (cause, *case.judgement.symptoms)  # a later error may have ended what the first did not
        cause = next((one for one in errors if not _ended_well(case, completed, one, reported.failed)), None)
    ended_well = completed is not None or reported.succeeded
    if case.spike and (not ended_well or cause is not None) and _is_spike(case.spike, cause):
        return _spiked(case, case.spike)
    if cause is not None:
        return _failed(case, cause, most) if cause.reason != "Unknown" else _unknown(case, cause)
    if completed is not None:
        why = "The framework reports a normal end." if completed.rule else "Its last words say that its work is over."
        return _ended(case, "completed", completed, why)
    if is_through:
        return _ended(case, "completed", None, "The last step was completed and no error follows.")
    ended = cancelled is not None or reported.failed
    if case.stall is not None and not reported.succeeded and (ended or not _is_through_from_nought(case)):
        return _hung(case, case.stall, cancelled)
    if cancelled is not None:
        return _ended(case, "cancelled", cancelled, "Stopped from outside, by a person or by the scheduler.")
    if (witness := killer(of_report(reported.exit_code, reported.signal), case.judgement.teardown)) is not None:
        return _failed(case, witness._replace(role="cause"))
    if end is not None and end.is_killed and reported.stopped:
        return _ended(case, "cancelled", None, f"The scheduler reports {reported.state}, and ended its processes.")
    if end is not None:
        return _died(case, end, reported)
    if case.judgement.teardown:
        return _unknown(case, case.judgement.teardown[0])
    if (said := complaint()) is not None:
        return _unknown(case, said)
    if not any(_is_recognised(course) for course in case.own):
        noticed = _noticed(case)
        return _unknown(case, noticed) if noticed is not None and reported.failed else _unread(case, noticed)
    if idle is not None:
        return _hung(case, stopped(case.courses, idle), None)
    if all(_is_drawn_out(course) for course in case.own):
        return _ended(case, "completed", None, "Its one bar came to its end, and nothing follows.")
    return _ended(case, "running", None, "Nothing says that the job ended or that it failed.")


def _plausible_cause(case: Examined, reported: ReportedEnd) -> tuple[LogFinding | None, float]:
    """Return the cause that the reported end allows, and the highest confidence in it."""
    cause = case.judgement.cause
    most = 1.0
    end = case.judgement.end
    by_itself = (reported.failed or _died_by_itself(case)) and not (end is not None and end.is_unexplained)
    if cause is None and by_itself and not reported.stopped:
        cause, most = _error_before_flush(case), _DOUBTFUL
    if cause is not None and reported.succeeded and cause.role == "cascade":
        cause = None  # it follows from a failure, and there was none
    if cause is not None and not reported.failed and _is_outlived(case, cause):
        cause = None
    if cause is not None and reported.stopped and cause.role != "cause" and _is_of_stop(cause):
        cause = None  # the scheduler stopped it
    if cause is not None and reported.succeeded:
        most = _DOUBTFUL
        if cause.role != "cause" and case.readings[cause.stream].ordinary_after(cause.line) >= _LAST_WORDS:
            cause = None  # it was caught: the program went on and ended well
    return cause, most


def _died_by_itself(case: Examined) -> bool:
    """Return whether a death was reported before any stop from outside."""
    stop = case.first("cancelled")
    return any(stop is None or report.order < stop.order for report in case.judgement.teardown)


def _is_outlived(case: Examined, cause: LogFinding) -> bool:
    """Return whether many ordinary lines follow the last sign of a failure.

    A hardware fault is never outlived, because a job may hang after one.
    """
    judged = case.judgement
    if judged.teardown or (cause.role == "cause" and taxonomy.REASONS[cause.reason].category == "Infrastructure"):
        return False
    last = max(found.line for found in (cause, *judged.symptoms) if found.stream == cause.stream)
    return case.readings[cause.stream].ordinary_after(last) >= _OUTLIVED[bool(cause.frames)]


def _error_before_flush(case: Examined) -> LogFinding | None:
    """Return the last error near a stream's end that only buffered output follows.

    A dying process flushes its standard output after it has written the error, so earlier steps appear after it.
    """
    ends = [reading.record.compression.lines_in for reading in case.readings]
    faults = [
        fault
        for fault in case.judgement.survived
        if fault.role in ("cause", "proximate")
        and taxonomy.REASONS[fault.reason].category != "Infrastructure"
        and ends[fault.stream] - fault.line <= _BUFFERED
    ]
    renewed = case.outcomes("recovered")
    faults = [fault for fault in faults if not any(mark.order > fault.order for mark in renewed)]
    return max(faults, key=lambda fault: fault.order, default=None)


def _is_by_hand(cancelled: LogFinding) -> bool:
    """Return whether a person pressed Ctrl-C, which no launcher sends."""
    return cancelled.rule is not None and cancelled.rule.id.endswith("cancelled-keyboard")


def _is_of_itself(cancelled: LogFinding) -> bool:
    """Return whether a server's shutdown or a signal handler printed the mark."""
    return cancelled.rule is not None and cancelled.rule.id.endswith(("cancelled-server", "cancelled-signal"))


def _is_answered(cancelled: LogFinding, complaint: CitedLine) -> bool:
    """Return whether a stop may answer a complaint; a signal only if it came later."""
    return complaint.line < cancelled.line or (cancelled.rule is not None and cancelled.rule.id.endswith("-server"))


def _is_of_a_death(cancelled: LogFinding, case: Examined, reported: ReportedEnd) -> bool:
    """Return whether an earlier death may be why the job was stopped.

    Another launcher may have asked this one to stop, and its report may be anywhere in the log.
    """
    deaths = [report for report in case.judgement.teardown if not report.is_mild]
    if cancelled.rule is not None and cancelled.rule.id.endswith("cancelled-launcher"):
        cause = case.judgement.cause
        return bool(deaths) or reported.failed or (cause is not None and cause.reason not in _OF_PEERS)
    if cancelled.rule is not None and cancelled.rule.id.endswith("cancelled-signal"):
        return bool(case.judgement.ends)  # other processes are stopped when one dies, and may say so first
    return any(report.order < cancelled.order for report in deaths)


def _is_by_stop(case: Examined, cause: LogFinding, cancelled: LogFinding) -> bool:
    """Return whether an error only echoes that the job was stopped. After a Ctrl-C that includes a parent that misses
    its child in the same moment, and a helper thread that missed its peer just before."""
    if cancelled.order > cause.order:
        is_echo = _is_by_hand(cancelled) and _LOST.match(cause.origin.message) and _is_of_helper(case, cause)
        return bool(is_echo) and _are_at_once(case, cause, cancelled)
    misses = cause.role == "proximate" and cause.reason == "Runtime Error" and _is_by_hand(cancelled)
    return _is_of_stop(cause) or (misses and _are_at_once(case, cause, cancelled))


def _is_of_helper(case: Examined, cause: LogFinding) -> bool:
    """Return whether an error ended a thread that feeds or drains a program's workers."""
    chain = case.chain_of(cause)
    above = chain and case.readings[cause.stream].texts.get(chain.first - 1)
    return above is not None and _HELPER.search(above) is not None


def _are_at_once(case: Examined, one: LogFinding, other: LogFinding) -> bool:
    """Return whether two lines are of one moment, by the clock or by distance."""
    if one.stream != other.stream:
        return False
    times = [line.time for line in (one, other) if line.origin.time and line.time is not None]
    if len(times) > 1 and max(times) - min(times) > _MOMENT:
        return False
    first, last = sorted((one.line, other.line))
    return case.courses[one.stream].aftermath.said_between(first, last) <= _AT_ONCE


def _is_troubled(case: Examined, completed: LogFinding) -> bool:
    """Return whether a death, a stall or remaining steps contradict a program's last words. Results printed while it
    trains prove no end."""
    course = case.courses[completed.stream]
    if completed.name == "figures" and course.losses:
        return True
    total = course.reading.record.total
    is_left = bool(total) and len(course.steps) > 0 and course.steps[-1] < (total or 0) - 1
    is_silent = case.stall is not None and completed.name == "figures"
    return bool(case.judgement.teardown or is_silent or is_left)


def _is_of_stop(finding: LogFinding) -> bool:
    """Return whether a stop explains an error."""
    if finding.role == "cause":
        return False
    return finding.role == "cascade" or finding.reason in _OF_PEERS or bool(_STOPPED.search(finding.text))


def _is_spike(found: Spike, cause: LogFinding | None) -> bool:
    """Return whether a loss spike is the cause. No other error is, or the other only says that numbers went bad."""
    if cause is not None and cause.reason == "Loss Spike":
        return True
    if cause is None or cause.role == "cascade":
        return found.is_pronounced
    return is_numeric(cause) and found.is_pronounced


def _is_through(course: StreamCourse) -> bool:
    """Return whether the last planned step was made; bars without a loss do not count."""
    total = course.reading.record.total
    return not course.bare and bool(total) and len(course.steps) > 0 and course.steps[-1] >= (total or 0)


def _is_drawn_out(course: StreamCourse) -> bool:
    """Return whether a stream ends with its only long bar, complete."""
    total, steps = course.reading.record.total or 0, course.steps
    if not course.bare or total < _LONG or not len(steps) or steps[-1] < total or (np.diff(steps) < 0).any():
        return False
    return (course.last_line or 0) >= course.reading.record.compression.lines_in


def _is_through_from_nought(case: Examined) -> bool:
    """Return whether the stalled stream counted steps once from 0 to total - 1. Then none is missing."""
    course = case.courses[case.stall.stream] if case.stall else None
    if course is None or not course.reading.record.total or not len(course.steps):
        return False
    rises = bool((np.diff(course.steps) >= 0).all())
    return rises and course.steps[0] == 0 and course.steps[-1] == course.reading.record.total - 1


def _is_recognised(course: StreamCourse) -> bool:
    """Return whether this is a training log: it makes steps, or shipped rules explain 20 %.

    Learned rules do not count: they may explain lines but must not change a verdict.
    """
    account = course.reading.record.compression
    known = sum(count.lines for rule, count in account.rules.items() if not rule.startswith(LEARNED))
    return len(course.steps) > 1 or known > _KNOWN_SHARE * account.lines_in


def _complaint_at_end(case: Examined, died: bool) -> CitedLine | None:
    """Return the first line of level ERROR or worse at a stream's end, after its last step. Lines of survived errors do
    not count, nor, unless the job is known to have died, those after which the writer went on."""
    for number, course in enumerate(case.own):
        last = course.reading.record.last
        begin = max(course.last_line or 0, last[0].number if last else 0)
        near = (one for one in case.judgement.survived if one.stream == number and one.line >= begin)
        chains = [chain for one in near if (chain := case.chain_of(one))]
        for line, origin in course.reading.lines:
            if (
                line.number >= begin
                and line.weak
                and not line.rules
                and not any(chain.first - 1 <= line.number <= chain.last for chain in chains)
                and _LEVEL.search(f"{origin.level or ''} {origin.message}")
                and (died or not course.aftermath.goes_on(line.number, line.number, origin.channel, is_logged=True))
            ):
                return CitedLine(number, line.number, "structure/level")
    return None


def _noticed(case: Examined) -> CitedLine | None:
    """Return the last line that the Log Agent took for an error, for want of anything better."""
    places = [
        CitedLine(number, line.number, _NOTICED)
        for number, course in enumerate(case.own)
        for line, _ in course.reading.lines
        if line.noticed
    ]
    return places[-1] if places else None


def _ended_well(case: Examined, completed: LogFinding | None, cause: LogFinding, died: bool) -> bool:
    """Return whether a good end (the last step without a mark) outweighs a finding: a mark came later, or the finding
    is shutdown noise."""
    if not (died or case.judgement.teardown) and _is_of_exit(case, cause):
        marks = case.outcomes("completed")
        if _is_of_thread(case, cause) or any(mark.order < cause.order for mark in marks):
            return True
    if completed is None or completed.rule is None:
        return False  # a program may close in order although it failed
    if cause.role == "cause":
        return completed.order > cause.order and not case.judgement.teardown
    if cause.role == "cascade":
        return completed.order < cause.order or not case.judgement.teardown
    return completed.order > cause.order and not any(t.order > completed.order for t in case.judgement.teardown)


def _header(case: Examined, finding: LogFinding) -> str:
    """Return the line above the traceback of a finding, which may announce it; "" without any."""
    chain = case.chain_of(finding)
    return case.readings[finding.stream].texts.get(chain.first - 1, "") if chain else ""


def _is_of_thread(case: Examined, finding: LogFinding) -> bool:
    """Return whether a thread raised an error, which does not end its program."""
    return "xception in thread" in _header(case, finding)


def _is_of_exit(case: Examined, finding: LogFinding) -> bool:
    """Return whether an error is a complaint of threads, sockets or peers at a program's end."""
    chain, header = case.chain_of(finding), _header(case, finding)
    is_of_peers = finding.role == "cascade" and finding.reason in _OF_PEERS
    if chain is not None and not _ANNOUNCED.search(header):
        return is_of_peers and finding.origin.channel != ""  # otherwise the main program may have raised it
    return is_of_peers or bool(_AT_EXIT.search(f"{header} {finding.text}"))


def _failed(case: Examined, cause: LogFinding, most: float = 1.0) -> Verdict:
    """Return the verdict that a finding is the cause, with a confidence of at most `most`."""
    recovery, fault, why, suggestion, lines = _response(case, cause)
    rule = cause.rule
    places = [CitedLine.of(cause)]
    course = case.courses[cause.stream]
    if cause.reason == "Hang" and course.last_line is not None:
        places.append(CitedLine(cause.stream, course.last_line, "progress/stall"))
    places += [CitedLine(cause.stream, line, "structure/missing") for line in lines]
    places += _more_evidence(case, cause)
    return write(
        case,
        cause.reason,
        "failed",
        recovery=recovery,
        fault=fault,
        confidence=min(confidence(case, cause), most),
        why=why,
        suggestion=suggestion or cause.suggestion,
        places=places,
        suspected=suspects.name(case.readings, case.found, cause) if recovery == "isolate_and_restart" else [],
        first_rank=first_rank(case.found, cause, case.readings, case.judgement.ends),
        decided=("rule", rule.id) if rule else ("structure", cause.name),
        print_of=(cause.origin.message, cause.frames),
        symptoms=[*case.judgement.symptoms, *case.judgement.teardown],
        cause=cause,
        alternatives=_rivals(case, cause),
        onset_step=_onset(case, cause) if recovery == "rollback_and_skip" else None,
    )


def _onset(case: Examined, cause: LogFinding) -> int | None:
    """Return the first step with a bad loss: that of the report, or of an earlier spike."""
    steps = [case.courses[cause.stream].step_at(cause.line), case.spike.step if case.spike else None]
    return min((step for step in steps if step is not None), default=None)


def _rivals(case: Examined, cause: LogFinding) -> tuple[Alternative, ...]:
    """Return the reasons of lasting errors that the cause does not explain, at most 3. Each names its first line."""
    found: dict[str, Alternative] = {}
    for rival in case.judgement.symptoms:
        if rival.reason not in ("Unknown", cause.reason) and not explains(cause, rival):
            said = f"Line {rival.line} is evidence for it, but {why_not(cause, [rival])}."
            found.setdefault(rival.reason, Alternative(rival.reason, said))
    return tuple(found.values())[:_RIVALS]


class _Response(NamedTuple):
    """The response to a cause: recovery and fault, an explanation where it is unusual, and the lines that prove it."""

    recovery: str
    fault: str
    why: str = ""
    suggestion: str = ""
    lines: tuple[int, ...] = ()


def _response(case: Examined, cause: LogFinding) -> _Response:
    """Return the response that the rule or the reason prescribes.

    It differs when earlier restarts ended in the same failure, or when the log shows which ranks were missing and why.
    """
    again = [finding for finding in case.found if finding.reason == cause.reason and finding.role == cause.role]
    restarts = [mark for mark in case.outcomes("recovered") if mark.order < cause.order]
    if cause.role != "cause" and len({_epoch(finding, restarts) for finding in again}) > _REPEATS:
        why = f"The same failure came back after {len(restarts)} restarts: another restart will not help."
        return _Response("fix_first", "user", why, _NO_RESTART)
    if cause.reason == "NCCL Timeout Error" and (diverged := suspects.divergence(case.readings)):
        return _Response("fix_first", "user", diverged.why, _NO_RESTART)
    if (
        cause.reason == "Network Error"
        and cause.recovery == "fix_first"
        and case.courses[cause.stream].steps_before(cause.line)
    ):
        return _Response("isolate_and_restart", "infrastructure", "The job had this network until it lost it.")
    if cause.reason not in missing.WAITED:
        return _Response(cause.recovery, cause.fault)
    absent = missing.absence(case.readings, case.found, cause)
    why = absent.why if absent else ""
    lines = (absent.line,) if absent and absent.line and absent.line != cause.line else ()
    if cause.reason == "NCCL Timeout Error" and (delay := missing.delay(case.readings, cause)):
        fault = "user" if delay.recovery == "fix_first" else cause.fault
        return _Response(delay.recovery, fault, f"{why} {delay.why}".strip(), delay.suggestion, (delay.line, *lines))
    return _Response(cause.recovery, cause.fault, why, "", lines)


def _epoch(finding: LogFinding, restarts: list[LogFinding]) -> int:
    """Count the restarts before a finding."""
    return sum(mark.order < finding.order for mark in restarts)


def _more_evidence(case: Examined, cause: LogFinding) -> list[CitedLine]:
    """Return further lines that support the cause: of its episode, and by other rules that agree."""
    places: list[CitedLine] = []
    seen = {cause.source}
    for finding in case.judgement.symptoms:
        if finding.reason == cause.reason and finding.source not in seen:
            seen.add(finding.source)
            places.append(CitedLine.of(finding))
    if cause.root not in (0, cause.line):
        places.insert(0, CitedLine(cause.stream, cause.root, "structure/chain"))
    if cause.also and cause.also[-1] != cause.line:
        places.insert(0, CitedLine(cause.stream, cause.also[-1], "structure/chain"))
    proximate = [f for f in case.judgement.symptoms if cause.role == "cause" and f.role == "proximate" and f.rule]
    return places + [CitedLine.of(finding) for finding in proximate[:1]]


def _spiked(case: Examined, found: Spike) -> Verdict:
    course = case.courses[found.stream]
    places = [CitedLine(found.stream, line, "progress/loss") for line in (found.jump, found.steepest, found.worst)]
    numeric = [f for f in case.found if f.reason == "Loss Spike" or is_numeric(f)]
    places += [CitedLine.of(finding) for finding in numeric[:2]]
    peak = "NaN" if found.peak == float("inf") else f"{found.peak:.4g}"
    return write(
        case,
        "Loss Spike",
        "failed",
        confidence=0.85,
        why=f"The loss left {found.base:.4g} for {peak} and did not recover (last step {course.progress().step}).",
        places=places,
        decided=("structure", "loss"),
        print_of=("loss", ()),
        first_rank=first_of(numeric, case.readings, case.judgement.ends) if numeric else None,
        onset_step=found.step,
        symptoms=[f for f in (case.judgement.cause, *case.judgement.symptoms, *case.judgement.teardown) if f],
    )


def _hung(case: Examined, found: Stall, cancelled: LogFinding | None) -> Verdict:
    places = [CitedLine(found.stream, found.line, "progress/stall")]
    if cancelled is not None:
        places.append(CitedLine.of(cancelled))
    written = [line for line in case.readings[found.stream].record.last if line.text.strip()]
    if written:
        places.append(CitedLine(found.stream, written[-1].number, "progress/end of log"))
    return write(
        case,
        "Hang",
        "failed",
        confidence=0.7,
        why=f"No step for {_span(found.seconds)} at the end of the log, and no error.",
        places=places,
        decided=("structure", "stall"),
        print_of=("stall", ()),
        symptoms=case.judgement.teardown,
    )


def _ended(case: Examined, outcome: str, mark: LogFinding | None, why: str) -> Verdict:
    """Return the verdict on a job that did not fail; `recovered` if a restart fixed a failure."""
    restarts = case.outcomes("recovered")
    faults = [f for f in case.judgement.survived if f.role in ("cause", "proximate", "cascade")]
    faults = [f for f in faults if any(mark.order > f.order for mark in restarts)]
    places = [CitedLine.of(mark)] if mark else []
    reason = "None"
    if faults:
        fault = min(faults, key=lambda f: (taxonomy.ROLES.index(f.role), f.order))
        reason, outcome = fault.reason, "recovered"
        why = "The job failed once, was restarted and made progress."
        places.insert(0, CitedLine.of(fault))
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


def _unread(case: Examined, noticed: CitedLine | None) -> Verdict:
    """Return the verdict on a log without an end or a failure; it calls for no action."""
    why = "The log shows neither an end nor a failure: no progress, no error report, no known error."
    suggestion = "If the job failed, say so with --died or its exit code: then this is a failure of unknown cause."
    nature = _nature(case)
    if noticed is not None:
        why = "The log shows neither an end nor a known failure; the Log Agent took this line for an error."
    elif nature == "empty":
        why = "The log is empty."
        suggestion = "Check that this is the log of the job, and that its output does not go elsewhere."
    elif nature == "binary":
        why = "This is no log: it is binary, not text."
        suggestion = "Give the log of the job: text, plain or compressed with gzip or Zstandard."
    return write(
        case,
        "None",
        "unknown",
        recovery="none",
        fault="unknown",
        confidence=0.0,
        why=why,
        suggestion=suggestion,
        places=[noticed] if noticed else [],
        decided=("nobody", nature),
        print_of=("unknown", ()),
        symptoms=[],
    )


def _nature(case: Examined) -> str:
    """Return `empty` or `binary` for what is not a text log, else ""."""
    own = [course.reading.record for course in case.own]
    if not any(map(_holds_lines, own)):
        return "empty"
    return "binary" if all(map(_is_binary, own)) else ""


def _holds_lines(record: Record) -> bool:
    """Return whether a stream has lines; a record rebuilt from kept lines has no line count."""
    return bool(record.compression.lines_in or record.lines or record.last)


def _is_binary(record: Record) -> bool:
    """Return whether a stream begins and ends with binary data; a torn log only ends with it."""
    first = [line.text for line in record.lines[:1] or record.last[:1]]
    return all(
        len(_NO_TEXT.findall(text)) > _BINARY * len(text)
        for text in ("".join(first), "".join(line.text for line in record.last))
    )


def _unknown(case: Examined, mark: LogFinding | CitedLine) -> Verdict:
    """Return `Unknown`: the job failed, and nothing says why."""
    teardown = case.judgement.teardown
    if isinstance(mark, CitedLine) and mark.rule == _NOTICED:
        why = "The log has no known error; the Log Agent took this line for an error."
    elif isinstance(mark, CitedLine):
        why = "The log ends with an error that no rule matches."
    elif mark.role != "teardown":
        why = "No rule matches this error, and its class can mean anything."
    else:
        why = "The job died, but no log line says why."
    finding = mark if isinstance(mark, LogFinding) else None
    place = CitedLine.of(mark) if isinstance(mark, LogFinding) else mark
    return write(
        case,
        "Unknown",
        "failed",
        confidence=0.0,
        why=why,
        places=[place],
        first_rank=finding.rank if finding else None,
        decided=("nobody", ""),
        print_of=(finding.origin.message if finding else "", ()),
        symptoms=[*case.judgement.symptoms, *teardown],
    )


def _died(case: Examined, end: End, reported: ReportedEnd) -> Verdict:
    """Return the verdict on a kill, crash or exit code whose cause the log does not tell. A killed job is restarted,
    and so is a crashed one that reached its steps, unless the scheduler says why it killed."""
    at, frame = last_frame(case.readings[end.stream], end)
    places = [CitedLine(end.stream, at, "structure/crash")] if at else []
    places.append(CitedLine(end.stream, end.line, end.rule))
    was_training = any(len(course.steps) or course.losses for course in case.courses)
    restarts = end.is_killed or (end.is_crash and was_training)
    if end.is_killed and reported.reason:
        return write(
            case,
            reported.reason,
            "failed",
            confidence=_BY_SCHEDULER,
            why=f"The scheduler reports {reported.state}.",
            places=places,
            first_rank=end.rank if reported.reason != "Node Failure" else None,
            decided=("structure", "end"),
            print_of=(reported.reason, ()),
            symptoms=[*case.judgement.symptoms, *case.judgement.teardown],
            detail=f"{end.detail.removesuffix(', no witness')}, {reported.state}",
        )
    return write(
        case,
        "Unknown",
        "failed",
        confidence=0.0,
        why=f"{end.detail[:1].upper()}{end.detail[1:]}: no log line says why.",
        places=places,
        recovery="restart" if restarts else "",
        suggestion=_AFTER_KILL if end.is_killed else _AFTER_CRASH if end.is_crash else "",
        first_rank=end.rank,
        decided=("nobody", "crash" if end.is_crash else "end"),
        print_of=(end.kind, (frame,) if frame else ()),
        symptoms=[*case.judgement.symptoms, *case.judgement.teardown],
        detail=f"{end.detail} ({frame})" if frame else end.detail,
    )


def _span(seconds: float) -> str:
    """Return a duration for people, such as 45 s, 30 min, 2 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
