"""A proposed pattern before it is tried on anything: whether it is fit to be a rule of either kind, or why not."""

from collections.abc import Iterable
from typing import NamedTuple

import regex

from logdoctor.errors import PatternRefused
from logdoctor.learning.grammar import Pattern, parse
from logdoctor.llm.masking import mask

LONGEST = 1000
"""Characters of a pattern."""
_LONGEST_CAUSE = 500


class Refusal(NamedTuple):
    """A proposal that was not taken: which guard refused it, and why."""

    pattern: str
    guard: str
    cause: str


def refusal(pattern: object, guard: str, cause: str) -> Refusal:
    """Return a refusal whose texts are bounded. Its cause may quote a log, but no secret of it."""
    return Refusal(str(pattern)[:LONGEST], guard, mask(cause)[:_LONGEST_CAUSE])


def first_refusal(pattern: object, guards: Iterable[tuple[str, str | None]]) -> Refusal | None:
    """Return the refusal of the first guard that gives a cause, None when none does; no guard behind it is asked."""
    return next((refusal(pattern, guard, cause) for guard, cause in guards if cause), None)


def learnable(source: object, whole: str = "") -> Pattern | Refusal:
    """Return a pattern taken apart that is fit to be tried as a rule of either kind, or what refuses it.

    `whole` is the pattern that is parsed in its stead, where rules match the beginning of a line only.
    """
    if cause := form_cause(source):
        return refusal(source, "form", cause)
    pattern = parsed(whole or str(source))
    if not isinstance(pattern, Pattern):
        return refusal(source, *pattern)
    return first_refusal(source, [("secret", secret_cause(pattern))]) or pattern


def form_cause(source: object) -> str | None:
    """Return why something is no text of one line that can be shown, None when it is."""
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
    """Return a pattern taken apart, or (guard, cause) when it is not of the language or cannot be compiled."""
    try:
        pattern = parse(source)
        regex.compile(source)
    except PatternRefused as refused:
        return refused.guard, refused.cause
    except regex.error as error:
        return "compile", f"the regex package refuses it ({error})"
    return pattern


def secret_cause(pattern: Pattern) -> str | None:
    """Return why a pattern gives something away, None when it does not."""
    texts = (*pattern.literals, "".join(pattern.literals))
    return "its literal text looks like a secret" if any(mask(text) != text for text in texts) else None
