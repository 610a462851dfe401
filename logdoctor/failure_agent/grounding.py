"""Whether quotes of the model stand where it says: in a line that it was shown, and in the log."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import regex

from logdoctor import taxonomy
from logdoctor.failure_agent.brief import Shown
from logdoctor.failure_agent.forms import Candidate, Findings, Quote, named
from logdoctor.failure_agent.question import Log

_CANDIDATES = 4
_QUOTES = 6
_LONGEST = 2000  # characters of a quote that are looked at
_SHORTEST = 6
_TELLING = 12  # characters of a quote by which a line may be found whose number is wrong
_NEAR = 5  # lines by which a number may be wrong
_HANDLE = regex.compile(r"\s*\[?\s*(?:line\s+)?(?:(?P<stream>\d{1,6})\s*:\s*)?(?P<number>\d{1,12})\s*\]?\s*", regex.I)
_COPIED = regex.compile(r"^\s*\[\d{1,6}:\d{1,12}\]\s?")
_ELLIPSIS = regex.compile(r"^(?:\.\.\.|…)|(?:\.\.\.|…)$")
_BLANK = regex.compile(r"\s+")

Places = Mapping[tuple[int, int], Shown]
"""The lines that the model was shown, by stream and number."""

Unmask = Callable[[str], str]
"""Puts back what marks stand for: a host that a later line gave away is masked in all that is sent."""


class Grounded(NamedTuple):
    """A claim with a reason of the taxonomy, and the lines that prove it; so many `failed` quotes do not stand."""

    order: int
    reason: str
    candidate: Candidate
    lines: tuple[Shown, ...]
    failed: int


def ground(findings: Findings, shown: Places, log: Log | None, unmask: Unmask = str) -> list[Grounded]:
    """Return the candidates with at least one quote that stands, in their order; Unknown is none of them."""
    grounded = []
    for order, candidate in enumerate(findings.candidates[:_CANDIDATES]):
        reason = named(candidate.reason, taxonomy.REASONS)
        quotes = candidate.quotes[:_QUOTES]
        found = [line for quote in quotes if (line := line_of(quote, shown, unmask)) is not None and _stands(line, log)]
        lines = {(line.stream, line.number): line for line in found}
        if reason not in ("", "Unknown") and lines:
            grounded.append(Grounded(order, reason, candidate, tuple(lines.values()), len(quotes) - len(found)))
    return grounded


def complaint(findings: Findings, shown: Places, log: Log | None, unmask: Unmask = str) -> str:
    """Return what is wrong with an answer whose first claim does not stand, in words for the model; "" when it does.

    An answer without claims says Unknown, and is fine.
    """
    if not findings.candidates or named(findings.candidates[0].reason, taxonomy.REASONS) == "Unknown":
        return ""
    first = findings.candidates[0]
    if not named(first.reason, taxonomy.REASONS):
        return (
            f"names the reason {_echo(first.reason)}, which is not in the list; use one of the list, or no candidates"
        )
    if ground(Findings([first]), shown, log, unmask):
        return ""
    quotes = [f"{_echo(quote.text)} at {_echo(quote.line)}" for quote in first.quotes[:2]]
    if not quotes:
        return "quotes no line for its first candidate; quote a line that was shown, or give no candidates"
    return f"quotes what does not stand there: {'; '.join(quotes)}. Copy from the lines shown, or give no candidates"


def line_of(quote: Quote, shown: Places, unmask: Unmask = str) -> Shown | None:
    """Return the line that a quote is of: the one it names, or the only one near it that has its text."""
    text = _plain(_ELLIPSIS.sub("", _COPIED.sub("", quote.text[:_LONGEST]).strip()))
    if len(text) < _SHORTEST or not any(c.isalpha() for c in text):
        return None
    place = _place(quote.line, shown)
    if place is None:
        return None
    line = shown.get(place)
    if line is not None and _holds(line, text, unmask):
        return line
    if len(text) < _TELLING:
        return None
    holding = [other for other in shown.values() if _holds(other, text, unmask)]
    if len(holding) == 1 and holding[0].stream == place[0] and abs(holding[0].number - place[1]) <= _NEAR:
        return holding[0]
    return None


def _holds(line: Shown, text: str, unmask: Unmask) -> bool:
    return text in _plain(line.text) or unmask(text) in _plain(unmask(line.text))


def _place(handle: str, shown: Places) -> tuple[int, int] | None:
    """Return stream and number of a handle as models write it; a number alone is of the only stream."""
    match = _HANDLE.fullmatch(handle[:40])
    if match is None:
        return None
    streams = {stream for stream, _ in shown}
    stream = int(match["stream"]) if match["stream"] else (min(streams) if len(streams) == 1 else -1)
    return stream, int(match["number"])


def _stands(line: Shown, log: Log | None) -> bool:
    """Return whether the log still has the line, where there is one that can show it."""
    kept = [] if log is None else log.window(line.name, line.number, line.number)
    return all(number != line.number or line.raw.strip() in text or text.strip() in line.raw for number, text in kept)


def _plain(text: str) -> str:
    return _BLANK.sub(" ", text).strip()


def _echo(words: str) -> str:
    """Return words of the model as they are told to it: short, on one line, in ASCII."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in _plain(words[:200]))
    return f'"{plain[:60]}"'
