"""A page of a log around a line: all lines as they are, or those that filter rules take folded.

What a page reads and shows is bounded, however long the lines are and however much the rules take.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from logdoctor.compress.cut import newlines_of
from logdoctor.compress.filter import compress
from logdoctor.live.view import RawLine, Run, StreamView, ends_of, lines_of
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Segment

ROWS = 500
"""Rows of a page."""
LEAD = 100
"""Rows before the line that is asked for."""
_SHOWN = 256_000  # bytes of lines on a page
_READ = 8 << 20  # bytes that are read for a page of raw lines
FOLDED_READ, FOLDED_LINES = 4 << 20, 20_000
"""Bytes and lines that are compressed for a page."""
_FAR = 1 << 62


class Row(NamedTuple):
    """The lines from number `first` to `last`: one that is shown, with the rule that takes it if one does, or many that
    are folded, with how many each rule took, the greediest first."""

    first: int
    last: int
    line: RawLine | None
    rules: tuple[tuple[str, int], ...] = ()

    @property
    def lines(self) -> int:
        """How many lines they are."""
        return self.last - self.first + 1

    @property
    def _bytes(self) -> int:
        return len(self.line.head) + len(self.line.tail) if self.line else 0


class Page(NamedTuple):
    """The rows of a page. `full` is False when it ends for another reason than that it has no room: because the stream
    ends, or because enough was read for it."""

    rows: list[Row]
    full: bool

    @property
    def first(self) -> int:
        """The number of its first line; 0 when it has none."""
        return self.rows[0].first if self.rows else 0

    @property
    def last(self) -> int:
        """The number of its last line; 0 when it has none."""
        return self.rows[-1].last if self.rows else 0


Source = Callable[[int, int], Iterator[Row]]
"""The rows of the lines from one number to another, until enough was read."""


def raw(view: StreamView, at: int, before: int = LEAD, after: int = ROWS) -> Page:
    """All lines around line `at`: at most so many rows before it, and so many from it on."""

    def rows(first: int, last: int) -> Iterator[Row]:
        for run in _some(view.runs(first, last), _READ):
            for line in lines_of(run):
                yield Row(line.number, line.number, line)

    return _page(rows, view.first_before(at, before, _READ), at, before, after)


def folded(
    view: StreamView,
    scanner: Scanner,
    at: int,
    before: int = LEAD,
    after: int = ROWS,
    opened: tuple[int, int] = (0, 0),
) -> Page:
    """What compression leaves around line `at`, what it takes folded but for the `opened` lines."""

    def rows(first: int, last: int) -> Iterator[Row]:
        return _joined(
            row
            for run in _some(view.runs(first, min(last, first + FOLDED_LINES - 1)), FOLDED_READ)
            for row in _rows(run, scanner, opened)
        )

    return _page(rows, view.first_before(at, FOLDED_LINES // 2, FOLDED_READ // 2), at, before, after)


def _some(runs: Iterator[Run], most: int) -> Iterator[Run]:
    """Runs until so many bytes were read."""
    read = 0
    for run in runs:
        yield run
        read += len(run.data)
        if read >= most:
            return


def _page(rows: Source, first: int, at: int, before: int, after: int) -> Page:
    lead = _last_that_fit(list(rows(first, at - 1)) if before and first < at else [], before)
    found, full = _first_that_fit(rows(at, _FAR), after, _SHOWN - sum(row._bytes for row in lead))
    return Page(lead + found, full)


def _last_that_fit(rows: list[Row], most: int) -> list[Row]:
    """The last rows: at most so many, and no more bytes than half of a page when others follow."""
    room, kept = _SHOWN if most >= ROWS else _SHOWN // 2, 0
    for row in reversed(rows[-most:]):
        room -= row._bytes
        if room < 0:
            break
        kept += 1
    return rows[len(rows) - max(kept, 1) :] if rows else []


def _first_that_fit(rows: Iterator[Row], most: int, room: int) -> tuple[list[Row], bool]:
    """The first rows, and whether there was no room for more; one always fits when any is wanted."""
    found: list[Row] = []
    if most:
        for row in rows:
            room -= row._bytes
            if found and (len(found) >= most or room < 0):
                return found, True
            found.append(row)
    return found, False


def _rows(run: Run, scanner: Scanner, opened: tuple[int, int]) -> Iterator[Row]:
    """The rows of a run: its lines that no rule takes, and between them what the rules take."""
    if run.long is not None:  # no rule takes so long a line
        yield Row(run.line, run.line, run.long)
        return
    residual = compress(Segment("", run.data, run.offset, run.line, newlines_of(run.data)), scanner)
    owner = residual.scan.owner[: run.lines]
    begins = np.concatenate(([0], residual.segment.newlines + 1)) + run.offset
    numbers = np.arange(run.line, run.line + run.lines)
    done = 0
    for place in np.flatnonzero((owner < 0) | (numbers >= opened[0]) & (numbers <= opened[1])).tolist():
        if place > done:
            yield _fold(run.line, done, place, owner, scanner)
        text, number = residual.raw(place), run.line + place
        line = RawLine(number, int(begins[place]), len(text), *ends_of(text))
        yield Row(number, number, line, () if owner[place] < 0 else ((scanner.book.filters[owner[place]].id, 1),))
        done = place + 1
    if done < run.lines:
        yield _fold(run.line, done, run.lines, owner, scanner)


def _fold(line: int, begin: int, end: int, owner: npt.NDArray[np.int32], scanner: Scanner) -> Row:
    rules, counts = np.unique(owner[begin:end], return_counts=True)
    taken = {scanner.book.filters[rule].id: count for rule, count in zip(rules.tolist(), counts.tolist(), strict=True)}
    return Row(line + begin, line + end - 1, None, _greediest(taken))


def _greediest(taken: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(taken.items(), key=lambda rule: (-rule[1], rule[0])))


def _joined(rows: Iterator[Row]) -> Iterator[Row]:
    """The rows with folds that follow each other made one."""
    held: Row | None = None
    for row in rows:
        if held is not None and row.line is None:
            rules = _greediest(dict(Counter(dict(held.rules)) + Counter(dict(row.rules))))
            held = held._replace(last=row.last, rules=rules)
            continue
        if held is not None:
            yield held
        held = row if row.line is None else None
        if row.line is not None:
            yield row
    if held is not None:
        yield held
