"""Words and colours of pages about failures."""

from collections.abc import Callable

CATEGORY_COLOURS = {"Infrastructure": 0, "Framework": 1, "Script": 2, "Anomaly": 3, "Unknown": 5}
"""The colours of the marks before the names of categories."""


def in_unit(seconds: int, unit: str) -> Callable[[float], str]:
    """Return the formatter of a column of times, all in one unit for comparison."""

    def written(value: float) -> str:
        number = value / seconds
        figure = f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 0.05 or not value else "< 0.1"
        return f"{figure} {unit}"

    return written


def called(category: str) -> str:
    """Return the name of a category; failures without one have an unknown reason."""
    return "Unknown" if category == "None" else category


def percent(part: float, whole: float) -> str:
    """Format a share, with one decimal where it says more."""
    share = 100 * part / whole
    return f"{share:.0f}%" if share in (0, 100) else f"{share:.1f}%"
