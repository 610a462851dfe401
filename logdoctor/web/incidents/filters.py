"""The filters of the list of incidents in its URL, and the resulting page."""

from typing import Literal, NamedTuple

import msgspec

from logdoctor.store.incidents.severity import Order
from logdoctor.store.incidents.table import Incident, Incidents, State, WantedIncidents
from logdoctor.web.url_query import PAGE, WINDOWS, ListQuery, Text, Window

OPEN: tuple[State, ...] = ("new", "acknowledged")
"""States of incidents that need attention; a list shows these by default."""
_STATES: tuple[State, ...] = (*OPEN, "resolved")


class IncidentFilters(ListQuery):
    """The query of the list's URL."""

    path = "/"

    text: Text = None
    state: Literal["all", "new", "acknowledged", "resolved", "quiet"] | None = None
    reason: Text = None
    category: Text = None
    recovery: Text = None
    node: Text = None
    job: Text = None
    user: Text = None
    fingerprint: Text = None
    assignee: Text = None
    within: Window = None
    order: Order | None = None

    @property
    def chosen(self) -> int:
        """Return how many filters beside state and text are set."""
        given = (self.reason, self.category, self.recovery, self.node, self.job, self.user, self.assignee, self.within)
        return sum(one is not None for one in given)

    @property
    def narrow(self) -> bool:
        """Return whether any filter beside the state is set."""
        return self.text is not None or self.fingerprint is not None or self.chosen > 0

    @property
    def states(self) -> tuple[State, ...]:
        """Return the listed states."""
        if self.state is None or self.state == "quiet":
            return OPEN
        return _STATES if self.state == "all" else (self.state,)

    @property
    def query(self) -> str:
        """Return the part of the URL after the `?`."""
        return self.url().partition("?")[2]

    def wanted(self, prefixes: tuple[str, ...], now: float) -> WantedIncidents:
        """Return the query for the store; `now` is in seconds since the epoch."""
        return WantedIncidents(
            states=self.states,
            reason=self.reason,
            category=self.category,
            recovery=self.recovery,
            node=self.node,
            user=self.user,
            job=self.job,
            fingerprint=self.fingerprint,
            text=self.text,
            since=now - WINDOWS[self.within] if self.within else None,
            prefixes=prefixes,
            assignee=self.assignee,
            quiet=None if self.state == "all" else "only" if self.state == "quiet" else "hide",
            now=now,
            order=self.order or "last",
        )


def says_nothing(one: Incident) -> bool:
    """Return whether an incident names neither a node nor other jobs. Small screens leave that line out."""
    named = one.newest is not None and any(
        who.node or who.gpu or who.rank is not None for who in one.newest.verdict.suspects
    )
    return not (one.node or one.jobs > 1 or named)


class IncidentListing(NamedTuple):
    """A page of incidents, their total, and the totals by other filters. `quiet` ones, which are snoozed or muted, are
    not among the open `states`."""

    items: list[Incident]
    next: str | None
    total: int
    states: dict[str, int]
    reasons: dict[str, int]
    categories: dict[str, int]
    recoveries: dict[str, int]
    quiet: int


def incident_listing(
    incidents: Incidents, filters: IncidentFilters, prefixes: tuple[str, ...], now: float
) -> IncidentListing:
    """Return the page for the filters; `CursorError` for a bad cursor."""
    wanted = filters.wanted(prefixes, now)
    page, counts = incidents.search(wanted, filters.cursor, PAGE), incidents.counts(wanted)
    loud = counts if wanted.quiet == "hide" else incidents.counts(msgspec.structs.replace(wanted, quiet="hide"))
    silent = counts if wanted.quiet == "only" else incidents.counts(msgspec.structs.replace(wanted, quiet="only"))
    total = sum(counts["state"].get(state, 0) for state in filters.states)
    quiet = sum(silent["state"].values())
    return IncidentListing(
        page.items, page.next, total, loud["state"], counts["reason"], counts["category"], counts["recovery"], quiet
    )
