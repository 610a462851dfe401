"""The elements of charts: SVG whose text keeps its size.

Places along the x axis are shares of the width, so a chart fills its container and reads the same on a phone. Nothing
is shown by colour alone; colours are classes, which the style sheet defines for light and dark. Labels may come from
logs: they are made harmless and escaped here.
"""

from markupsafe import Markup

from logdoctor.text import harmless

_LABEL = 60  # characters


def chart(height: int, label: str, content: Markup, description: str = "", kind: str = "", role: str = "img") -> Markup:
    """Return a chart as wide as its container, `height` px high, named and described; one with links is a `group`."""
    about = Markup("<desc>{}</desc>").format(said(description, 300)) if description else Markup("")
    return Markup('<svg class="{}" role="{}" width="100%" height="{}"><title>{}</title>{}{}</svg>').format(
        f"chart {kind}".strip(), role, height, said(label, 200), about, content
    )


def across(kind: str, y: float) -> Markup:
    """Return a line over the whole width."""
    return Markup('<line class="{}" x2="100%" y1="{}" y2="{}"/>').format(kind, y, y)


def text(share: float, y: float, words: str, kind: str, anchor: str = "start") -> Markup:
    """Return words at a share of the width in percent; nothing for ""."""
    if not words:
        return Markup("")
    return Markup('<text class="{}" x="{}%" y="{}" text-anchor="{}">{}</text>').format(
        kind, number(share), y, anchor, said(words)
    )


def said(words: str, most: int = _LABEL) -> str:
    """Return harmless words, cut to the length of a label."""
    return harmless(words, most)


def number(value: float) -> str:
    """Format a coordinate, to the hundredth."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
