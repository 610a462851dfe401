"""What learned patterns match: the one way to ask, through the real matcher, many patterns and lines at once."""

from collections.abc import Sequence

from logdoctor.errors import PatternRefused, RuleError
from logdoctor.learning.grammar import parse
from logdoctor.learning.proposed import LONGEST
from logdoctor.rules.lines import Lines, hits, joined
from logdoctor.rules.match import Matcher

_TOGETHER = 64  # patterns of one compilation; one that Hyperscan refuses costs its neighbours a second try


def compiled(patterns: Sequence[str]) -> Matcher | None:
    """Return the patterns in one matcher, None when Hyperscan refuses one of them. Costs about 13 ms a pattern.

    Only for patterns that `grammar.parse` let through: others may need any amount of time and memory.
    """
    try:
        return Matcher(patterns)
    except RuleError:
        return None


def taken(patterns: Sequence[str], lines: Sequence[str]) -> list[set[int]]:
    """Return for each pattern the numbers of the lines it matches; one that is not of the grammar matches nothing."""
    return taken_of(patterns, joined(lines))


def taken_of(patterns: Sequence[str], lines: Lines) -> list[set[int]]:
    """Return the same of lines that are joined already."""
    wanted = [source for source in dict.fromkeys(patterns) if _fit(source)]
    found: dict[str, set[int]] = {}
    for start in range(0, len(wanted) if lines.texts else 0, _TOGETHER):
        found |= _together(wanted[start : start + _TOGETHER], lines)
    return [set(found.get(source, ())) for source in patterns]


def _together(patterns: list[str], lines: Lines) -> dict[str, set[int]]:
    """Return what each pattern matches; when one of them is refused, each is tried alone."""
    if matcher := compiled(patterns):
        return dict(zip(patterns, hits(matcher, lines), strict=True))
    if len(patterns) == 1:
        return {}
    alone = [_together([pattern], lines) for pattern in patterns]
    return {pattern: found for one in alone for pattern, found in one.items()}


def _fit(source: str) -> bool:
    try:
        parse(source)
    except PatternRefused:
        return False
    return len(source) <= LONGEST
