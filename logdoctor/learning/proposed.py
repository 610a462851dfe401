"""Checks a proposed pattern before it is tried: whether it is fit to be a rule of either kind."""

from collections.abc import Iterable
from typing import NamedTuple

import regex

from logdoctor.errors import PatternRefused
from logdoctor.learning.grammar import Pattern, parse
from logdoctor.llm.masking import mask

LONGEST = 1000
"""Most characters of a pattern."""
_LONGEST_CAUSE = 500


class Refusal(NamedTuple):
    """A refused proposal: which guard refused it, and why."""

    pattern: str
    guard: str
    cause: str


def refusal(pattern: object, guard: str, cause: str) -> Refusal:
    """Return a refusal with bounded texts. Its cause may quote a log, masked."""
    return Refusal(str(pattern)[:LONGEST], guard, mask(cause)[:_LONGEST_CAUSE])


def first_refusal(pattern: object, guards: Iterable[tuple[str, str | None]]) -> Refusal | None:
    """Return the refusal of the first guard that gives a cause, without asking later ones; None when none does."""
    return next((refusal(pattern, guard, cause) for guard, cause in guards if cause), None)


def learnable(source: object, whole: str = "") -> Pattern | Refusal:
    """Return the parsed pattern if it may become a rule of either kind, or its refusal.

    `whole` is parsed instead of `source` if rules match only the beginning of a line.
    """
    if cause := form_cause(source):
        return refusal(source, "form", cause)
    pattern = parsed(whole or str(source))
    if not isinstance(pattern, Pattern):
        return refusal(source, *pattern)
    return first_refusal(source, [("secret", secret_cause(pattern))]) or pattern


def form_cause(source: object) -> str | None:
    """Return why something is not one printable line of text; None when it is."""
    if not isinstance(source, str):
        return "it is not text"
    if not source:
        return "it is empty"
    if len(source) > LONGEST:
        return f"it has {len(source)} characters, more than {LONGEST}"
    if odd := next((char for char in source if not char.isprintable()), None):
        return f"it holds the character U+{ord(odd):04X}, which does not print"
    return None


def parsed(source: str) -> Pattern | tuple[str, str]:
    """Return the parsed pattern, or (guard, cause) when it is invalid or does not compile."""
    try:
        pattern = parse(source)
        regex.compile(source)
    except PatternRefused as refused:
        return refused.guard, refused.cause
    except regex.error as error:
        return "compile", f"the regex package refuses it ({error})"
    return pattern


def secret_cause(pattern: Pattern) -> str | None:
    """Return why a pattern reveals a secret; None when it does not."""
    texts = (*pattern.literals, "".join(pattern.literals))
    return "its literal text looks like a secret" if any(mask(text) != text for text in texts) else None
