"""Which of several diagnosis rules that hit one line is more specific."""

from functools import cache

import regex

from logdoctor import taxonomy
from logdoctor.rules.schema import DiagnosisRule

_NOT_LITERAL = regex.compile(r"\(\?P?<?\w*[>:]?|\\[dwsSDWbB]|\[[^\]]*\]|\{[^}]*\}|[()?*+.|^$\\]")


def priority(rule: DiagnosisRule) -> tuple[bool, int, bool, int]:
    """Return a sort key, smaller is better: fallback rules last, then by role, table lookups first, and by literal
    length."""
    role = taxonomy.ROLES.index(rule.verdict.role)
    return rule.fallback, role, not rule.verdict.lookup, -max(_literal(pattern) for pattern in rule.when.any)


@cache
def _literal(pattern: str) -> int:
    return len(_NOT_LITERAL.sub("", pattern))
