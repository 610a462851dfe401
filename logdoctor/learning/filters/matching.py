"""What learned patterns match: many patterns and lines at once, through the real matcher."""

from collections.abc import Iterable, Sequence

import numpy as np

from logdoctor.errors import PatternRefused
from logdoctor.learning.grammar import parse
from logdoctor.learning.proposed import LONGEST
from logdoctor.rules.literals import Expression
from logdoctor.rules.match import PatternRejected, expand
from logdoctor.rules.pattern_set import Lines, Part

_TOGETHER = 64  # patterns compiled together; a refused one makes its neighbours compile again


def lines_of(texts: Iterable[str]) -> Lines:
    """Prepare lines for matching at each possible message start; newlines inside a line become blanks."""
    return Lines([text.replace("\n", " ").encode("utf-8", "replace") for text in texts])


def compiled(patterns: Sequence[str]) -> Part | None:
    """Compile the patterns together; None when Hyperscan refuses one. Costs about 2 ms per pattern.

    Only for patterns that passed `grammar.parse`: others may need any amount of time and memory.
    """
    part = Part([Expression(expand(one, ""), sets=(), blind=None) for one in patterns], np.arange(len(patterns)))
    try:
        part.exact.make_ready()
    except PatternRejected:
        return None
    return part


def hits(part: Part, lines: Lines) -> list[set[int]]:
    """Return for each pattern the numbers of the lines that it matches."""
    found: list[set[int]] = [set() for _ in part.places]
    if lines.texts:
        patterns, places = part.scan(part.exact, lines, False, lines.every)
        for pattern, place in zip(patterns.tolist(), places.tolist(), strict=True):
            found[pattern].add(place)
    return found


def taken(patterns: Sequence[str], lines: Sequence[str]) -> list[set[int]]:
    """Return for each pattern the numbers of the lines it matches; one outside the grammar matches nothing."""
    return taken_of(patterns, lines_of(lines))


def taken_of(patterns: Sequence[str], lines: Lines) -> list[set[int]]:
    """Return the same for prepared lines."""
    wanted = [source for source in dict.fromkeys(patterns) if _fit(source)]
    found: dict[str, set[int]] = {}
    for start in range(0, len(wanted) if lines.texts else 0, _TOGETHER):
        found |= _together(wanted[start : start + _TOGETHER], lines)
    return [set(found.get(source, ())) for source in patterns]


def _together(patterns: list[str], lines: Lines) -> dict[str, set[int]]:
    """Return what each pattern matches; when one is refused, try the halves separately."""
    if part := compiled(patterns):
        return dict(zip(patterns, hits(part, lines), strict=True))
    half = len(patterns) // 2
    return _together(patterns[:half], lines) | _together(patterns[half:], lines) if half else {}


def _fit(source: str) -> bool:
    try:
        parse(source)
    except PatternRefused:
        return False
    return len(source) <= LONGEST
