"""The filters of the list of attempts in its URL, and the resulting page."""

import time
from typing import Literal, NamedTuple

import msgspec

from logdoctor.store.jobs.records import Records, StoredVerdict, UnjudgedAttempts, Wanted
from logdoctor.taxonomy import OUTCOMES
from logdoctor.web.url_query import PAGE, WINDOWS, ListQuery, Text, Window

INCIDENTS = ("failed", "recovered")
"""Outcomes that need attention; a list shows these by default."""


class AttemptFilters(ListQuery):
    """The query of the list's URL."""

    path = "/attempts"

    reason: Text = None
    category: Text = None
    node: Text = None
    user: Text = None
    job: Text = None
    outcome: Literal["all", "failed", "recovered", "cancelled", "running", "completed", "unknown"] | None = None
    within: Window = None

    @property
    def narrow(self) -> bool:
        """Return whether any filter beside the outcome is set."""
        return any((self.reason, self.category, self.node, self.user, self.job, self.within))

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Return the listed outcomes."""
        if self.outcome is None:
            return INCIDENTS
        return OUTCOMES if self.outcome == "all" else (self.outcome,)

    @property
    def shows_unjudged(self) -> bool:
        """Return whether attempts without a verdict are listed before the first page. They are, if running ones are
        listed, and in a search for a job or a user without an outcome."""
        sought = self.outcome is None and bool(self.job or self.user)
        return not self.cursor and (sought or "running" in self.outcomes)

    def wanted(self, prefixes: tuple[str, ...], now: float) -> Wanted:
        """Return the query for the store."""
        outcomes = () if self.outcome == "all" else self.outcomes
        since = now - WINDOWS[self.within] if self.within else None
        return Wanted(
            self.reason, self.category, self.node, self.user, self.job, outcomes, since=since, prefixes=prefixes
        )


class AttemptListing(NamedTuple):
    """A page of verdicts, their total, and the totals of attempts by other filters. Those without a verdict count as
    running."""

    items: list[StoredVerdict]
    next: str | None
    total: int
    unjudged: UnjudgedAttempts
    outcomes: dict[str, int]
    reasons: dict[str, int]
    categories: dict[str, int]


def attempt_listing(records: Records, filters: AttemptFilters, prefixes: tuple[str, ...]) -> AttemptListing:
    """Return the page for the filters; `CursorError` for a bad cursor."""
    wanted = filters.wanted(prefixes, time.time())

    def counts(facet: str, **without: object) -> dict[str, int]:
        return records.counts(msgspec.structs.replace(wanted, **without))[facet]

    page = records.search(wanted, filters.cursor, PAGE)
    unjudged = records.unjudged(msgspec.structs.replace(wanted, outcomes=()), PAGE)
    by_outcome = counts("outcome", outcomes=())
    total = sum(by_outcome.get(outcome, 0) for outcome in filters.outcomes)
    if unjudged.total:
        by_outcome["running"] = by_outcome.get("running", 0) + unjudged.total
    return AttemptListing(
        page.items,
        page.next,
        total,
        unjudged,
        by_outcome,
        counts("reason", reason=None),
        counts("category", category=None),
    )
