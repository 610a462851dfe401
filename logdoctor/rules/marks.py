"""Structure that indicates trouble in any wording, so that what no rule knows is found anyway.

Strong marks are the skeleton of a failure report (tracebacks, exception lines, C++ terminations, kernel oopses);
ordinary filter rules never take such a line. Weak marks are words; they only draw attention to lines that no rule
takes.
"""

from collections.abc import Iterator

import regex

STRONG = {
    "traceback": r"Traceback \(most recent call last\)",
    "frame": r'File "[^"\n]{1,400}", line \d+',
    "chain": r"^(?:During handling of the above exception|The above exception was the direct cause)",
    "exception": r"\w(?:Error|Exception|Interrupt|Failure|Fault|Timeout|Killed)(?::|\r?$)",
    "cpp": r"terminate called|^ *what\(\):|^Exception raised from |Fatal Python error",
    "crash": r"Segmentation fault|[Cc]ore dumped|\*\*\* Aborted|Bus error|stack smashing|double free",
}
_WORD = (
    r"(?:error|fail(?:ed|ure|ing)?|fatal|exception|panic|abort(?:ed|ing)?|cannot|unable|denied"
    r"|killed|kill|terminat(?:ed|ing)|cancell?ed|preempt(?:ed|ion)|timed? ?out|refused|unreachable|lost|invalid)"
)
_NO_NOUGHT_BEFORE = r"(?:^|[^\w ]|(?:^|[^0]|[^ ,;(\[|]0|[^,;(\[|] 0) )"
_NO_NOUGHT_BEHIND = r"(?:\r?$|[^\w =:]|[ =:]{4}|[ =:]{1,3}(?:\r?$|[^ =:0]|0 *[^ ,;)\]|}\r]))"

WEAK = {
    "level": r"\b(?:ERROR|FATAL|CRITICAL|PANIC)\b",
    "word": f"(?i){_NO_NOUGHT_BEFORE}{_WORD}{_NO_NOUGHT_BEHIND}",
    "signal": r"\bSIG(?:KILL|TERM|SEGV|ABRT|BUS|INT|HUP|USR1|USR2|CONT)\b",
}
"""Words of trouble. A count of zero (`timeout 0` at the end or before a comma, `, 0 failed`) is no mark; rank 0 is one
(`rank 0 failed`)."""

_NOUGHT = regex.compile(rf"\b{_WORD}[ =:]{{1,3}}0(?= *(?:[,;)\]|}}]|\r?$))|(?:^|(?<=[,;(\[|])) ?0 {_WORD}\b", regex.I)
_REPORT = regex.compile(
    "|".join(STRONG[name].replace("^", "") for name in ("traceback", "chain", "cpp", "crash"))
    + rf"|{STRONG['frame']}|\bframe #\d+: |(?i:\bwatchdog\b)|\bNCCL (?:work|operation)"
)
_TROUBLE = tuple(regex.compile(source) for source in (STRONG | WEAK).values())


def zero_counts(text: str) -> Iterator[regex.Match[str]]:
    """Yield zero counts of trouble in a text, such as `timeout 0` and `0 failed`."""
    return _NOUGHT.finditer(text)


def is_report(text: str) -> bool:
    """Return whether a text of one line is part of the report of a crash or of a watchdog, which no failure is without
    and no work prints: a person who is asked whether it is harmless can only say no."""
    return _REPORT.search(text) is not None


def is_error_like(text: str) -> bool:
    """Return whether a line has a mark, strong or weak."""
    return any(trouble.search(text) for trouble in _TROUBLE)
