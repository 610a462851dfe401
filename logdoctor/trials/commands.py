"""Commands of the user: templates that are split into words and then filled in, without a shell."""

import shlex
from collections.abc import Collection, Mapping

import regex

from logdoctor.errors import TrialError

INFER = frozenset(("adapters", "here", "model", "dataset", "set", "start", "end", "samples", "out"))
"""Placeholders of a command that makes outputs."""
SCORE = frozenset(("adapters", "here", "dataset", "set", "samples", "outputs", "out", "judge"))
"""Placeholders of a command that scores."""
SERVE = frozenset(("adapters", "here", "model"))
"""Placeholders of a command that is started once per worker."""

_PLACE = regex.compile(r"\{([a-z_]+)\}")


def words(what: str, template: str, known: Collection[str], needed: Collection[str] = ()) -> tuple[str, ...]:
    """Split a template into words; `TrialError` when it cannot be split, uses an unknown placeholder, or lacks a needed
    one. `what` says where it stands."""
    try:
        found = tuple(shlex.split(template))
    except ValueError as error:
        raise TrialError(what, f"cannot be split into words ({error})", "Close each quote.") from error
    if not found:
        raise TrialError(what, "is empty", "Give the command.")
    named = {name for word in found for name in _PLACE.findall(word)}
    listed = ", ".join(f"{{{name}}}" for name in sorted(known))
    if unknown := sorted(named - set(known)):
        raise TrialError(what, f"names {{{unknown[0]}}}, which is not known", f"There are {listed}.")
    if lacking := sorted(set(needed) - named):
        raise TrialError(what, f"does not name {{{lacking[0]}}}", "Say where the command takes it.")
    return found


def filled(template: tuple[str, ...], values: Mapping[str, str]) -> list[str]:
    """Fill in the words of a command; unknown placeholders stay, and values are not expanded again."""
    return [_PLACE.sub(lambda found: values.get(found[1], found[0]), word) for word in template]
