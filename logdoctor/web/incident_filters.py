"""Which incidents a list shows, as it stands in the URL, and the page that comes of it."""

from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

from pydantic import BaseModel, Field, model_validator

from logdoctor.store.incidents import Incident, Incidents, State, WantedIncidents
from logdoctor.web.listing import PAGE, WINDOWS, Text

OPEN: tuple[State, ...] = ("new", "acknowledged")
"""States of incidents that somebody should look at; a list shows these when it is not told otherwise."""
_STATES: tuple[State, ...] = (*OPEN, "resolved")


class IncidentFilters(BaseModel):
    """What the URL of a list says. What is empty counts as not given, because forms send empty fields."""

    text: str | None = Text
    state: Literal["all", "new", "acknowledged", "resolved"] | None = None
    reason: str | None = Text
    category: str | None = Text
    recovery: str | None = Text
    node: str | None = Text
    job: str | None = Text
    user: str | None = Text
    fingerprint: str | None = Text
    within: Literal["hour", "day", "week", "month"] | None = None
    cursor: str | None = Field(default=None, max_length=2000)

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {name: value.strip() for name, value in values.items() if value.strip()}

    @property
    def chosen(self) -> int:
        """How many filters beside state and text are set."""
        given = (self.reason, self.category, self.recovery, self.node, self.job, self.user, self.within)
        return sum(one is not None for one in given)

    @property
    def narrow(self) -> bool:
        """Whether anything but the state is asked for."""
        return self.text is not None or self.fingerprint is not None or self.chosen > 0

    @property
    def states(self) -> tuple[State, ...]:
        """The states that are listed."""
        if self.state is None:
            return OPEN
        return _STATES if self.state == "all" else (self.state,)

    def url(self, **changes: str | None) -> str:
        """The URL of this list with some filters changed (None takes one away), from its first page on."""
        given = {**self.model_dump(exclude={"cursor"}), **changes}
        query = urlencode({name: value for name, value in given.items() if value})
        return f"/?{query}" if query else "/"

    def wanted(self, prefixes: tuple[str, ...], now: float) -> WantedIncidents:
        """What to look for; `now` is in seconds since 1970."""
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
    """The page that the filters ask for; `CursorError` for a bad cursor."""
    wanted = filters.wanted(prefixes, now)
    page, counts = incidents.search(wanted, filters.cursor, PAGE), incidents.counts(wanted)
    total = sum(counts["state"].get(state, 0) for state in filters.states)
    return IncidentListing(
        page.items, page.next, total, counts["state"], counts["reason"], counts["category"], counts["recovery"]
    )
