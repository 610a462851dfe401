"""Whether quotes of the model stand where it says: in a line that it was shown, and in the log.

What copying changes may differ: blanks, curly quotes, backslashes and what does not print.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import regex

from logdoctor import taxonomy
from logdoctor.failure_agent.brief import Shown, handle
from logdoctor.failure_agent.forms import NOT_FAILED, Candidate, Findings, Quote, named
from logdoctor.failure_agent.question import Log
from logdoctor.llm.masking import Masker
from logdoctor.llm.prompts import fenced
from logdoctor.text import shown as as_on_terminal

_CANDIDATES = 4
_QUOTES = 6
_LONGEST = 2000  # characters of a quote that are looked at
_SHORTEST = 6
_TELLING = 12  # characters of a quote by which a line may be found whose number is wrong
_NEAR = 5  # lines by which a number may be wrong
_TOLD = 600  # characters of a line that is told to a model whose quote does not stand
_END = 500  # characters at the end of a line by which it is the same
_PARTLY = 2000  # characters from which on a line may be kept in part, here another one than there
_HANDLE = regex.compile(r"(?:(?P<stream>\d{1,6})\s*:\s*)?(?P<number>\d{1,12})")
_COPIED = regex.compile(r"^\s*\[\d{1,6}:\d{1,12}\]\s?")
_CUT = regex.compile(r"\.\.\.|…")
_LEAST = 4  # characters of a part of a quote that count
_PARTS = 12  # of a quote, between which something is left out
_BLANK = regex.compile(r"\s+")
_ESCAPED = regex.compile(r"\\[nrt]")
_LOOSE = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"", "\\\N{REPLACEMENT CHARACTER}")

_REASONS = (*taxonomy.REASONS, NOT_FAILED)

Places = Mapping[tuple[int, int], Shown]
"""The lines that the model was shown, by stream and number."""

_NOTHING_HIDDEN = Masker(secrets=False)


class Grounded(NamedTuple):
    """A claim with a reason of the taxonomy, and the lines that prove it; so many `failed` quotes do not stand."""

    order: int
    reason: str
    candidate: Candidate
    lines: tuple[Shown, ...]
    failed: int


def ground(findings: Findings, shown: Places, log: Log | None, masker: Masker = _NOTHING_HIDDEN) -> list[Grounded]:
    """Return the candidates with at least one quote that stands, in their order; Unknown is none of them."""
    grounded = []
    for order, candidate in enumerate(findings.candidates[:_CANDIDATES]):
        reason = named(candidate.reason, _REASONS)
        quotes = candidate.quotes[:_QUOTES]
        found = [line for quote in quotes if (line := line_of(quote, shown, masker)) is not None and _stands(line, log)]
        lines = {(line.stream, line.number): line for line in found}
        if reason not in ("", "Unknown") and lines:
            grounded.append(Grounded(order, reason, candidate, tuple(lines.values()), len(quotes) - len(found)))
    return grounded


def complaint(findings: Findings, shown: Places, log: Log | None, masker: Masker = _NOTHING_HIDDEN) -> str:
    """Return what is wrong with an answer whose first claim does not stand, in words for the model; "" when it does.

    An answer without claims says Unknown, and is fine.
    """
    if not findings.candidates or named(findings.candidates[0].reason, _REASONS) == "Unknown":
        return ""
    first = findings.candidates[0]
    if not named(first.reason, _REASONS):
        return (
            f"names the reason {_echo(first.reason)}, which is not in the list; use one of the list, or no candidates"
        )
    if ground(Findings([first]), shown, log, masker):
        return ""
    if not first.quotes:
        return "quotes no line for its first candidate; quote a line that was shown, or give no candidates"
    quotes = [f"{_echo(quote.text)} at {_echo(quote.line)}" for quote in first.quotes[:2]]
    places = dict.fromkeys(_place(quote.line, shown) for quote in first.quotes[:2])
    lines = [handle(line)[:_TOLD] for place in places if place is not None and (line := shown.get(place)) is not None]
    read = "\n".join(["What stands there is data:", fenced(lines)]) if lines else "No such line was shown."
    asked = "\nCopy from the lines shown, or give no candidates"
    return f"quotes what does not stand there: {'; '.join(quotes)}. {read}{asked}"


def line_of(quote: Quote, shown: Places, masker: Masker = _NOTHING_HIDDEN) -> Shown | None:
    """Return the line that a quote is of: the one it names, or the nearest one to it that has its text."""
    text = _COPIED.sub("", quote.text[:_LONGEST])
    if len(_plain(text)) < _SHORTEST or not any(c.isalpha() for c in text):
        return None
    if (place := _place(quote.line, shown)) is None:
        return None
    stream, number = place
    far = _NEAR if len(_plain(text)) >= _TELLING and not _CUT.search(text) else 0
    near = sorted(range(number - far, number + far + 1), key=lambda at: abs(at - number))
    lines = (shown[stream, at] for at in near if (stream, at) in shown)
    return next((line for line in lines if _holds(line, text, masker)), None)


def _holds(line: Shown, text: str, masker: Masker) -> bool:
    """Return whether a line has a text: as it was shown, as it was sent, by which time more may have been masked, or
    with what marks stand for."""
    forms = (line.text, text), (masker.mask_rest(line.text), text), (masker.unmask(line.text), masker.unmask(text))
    ways = (way for form in forms for way in zip(*map(_ways, form), strict=True))
    return any(_is_part(part, whole) for whole, part in ways)


def _is_part(text: str, whole: str) -> bool:
    """Return whether a text, in which something may be left out, is long enough and of another."""
    if len(text) >= _SHORTEST and text in whole:
        return True
    parts = [said for part in _CUT.split(text) if len(said := part.strip()) >= _LEAST]
    if not 0 < len(parts) <= _PARTS or max(map(len, parts)) < _SHORTEST:
        return False
    at = 0
    for part in parts:
        if (found := whole.find(part, at)) < 0:
            return False
        at = found + len(part)
    return True


def _place(handle: str, shown: Places) -> tuple[int, int] | None:
    """Return stream and number of a handle as models write it, the first of several; a number alone is of the only
    stream."""
    match = _HANDLE.search(handle[:40])
    if match is None:
        return None
    streams = {stream for stream, _ in shown}
    stream = int(match["stream"]) if match["stream"] else (min(streams) if len(streams) == 1 else -1)
    return stream, int(match["number"])


def _stands(line: Shown, log: Log | None) -> bool:
    """Return whether the log still has the line, where there is one that can show it."""
    kept = [] if log is None else log.window(line.name, line.number, line.number)
    return all(number != line.number or _is_same(line.raw, text) for number, text in kept)


def _is_same(one: str, other: str) -> bool:
    """Return whether two texts come from one line, with or without its colours; a part may be missing."""
    one, other = as_on_terminal(one).strip(), as_on_terminal(other).strip()
    if min(len(one), len(other)) >= _PARTLY:
        return True
    return bool(one and other) and (one[-_END:] in other or other[-_END:] in one)


def _ways(text: str) -> Iterator[str]:
    """Yield a text as it is compared: as it stands, and with escapes of blanks as these."""
    yield _plain(text)
    yield _plain(_ESCAPED.sub(" ", text))


def _plain(text: str) -> str:
    return _BLANK.sub(" ", text.translate(_LOOSE)).strip()


def _echo(words: str) -> str:
    """Return words of the model as they are told to it: short, on one line, in ASCII."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in _plain(words[:200]))
    return f'"{plain[:60]}"'
