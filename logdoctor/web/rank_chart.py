"""The chart that shows which rank failed when, as SVG."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
from markupsafe import Markup

from logdoctor.text import harmless
from logdoctor.types import RankError
from logdoctor.web import svg
from logdoctor.web.axes import Scale

_ROWS = 16  # of a chart
_OWN = 2  # ranks with the same error that keep rows of their own when there are too many
_EDGE = 0.02  # of the width, so that a mark at the end is not cut
_SHAPES = {
    "cause": ("c4", Markup('<path class="{}" d="M0-7 7 0 0 7-7 0Z"/>')),
    "proximate": ("c3", Markup('<circle class="{}" r="5"/>')),
    "cascade": ("c0", Markup('<rect class="{}" x="-4" y="-4" width="8" height="8"/>')),
    "teardown": ("c5", Markup('<path class="{}" d="M0-5 5 4H-5Z"/>')),
}
_COUNTED = {"time": "time from the cause", "line": "line of the log", "order": "order in the log"}
"""The label of the x axis, by its kind."""
_SYMPTOMS = ("cascade", "teardown")
"""Roles of errors that follow from others: where only one of them is known, it is not drawn as the cause."""
_OTHER = ("c5", Markup('<circle class="{}" r="3"/>'))


def rank_times(ranks: Sequence[RankError], cause_line: tuple[str, int] | None, label: str = "First errors") -> Markup:
    """Draw when each rank failed: a row per error, marked at its time, cause first. The mark is at its line where times
    are unknown or all equal. Many similar ranks share a row."""
    if not ranks:
        return svg.chart(40, label, svg.text(0, 24, "No rank reported an error", "label"))
    rows = _rows(ranks, cause_line)
    course = _RankCourse.of(rows)
    parts = [_rank(row, number, course) for number, row in enumerate(rows)]
    bottom = 34 * len(rows)
    parts += [
        svg.across("axis", bottom + 2),
        svg.text(0, bottom + 16, course.words(course.scale.least), "tick"),
        svg.text(50, bottom + 16, _counted(course.kind, rows[0]), "tick", "middle"),
    ]
    if course.scale.least < course.scale.most:
        parts.append(svg.text(100, bottom + 16, course.words(course.scale.most), "tick", "end"))
    first = rows[0].error
    return svg.chart(bottom + 22, label, Markup("").join(parts), f"{_called(first)}; {len(rows)} rows.")


def rank_note(ranks: Sequence[RankError], cause_line: tuple[str, int] | None) -> str:
    """Return the note below `rank_times` about the places of its marks; "" without one."""
    rows = _rows(ranks, cause_line)
    course = _RankCourse.of(rows) if rows else None
    if course is not None and course.same_time:
        where = "line number" if course.kind == "line" else "position in the log"
        what = "second" if all(row.error.time is None or row.error.time % 1 == 0 for row in rows) else "time"
        return f"All timestamps show the same {what}: marks are placed by {where}."
    if course is not None and course.kind == "time" and any(row.error.time is None for row in rows):
        return "A line without a timestamp has no mark."
    return ""


def whose_errors(ranks: Sequence[RankError]) -> str:
    """Return the title of `rank_times`: whose first errors it draws."""
    kinds = {who_failed(one).partition(" ")[0] for one in ranks}
    *others, last = [kind for kind in ("rank", "node", "stream") if kind in kinds] or ["rank"]
    return f"First error of each {', '.join(others)}{' and ' if others else ''}{last}"


def who_failed(error: RankError) -> str:
    """Return whose error it is: a rank's, a node's or a stream's."""
    if error.rank is not None:
        return f"rank {error.rank}"
    return f"node {error.node}" if error.node else f"stream {error.stream}"


class _Row(NamedTuple):
    error: RankError
    is_cause: bool


class _RankCourse(NamedTuple):
    """The x axis of a chart of ranks: seconds since the cause, lines, or order. `same_time` means that all times are
    equal; `close` ones differ from another by less than a second."""

    kind: str
    scale: Scale
    zero: float
    places: tuple[float, ...]
    same_time: bool = False
    close: frozenset[float] = frozenset()

    @classmethod
    def of(cls, rows: Sequence[_Row]) -> "_RankCourse":
        times = [row.error.time for row in rows]
        known = [time for time in times if time is not None]
        timed = len(known) * 2 >= len(rows)
        same = timed and len(rows) > 1 and min(known) == max(known)
        if timed and not same:
            begin = min(known)
            placed = tuple(begin if time is None else time for time in times)
            zero = times[0] if times[0] is not None else begin
            return cls("time", Scale.over(known), zero, placed, close=_close(known))
        lines = tuple(float(row.error.line) for row in rows)
        if len({row.error.stream for row in rows}) == 1:
            return cls("line", Scale.over(lines), 0.0, lines, same)
        order = tuple(float(number) for number in range(1, len(rows) + 1))
        return cls("order", Scale.over(order), 0.0, order, same)

    def words(self, at: float) -> str:
        """Return the label of a place on the axis."""
        if self.kind == "time":
            return _offset(at - self.zero, at in self.close)
        return f"line {at:,.0f}" if self.kind == "line" else "first" if at == self.scale.least else "last"

    def place(self, error: RankError) -> str:
        """Return the place of an error in words."""
        if self.kind == "time" and error.time is not None:
            return _offset(error.time - self.zero, error.time in self.close)
        return f"line {error.line:,}"


def _close(times: Sequence[float]) -> frozenset[float]:
    """Return the times that differ from another by less than a second."""
    pairs = [pair for pair in pairwise(sorted(set(times))) if pair[1] - pair[0] < 1]
    return frozenset(time for pair in pairs for time in pair)


def _rows(ranks: Sequence[RankError], cause_line: tuple[str, int] | None) -> list[_Row]:
    """Return the errors, the cause first. Too many of them share rows by reason and role."""
    rows = [_Row(error, (error.stream, error.line) == cause_line) for error in ranks]
    cause = [row for row in rows if row.is_cause][:1]
    others = [row for row in rows if row not in cause]
    if len(rows) > _ROWS:
        others = _together(others)
    room = _ROWS - len(cause)
    return [*cause, *others[:room]]


def _together(rows: list[_Row]) -> list[_Row]:
    """Return the first rows of each reason and role, and one for the rest."""
    kept: list[_Row] = []
    seen: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        places = seen.setdefault((row.error.reason, row.error.role), [])
        if len(places) <= _OWN:
            places.append(len(kept))
            kept.append(row)
        else:
            first = kept[places[-1]].error
            kept[places[-1]] = _Row(msgspec.structs.replace(first, count=first.count + row.error.count), False)
    return kept


def _rank(row: _Row, number: int, course: _RankCourse) -> Markup:
    """Return the row of an error: text and time above the track, mark on it."""
    error, y = row.error, 34 * number
    is_red = row.is_cause and error.role not in _SYMPTOMS
    colour, shape = _SHAPES["cause"] if is_red else _SHAPES.get(error.role, _OTHER)
    if error.role == "cause" and not row.is_cause:
        colour, shape = _SHAPES["proximate"]
    place = 100 * (_EDGE + (1 - 2 * _EDGE) * course.scale.share(course.places[number]))
    mark = Markup('<svg x="{}%" y="{}" overflow="visible">{}<title>{}</title></svg>')
    where = ", ".join(part for part in (error.node or "", f"{error.stream}:{error.line}", error.role) if part)
    is_placed = course.kind != "time" or error.time is not None
    return Markup('<g class="{}">{}{}{}{}</g>').format(
        "cause" if row.is_cause else "rank",
        svg.text(0, y + 12, _called(error), "value" if row.is_cause else "label"),
        svg.text(100, y + 12, course.place(error), "tick", "end"),
        svg.across("grid", y + 23),
        mark.format(
            svg.number(place),
            y + 23,
            shape.format(f"{colour} mark" if is_red else colour),
            svg.said(f"{_called(error)}, {where}"),
        )
        if is_placed
        else "",
    )


def _counted(kind: str, first: _Row) -> str:
    """Return the label of the x axis, which begins at the first row."""
    return "time from the first report" if kind == "time" and first.error.role in _SYMPTOMS else _COUNTED[kind]


def _called(error: RankError) -> str:
    """Return who failed with what: "rank 17 - NCCL Timeout Error (+ 56 more)"."""
    who = who_failed(error)
    reason = "unknown error" if error.reason == "Unknown" else error.reason
    more = error.count - 1
    others = f" (+ {more:,} more)" if more > 0 else ""
    return f"{harmless(who, 30)} - {reason}{others}"


def _offset(seconds: float, exact: bool = False) -> str:
    """Format a time relative to the cause with three digits. An `exact` one is in seconds to the millisecond, below one
    to the microsecond."""
    sign, length = "-" if seconds < 0 else "+", abs(seconds)
    if exact and length < 86_400:
        digits = f"{length:,.{3 if length >= 0.0005 else 6}f}"
        return f"{sign}{digits.rstrip('0').rstrip('.')} s"
    if length < 120:
        return f"{sign}{length:.3g} s"
    return f"{sign}{length / 60:.3g} min" if length < 7200 else f"{sign}{length / 3600:.3g} h"
