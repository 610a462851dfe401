"""Charts as SVG markup."""

import math
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from logdoctor.web import svg
from logdoctor.web.axes import Axis, Scale

_POINTS = 400  # of a line, after thinning
_COLUMNS = 6  # most labels below columns
_SERIES = 6  # available colours


def sparkline(
    points: Sequence[tuple[float, float | None]], label: str, end: float | None = None, x: str = "", y: str = ""
) -> Markup:
    """Draw a line over (x, y). A y that is None or not finite is a gap. `end` marks the x at which the job failed, `x`
    and `y` label the axes."""
    known = _finite(points)
    values = [height for _, height in known if height is not None]
    if not values:
        return svg.chart(40, label, svg.text(0, 24, "Nothing to draw", "label"))
    across = Scale.over([*(place for place, _ in known), *([end] if end is not None and math.isfinite(end) else [])])
    up = Axis.over(values)
    top, height = 22, 76
    inner = Markup("").join(_strokes(_thinned(known), across, up))
    parts = [
        svg.text(0, 10, y, "tick"),
        *_marks(up, top, height),
        Markup(
            '<svg y="{}" width="100%" height="{}" viewBox="0 0 1000 100" preserveAspectRatio="none" overflow="visible">'
            "{}</svg>"
        ).format(top, height, inner),
        _failure(across.share(end), top, height) if end is not None and math.isfinite(end) else Markup(""),
        svg.text(0, top + height + 16, figure(across.least), "tick"),
        svg.text(50, top + height + 16, x, "tick", "middle"),
        svg.text(100, top + height + 16, figure(across.most) if across.least < across.most else "", "tick", "end"),
    ]
    first, last = values[0], values[-1]
    least, greatest = figure(min(values)), figure(max(values))
    description = f"From {figure(first)} to {figure(last)}; lowest {least}, highest {greatest}."
    return svg.chart(top + height + 22, label, Markup("").join(parts), description, "axes")


def begins(points: Sequence[tuple[float, float | None]]) -> str:
    """Return where the y axis of these points begins; "" for 0."""
    values = [height for _, height in _finite(points) if height is not None]
    axis = Axis.over(values) if values else None
    return axis.said(axis.least) if axis and axis.least else ""


def bars(items: Sequence[tuple[str, float]], unit: str, label: str, whole: float | None = None) -> Markup:
    """Draw a horizontal bar for each item, its name and value above it. Its length is a share of `whole`, or of the
    largest."""
    if not items:
        return svg.chart(40, label, svg.text(0, 24, "Nothing to draw", "label"))
    amounts = [(name, value if math.isfinite(value) else 0.0) for name, value in items]
    most = whole or max(value for _, value in amounts) or 1.0
    parts = []
    for number, (name, value) in enumerate(amounts):
        y = 30 * number
        parts += [
            svg.text(0, y + 12, name, "label"),
            svg.text(100, y + 12, _with_unit(value, unit), "value", "end"),
            Markup('<rect class="area" y="{}" width="100%" height="7" rx="2"/>').format(y + 17),
            Markup('<rect class="c0" y="{}" width="{}%" height="7" rx="2"/>').format(
                y + 17, svg.number(100 * max(value, 0) / most)
            ),
        ]
    return svg.chart(30 * len(items), label, Markup("").join(parts))


def stacked(
    periods: Sequence[str],
    series: Mapping[str, Sequence[float]],
    unit: str,
    label: str,
    x: str = "",
    colours: Mapping[str, int] | None = None,
) -> Markup:
    """Draw a column for each period, with the series stacked in order, in their `colours`. `x` labels the periods."""
    totals = [sum(_amount(values, at) for values in series.values()) for at in range(len(periods))]
    most = max(totals, default=0.0)
    if most <= 0:
        return svg.chart(40, label, svg.text(0, 24, "Nothing to draw", "label"))
    top, height = 22, 120
    wide = 100 / len(periods)
    up = Axis.over([0.0, *totals], whole=all(total == int(total) for total in totals))
    parts = [svg.text(0, 10, unit, "tick"), *_marks(up, top, height)]
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
                        svg.number(at * wide + wide * 0.1),
                        svg.number(floor),
                        svg.number(wide * 0.8),
                        svg.number(tall),
                        svg.said(f"{x} {period}: {name}, {figure(amount)} {unit}".strip()),
                    )
                )
    parts.append(svg.across("axis", top + height))
    step = math.ceil(len(periods) / _COLUMNS)
    for at in range(0, len(periods), step):
        parts.append(svg.text((at + 0.5) * wide, top + height + 16, periods[at], "tick", "middle"))
    parts.append(svg.text(50, top + height + 32, x, "tick", "middle"))
    many = f"{len(periods)} period{'' if len(periods) == 1 else 's'}"
    said = f"{many}; the largest sum is {figure(most)} {unit}, the total is {figure(sum(totals))}."
    return svg.chart(top + height + (38 if x else 22), label, Markup("").join(parts), said, "axes")


def volume(columns: Sequence[tuple[int, str, str]], label: str, height: int = 44, x: Sequence[str] = ()) -> Markup:
    """Draw a column for each number, with words, and the URL that it leads to; `x` labels both ends."""
    most, wide, parts = max(number for number, _, _ in columns) or 1, 100 / len(columns), [svg.across("axis", height)]
    for at, (number, words, url) in enumerate(columns):
        tall = height * number / most
        shape = [svg.number(one) for one in (at * wide, height - tall, wide * 0.8, tall)]
        bar = Markup('<rect class="c0" x="{}%" y="{}" width="{}%" height="{}"><title>{}</title></rect>')
        drawn = bar.format(*shape, svg.said(words)) if number else Markup("")
        parts.append(Markup('<a href="{}" tabindex="-1">{}</a>').format(url, drawn) if url and number else drawn)
    role = "group" if any(url for _, _, url in columns) else "img"
    parts += [svg.text(100 * at, height + 14, words, "tick", ("start", "end")[at]) for at, words in enumerate(x)]
    return svg.chart(
        height + (18 if x else 1), label, Markup("").join(parts), f"The largest column is {most:,}.", role=role
    )


def figure(value: float) -> str:
    """Format a number: four digits below 1,000, whole above, three digits from 1e9."""
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.4g}"


def _with_unit(value: float, unit: str) -> str:
    """Format a value with its unit. Shares all have one decimal, so that they can be compared."""
    if unit == "%":
        return f"{value:.0f}%" if value in (0, 100) else f"{value:.1f}%"
    return f"{figure(value)} {unit}".strip()


def _thinned(points: list[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """Return the points; of many, only the lowest and highest of each part, with gaps."""
    if len(points) <= _POINTS:
        return points
    size = math.ceil(2 * len(points) / _POINTS)
    kept: list[tuple[float, float | None]] = []
    for begin in range(0, len(points), size):
        part = points[begin : begin + size]
        present = [(y, begin + at) for at, (_, y) in enumerate(part) if y is not None]
        places = {min(present)[1], max(present)[1]} if present else {begin}
        kept += [points[place] for place in sorted(places)]
    return kept


def _marks(axis: Axis, top: int, height: int) -> Iterator[Markup]:
    """Yield the marks of a y axis, each as a line and its label."""
    for mark in axis.marks:
        y = top + height * (1 - axis.share(mark))
        yield svg.across("grid", round(y, 2))
        yield Markup('<text class="tick" x="-8" y="{}" text-anchor="end">{}</text>').format(
            svg.number(y + 4), svg.said(axis.said(mark))
        )


def _finite(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """Return the points with a finite x; y is None where it is not finite."""
    return [(x, y if y is not None and math.isfinite(y) else None) for x, y in points if math.isfinite(x)]


def _strokes(points: list[tuple[float, float | None]], across: Scale, up: Axis) -> Iterator[Markup]:
    """Yield the runs of points between gaps, filled down to an axis from 0. A single point is a dash."""
    run: list[tuple[str, str]] = []
    for x, y in [*points, (math.nan, None)]:
        if y is not None:
            run.append((svg.number(1000 * across.share(x)), svg.number(100 * (1 - up.share(y)))))
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
    """Return the mark of the time at which a job failed."""
    return Markup(
        '<svg x="{}%" overflow="visible"><path class="mark line" d="M0 {}v{}"/>'
        '<path class="mark" d="M-5 {}h10l-5 7Z"/><title>failed here</title></svg>'
    ).format(svg.number(100 * share), top, height, top - 6)


def _amount(values: Sequence[float], at: int) -> float:
    return max(values[at], 0.0) if at < len(values) and math.isfinite(values[at]) else 0.0
