"""Captures from a line by the `regex` package: only on lines that Hyperscan has hit."""

from functools import cache

import regex

from logdoctor.rules.schema import DiagnosisRule

_SECONDS = 0.2


def captures(rule: DiagnosisRule, line: str) -> dict[str, str]:
    """Return the named groups that a rule's patterns capture in a line, without empty ones.

    It has a time-out: a pattern that is slow on a line yields no captures from it (law 9).
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


class TimedPattern:
    """An expression for figures that somebody else wrote. A line on which it takes long has no match, and after three
    such lines none has."""

    def __init__(self, expression: bytes) -> None:
        self.pattern = expression
        self._compiled = regex.compile(expression)
        self.groupindex, self.groups = self._compiled.groupindex, self._compiled.groups
        self._left = 3

    def search(self, line: bytes) -> regex.Match[bytes] | None:
        """Return the first match in a line."""
        if self._left:
            try:
                return self._compiled.search(line, timeout=_SECONDS)
            except TimeoutError:
                self._left -= 1
        return None


def matches(rule: DiagnosisRule, text: str) -> bool:
    """Return whether a pattern of a rule matches anywhere in a text; also True when that takes too long."""
    try:
        return any(_compiled(pattern).search(text, timeout=_SECONDS) for pattern in rule.when.any)
    except TimeoutError:
        return True


@cache
def _compiled(pattern: str) -> regex.Pattern[str]:
    """Return a pattern without its leading `^`: a capture may start behind any prefix."""
    return regex.compile(pattern.removeprefix("^"))
