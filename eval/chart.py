"""Curves that fall from all lines to none, on a logarithmic scale, as an SVG picture."""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 880, 500
_TOP, _BOTTOM, _LEFT, _RIGHT = 86, 436, 76, 640
_DECADES = 4  # from 100 % down to 0.01 %; what is less stands at the foot
_FOOT = 26.0  # pixels between 0.01 % and nothing
_LABEL = 17.0  # pixels between two names
_COLOURS = (
    *("#1f77b4", "#d95f02", "#2a9d5c", "#c2255c", "#7048e8", "#8c6d1f", "#0b7285", "#e03131"),
    *("#5c7cfa", "#a0522d", "#495057", "#d6336c", "#66a80f", "#9c36b5", "#f08c00"),
)


class Chart(NamedTuple):
    """What is drawn: the share of lines left, step by step, of each named curve, and of others in grey, which have one
    name together; a `step` is a job or a run. `aim` is a share and what it says."""

    title: str
    subtitle: str
    foot: str
    step: str
    aim: tuple[float, str]
    named: Mapping[str, Sequence[float]]
    others: Sequence[Sequence[float]]
    name_of_others: str


def draw(chart: Chart) -> str:
    """The picture."""
    body = "\n".join([*_frame(chart), *_curves(chart)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
        f' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13" role="img"'
        f' aria-label="{escape(chart.title)}">\n{body}\n</svg>\n'
    )


def _x(number: int, steps: int) -> float:
    return _LEFT + 24 + (number - 1) * (_RIGHT - _LEFT - 48) / max(steps - 1, 1)


def _y(left: float) -> float:
    """The height of a share that is left."""
    height = _BOTTOM - _TOP - _FOOT
    if left < 10**-_DECADES:
        return _BOTTOM
    return _TOP - math.log10(left) / _DECADES * height


def _text(x: float, y: float, text: str, **style: str) -> str:
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(text)}</text>'


def _frame(chart: Chart) -> Iterator[str]:
    """The ground, the axes, the aim and the titles."""
    aim = _y(chart.aim[0])
    yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>'
    yield (f'<rect x="{_LEFT}" y="{aim:.1f}" width="{_RIGHT - _LEFT}" height="{_BOTTOM - aim:.1f}" fill="#ebfbee"/>')
    for power in range(_DECADES + 1):
        y = _y(10.0**-power)
        yield f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dee2e6"/>'
        yield _text(_LEFT - 8, y + 4.5, f"{100 / 10**power:g} %", text_anchor="end", fill="#495057")
    yield f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{_BOTTOM}" y2="{_BOTTOM}" stroke="#868e96"/>'
    yield _text(_LEFT - 8, _BOTTOM + 4.5, "none", text_anchor="end", fill="#495057")
    yield (
        f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{aim:.1f}" y2="{aim:.1f}" stroke="#2b8a3e" stroke-width="1.5"'
        ' stroke-dasharray="6 4"/>'
    )
    yield _text(_LEFT + 8, aim + 17, chart.aim[1], fill="#2b8a3e")
    steps = max(map(len, [*chart.named.values(), *chart.others]), default=1)
    for number in range(1, steps + 1):
        x = _x(number, steps)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_BOTTOM}" y2="{_BOTTOM + 5}" stroke="#868e96"/>'
        yield _text(x, _BOTTOM + 21, f"{chart.step} {number}", text_anchor="middle", fill="#495057")
    yield _text(_LEFT, 30, chart.title, font_size="18", font_weight="600", fill="#212529")
    yield _text(_LEFT, 51, chart.subtitle, fill="#495057")
    yield _text(_LEFT, _BOTTOM + 48, chart.foot, fill="#212529", font_weight="600")


def _curves(chart: Chart) -> Iterator[str]:
    """The line of each curve, and the names at their ends."""
    steps = max(map(len, [*chart.named.values(), *chart.others]), default=1)
    for left in chart.others:
        yield _curve(left, steps, "#adb5bd", 1.2)
    for left, colour in zip(chart.named.values(), _COLOURS, strict=False):
        yield _curve(left, steps, colour, 2.2)
    ends = [(left[-1], name, colour) for (name, left), colour in zip(chart.named.items(), _COLOURS, strict=False)]
    if chart.others:
        middle = sorted(left[-1] for left in chart.others)[len(chart.others) // 2]
        ends.append((middle, chart.name_of_others, "#868e96"))
    yield from _names(sorted(ends, reverse=True))


def _curve(left: Sequence[float], steps: int, colour: str, width: float) -> str:
    points = [(_x(number, steps), _y(share)) for number, share in enumerate(left, 1)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{width * 1.5:.1f}"/>' for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"/>'
        f'<g fill="{colour}">{dots}</g>'
    )


def _names(ends: Sequence[tuple[float, str, str]]) -> Iterator[str]:
    """The names at the ends of the curves, from the top down, moved apart where they would cover each other."""
    wanted = [_y(left) for left, _, _ in ends]
    placed: list[float] = []
    for y in wanted:
        placed.append(max(y, placed[-1] + _LABEL) if placed else y)
    if placed and (over := placed[-1] - _BOTTOM) > 0:  # no room below: all above moves up as far as it must
        placed[-1] -= over
        for place in range(len(placed) - 2, -1, -1):
            placed[place] = min(placed[place], placed[place + 1] - _LABEL)
    for (left, name, colour), y, at in zip(ends, wanted, placed, strict=True):
        x = _RIGHT - 24.0
        yield (
            f'<polyline points="{x + 6},{y:.1f} {x + 22},{y:.1f} {x + 34},{at:.1f} {x + 42},{at:.1f}" fill="none"'
            f' stroke="{colour}" stroke-width="0.8"/>'
        )
        share = "none" if not left else f"{100 * left:.2f} %" if left >= 0.0001 else "< 0.01 %"
        yield _text(x + 46, at + 4.5, f"{name}\u2003{share}", fill=colour)
