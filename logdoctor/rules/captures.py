"""Named groups out of a line, found by the `regex` package: only in lines that Hyperscan already hit."""

from functools import cache

import regex

from logdoctor.rules.schema import DiagnosisRule

_SECONDS = 0.2


def captures(rule: DiagnosisRule, line: str) -> dict[str, str]:
    """Return what the groups of the rule's patterns find in a line; groups that find nothing are left out.

    Runs with a time-out: a pattern that is slow on a line yields no captures from it (law 9).
    """
    found: dict[str, str] = {}
    for pattern in rule.when.any:
        if "(?P<" not in pattern:
            continue
        try:
            match = _compiled(pattern).search(line, timeout=_SECONDS)
        except TimeoutError:
            continue
        if match:
            found |= {name: value for name, value in match.groupdict().items() if value is not None}
    return found


@cache
def _compiled(pattern: str) -> regex.Pattern[str]:
    """Return a pattern without the prefix expansion: a capture may start behind any prefix."""
    return regex.compile(pattern.removeprefix("^"))
