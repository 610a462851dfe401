"""Charts as SVG: data in, markup out.

Places along the x axis are shares of the width and text keeps its size, so a chart fills what it stands in and reads
the same on a phone. Nothing tells by colour alone; colours are classes, which the style sheet knows for light and dark.
Labels may come from logs: they are made harmless and escaped here.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
from markupsafe import Markup

from logdoctor.text import harmless
from logdoctor.types import RankError
from logdoctor.web.axes import Axis, Scale

_LABEL = 60  # characters
_POINTS = 400  # of a line, after thinning
_ROWS = 16  # of a picture of ranks
_OWN = 2  # ranks of one error that keep a row of their own when there are more rows
_COLUMNS = 6  # labels below columns
_EDGE = 0.02  # of the width, so that a mark at the end is whole
_SERIES = 6  # colours that there are
_SHAPES = {
    "cause": ("c4", Markup('<path class="{}" d="M0-7 7 0 0 7-7 0Z"/>')),
    "proximate": ("c3", Markup('<circle class="{}" r="5"/>')),
    "cascade": ("c0", Markup('<rect class="{}" x="-4" y="-4" width="8" height="8"/>')),
    "teardown": ("c5", Markup('<path class="{}" d="M0-5 5 4H-5Z"/>')),
}
_COUNTED = {"time": "time from the cause", "line": "line of the log", "order": "order in the log"}
"""What the x axis of a picture of ranks counts, by its kind."""
_SYMPTOMS = ("cascade", "teardown")
"""Parts of errors that follow from others: where one of them is all that is known, it is not drawn as the cause."""
_OTHER = ("c5", Markup('<circle class="{}" r="3"/>'))


def sparkline(
    points: Sequence[tuple[float, float | None]], label: str, end: float | None = None, x: str = "", y: str = ""
) -> Markup:
    """A line over (x, y); a y that is None or not finite is a gap. `end` marks the x at which the job failed, `x` and
    `y` say what the axes count."""
    told = _finite(points)
    values = [height for _, height in told if height is not None]
    if not values:
        return _svg(40, label, _text(0, 24, "Nothing to draw", "label"))
    across = Scale.over([*(place for place, _ in told), *([end] if end is not None and math.isfinite(end) else [])])
    up = Axis.over(values)
    top, height = 22, 76
    inner = Markup("").join(_strokes(_thinned(told), across, up))
    parts = [
        _text(0, 10, y, "tick"),
        *_marks(up, top, height),
        Markup(
            '<svg y="{}" width="100%" height="{}" viewBox="0 0 1000 100" preserveAspectRatio="none" overflow="visible">'
            "{}</svg>"
        ).format(top, height, inner),
        _failure(across.share(end), top, height) if end is not None and math.isfinite(end) else Markup(""),
        _text(0, top + height + 16, figure(across.least), "tick"),
        _text(50, top + height + 16, x, "tick", "middle"),
        _text(100, top + height + 16, figure(across.most), "tick", "end") if across.least < across.most else Markup(""),
    ]
    first, last = values[0], values[-1]
    least, greatest = figure(min(values)), figure(max(values))
    told_in_words = f"From {figure(first)} to {figure(last)}; least {least}, greatest {greatest}."
    return _svg(top + height + 22, label, Markup("").join(parts), told_in_words, "axes")


def begins(points: Sequence[tuple[float, float | None]]) -> str:
    """Where the y axis of the line over these points begins, when that is not 0; "" when it is."""
    values = [height for _, height in _finite(points) if height is not None]
    axis = Axis.over(values) if values else None
    return axis.said(axis.least) if axis and axis.least else ""


def rank_times(ranks: Sequence[RankError], cause_line: tuple[str, int] | None, label: str = "First errors") -> Markup:
    """When each rank failed: a row for each error, the cause first, with a mark at its time, or at its line where times
    are not known or all the same. Many ranks alike share a row."""
    if not ranks:
        return _svg(40, label, _text(0, 24, "No rank reported an error", "label"))
    rows = _rows(ranks, cause_line)
    course = _Course.of(rows)
    parts = [_rank(row, number, course) for number, row in enumerate(rows)]
    bottom = 34 * len(rows)
    parts += [
        _across("axis", bottom + 2),
        _text(0, bottom + 16, course.words(course.scale.least), "tick"),
        _text(50, bottom + 16, _counted(course.kind, rows[0]), "tick", "middle"),
    ]
    if course.scale.least < course.scale.most:
        parts.append(_text(100, bottom + 16, course.words(course.scale.most), "tick", "end"))
    first = rows[0].error
    return _svg(bottom + 22, label, Markup("").join(parts), f"{_called(first)}; {len(rows)} rows.")


def rank_note(ranks: Sequence[RankError], cause_line: tuple[str, int] | None) -> str:
    """What is to be said below `rank_times` of where its marks stand; "" for nothing."""
    rows = _rows(ranks, cause_line)
    course = _Course.of(rows) if rows else None
    if course is not None and course.same_time:
        where = "their line" if course.kind == "line" else "their place in the log"
        what = "second" if all(row.error.time is None or row.error.time % 1 == 0 for row in rows) else "time"
        return f"All stamps tell the same {what}: marks stand by {where}."
    if course is not None and course.kind == "time" and any(row.error.time is None for row in rows):
        return "A line without a stamp has no mark."
    return ""


def bars(items: Sequence[tuple[str, float]], unit: str, label: str, whole: float | None = None) -> Markup:
    """A horizontal bar for each item, its name and value above it; of `whole`, else of the greatest."""
    if not items:
        return _svg(40, label, _text(0, 24, "Nothing to draw", "label"))
    amounts = [(name, value if math.isfinite(value) else 0.0) for name, value in items]
    most = whole or max(value for _, value in amounts) or 1.0
    parts = []
    for number, (name, value) in enumerate(amounts):
        y = 30 * number
        parts += [
            _text(0, y + 12, name, "label"),
            _text(100, y + 12, _with_unit(value, unit), "value", "end"),
            Markup('<rect class="area" y="{}" width="100%" height="7" rx="2"/>').format(y + 17),
            Markup('<rect class="c0" y="{}" width="{}%" height="7" rx="2"/>').format(
                y + 17, _number(100 * max(value, 0) / most)
            ),
        ]
    return _svg(30 * len(items), label, Markup("").join(parts))


def stacked(
    periods: Sequence[str],
    series: Mapping[str, Sequence[float]],
    unit: str,
    label: str,
    x: str = "",
    colours: Mapping[str, int] | None = None,
) -> Markup:
    """A column for each period, the series on top of each other in their order; `legend` names their colours where no
    `colours` are given, `x` says what the periods are."""
    totals = [sum(_amount(values, at) for values in series.values()) for at in range(len(periods))]
    most = max(totals, default=0.0)
    if most <= 0:
        return _svg(40, label, _text(0, 24, "Nothing to draw", "label"))
    top, height = 22, 120
    wide = 100 / len(periods)
    up = Axis.over([0.0, *totals], whole=all(total == int(total) for total in totals))
    parts = [_text(0, 10, unit, "tick"), *_marks(up, top, height)]
    for at, period in enumerate(periods):
        floor = float(top + height)
        for number, (name, values) in enumerate(series.items()):
            amount = _amount(values, at)
            tall = height * up.share(amount)
            floor -= tall
            if tall > 0:
                parts.append(
                    Markup('<rect class="c{}" x="{}%" y="{}" width="{}%" height="{}"><title>{}</title></rect>').format(
                        (colours or {}).get(name, number % _SERIES),
                        _number(at * wide + wide * 0.1),
                        _number(floor),
                        _number(wide * 0.8),
                        _number(tall),
                        _said(f"{x} {period}: {name}, {figure(amount)} {unit}".strip()),
                    )
                )
    parts.append(_across("axis", top + height))
    step = math.ceil(len(periods) / _COLUMNS)
    for at in range(0, len(periods), step):
        parts.append(_text((at + 0.5) * wide, top + height + 16, periods[at], "tick", "middle"))
    parts.append(_text(50, top + height + 32, x, "tick", "middle"))
    many = f"{len(periods)} period{'' if len(periods) == 1 else 's'}"
    said = f"{many}; the greatest sum is {figure(most)} {unit}, the sum of all {figure(sum(totals))}."
    return _svg(top + height + (38 if x else 22), label, Markup("").join(parts), said, "axes")


def legend(names: Sequence[str]) -> Markup:
    """Which colour of `stacked` stands for which series, as a list."""
    key = Markup(
        '<li><svg class="chart key" width="10" height="10" aria-hidden="true">'
        '<rect class="c{}" width="10" height="10" rx="2"/></svg> {}</li>'
    )
    keys = [key.format(number % _SERIES, _said(name)) for number, name in enumerate(names)]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(keys))


def _with_unit(value: float, unit: str) -> str:
    """A value with its unit; shares all to one decimal, so that they can be compared."""
    if unit == "%":
        return f"{value:.0f}%" if value in (0, 100) else f"{value:.1f}%"
    return f"{figure(value)} {unit}".strip()


def figure(value: float) -> str:
    """A number of four digits, with marks for thousands."""
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.4g}"


class _Row(NamedTuple):
    error: RankError
    is_cause: bool


class _Course(NamedTuple):
    """What the x axis of a picture of ranks is: seconds since the cause, line numbers, or the order alone. With
    `same_time` times are known, but tell nothing apart; `close` ones differ from another by less than a second."""

    kind: str
    scale: Scale
    zero: float
    places: tuple[float, ...]
    same_time: bool = False
    close: frozenset[float] = frozenset()

    @classmethod
    def of(cls, rows: Sequence[_Row]) -> "_Course":
        times = [row.error.time for row in rows]
        known = [time for time in times if time is not None]
        told = len(known) * 2 >= len(rows)
        same = told and len(rows) > 1 and min(known) == max(known)
        if told and not same:
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
        """What stands at a place of the axis."""
        if self.kind == "time":
            return _offset(at - self.zero, at in self.close)
        return f"line {at:,.0f}" if self.kind == "line" else "first" if at == self.scale.least else "last"

    def told(self, error: RankError) -> str:
        """Where an error is."""
        if self.kind == "time" and error.time is not None:
            return _offset(error.time - self.zero, error.time in self.close)
        return f"line {error.line:,}"


def _close(times: Sequence[float]) -> frozenset[float]:
    """The times that differ from another by less than a second."""
    pairs = [pair for pair in pairwise(sorted(set(times))) if pair[1] - pair[0] < 1]
    return frozenset(time for pair in pairs for time in pair)


def _rows(ranks: Sequence[RankError], cause_line: tuple[str, int] | None) -> list[_Row]:
    """The errors, the cause first; when they are too many, those of one reason and role share a row but for the first
    of them."""
    told = [_Row(error, (error.stream, error.line) == cause_line) for error in ranks]
    cause = [row for row in told if row.is_cause][:1]
    others = [row for row in told if row not in cause]
    if len(told) > _ROWS:
        others = _together(others)
    room = _ROWS - len(cause)
    return [*cause, *others[:room]]


def _together(rows: list[_Row]) -> list[_Row]:
    """The first rows of each reason and role, and one that stands for all further of them."""
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


def _rank(row: _Row, number: int, course: _Course) -> Markup:
    """The row of an error: what and when above its track, and its mark on it."""
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
        _text(0, y + 12, _called(error), "value" if row.is_cause else "label"),
        _text(100, y + 12, course.told(error), "tick", "end"),
        _across("grid", y + 23),
        mark.format(
            _number(place),
            y + 23,
            shape.format(f"{colour} mark" if is_red else colour),
            _said(f"{_called(error)}, {where}"),
        )
        if is_placed
        else "",
    )


def _counted(kind: str, first: _Row) -> str:
    """What the x axis of a picture of ranks counts, from its first row on."""
    return "time from the first report" if kind == "time" and first.error.role in _SYMPTOMS else _COUNTED[kind]


def _called(error: RankError) -> str:
    """Who failed of what: "rank 17 - NCCL Timeout Error (+ 56 more)", "node gpu-12 - unknown error"."""
    who = who_failed(error)
    reason = "unknown error" if error.reason == "Unknown" else error.reason
    more = error.count - 1
    others = f" (+ {more:,} more)" if more > 0 else ""
    return f"{harmless(who, 30)} - {reason}{others}"


def who_failed(error: RankError) -> str:
    """Whose error it is: a rank's, a node's or a stream's."""
    if error.rank is not None:
        return f"rank {error.rank}"
    return f"node {error.node}" if error.node else f"stream {error.stream}"


def whose_errors(ranks: Sequence[RankError]) -> str:
    """The title of what `rank_times` draws: whose first errors they are."""
    kinds = {who_failed(one).partition(" ")[0] for one in ranks}
    *others, last = [kind for kind in ("rank", "node", "stream") if kind in kinds] or ["rank"]
    return f"First error of each {', '.join(others)}{' and ' if others else ''}{last}"


def _offset(seconds: float, exact: bool = False) -> str:
    """A time after or before the cause in three digits; when `exact` in seconds to the millisecond, below one to the
    microsecond."""
    sign, length = "-" if seconds < 0 else "+", abs(seconds)
    if exact and length < 86_400:
        told = f"{length:,.{3 if length >= 0.0005 else 6}f}"
        return f"{sign}{told.rstrip('0').rstrip('.')} s"
    if length < 120:
        return f"{sign}{length:.3g} s"
    return f"{sign}{length / 60:.3g} min" if length < 7200 else f"{sign}{length / 3600:.3g} h"


def _thinned(points: list[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """The points, or of many the least and the greatest of each part, gaps included."""
    if len(points) <= _POINTS:
        return points
    size = math.ceil(2 * len(points) / _POINTS)
    kept: list[tuple[float, float | None]] = []
    for begin in range(0, len(points), size):
        part = points[begin : begin + size]
        told = [(y, begin + at) for at, (_, y) in enumerate(part) if y is not None]
        places = {min(told)[1], max(told)[1]} if told else {begin}
        kept += [points[place] for place in sorted(places)]
    return kept


def _marks(axis: Axis, top: int, height: int) -> Iterator[Markup]:
    """The marks of a y axis, each as a line and what it says beside it."""
    for mark in axis.marks:
        y = top + height * (1 - axis.share(mark))
        yield _across("grid", round(y, 2))
        yield Markup('<text class="tick" x="-8" y="{}" text-anchor="end">{}</text>').format(
            _number(y + 4), _said(axis.said(mark))
        )


def _finite(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """The points whose place is known; None where their value is not finite."""
    return [(x, y if y is not None and math.isfinite(y) else None) for x, y in points if math.isfinite(x)]


def _strokes(points: list[tuple[float, float | None]], across: Scale, up: Axis) -> Iterator[Markup]:
    """The runs of points between gaps, each with the ground below it where that is 0; a point alone is a dash."""
    run: list[tuple[str, str]] = []
    for x, y in [*points, (math.nan, None)]:
        if y is not None:
            run.append((_number(1000 * across.share(x)), _number(100 * (1 - up.share(y)))))
            continue
        if run:
            line = "L".join(f"{x} {y}" for x, y in run)
            if len(run) > 1 and up.least == 0:
                yield Markup('<path class="area" d="M{}V100H{}Z"/>').format(line, run[0][0])
            if len(run) == 1:
                line = f"{line}m-4 0h8"
            yield Markup('<path class="line" stroke-linecap="round" d="M{}"/>').format(line)
        run = []


def _failure(share: float, top: int, height: int) -> Markup:
    """The mark of the moment at which a job failed."""
    return Markup(
        '<svg x="{}%" overflow="visible"><path class="mark line" d="M0 {}v{}"/>'
        '<path class="mark" d="M-5 {}h10l-5 7Z"/><title>failed here</title></svg>'
    ).format(_number(100 * share), top, height, top - 6)


def _amount(values: Sequence[float], at: int) -> float:
    return max(values[at], 0.0) if at < len(values) and math.isfinite(values[at]) else 0.0


def _svg(height: int, label: str, content: Markup, told: str = "", kind: str = "") -> Markup:
    about = Markup("<desc>{}</desc>").format(_said(told, 300)) if told else Markup("")
    return Markup('<svg class="{}" role="img" width="100%" height="{}"><title>{}</title>{}{}</svg>').format(
        f"chart {kind}".strip(), height, _said(label, 200), about, content
    )


def _across(kind: str, y: float) -> Markup:
    return Markup('<line class="{}" x2="100%" y1="{}" y2="{}"/>').format(kind, y, y)


def _text(share: float, y: float, words: str, kind: str, anchor: str = "start") -> Markup:
    if not words:
        return Markup("")
    return Markup('<text class="{}" x="{}%" y="{}" text-anchor="{}">{}</text>').format(
        kind, _number(share), y, anchor, _said(words)
    )


def _said(words: str, most: int = _LABEL) -> str:
    return harmless(words, most)


def _number(value: float) -> str:
    """A place in a drawing, to the hundredth."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
