"""The list of attempts: what of it is wanted, as it stands in the URL, and the page that comes of it."""

import time
from typing import Literal, NamedTuple

import msgspec

from logdoctor.store.jobs.records import Records, StoredVerdict, UnjudgedAttempts, Wanted
from logdoctor.taxonomy import OUTCOMES
from logdoctor.web.url_query import PAGE, WINDOWS, ListQuery, Text, Window

INCIDENTS = ("failed", "recovered", "cancelled")
"""Outcomes that somebody should look at; a list shows these unless the URL says otherwise."""


class AttemptFilters(ListQuery):
    """What the URL of the list asks for."""

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
        """Return whether anything but the outcome is asked for."""
        return any((self.reason, self.category, self.node, self.user, self.job, self.within))

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Return the outcomes that are listed."""
        if self.outcome is None:
            return INCIDENTS
        return OUTCOMES if self.outcome == "all" else (self.outcome,)

    @property
    def shows_unjudged(self) -> bool:
        """Return whether attempts without a verdict are listed: with those that run, and wherever a job or a user is
        looked for, unless that is among another outcome. They stand before the first page."""
        sought = self.outcome is None and bool(self.job or self.user)
        return not self.cursor and (sought or "running" in self.outcomes)

    def wanted(self, prefixes: tuple[str, ...], now: float) -> Wanted:
        """Return what to look for."""
        outcomes = () if self.outcome == "all" else self.outcomes
        since = now - WINDOWS[self.within] if self.within else None
        return Wanted(
            self.reason, self.category, self.node, self.user, self.job, outcomes, since=since, prefixes=prefixes
        )


class AttemptListing(NamedTuple):
    """A page of verdicts, how many there are in all, and how many attempts there would be with another filter; those
    without a verdict yet count as running."""

    items: list[StoredVerdict]
    next: str | None
    total: int
    unjudged: UnjudgedAttempts
    outcomes: dict[str, int]
    reasons: dict[str, int]
    categories: dict[str, int]


def attempt_listing(records: Records, filters: AttemptFilters, prefixes: tuple[str, ...]) -> AttemptListing:
    """Return the page that the filters ask for; `CursorError` for a bad cursor."""
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
