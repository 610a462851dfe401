"""What a writer did after an error: it went on as before, began anew, or wrote nothing more.

A line is of a kind: its first words, without numbers, paths and names with numbers. What a program prints again and
again (steps, requests, samples) is its rhythm. An error ended its writer when the rhythm stops; one after which it goes
on was caught.
"""

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import regex

from logdoctor.diagnose.findings import LogFinding, StreamReading
from logdoctor.diagnose.fingerprint import normalised
from logdoctor.text import origin, shown

_WORDS = regex.compile(r"[A-Za-z]{2,}|<\w+>")
_KIND = 4  # words
_LETTERS = regex.compile(r"[A-Za-z]{2,}")
_AGAIN = 2  # lines of a kind that make a rhythm
_WENT_ON = {True: 1, False: 3}
"""Lines of the rhythm after an error that show that it was caught: whether a logger printed it, or Python itself."""
_LOOKED_AT = 400  # lines after an error, the last ones
_OPENING = 2  # words of a first line that tell one start from another
_BEGUN = 10  # lines from such a line on that show that it was another start, and not another rank
_REFUSED = regex.compile(r'HTTP/[\d.]+" 5\d\d\b')
"""A request that a server could not answer: no sign that it goes on."""
_STATE = regex.compile(r"(?<![\d/])(?P<done>\d{1,9})/(?P<total>\d{2,9}) \[")
_STATES = 10  # states of a bar, each further than all before the error


class _Ordinary(NamedTuple):
    """A line without a sign of trouble: its number, writer, kind, and its text as it was printed."""

    number: int
    channel: str
    kind: str
    text: str

    @property
    def is_bar(self) -> bool:
        """Whether it holds states of a bar: the last one may be drawn again when the program dies."""
        return _STATE.search(self.text) is not None


class Aftermath:
    """What the writers of one stream did after any of its lines."""

    def __init__(self, reading: StreamReading) -> None:
        self._reading = reading

    def went_on(self, finding: LogFinding) -> bool:
        """Return whether the writer of an error went on as before, or began anew."""
        chain = next((one for one in self._reading.chains if one.first <= finding.line <= one.last), None)
        first, last = (chain.first, chain.last) if chain else (finding.line, finding.line)
        is_logged = finding.rule is None and finding.origin.level is not None
        return self.goes_on(first, last, finding.origin.channel, is_logged)

    def goes_on(self, first: int, last: int, channel: str, is_logged: bool) -> bool:
        """Return whether a writer went on as before these lines, which a logger printed or not, or began anew."""
        after = [line for line in self._after(last) if line.channel == channel]
        going = sum(not line.is_bar and self._second.get((channel, line.kind), first) < first for line in after)
        if going >= _WENT_ON[is_logged] or self._bar_moves(first, after):
            return True
        return self._begins_anew(first, after)

    @cached_property
    def _lines(self) -> list[_Ordinary]:
        return list(self._ordinary())

    def _ordinary(self) -> Iterator[_Ordinary]:
        trouble = {line.number for line, _ in self._reading.lines if line.strong or line.weak or line.rules}
        inside = [range(chain.first, chain.last + 1) for chain in self._reading.chains]
        for number, text in sorted(self._reading.texts.items()):
            is_trouble = number in trouble or _REFUSED.search(text) or any(number in chain for chain in inside)
            if not is_trouble:
                where = origin(shown(text))
                words = _WORDS.findall(normalised(where.message))[:_KIND]
                is_inside = where.message[:1].isspace() and where.level is None and not _STATE.search(text)
                if words and not is_inside:
                    yield _Ordinary(number, where.channel, " ".join(words), text)

    @cached_property
    def _second(self) -> dict[tuple[str, str], int]:
        """The numbers of the lines with which each kind of a writer became a rhythm."""
        seen: dict[tuple[str, str], int] = {}
        second: dict[tuple[str, str], int] = {}
        for line in self._lines:
            key = line.channel, line.kind
            seen[key] = seen.get(key, 0) + 1
            if seen[key] == _AGAIN:
                second[key] = line.number
        return second

    @cached_property
    def _opening(self) -> str:
        """The kind of the first line, if that tells one start from another; ""."""
        first = self._lines[0].kind if self._lines else ""
        return first if len(_LETTERS.findall(first)) >= _OPENING else ""

    def _begins_anew(self, first: int, after: list[_Ordinary]) -> bool:
        """Return whether the first line of the stream, which came once before an error, comes again and others do."""
        opening = self._opening
        before = sum(line.kind == opening for line in self._lines if line.number < first)
        again = next((at for at, line in enumerate(after) if line.kind == opening), len(after))
        return bool(opening) and before == 1 and len(after) - again >= _BEGUN

    def _after(self, number: int) -> list[_Ordinary]:
        begin = bisect_right(self._lines, number, key=lambda line: line.number)
        return self._lines[max(begin, len(self._lines) - _LOOKED_AT) :]

    def _bar_moves(self, first: int, after: list[_Ordinary]) -> bool:
        """Return whether a bar moves on after an error that stands in the way of its states."""
        furthest = max((done for line in self._lines if line.number < first for done in _states(line.text)), default=0)
        return len({done for line in after for done in _states(line.text) if done > furthest}) >= _STATES


def _states(text: str) -> Iterator[int]:
    """Yield how far a bar came in each of its states."""
    for state in _STATE.finditer(text):
        yield int(state["done"])
