"""Finds the last step in an output whose verdict has none.

It uses the job's declared pattern, or else the structure of lines: a step rises by the same amount from line to line,
in lines of one outline that also hold a measured number, which goes up and down. Pure.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from logdoctor.errors import SendError

PROGRESS = "LOGDOCTOR_PROGRESS"
_READ = 8 << 20  # bytes examined at the end of an output
_LONGEST = 400  # characters of a line that is considered
_LEAST = 4  # distinct values of a counter
_STEADY = 0.75  # share of changes that are the same increase
_STEP = re.compile(r"\d{1,9}", re.ASCII)  # more digits are epoch seconds or bytes
_CLOCK = re.compile(r"(?<!\d)\d{1,9}(?:[:-]\d{1,9})+(?:[.,]\d{1,9})?", re.ASCII)
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)", re.ASCII | re.IGNORECASE)


def declared(pattern: str) -> "re.Pattern[str] | None":
    """Compile the pattern by which a job declares its steps; None for "", `SendError` when unusable."""
    if not pattern:
        return None
    step = r"Write one group around the number, such as 'step=(\d+)'."
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise SendError(f"{PROGRESS} {pattern[:80]!r}", f"is no regular expression ({error})", step) from error
    if found.groups != 1:
        raise SendError(f"{PROGRESS} {pattern[:80]!r}", f"has {found.groups} groups", step)
    return found


def last_step(output: Iterable[bytes], pattern: "re.Pattern[str] | None" = None) -> int | None:
    """Return the last step in an output; None without one."""
    kept = b""
    for data in output:
        kept = (kept + data)[-_READ:]
    lines = [line.rsplit("\r", 1)[-1] for line in kept.decode("utf-8", "replace").rstrip("\r\n").split("\n")]
    return _counted(lines) if pattern is None else _matched(lines, pattern)


def _matched(lines: Sequence[str], pattern: "re.Pattern[str]") -> int | None:
    for line in reversed(lines):
        found = pattern.search(line[:4096])
        if found and found[1] and found[1].isascii() and found[1].isdecimal():
            return int(found[1][:18])
    return None


def _counted(lines: Sequence[str]) -> int | None:
    outlines: dict[tuple[str, int], list[list[str]]] = defaultdict(list)  # by count, too: "#" may be in a line
    for line in lines:
        said = _CLOCK.sub("", line) if len(line) <= _LONGEST else ""
        if len(numbers := _NUMBER.findall(said)) > 1:
            outlines[_NUMBER.sub("#", said), len(numbers)].append(numbers)
    for rows in sorted(outlines.values(), key=len, reverse=True):
        columns = list(zip(*rows, strict=True))
        counters = [column for column in columns if _counts(column)]
        if counters and any(map(_measures, columns)):
            return int(counters[0][-1])
    return None


def _counts(column: Sequence[str]) -> bool:
    if len(set(column)) < _LEAST or not all(map(_STEP.fullmatch, column)):
        return False
    changes = [after - before for before, after in pairwise(map(int, column)) if after != before]
    usual, times = Counter(changes).most_common(1)[0]
    return usual > 0 and times >= _STEADY * len(changes)


def _measures(column: Sequence[str]) -> bool:
    """Return whether the numbers are measurements: some with a decimal point, and not only rising like a clock."""
    return any("." in number for number in column) and any(
        float(after) < float(before) for before, after in pairwise(column)
    )
