"""Which incidents a list shows, as it stands in the URL, and the page that comes of it."""

from typing import Literal, NamedTuple

from logdoctor.store.incidents import Incident, Incidents, State, WantedIncidents
from logdoctor.web.url_query import PAGE, WINDOWS, ListQuery, Text, Window

OPEN: tuple[State, ...] = ("new", "acknowledged")
"""States of incidents that somebody should look at; a list shows these unless the URL says otherwise."""
_STATES: tuple[State, ...] = (*OPEN, "resolved")


class IncidentFilters(ListQuery):
    """What the URL of the list asks for."""

    path = "/"

    text: Text = None
    state: Literal["all", "new", "acknowledged", "resolved"] | None = None
    reason: Text = None
    category: Text = None
    recovery: Text = None
    node: Text = None
    job: Text = None
    user: Text = None
    fingerprint: Text = None
    within: Window = None

    @property
    def chosen(self) -> int:
        """Return how many filters beside state and text are set."""
        given = (self.reason, self.category, self.recovery, self.node, self.job, self.user, self.within)
        return sum(one is not None for one in given)

    @property
    def narrow(self) -> bool:
        """Return whether anything but the state is asked for."""
        return self.text is not None or self.fingerprint is not None or self.chosen > 0

    @property
    def states(self) -> tuple[State, ...]:
        """Return the states that are listed."""
        if self.state is None:
            return OPEN
        return _STATES if self.state == "all" else (self.state,)

    def wanted(self, prefixes: tuple[str, ...], now: float) -> WantedIncidents:
        """Return what to look for; `now` is in seconds since 1970."""
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
        )


def says_nothing(one: Incident) -> bool:
    """Return whether an incident names neither a node nor other jobs; small screens leave that out."""
    named = one.newest is not None and any(
        who.node or who.gpu or who.rank is not None for who in one.newest.verdict.suspects
    )
    return not (one.node or one.jobs > 1 or named)


class IncidentListing(NamedTuple):
    """A page of incidents, how many there are in all, and how many there would be with another filter."""

    items: list[Incident]
    next: str | None
    total: int
    states: dict[str, int]
    reasons: dict[str, int]
    categories: dict[str, int]
    recoveries: dict[str, int]


def incident_listing(
    incidents: Incidents, filters: IncidentFilters, prefixes: tuple[str, ...], now: float
) -> IncidentListing:
    """Return the page that the filters ask for; `CursorError` for a bad cursor."""
    wanted = filters.wanted(prefixes, now)
    page, counts = incidents.search(wanted, filters.cursor, PAGE), incidents.counts(wanted)
    total = sum(counts["state"].get(state, 0) for state in filters.states)
    return IncidentListing(
        page.items, page.next, total, counts["state"], counts["reason"], counts["category"], counts["recovery"]
    )
