"""The summary of a batch as one self-contained page, for a mail or a wiki."""

import datetime
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from logdoctor.jobs.report import length
from logdoctor.pipeline.batch.summary import BINS, Summary
from logdoctor.web.rendering import rendered
from logdoctor.web.report.words import CATEGORY_COLOURS, called, in_unit, percent

_STYLES = tuple(Path(__file__).parent / "static" / name for name in ("style.css", "report.css"))
_DAYS = 366  # columns of a chart
_NAMES = 15  # bars of a chart


class Counts(NamedTuple):
    """Failures by name: for each category a number for each name. `more` names are left out."""

    names: list[str]
    series: dict[str, list[float]]
    more: int

    @property
    def bars(self) -> list[tuple[str, float]]:
        """Return each name with its sum over the categories."""
        return [(name, sum(of[at] for of in self.series.values())) for at, name in enumerate(self.names)]


def batch_page(found: Summary, title: str, made: float) -> str:
    """Return the page as self-contained HTML without scripts. `made` is in seconds since the epoch."""
    report = found.report
    categories = [row.name for row in report.categories]
    styles = "".join(path.read_text(encoding="utf-8") for path in _STYLES)
    content = {
        "found": found,
        "title": title,
        "now": made,
        "styles": Markup(styles),
        "report": report,
        "reasons": {name: [row for row in report.reasons if row.category == name] for name in categories},
        "by_category": [(called(row.name), float(row.count)) for row in report.categories],
        "by_reason": [
            (row.name, float(row.count)) for row in sorted(report.reasons, key=lambda row: (-row.count, row.name))
        ],
        "most": _NAMES,
        "days": _by_day(found.days, categories),
        "frameworks": _most(found.frameworks, categories),
        "nodes": _most(found.nodes, categories),
        "confidence": [
            (f"{at / BINS:.0%} to {(at + 1) / BINS:.0%}", float(number)) for at, number in enumerate(found.confidence)
        ],
        "called": called,
        "percent": percent,
        "length": length,
        "in_hours": in_unit(3600, "h"),
        "colours": CATEGORY_COLOURS,
    }
    return rendered("batch.html", content).lstrip()


def _by_day(days: Mapping[str, Mapping[str, int]], categories: Sequence[str]) -> Counts:
    """Return the failures by day, up to the last failure; days without one are included."""
    if not days:
        return Counts([], {}, 0)
    last = datetime.date.fromisoformat(max(days))
    first = max(datetime.date.fromisoformat(min(days)), last - datetime.timedelta(days=_DAYS - 1))
    shown = [(first + datetime.timedelta(days=at)).isoformat() for at in range((last - first).days + 1)]
    series = _series({day: days.get(day, {}) for day in shown}, categories)
    return Counts(shown, series, sum(day < shown[0] for day in days))


def _most(counts: Mapping[str, Mapping[str, int]], categories: Sequence[str]) -> Counts:
    """Return the counts of the first names, which have most."""
    some = dict(islice(counts.items(), _NAMES))
    return Counts(list(some), _series(some, categories), len(counts) - len(some))


def _series(counts: Mapping[str, Mapping[str, int]], categories: Sequence[str]) -> dict[str, list[float]]:
    return {called(name): [float(of.get(name, 0)) for of in counts.values()] for name in categories}
