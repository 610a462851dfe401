"""Segment in, residual out: which lines the filter rules take, and how many each rule took (law 1)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from logdoctor.compress.cut import newlines_of
from logdoctor.rules.scanner import Scan, Scanner
from logdoctor.rules.schema import FilterRule
from logdoctor.text import ANSI
from logdoctor.types import RuleCount, Segment

Ints = npt.NDArray[np.int64]


class Residual(NamedTuple):
    """The result of matching a segment.

    `text` is the segment without colour codes; line i of it is `text[starts[i]:ends[i]]` and has the number
    `segment.line + i`. `kept` are the indexes of lines that no filter rule takes.
    """

    segment: Segment
    text: bytes
    starts: Ints
    ends: Ints
    scan: Scan
    kept: Ints

    def line(self, place: int) -> bytes:
        """Return a line without colour codes and newline."""
        return self.text[self.starts[place] : self.ends[place]]

    def raw(self, place: int) -> bytes:
        """Return a line as it is in the stream, without its newline."""
        newlines = self.segment.newlines
        begin = int(newlines[place - 1]) + 1 if place else 0
        end = int(newlines[place]) if place < len(newlines) else len(self.segment.data)
        return self.segment.data[begin:end]

    def raws(self, places: Ints, most: int | None = None) -> list[bytes]:
        """Return lines as they are in the stream, without their newlines: of each at most the first `most` bytes."""
        data, newlines = self.segment.data, self.segment.newlines
        begins = np.where(places > 0, newlines[places - 1] + 1, 0) if len(newlines) else np.zeros(len(places), np.int64)
        ends = np.append(newlines, len(data))[places]
        bounds = zip(begins.tolist(), ends.tolist(), strict=True)
        return [data[begin : end if most is None else min(end, begin + most)] for begin, end in bounds]


def compress(segment: Segment, scanner: Scanner) -> Residual:
    """Match all lines of a segment. A piece of a long line is searched for evidence but never taken."""
    text, newlines = segment.data, segment.newlines
    if b"\x1b" in text:
        text = ANSI.sub(b"", text)
        newlines = newlines_of(text)
    scan = scanner.scan(text, newlines)
    ends = newlines if text.endswith(b"\n") else np.append(newlines, len(text))
    starts = np.concatenate(([0], newlines + 1))[: len(ends)]
    if segment.piece is not None:
        scan.owner[:] = scan.shadow[:] = -1
    return Residual(segment, text, starts, ends, scan, np.flatnonzero(scan.owner[: len(ends)] < 0))


def without_learned(residual: Residual, scanner: Scanner) -> Residual:
    """Return the residual as if learned rules took no lines; their metric readings are kept."""
    owner = residual.scan.owner
    owner[owner >= scanner.book.shipped_filters] = -1
    return residual._replace(kept=np.flatnonzero(owner[: len(residual.ends)] < 0))


class RuleTally:
    """Counts of lines taken and left in the segments of a stream; `watched` is what rules in shadow would take."""

    def __init__(self, rules: int) -> None:
        self.lines, self.first, self.last, self.watched = (np.zeros(rules, np.int64) for _ in range(4))
        self.lines_in = self.lines_kept = self.bytes_in = self.bytes_kept = 0

    def add(self, other: "RuleTally", shift: int = 0) -> None:
        """Add the counts of a later part, whose line numbers are shifted by `shift`."""
        fresh = (self.lines == 0) & (other.lines > 0)
        self.first[fresh] = other.first[fresh] + shift
        again = other.lines > 0
        self.last[again] = other.last[again] + shift
        self.lines += other.lines
        self.watched += other.watched
        self.lines_in += other.lines_in
        self.lines_kept += other.lines_kept
        self.bytes_in += other.bytes_in
        self.bytes_kept += other.bytes_kept

    def grow(self, rules: int) -> None:
        """Make room for rules that were appended to the book."""
        more = (0, rules - len(self.lines))
        self.lines, self.first, self.last, self.watched = (
            np.pad(column, more) for column in (self.lines, self.first, self.last, self.watched)
        )

    def counts(self, rules: Sequence[FilterRule]) -> dict[str, RuleCount]:
        """Return for each rule that took lines: how many, the first and the last."""
        return {
            rules[rule].id: RuleCount(int(self.lines[rule]), int(self.first[rule]), int(self.last[rule]))
            for rule in np.flatnonzero(self.lines).tolist()
        }


def tally(residual: Residual, rules: int) -> RuleTally:
    """Return the counts of one segment: bytes include newlines and colour codes."""
    segment = residual.segment
    owner = residual.scan.owner[: len(residual.ends)]
    taken = np.flatnonzero(owner >= 0)
    account = RuleTally(rules)
    account.lines += np.bincount(owner[taken], minlength=rules)
    account.first[owner[taken[::-1]]] = taken[::-1] + segment.line
    account.last[owner[taken]] = taken + segment.line
    shadow = residual.scan.shadow[: len(residual.ends)]
    account.watched += np.bincount(shadow[shadow >= 0], minlength=rules)
    account.lines_in = segment.lines
    account.bytes_in = len(segment.data)
    account.lines_kept = segment.lines - len(taken)
    newlines = segment.newlines
    ends = newlines + 1 if segment.data.endswith(b"\n") else np.append(newlines + 1, len(segment.data))
    widths = np.diff(ends, prepend=0)
    account.bytes_kept = len(segment.data) - int(widths[taken].sum())
    return account
