"""Draw curves of shares, step by step, as an SVG picture; used by all measurements."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 880, 500
_TOP, _BOTTOM, _LEFT, _RIGHT = 86, 436, 76, 640
_DECADES = 4  # of a logarithmic scale: from 100 % down to 0.01 %; anything less is drawn at the foot
_FOOT = 26.0  # pixels between 0.01 % and nothing
_LABEL = 17.0  # pixels between two names
_COLOURS = (
    *("#1f77b4", "#d95f02", "#2a9d5c", "#c2255c", "#7048e8", "#8c6d1f", "#0b7285", "#e03131"),
    *("#5c7cfa", "#a0522d", "#495057", "#d6336c", "#66a80f", "#9c36b5", "#f08c00"),
)
_GREY, _AXIS, _GRID, _GOAL = "#868e96", "#868e96", "#dee2e6", "#2b8a3e"
_INK, _FAINT = "#212529", "#495057"


class ShareScale(NamedTuple):
    """The height at which a share is drawn, the shares with a line across, and how a share is written."""

    height: Callable[[float], float]
    ticks: Mapping[float, str]
    written: Callable[[float], str]


def _linear(share: float) -> float:
    return _BOTTOM - share * (_BOTTOM - _TOP)


def _logarithmic(share: float) -> float:
    if share < 10**-_DECADES:
        return _BOTTOM
    return _TOP - math.log10(share) / _DECADES * (_BOTTOM - _TOP - _FOOT)


def _small(share: float) -> str:
    return "none" if not share else f"{100 * share:.2f} %" if share >= 10**-_DECADES else "< 0.01 %"


LINEAR = ShareScale(
    _linear, {tenth / 10: f"{10 * tenth} %" for tenth in range(10, -1, -2)}, lambda share: f"{100 * share:.1f} %"
)
LOGARITHMIC = ShareScale(
    _logarithmic, {10.0**-power: f"{100 / 10**power:g} %" for power in range(_DECADES + 1)} | {0.0: "none"}, _small
)


class Chart(NamedTuple):
    """Named curves, and `others` in grey that share one name.

    `steps` name the places on the axis. `goals` are shares to reach, by the name of the curve whose colour they take;
    the goal "" is for all curves: the area below it is shaded, and `goal` names it.
    """

    title: str
    subtitle: str
    foot: str
    steps: Sequence[str]
    curves: Mapping[str, Sequence[float]]
    scale: ShareScale
    goals: Mapping[str, float]
    goal: str = ""
    others: Sequence[Sequence[float]] = ()
    others_name: str = ""


def draw(chart: Chart) -> str:
    """Return the SVG text."""
    colours = dict(zip(chart.curves, _COLOURS, strict=False))
    body = "\n".join([*_ground(chart), *_goals(chart, colours), *_axis(chart), *_curves(chart, colours)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        f' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13" role="img"'
        f' aria-label="{escape(chart.title)}">\n{body}\n</svg>\n'
    )


def _x(place: int, chart: Chart) -> float:
    return _LEFT + 24 + place * (_RIGHT - _LEFT - 48) / max(len(chart.steps) - 1, 1)


def _text(x: float, y: float, text: str, fill: str, **style: str) -> str:
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}"{attributes}>{escape(text)}</text>'


def _across(y: float, stroke: str, more: str = "") -> str:
    return f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{stroke}"{more}/>'


def _ground(chart: Chart) -> Iterator[str]:
    """Yield the background, the area of the common goal, and a line across per tick."""
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    if "" in chart.goals:
        y = chart.scale.height(chart.goals[""])
        yield f'<rect x="{_LEFT}" y="{y:.1f}" width="{_RIGHT - _LEFT}" height="{_BOTTOM - y:.1f}" fill="#ebfbee"/>'
    for share, words in chart.scale.ticks.items():
        y = chart.scale.height(share)
        yield _across(y, _GRID if share else _AXIS)
        yield _text(_LEFT - 8, y + 4.5, words, _FAINT, text_anchor="end")


def _goals(chart: Chart, colours: Mapping[str, str]) -> Iterator[str]:
    for name, share in chart.goals.items():
        y = chart.scale.height(share)
        yield _across(y, colours.get(name, _GOAL), ' stroke-width="1.5" stroke-dasharray="6 4"')
        if not name:
            yield _text(_LEFT + 8, y + 17, chart.goal, _GOAL)


def _axis(chart: Chart) -> Iterator[str]:
    """Yield the step labels and the titles."""
    for place, step in enumerate(chart.steps):
        x = _x(place, chart)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_BOTTOM}" y2="{_BOTTOM + 5}" stroke="{_AXIS}"/>'
        yield _text(x, _BOTTOM + 21, step, _FAINT, text_anchor="middle")
    yield _text(_LEFT, 30, chart.title, _INK, font_size="18", font_weight="600")
    yield _text(_LEFT, 51, chart.subtitle, _FAINT)
    yield _text(_LEFT, _BOTTOM + 48, chart.foot, _INK, font_weight="600")


def _curves(chart: Chart, colours: Mapping[str, str]) -> Iterator[str]:
    """Yield the line of each curve, and the names at their ends."""
    for shares in chart.others:
        yield _curve(shares, chart, "#adb5bd", 1.2)
    for name, colour in colours.items():
        yield _curve(chart.curves[name], chart, colour, 2.2)
    ends = [(chart.curves[name][-1], name, colour) for name, colour in colours.items() if chart.curves[name]]
    if chart.others:
        middle = sorted(shares[-1] for shares in chart.others)[len(chart.others) // 2]
        ends.append((middle, chart.others_name, _GREY))
    yield from _names(sorted(ends, reverse=True), chart.scale)


def _curve(shares: Sequence[float], chart: Chart, colour: str, width: float) -> str:
    points = [(_x(place, chart), chart.scale.height(share)) for place, share in enumerate(shares)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{width * 1.5:.1f}"/>' for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"/>'
        f'<g fill="{colour}">{dots}</g>'
    )


def _names(ends: Sequence[tuple[float, str, str]], scale: ShareScale) -> Iterator[str]:
    """Yield the curves' names from the top down, moved apart where they would overlap."""
    wanted = [scale.height(share) for share, _, _ in ends]
    placed: list[float] = []
    for y in wanted:
        placed.append(max(y, placed[-1] + _LABEL) if placed else y)
    if placed and (over := placed[-1] - _BOTTOM) > 0:  # no room below: the names above move up as far as they must
        placed[-1] -= over
        for place in range(len(placed) - 2, -1, -1):
            placed[place] = min(placed[place], placed[place + 1] - _LABEL)
    x = _RIGHT - 24.0
    for (share, name, colour), y, at in zip(ends, wanted, placed, strict=True):
        yield (
            f'<path d="M{x + 6},{y:.1f} L{x + 22},{y:.1f} L{x + 34},{at:.1f} L{x + 42},{at:.1f}" fill="none"'
            f' stroke="{colour}" stroke-width="0.8"/>'
        )
        yield _text(x + 46, at + 4.5, f"{name}\u2003{scale.written(share)}", colour)
