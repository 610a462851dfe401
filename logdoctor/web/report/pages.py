"""What failures cost: the paper's Table 3 for this cluster, by week, and who decided."""

import datetime
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlencode

from fastapi import Query, Request
from pydantic import Field
from starlette.responses import RedirectResponse, Response

from logdoctor.jobs.report import Report, Week, length, reckon, second
from logdoctor.store.jobs.report import MOST
from logdoctor.web.dependencies import Reader
from logdoctor.web.rendering import page, router
from logdoctor.web.report.api import TheReports
from logdoctor.web.report.words import CATEGORY_COLOURS, called, in_unit, percent
from logdoctor.web.url_query import UrlQuery

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
PERIODS = {"week": 7, "month": 30, "quarter": 91, "year": 365}
"""Days of the periods that end now."""
_DECIDERS = {
    "rule": "a rule",
    "learned": "a learned rule",
    "structure": "the log's structure",
    "case": "a past case",
    "agent": "the Failure Agent",
    "person": "a person",
    "nobody": "not decided",
}
_WEEKS = 53  # columns


class Period(UrlQuery):
    """The query of a report's URL: days, inclusive, or a period that ends now."""

    within: Literal["week", "month", "quarter", "year", "all"] | None = None
    begin: datetime.date | None = Field(default=None, alias="from")
    end: datetime.date | None = Field(default=None, alias="to")

    @property
    def has_days(self) -> bool:
        """Return whether days are given; they take precedence over a period that ends now."""
        return self.begin is not None or self.end is not None

    @property
    def is_reversed(self) -> bool:
        """Return whether it ends before it begins."""
        return self.begin is not None and self.end is not None and self.end < self.begin

    @property
    def url(self) -> str:
        """Return its short URL."""
        days = {"from": self.begin and self.begin.isoformat(), "to": self.end and self.end.isoformat()}
        given = days if self.has_days else {"within": self.within}
        query = urlencode({name: value for name, value in given.items() if value})
        return f"/report?{query}" if query else "/report"

    def bounds(self, now: float) -> tuple[float | None, float | None]:
        """Return `since` and `until` in seconds since the epoch; None means open."""
        if self.has_days:
            begin = second(self.begin.isoformat()) if self.begin else None
            return begin, second(self.end.isoformat()) + _DAY if self.end else None
        return (None, None) if self.within == "all" else (now - PERIODS[self.within or "month"] * _DAY, None)


class Columns(NamedTuple):
    """A chart of weeks: their names, and for each category a number per week."""

    weeks: list[str]
    series: dict[str, list[float]]


pages = router()


@pages.get("/report")
def report(request: Request, caller: Reader, reports: TheReports, period: Annotated[Period, Query()]) -> Response:
    """Show what the failures of a period cost."""
    if "" in request.query_params.values():  # a form was sent: redirect to the short URL
        return RedirectResponse(period.url, 303)
    since, until = period.bounds(now := time.time())
    first = None if since is None else 2 * since - (until or now)
    before = reckon(reports.failures(first, since, caller.prefixes), first, since) if first is not None else None
    found = reckon(reports.failures(since, until, caller.prefixes), since, until)
    return page(request, "report.html", _content(found, period) | {"before": before and before.total})


def _content(report: Report, period: Period) -> dict[str, Any]:
    times = {"since": report.since, "until": report.until}
    query = urlencode({name: f"{max(value, 0):.0f}" for name, value in times.items() if value is not None})
    categories = [row.name for row in report.categories]
    return {
        "report": report,
        "period": period,
        "periods": PERIODS,
        "query": f"?{query}" if query else "",
        "most": MOST,
        "length": length,
        "in_hours": in_unit(_HOUR, "h"),
        "in_minutes": in_unit(_MINUTE, "min"),
        "percent": percent,
        "called": called,
        "costly": sorted(report.reasons, key=lambda row: (-row.gpu_hours, -row.count))[:5],
        "reasons": {name: [row for row in report.reasons if row.category == name] for name in categories},
        "colours": CATEGORY_COLOURS,
        "deciders": [(_DECIDERS.get(name, name), number) for name, number in report.decided.items() if number],
        "hours": _columns(report.weeks, {week.monday: week.gpu_hours for week in report.weeks}, categories),
        "earlier": len(report.weeks) > 0 and _begin(report.weeks) > datetime.date.fromisoformat(report.weeks[0].monday),
        "counts": _columns(report.weeks, {week.monday: week.counts for week in report.weeks}, categories),
    }


def _columns(weeks: Sequence[Week], values: Mapping[str, Mapping[str, float]], categories: Sequence[str]) -> Columns:
    """Return the last weeks, up to the last with a failure. Weeks without one are included."""
    if not weeks:
        return Columns([], {})
    first, last = _begin(weeks), datetime.date.fromisoformat(weeks[-1].monday)
    names = [(first + datetime.timedelta(weeks=at)).isoformat() for at in range((last - first).days // 7 + 1)]
    return Columns(names, {called(of): [float(values.get(week, {}).get(of, 0)) for week in names] for of in categories})


def _begin(weeks: Sequence[Week]) -> datetime.date:
    """Return the Monday of the first shown week."""
    first, last = (datetime.date.fromisoformat(week.monday) for week in (weeks[0], weeks[-1]))
    return max(first, last - datetime.timedelta(weeks=_WEEKS - 1))
