"""The list of attempts: what of it is wanted, as it stands in the URL, and the page that comes of it."""

import time
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

import msgspec
from pydantic import BaseModel, Field, model_validator

from logdoctor.store.records import Records, StoredVerdict, Wanted
from logdoctor.taxonomy import OUTCOMES

PAGE = 50
"""Incidents of a page."""
INCIDENTS = ("failed", "recovered", "cancelled")
"""Outcomes that somebody should look at; a list shows these when it is not told otherwise."""
WINDOWS = {"hour": 3600, "day": 86_400, "week": 7 * 86_400, "month": 30 * 86_400}
"""Seconds of the time windows."""

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
    cursor: str | None = Field(default=None, max_length=2000)

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
        return f"/attempts?{query}" if query else "/attempts"

    def wanted(self, prefixes: tuple[str, ...], now: float) -> Wanted:
        """What to look for."""
        outcomes = () if self.outcome == "all" else self.outcomes
        since = now - WINDOWS[self.within] if self.within else None
        return Wanted(
            self.reason, self.category, self.node, self.user, self.job, outcomes, since=since, prefixes=prefixes
        )


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
    wanted = filters.wanted(prefixes, time.time())

    def counts(facet: str, **without: object) -> dict[str, int]:
        return records.counts(msgspec.structs.replace(wanted, **without))[facet]

    page = records.search(wanted, filters.cursor, PAGE)
    by_outcome = counts("outcome", outcomes=())
    return Listing(
        page.items,
        page.next,
        sum(by_outcome.get(outcome, 0) for outcome in filters.outcomes),
        by_outcome,
        counts("reason", reason=None),
        counts("category", category=None),
    )
