"""Cause versus symptom: which finding is the root cause, and which errors merely follow from it."""

from typing import NamedTuple

import regex

from logdoctor import taxonomy
from logdoctor.diagnose import suspects
from logdoctor.diagnose.caught import caught
from logdoctor.diagnose.ends import End, ends, first, killer, silent, tells_of_crash
from logdoctor.diagnose.findings import LogFinding, StreamReading
from logdoctor.diagnose.progress import StreamCourse
from logdoctor.types import LEARNED

_NUMERIC = regex.compile(r"(?i)\bnan\b|\binf(?:inite|inity)?\b|overflow|loss scale|grad(?:ient)?[ _]norm|diverg")
_DISTURBED = ("Runtime Error", "Assertion Error", "Value Error")
_NEVER, _ALWAYS = (float("inf"), 0, 0), (0.0, -1, -1)
_WENT_ON = {"mild": 20, "teardown": 2000}
"""Ordinary lines in a stream that show that a job survived a mild error, or the reported end of one of its parts."""


class CauseJudgement(NamedTuple):
    """The findings of an attempt, sorted; `cause` is None if none qualifies. `survival` says, by (stream, line), how it
    is known that a finding was survived. `end` is how the first process ended, where no finding explains it."""

    cause: LogFinding | None
    symptoms: list[LogFinding]
    survived: list[LogFinding]
    survival: dict[tuple[int, int], str]
    teardown: list[LogFinding]
    ends: list[End]
    end: End | None


def judge(findings: list[LogFinding], courses: list[StreamCourse], died: bool = False) -> CauseJudgement:
    """Sort findings into cause, symptoms, survived errors and teardown.

    Advice (`note`) and outcome marks are left out. The cause is never a fault followed by further steps, an exception
    after which its program went on and failed with another, or a mild one followed by much ordinary output; nor, unless
    the job is known to have `died`, one after which its writer went on.
    """
    claims = [finding for finding in findings if finding.role != "note" and not finding.outcome]
    readings = [course.reading for course in courses]
    past = set(map(id, caught(claims, readings)))
    stop = min((mark.order for mark in findings if mark.outcome == "cancelled"), default=_NEVER)
    deaths = (
        claim.order for claim in claims if claim.role == "teardown" and claim.order < stop and not tells_of_crash(claim)
    )
    last_death = max(deaths, default=_ALWAYS)
    survival: dict[int, str] = {}
    for finding in claims:
        course = courses[finding.stream]
        if course.reading.record.is_witness:
            continue
        if course.renewed_after(finding.line):
            survival[id(finding)] = "steps were made after it"
        elif id(finding) in past:
            survival[id(finding)] = "its writer failed with something else later"
        elif _went_on(finding, course.reading):
            survival[id(finding)] = "much ordinary output follows"
        elif died or finding.order <= last_death or not _may_go_on(finding):
            continue
        elif finding.rule is None and course.aftermath.is_warned_of(finding):
            survival[id(finding)] = "a logger printed it as a warning"
        elif course.aftermath.went_on(finding):
            survival[id(finding)] = "its writer went on as before"
    if not died:
        again = _outlived_before(claims, survival, findings, courses)
        survival = dict.fromkeys(again, "its server survived it before, too") | survival
    survived = [finding for finding in claims if id(finding) in survival]
    lasting = [finding for finding in claims if id(finding) not in survival]
    teardown = [finding for finding in lasting if finding.role == "teardown"]
    failing = [finding for finding in lasting if finding.role != "teardown"]
    some = ends(lasting, readings)
    labelled = [suspects.tasks_are_ranks(reading) for reading in readings]
    cause = _first_unexplained(failing, _of_first_rank(failing, some, readings, labelled))
    end = silent(some, failing, readings, labelled)
    if end is not None and cause is not None and not end.accounts_for(cause):
        end = None
    if end is not None:
        witness = killer(end, findings)
        cause, end = (witness._replace(role="cause"), None) if witness else (None, end)
    symptoms = [finding for finding in failing if finding is not cause and (cause or end)]
    told = {(one.stream, one.line): survival[id(one)] for one in survived}
    return CauseJudgement(cause, symptoms, survived, told, teardown, some, end)


def _outlived_before(
    claims: list[LogFinding], survival: dict[int, str], findings: list[LogFinding], courses: list[StreamCourse]
) -> list[int]:
    """Return the ids of findings that repeat what the same server survived before. It answered requests after them, and
    then shut down in order."""
    ends = {mark.stream: mark.line for mark in findings if mark.rule and mark.rule.id.endswith("cancelled-server")}
    answers = {stream: courses[stream].aftermath.last_answers(line) for stream, line in ends.items()}
    known = {finding.key for finding in claims if finding.frames and id(finding) in survival}
    again: list[int] = []
    for finding in claims:
        answered, failed = answers.get(finding.stream, (0, 0))
        if failed < finding.line < answered and finding.key in known:
            again.append(id(finding))
    return again


def _of_first_rank(
    failing: list[LogFinding], some: list[End], readings: list[StreamReading], labelled: list[bool]
) -> list[LogFinding]:
    """Return the findings of the rank that ended first."""
    end = first(some)
    if end is None or end.rank is None:
        return []
    return [finding for finding in failing if suspects.rank_of(finding, readings, labelled) == end.rank]


def _went_on(finding: LogFinding, reading: StreamReading) -> bool:
    """Return whether enough ordinary output follows to show that the job survived the error."""
    kind = "mild" if finding.is_mild else finding.role
    return kind in _WENT_ON and reading.ordinary_after(finding.line) >= _WENT_ON[kind]


def _may_go_on(finding: LogFinding) -> bool:
    """Return whether its writer's later output may refute an error. Not so for hardware faults, on which a job may
    hang, nor for a lack of steps, which only steps refute."""
    is_of_hardware = finding.role == "cause" and taxonomy.REASONS[finding.reason].category == "Infrastructure"
    return not is_of_hardware and finding.reason != "Hang"


def _first_unexplained(failing: list[LogFinding], of_first: list[LogFinding]) -> LogFinding | None:
    """Return the earliest finding of the best role that no other of that role explains.

    Learned rules yield to shipped ones, against which they were never tried. A mild error yields to one that it does
    not explain or that came first. Where all errors are of the kind that follows a death, the earliest is the cause if
    the process that ended first raised it.
    """
    if not failing:
        return None
    firm = [f for f in failing if not f.is_mild and f.role in ("cause", "proximate") and (f.rule or f.frames)]
    failing = [
        f for f in failing if not f.is_mild or all(f.order < other.order and explains(f, other) for other in firm)
    ]
    best = min(taxonomy.ROLES.index(finding.role) for finding in failing)
    pool = [finding for finding in failing if taxonomy.ROLES.index(finding.role) == best]
    if taxonomy.ROLES[best] == "cascade" and pool[0].frames and any(finding is pool[0] for finding in of_first):
        return pool[0]
    pool = [finding for finding in pool if not finding.source.startswith(LEARNED)] or pool
    accounts = {(finding.reason, finding.explains) for finding in pool}  # few, however many ranks speak
    return next((finding for finding in pool if not any(_yields(finding, *account) for account in accounts)), pool[0])


def _yields(finding: LogFinding, reason: str, explained: tuple[str, ...]) -> bool:
    """Return whether an error of `reason` explains a finding, and not the reverse."""
    return reason != finding.reason and finding.reason in explained and reason not in finding.explains


def is_numeric(finding: LogFinding) -> bool:
    """Return whether an error only reports bad numbers, which a loss spike explains."""
    return finding.reason in _DISTURBED and bool(_NUMERIC.search(finding.text))


def explains(cause: LogFinding | None, symptom: LogFinding) -> bool:
    """Return whether the cause explains a finding. Its rule says so, or such errors follow any death of a process."""
    if cause is None or symptom.role in ("cascade", "teardown"):
        return True
    return symptom.reason == cause.reason or symptom.reason in cause.explains
