"""Random access to the whole log of an attempt: lines by number, or lines that match a pattern.

Bytes and seconds are limited, because a model may ask for it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from logdoctor.compress.cut import newlines_of
from logdoctor.rules.match import Matcher
from logdoctor.rules.pattern_size import require_small
from logdoctor.text import ANSI, decode

_MOST_LINES = 400  # lines of one window
_MOST_TEXT = 8192  # bytes of a line that are returned, its last ones, as of lines that are kept
_MOST_PATTERN = 300  # the longest pattern, in characters
_LONGEST = 4 << 20  # the longest line held, in bytes

Ends = npt.NDArray[np.int64]

Chunks = Callable[[], Iterator[bytes]]
"""Yields the bytes of a stream from its beginning, in pieces."""
Hit = tuple[int, str, list[str]]
"""A line that matches: its number, its text, the lines before it."""


class MatchedLines(NamedTuple):
    """The first and the last lines that a pattern matches, in order, as (stream, number, text); how many match in all,
    and whether the whole log was read."""

    lines: list[tuple[str, int, str]]
    matches: int
    is_all: bool


class LookLimits(NamedTuple):
    """What one request may read, in bytes and seconds."""

    read: int = 512 << 20
    seconds: float = 2.0


class WholeLog:
    """The streams of an attempt, by name."""

    def __init__(
        self,
        chunks: Mapping[str, Chunks],
        limits: LookLimits = LookLimits(),  # noqa: B008 - immutable
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._chunks, self._limits, self._clock = chunks, limits, clock

    def streams(self) -> list[str]:
        """Return the stream names."""
        return list(self._chunks)

    def window(self, stream: str, first: int, last: int) -> list[tuple[int, str]]:
        """Return lines `first` to `last` of a stream, at most 400, as (number, text)."""
        last = min(last, first + _MOST_LINES - 1)
        found: list[tuple[int, str]] = []
        for number, block, ends in self._blocks(stream, self._deadline(), []) if stream in self._chunks else ():
            begin, end = max(first, number), min(last, number + len(ends) - 1)
            found += [(line, _text(block, ends, line - number)) for line in range(begin, end + 1)]
            if number + len(ends) > last:
                break
        return found

    def grep(self, pattern: str, stream: str | None, most: int) -> MatchedLines:
        """Return the matching lines of one or all streams: if more than `most`, the first and the last half.

        Raise `RuleError` for a pattern that would take long to compile, or that Hyperscan refuses because it might not
        be linear in time.
        """
        pattern = pattern[:_MOST_PATTERN]
        require_small(pattern)
        matcher = Matcher([pattern])
        first: list[tuple[str, int, str]] = []
        last: deque[tuple[str, int, str]] = deque(maxlen=most - most // 2)
        count, unread, deadline = 0, list[str](), self._deadline()
        for name in self._chunks if stream is None else [stream] if stream in self._chunks else []:
            for number, block, ends in self._blocks(name, deadline, unread):
                hit = np.unique(np.searchsorted(ends, matcher.scan(block)[1] - 1)).tolist()
                left = most // 2 - len(first)
                first += [(name, number + place, _text(block, ends, place)) for place in hit[:left]]
                rest = hit[left:][-(most - most // 2) :]
                last.extend((name, number + place, _text(block, ends, place)) for place in rest)
                count += len(hit)
        return MatchedLines([*first, *last], count, not unread)

    def sought(self, pattern: str | None, stream: str, most: int, lead: int) -> tuple[int, list[Hit], int, bool]:
        """Return how many lines of a stream match (without a pattern all), the first and last `most` of them, each with
        up to `lead` lines before it, how many were read, and whether these are all. It raises what `grep` raises."""
        require_small(pattern or "")
        matcher, deadline = Matcher([pattern]) if pattern else None, self._deadline()
        hits: list[Hit] = []
        tail: list[str] = []
        matching = lines = 0
        unread: list[str] = []
        for number, block, ends in self._blocks(stream, deadline, unread):
            text = partial(_text, block, ends)
            places = np.unique(np.searchsorted(ends, matcher.scan(block)[1] - 1)) if matcher else np.arange(len(ends))
            for place in sorted({*places[:most].tolist(), *places[-most:].tolist()}):
                before = [*tail, *map(text, range(max(0, place - lead), place))][-lead:]
                hits.append((number + place, text(place), before))
            hits = [*hits[:most], *hits[most:][-most:]]
            tail = [*tail, *map(text, range(max(0, len(ends) - lead), len(ends)))][-lead:]
            matching, lines = matching + len(places), number + len(ends) - 1
        return matching, hits, lines, not unread

    def _deadline(self) -> float:
        return self._clock() + self._limits.seconds

    def _blocks(self, name: str, deadline: float, unread: list[str]) -> Iterator[tuple[int, bytes, Ends]]:
        """Yield blocks of whole lines without colours: number of the first line, bytes, line ends. Overlong lines are
        truncated; `unread` gets the name of a stream that is not read to its end."""
        number, rest, left = 1, b"", self._limits.read
        for chunk in self._chunks[name]():
            left -= len(chunk)
            if end := chunk.rfind(b"\n") + 1:
                block, rest = ANSI.sub(b"", rest + chunk[:end]), chunk[end:]
                ends = newlines_of(block)
                yield number, block, ends
                number += len(ends)
            else:
                rest += chunk[: max(0, _LONGEST - len(rest))]
            if left <= 0 or self._clock() > deadline:
                unread.append(name)
                return
        if rest:
            block = ANSI.sub(b"", rest) + b"\n"
            yield number, block, newlines_of(block)


def _text(block: bytes, ends: Ends, place: int) -> str:
    begin = int(ends[place - 1]) + 1 if place else 0
    text = block[begin : int(ends[place])]
    if len(text) > _MOST_TEXT:  # a word that is cut in two may be a secret without its label
        text = text[-_MOST_TEXT:].partition(b" ")[2] or text[-_MOST_TEXT:]
    return decode(text)
