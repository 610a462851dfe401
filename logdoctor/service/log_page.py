"""A page of a log around a line: all lines, or with those that filter rules take folded.

What a page reads and shows is bounded, whatever the length of lines and however much the rules take.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from logdoctor.compress.cut import newlines_of
from logdoctor.compress.filter import compress
from logdoctor.rules.scanner import Scanner
from logdoctor.service.view import RawLine, Run, StreamView, ends_of, lines_of
from logdoctor.text import decode
from logdoctor.types import Segment

ROWS = 500
"""Rows of a page."""
LEAD = 8
"""Rows before the requested line: few enough that it is on screen when the page opens."""
BESIDE = 1200
"""Characters shown of a line that is neither requested nor cited."""
_LEAD_SHOWN = 320  # bytes of text before the requested line: about 9 lines of a phone
_PHONE, _FOLD_SHOWN = 36, 108  # bytes that fill one line of a phone, and the text of a fold
_WEIGHT = 125_000  # bytes of HTML of the rows of a page
_ROW, _RULE = 110, 100  # bytes of HTML around the text of a line, and per rule that takes lines
_ESCAPED = bytes(range(32)) + b"\"&'<>\x7f"  # bytes that take up to five more in HTML
_READ = 8 << 20  # bytes that are read for a page of raw lines
_PORTION = 128 << 10  # bytes that are compressed at a time: a page seldom needs a MiB
_NEAR = 400  # lines before a page that are compressed first
_LEAD_LINES = 1200  # most lines compressed for the few rows before the requested line
FOLDED_READ, FOLDED_LINES = 2 << 20, 10_000
"""Bytes and lines that are compressed for a page."""
_FAR = 1 << 62


class PageRow(NamedTuple):
    """Lines `first` to `last`: one shown line with the rule that takes it, if any, or folded lines with counts per
    rule, largest first."""

    first: int
    last: int
    line: RawLine | None
    rules: tuple[tuple[str, int], ...] = ()

    @property
    def lines(self) -> int:
        """The number of lines."""
        return self.last - self.first + 1

    @property
    def text(self) -> bytes:
        """Roughly the text shown of its line."""
        return decode(self.line.head[: 4 * BESIDE])[:BESIDE].encode() if self.line else b""

    @property
    def weight(self) -> int:
        """Roughly the bytes of HTML it makes."""
        text = self.text
        escaped = len(text) - len(text.translate(None, _ESCAPED))
        rules = 0 if self.line else 2 + min(len(self.rules), 4)  # a run of shown lines names its rule once
        return _ROW + len(text) + 4 * escaped + _RULE * rules


class LogPage(NamedTuple):
    """The rows of a page. `full` is False when it ends for another reason than space: the stream ends, or enough was
    read."""

    rows: list[PageRow]
    full: bool

    @property
    def first(self) -> int:
        """The number of its first line; 0 if it is empty."""
        return self.rows[0].first if self.rows else 0

    @property
    def last(self) -> int:
        """The number of its last line; 0 if it is empty."""
        return self.rows[-1].last if self.rows else 0


Source = Callable[[int, int], Iterator[PageRow]]
"""Yields the rows between two line numbers, until enough was read."""
Fitting = Callable[[list[PageRow], int], list[PageRow]]
"""Returns the last of some rows, within a number and the available space."""


def raw(view: StreamView, at: int, before: int = LEAD, after: int = ROWS) -> LogPage:
    """Return all lines around line `at`: `before` rows before it and `after` from it on."""

    def rows(first: int, last: int) -> Iterator[PageRow]:
        for run in _some(view.runs(first, last), _READ):
            for line in lines_of(run):
                yield PageRow(line.number, line.number, line)

    first = view.first_before(at, before, _READ)
    return _page(rows, list(rows(first, at - 1)) if before and first < at else [], at, before, after)


def folded(
    view: StreamView,
    scanner: Scanner,
    at: int,
    before: int = LEAD,
    after: int = ROWS,
    opened: tuple[int, int] = (0, 0),
) -> LogPage:
    """Return the page around line `at`, folding what rules take except the `opened` lines."""

    def rows(first: int, last: int) -> Iterator[PageRow]:
        return _joined(
            row
            for run in _some(view.runs(first, min(last, first + FOLDED_LINES - 1)), FOLDED_READ)
            for part in _portions(run)
            for row in _rows(part, scanner, opened)
        )

    return _page(rows, _folded_before(view, rows, at, before, after) if before else [], at, before, after)


def _folded_before(view: StreamView, rows: Source, at: int, most: int, after: int) -> list[PageRow]:
    """Return the rows before line `at`, at least as many as fit; nearby lines are read first."""
    fitting, farthest = _fitting(after), _LEAD_LINES if after else FOLDED_LINES // 2
    found: list[PageRow] = []
    near, begin = _NEAR, at
    while len(fitting(found, most)) == len(found) and begin > 1 and near <= farthest:
        first = view.first_before(at, near, FOLDED_READ // 2)
        if first < begin:
            found = list(_joined(iter([*rows(first, begin - 1), *found])))
        near, begin = near * 3, min(first, begin)
    return found


def _some(runs: Iterator[Run], most: int) -> Iterator[Run]:
    """Yield runs until `most` bytes were read."""
    read = 0
    for run in runs:
        yield run
        read += len(run.data)
        if read >= most:
            return


def _portions(run: Run) -> Iterator[Run]:
    """Split a run into parts of whole lines, each of about `_PORTION` bytes."""
    line, begin = run.line, 0
    while len(run.data) - begin > _PORTION and (end := run.data.find(b"\n", begin + _PORTION) + 1):
        data = run.data[begin:end]
        part = Run(line, run.offset + begin, data, data.count(b"\n"))
        yield part
        line, begin = line + part.lines, end
    if begin < len(run.data) or run.long is not None:
        yield Run(line, run.offset + begin, run.data[begin:], run.lines - (line - run.line), run.long)


def _page(rows: Source, earlier: list[PageRow], at: int, before: int, after: int) -> LogPage:
    lead = _fitting(after)(earlier, before)
    found, full = _first_that_fit(rows(at, _FAR), after, _WEIGHT - sum(row.weight for row in lead))
    return LogPage(lead + found, full)


def _fitting(after: int) -> Fitting:
    """Return how to choose the rows before a line: a few if rows from it on are wanted, else a page."""
    return _last_that_fit if after else _last_page


def _last_that_fit(rows: list[PageRow], most: int) -> list[PageRow]:
    """Return the last rows, few enough to keep what follows on screen."""
    room, kept = _LEAD_SHOWN, 0
    for row in reversed(rows[-most:]):
        room -= max(len(row.text), _FOLD_SHOWN if row.line is None else _PHONE)
        if room < 0:
            break
        kept += 1
    return rows[len(rows) - kept :]


def _last_page(rows: list[PageRow], most: int) -> list[PageRow]:
    """Return the last rows that fit on a page; at least one."""
    room, kept = _WEIGHT, 0
    for row in reversed(rows[-most:]):
        room -= row.weight
        if room < 0:
            break
        kept += 1
    return rows[len(rows) - max(kept, 1) :] if rows else []


def _first_that_fit(rows: Iterator[PageRow], most: int, room: int) -> tuple[list[PageRow], bool]:
    """Return the first rows, and whether more did not fit; at least one if any is wanted."""
    found: list[PageRow] = []
    if most:
        for row in rows:
            room -= row.weight
            if found and (len(found) >= most or room < 0):
                return found, True
            found.append(row)
    return found, False


def _rows(run: Run, scanner: Scanner, opened: tuple[int, int]) -> Iterator[PageRow]:
    """Yield the rows of a run: lines that no rule takes, and folds of the others between them."""
    if run.long is not None:  # no rule takes a line this long
        yield PageRow(run.line, run.line, run.long)
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
        yield PageRow(number, number, line, () if owner[place] < 0 else ((scanner.book.filters[owner[place]].id, 1),))
        done = place + 1
    if done < run.lines:
        yield _fold(run.line, done, run.lines, owner, scanner)


def _fold(line: int, begin: int, end: int, owner: npt.NDArray[np.int32], scanner: Scanner) -> PageRow:
    rules, counts = np.unique(owner[begin:end], return_counts=True)
    taken = {scanner.book.filters[rule].id: count for rule, count in zip(rules.tolist(), counts.tolist(), strict=True)}
    return PageRow(line + begin, line + end - 1, None, _greediest(taken))


def _greediest(taken: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(taken.items(), key=lambda rule: (-rule[1], rule[0])))


def _joined(rows: Iterator[PageRow]) -> Iterator[PageRow]:
    """Yield the rows with adjacent folds merged."""
    held: PageRow | None = None
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
