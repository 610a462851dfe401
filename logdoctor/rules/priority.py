"""Which of several diagnosis rules that hit one line knows more about it."""

from functools import cache

import regex

from logdoctor import taxonomy
from logdoctor.rules.schema import DiagnosisRule

_NOT_LITERAL = regex.compile(r"\(\?P?<?\w*[>:]?|\\[dwsSDWbB]|\[[^\]]*\]|\{[^}]*\}|[()?*+.|^$\\]")


def priority(rule: DiagnosisRule) -> tuple[int, int]:
    """Smaller is better: role first, then the length of literal text that the rule fixes."""
    return taxonomy.ROLES.index(rule.verdict.role), -max(_literal(pattern) for pattern in rule.when.any)


@cache
def _literal(pattern: str) -> int:
    return len(_NOT_LITERAL.sub("", pattern))
