"""The list of incidents: what of it is wanted, as it stands in the URL, and the page that comes of it."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

import msgspec
from pydantic import BaseModel, Field, model_validator

from logdoctor.errors import CursorError
from logdoctor.store.records import Counts, Page, Records, StoredVerdict, Wanted
from logdoctor.taxonomy import OUTCOMES

PAGE = 50
"""Incidents of a page."""
INCIDENTS = ("failed", "recovered", "cancelled")
"""Outcomes that somebody should look at; a list shows these when it is not told otherwise."""
WINDOWS = {"hour": 3600, "day": 86_400, "week": 7 * 86_400, "month": 30 * 86_400}
"""Seconds of the time windows."""
_END = "end"

Text = Field(default=None, max_length=300)


class Filters(BaseModel):
    """What the URL of a list says. What is empty counts as not given, because forms send empty fields."""

    reason: str | None = Text
    category: str | None = Text
    node: str | None = Text
    user: str | None = Text
    job: str | None = Text
    outcome: Literal["all", "failed", "recovered", "cancelled", "running", "completed"] | None = None
    within: Literal["hour", "day", "week", "month"] | None = None
    cursor: str | None = Field(default=None, max_length=6000)

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if value != ""}

    @property
    def narrow(self) -> bool:
        """Whether anything but the outcome is asked for."""
        return any((self.reason, self.category, self.node, self.user, self.job, self.within))

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The outcomes that are listed."""
        if self.outcome is None:
            return INCIDENTS
        return OUTCOMES if self.outcome == "all" else (self.outcome,)

    def url(self, **changes: str | None) -> str:
        """The URL of this list with some filters changed (None takes one away), from its first page on."""
        given = {**self.model_dump(exclude={"cursor"}), **changes}
        query = urlencode({name: value for name, value in given.items() if value})
        return f"/?{query}" if query else "/"

    def wanted(self, prefixes: tuple[str, ...], now: float) -> Wanted:
        """What to look for, whatever the outcome."""
        since = now - WINDOWS[self.within] if self.within else None
        return Wanted(self.reason, self.category, self.node, self.user, self.job, since=since, prefixes=prefixes)


class Listing(NamedTuple):
    """A page of verdicts, how many there are in all, and how many there would be with another filter."""

    items: list[StoredVerdict]
    next: str | None
    total: int
    outcomes: dict[str, int]
    reasons: dict[str, int]
    categories: dict[str, int]


def listing(records: Records, filters: Filters, prefixes: tuple[str, ...]) -> Listing:
    """The page that the filters ask for; `CursorError` for a bad cursor."""
    wanted, outcomes = filters.wanted(prefixes, time.time()), filters.outcomes
    page = _page(records, wanted, outcomes, filters.cursor)
    by_outcome = records.counts(wanted)["outcome"]
    any_reason, any_category = (msgspec.structs.replace(wanted, **{name: None}) for name in ("reason", "category"))
    counts = {one: _counts(records, one, outcomes) for one in {any_reason, any_category}}
    return Listing(
        page.items,
        page.next,
        sum(by_outcome.get(outcome, 0) for outcome in outcomes),
        by_outcome,
        counts[any_reason]["reason"],
        counts[any_category]["category"],
    )


def _counts(records: Records, wanted: Wanted, outcomes: Sequence[str]) -> Counts:
    """`Records.counts` for some outcomes together."""
    if len(outcomes) == len(OUTCOMES):
        return records.counts(wanted)
    total: dict[str, Counter[str]] = {"reason": Counter(), "category": Counter()}
    for outcome in outcomes:
        found = records.counts(msgspec.structs.replace(wanted, outcome=outcome))
        for name, counter in total.items():
            counter.update(found[name])
    return {name: dict(counter) for name, counter in total.items()}


def _page(records: Records, wanted: Wanted, outcomes: Sequence[str], cursor: str | None) -> Page:
    """`Records.search` for some outcomes together."""
    if len(outcomes) == len(OUTCOMES):
        return records.search(wanted, cursor, PAGE)
    lists = [msgspec.structs.replace(wanted, outcome=outcome) for outcome in outcomes]
    if len(lists) == 1:
        return records.search(lists[0], cursor, PAGE)
    return _merged(records, lists, cursor)


def _merged(records: Records, lists: Sequence[Wanted], cursor: str | None) -> Page:
    """A page of several lists in one order. Its cursor holds one of each list, or that the list has come to its end."""
    marks: list[str | None] = list(cursor.split(".")) if cursor else [None] * len(lists)
    if len(marks) != len(lists):
        raise CursorError("the cursor", "was not given by a page of this list", "Begin again without a cursor.")
    pages = [
        Page([], None) if mark == _END else records.search(wanted, mark or None, PAGE)
        for wanted, mark in zip(lists, marks, strict=True)
    ]
    every = sorted((one for page in pages for one in page.items), key=lambda one: (one.at, one.id), reverse=True)
    shown = every[:PAGE]
    after = [
        _after(records, wanted, mark, page, sum(one in shown for one in page.items))
        for wanted, mark, page in zip(lists, marks, pages, strict=True)
    ]
    return Page(shown, None if all(mark == _END for mark in after) else ".".join(after))


def _after(records: Records, wanted: Wanted, mark: str | None, page: Page, taken: int) -> str:
    """The cursor of a list from whose page so many items were taken; "" is its beginning."""
    if taken == len(page.items):
        return page.next or _END
    return records.search(wanted, mark or None, taken).next or _END if taken else mark or ""
