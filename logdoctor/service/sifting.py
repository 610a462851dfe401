"""Searches a log for lines that match a pattern or that a rank printed, within a time limit.

A longer search continues where the last one stopped.
"""

import functools
import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import regex

from logdoctor.compress.cut import newlines_of
from logdoctor.diagnose.suspects import named_rank, rank_of_stream
from logdoctor.errors import RuleError
from logdoctor.rules.match import Matcher
from logdoctor.rules.pattern_size import require_small
from logdoctor.service.view import HEAD, RawLine, Run, StreamView, ends_of
from logdoctor.text import ANSI, decode, origin, shown

MAX_PATTERN = 300
"""Characters of a pattern, at most."""
AROUND = 2
"""Lines of context before and after a hit."""
_SEARCHED = 64 << 20  # bytes of one line that are searched
_OVERLAP = 4096  # bytes of a long line that are searched again with its next part
_BEFORE, _AFTER = 600, 200  # bytes of a long line shown around a hit

Ints = npt.NDArray[np.int64]


class Sieve(NamedTuple):
    """The search: a pattern, a rank, or both. `own` is the rank of lines that name none; `mark` matches in every line
    of the rank and quickly rules out most others."""

    matcher: Matcher
    rank: int | None
    own: int | None = None
    mark: Matcher | None = None

    def ends(self, text: bytes) -> Ints:
        """Return where matches of the pattern, or possible names of the rank, end, in order."""
        return np.sort(self.matcher.scan(text)[1])

    def marked(self, text: bytes) -> Ints | None:
        """Return where possible names of the rank end, in order; None when `mark` is not used."""
        return None if self.mark is None else np.sort(self.mark.scan(text)[1])

    def fits(self, line: bytes) -> bool:
        """Return whether a line is of the wanted rank, if any."""
        return self.rank is None or rank_of(line, self.own) == self.rank


class Sifted(NamedTuple):
    """The result of a search from line `first` to `last`: the numbers of matching lines, and those lines with context.
    `next` is the line to continue from, None at the end of the stream; `bytes` were searched."""

    first: int
    last: int
    hits: list[int]
    lines: list[RawLine]
    next: int | None
    bytes: int


def sieve(words: str, is_pattern: bool, ignore_case: bool, rank: int | None, stream: str = "") -> Sieve:
    """Return the search for words or a pattern, for a rank, or both; the stream's name may give its rank. `RuleError`,
    quoting the given words, for a pattern that may not run in linear time or compiles too slowly."""
    own = rank_of_stream(stream)
    if not words:
        return Sieve(_matcher(_ANY if rank == own else _mark(rank or 0)), rank, own)
    if len(words) > MAX_PATTERN:
        raise RuleError("the pattern", f"has more than {MAX_PATTERN} characters", "Use a shorter one.")
    if is_pattern:
        require_small(words)
    source = (words if is_pattern else regex.escape(words, literal_spaces=True)).replace("\x00", r"\x00")
    mark = None if rank in (None, own) else _matcher(_mark(rank or 0))
    return Sieve(_compiled(f"(?i){source}" if ignore_case else source, words), rank, own, mark)


def _compiled(source: str, words: str) -> Matcher:
    """Compile a pattern; `RuleError` quotes the given words when it is unusable."""
    thing = f'pattern "{words}"'
    if (len(source) - len(source.rstrip("\\"))) % 2:
        raise RuleError(thing, "it ends with a single backslash", "Write two for a backslash.")
    try:
        return _matcher(source)
    except RuleError as error:
        if "empty buffer" in error.cause:
            cause = "it also matches where there is no text"
            raise RuleError(thing, cause, "Make it match at least one character.") from error
        said = regex.search(r"\((.*?)(?: starting at index \d+| at index \d+)?\.?\)$", error.cause)
        cause = f"it cannot be searched for ({said[1]})" if said else "it cannot be searched for"
        raise RuleError(thing, cause, "Correct it, or search for the words as they are.") from error


@functools.lru_cache(maxsize=64)
def _matcher(pattern: str) -> Matcher:
    return Matcher([pattern])


_ANY = r"(?:^)[^\n]"  # once per line with text


def _mark(rank: int) -> str:
    """Return a pattern that matches every line of a rank, and some others."""
    number = f"0*{rank}"
    named = rf"[Rr]ank[ :_]{{0,2}}{number}(?:[^0-9A-Za-z_\n]|$)"
    return rf"{named}|default{number}\]|,{number}\]<std|(?:^|[^0-9\n]){number}:[ \t]"


def rank_of(line: bytes, own: int | None = None) -> int | None:
    """Return the rank of a raw line, as in diagnosis: from its prefix, else its message, else the task of `srun
    --label`, else the local rank, else its stream."""
    where = origin(shown(decode(line[:HEAD])))
    told = (where.rank, named_rank(where.message), where.task, where.local_rank, own)
    return next((one for one in told if one is not None), None)


def sift(view: StreamView, first: int, wanted: Sieve, most: int, seconds: float, around: int = AROUND) -> Sifted:
    """Return about `most` matching lines from `first` on, within `seconds`; at least one run of lines, about a MiB, is
    searched."""
    deadline = time.monotonic() + seconds
    hits: list[int] = []
    lines: dict[int, RawLine] = {}
    read, last = 0, first - 1
    for run in view.runs(first, 1 << 62):
        read += run.long.size if run.long else len(run.data)
        found = _in_long_line(view, run.long, wanted) if run.long else _in_run(run, wanted, most - len(hits), around)
        hits += found.hits
        lines |= found.lines
        last = found.last
        if len(hits) >= most or time.monotonic() > deadline:
            break
    more = last < view.newlines or (last == view.newlines and last < view.count())
    return Sifted(first, last, hits, [lines[number] for number in sorted(lines)], last + 1 if more else None, read)


class _Found(NamedTuple):
    hits: list[int]
    lines: dict[int, RawLine]
    last: int


def _in_run(run: Run, wanted: Sieve, most: int, around: int) -> _Found:
    """Return the first matching lines of a run, at most `most`, with context."""
    last = run.line + run.lines - 1
    text = ANSI.sub(b"", run.data) if b"\x1b" in run.data else run.data
    marked = wanted.marked(text)
    if (marked is not None and not len(marked)) or not len(hit_ends := wanted.ends(text)):
        return _Found([], {}, last)
    stops = newlines_of(text)
    places, firsts = np.unique(np.searchsorted(stops, hit_ends - 1), return_index=True)
    if marked is not None:  # reading the rank of a line takes far longer than finding a mark
        may = np.isin(places, np.searchsorted(stops, marked - 1))
        places, firsts = places[may], firsts[may]
    stops = stops if text.endswith(b"\n") else np.append(stops, len(text))
    starts = np.concatenate(([0], stops[:-1] + 1))
    hits: list[int] = []
    lines: dict[int, RawLine] = {}
    for place, hit in zip(places.tolist(), hit_ends[firsts].tolist(), strict=True):
        if place >= len(stops) or not wanted.fits(text[starts[place] : min(stops[place], starts[place] + HEAD)]):
            continue
        if len(hits) >= most:
            last = hits[-1]
            break
        hits.append(run.line + place)
        for near in range(max(place - around, 0), min(place + around + 1, run.lines)):
            lines.setdefault(run.line + near, _line(run, text, near, starts, stops))
        line = lines[run.line + place]
        if line.size > HEAD:
            begin = max(int(starts[place]), hit - _BEFORE)
            lines[line.number] = line._replace(head=text[begin : min(hit + _AFTER, int(stops[place]))], tail=b"")
    return _Found(hits, lines, last)


def _line(run: Run, text: bytes, place: int, starts: Ints, stops: Ints) -> RawLine:
    """Return a line of a run without colours; its offset is only approximate when there were colours."""
    line = text[starts[place] : stops[place]]
    return RawLine(run.line + place, run.offset + int(starts[place]), len(line), *ends_of(line))


def _in_long_line(view: StreamView, line: RawLine, wanted: Sieve) -> _Found:
    """Return a line too long for memory, if its first 64 MiB match."""
    before = b""
    if wanted.fits(line.head):
        for part in view.between(line.offset, min(line.offset + line.size, line.offset + _SEARCHED)):
            text = before + part
            if len(ends := wanted.ends(text)):
                hit = int(ends[0])
                around = text[max(hit - _BEFORE, 0) : hit + _AFTER]
                return _Found([line.number], {line.number: line._replace(head=around, tail=b"")}, line.number)
            before = text[-_OVERLAP:]
    return _Found([], {}, line.number)
