"""Confidence of rule-based verdicts: the support of the best explanation, less what it leaves open.

The figures are calibrated shares: among labelled failures with a confidence of 0.9, about 90 % were diagnosed
correctly. Failures that no rule had seen before count most (`logdoctor eval` draws the curve).
"""

from logdoctor.diagnose.cause import explains
from logdoctor.diagnose.ends import first
from logdoctor.diagnose.findings import LogFinding
from logdoctor.diagnose.verdict import Examined

_BY_ROLE = {"cause": 0.97, "proximate": 0.88, "cascade": 0.6}
_STRUCTURE = 0.02  # less for an exception's class than for a rule that knows its message
_NO_FRAMES = 0.1  # less without the traceback
_GENERIC = 0.1  # less where the class says nothing, or the rule is a fallback
_MANY = 0.15  # more for a cascade error that at least `_WRITERS` report, with nothing left unexplained
_WRITERS = 3
_ENDED_FIRST = 0.15  # more for a cascade error whose rank ended before all others
_RIVAL = 0.2  # less when something of the same role is left unexplained
_LESSER_RIVAL = 0.06  # less when something with a lesser role is left unexplained
_UNREAD = 0.1  # less when a part of the log could not be read


def confidence(case: Examined, cause: LogFinding) -> float:
    """Return the confidence, 0 to 1, that a finding is the cause."""
    sure = _BY_ROLE[cause.role]
    if cause.rule is None:
        sure -= _STRUCTURE + (0 if cause.frames else _NO_FRAMES)
    if (cause.rule is not None and cause.rule.fallback) or (cause.rule is None and cause.reason == "Runtime Error"):
        sure -= _GENERIC
    open_ones = [finding for finding in case.judgement.symptoms if not explains(cause, finding)]
    if any(finding.role == cause.role for finding in open_ones):
        sure -= _RIVAL
    elif any(finding.reason != "Unknown" for finding in open_ones):
        sure -= _LESSER_RIVAL
    if cause.role == "cascade" and _writers(case, cause) >= _WRITERS and not open_ones:
        sure += _MANY
    if cause.role == "cascade" and cause.frames and _ended_first(case, cause):
        sure += _ENDED_FIRST
    if any(reading.record.problems for reading in case.readings):
        sure -= _UNREAD
    return max(sure, 0.1)


def _ended_first(case: Examined, cause: LogFinding) -> bool:
    end = first(case.judgement.ends)
    return end is not None and end.is_first and end.rank is not None and end.rank == cause.rank


def _writers(case: Examined, cause: LogFinding) -> int:
    """Count the writers that report the same error."""
    alike = [finding for finding in case.found if finding.reason == cause.reason]
    return len({(finding.stream, finding.origin.channel, finding.rank) for finding in alike})
