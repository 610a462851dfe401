"""Structure that stands for trouble in any wording, so that what no rule knows is found all the same.

Strong marks are the skeleton of a failure report (tracebacks, exception lines, C++ terminations, kernel
oopses); ordinary filter rules never take such a line. Weak marks are words; they only draw attention to
lines that no rule takes.
"""

STRONG = {
    "traceback": r"Traceback \(most recent call last\)",
    "frame": r'File "[^"\n]{1,400}", line \d+',
    "chain": r"^(?:During handling of the above exception|The above exception was the direct cause)",
    "exception": r"\w(?:Error|Exception|Interrupt|Failure|Fault|Timeout|Killed)(?::|\r?$)",
    "cpp": r"terminate called|^ *what\(\):|^Exception raised from |Fatal Python error",
    "crash": r"Segmentation fault|[Cc]ore dumped|\*\*\* Aborted|Bus error|stack smashing|double free",
}
WEAK = {
    "level": r"\b(?:ERROR|FATAL|CRITICAL|PANIC)\b",
    "word": r"(?i)\b(?:error|fail(?:ed|ure|ing)?|fatal|exception|panic|abort(?:ed|ing)?|cannot|unable|denied"
    r"|killed|kill|terminat(?:ed|ing)|cancell?ed|preempt(?:ed|ion)|timed? ?out|refused|unreachable|lost|invalid)\b",
    "signal": r"\bSIG(?:KILL|TERM|SEGV|ABRT|BUS|INT|HUP|USR1|USR2|CONT)\b",
}
