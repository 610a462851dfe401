"""Which incidents a list shows, as it stands in the URL, and the page that comes of it."""

import re
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

from pydantic import BaseModel, Field, model_validator

from logdoctor.store.incidents import Incident, Incidents, State, WantedIncidents
from logdoctor.web.listing import PAGE, WINDOWS, Text

OPEN: tuple[State, ...] = ("new", "acknowledged")
"""States of incidents that somebody should look at; a list shows these when it is not told otherwise."""
_STATES: tuple[State, ...] = (*OPEN, "resolved")
_PREFIX = re.compile(
    r"""\s*(?:
        \[?(?:default|rank|Rank)?\ ?\d{1,6}\]?:                        # 11:  [rank11]:  [default0]:
        |\[(?=[^\]]*\d)[\w./:-]{1,80}\]:?                            # [ds/agent/gpu-07]  [12:30:01]
        |\[?[IWEF]\d{3,4}\s[\d:.]+(?:\s+\d+)?(?:\s[\w./-]+:\d+)?\]?   # [E804 20:26:11.741734404 Some.cpp:632]
        |\[?(?:[A-Z][a-z]{2}\s)?[A-Z][a-z]{2}\s+\d{1,2}\s[\d:]{5,8}(?:\s\d{4})?\]?   # [Sun Jul 23 12:00:00 2026]
        |\[?\d{4}-\d\d-\d\d[T\ ][\d:.,]+Z?\]?                       # 2026-11-21 10:00:00,123
        |(?=[\w.-]*\d)\w+-[\w.-]+:(?=\s)                            # gpu-07:
    )""",
    re.VERBOSE | re.ASCII,
)
_PREFIXES = 6  # of a line, at most


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


def unprefixed(quote: str) -> str:
    """A line without the ranks, hosts and times that its writer puts before what it says; the whole line when nothing
    is left of it."""
    rest = quote
    for _ in range(_PREFIXES):
        found = _PREFIX.match(rest)
        if found is None:
            break
        rest = rest[found.end() :]
    return rest.strip() or quote.strip()


def says_nothing(one: Incident) -> bool:
    """Whether an incident names neither a node nor other jobs; small screens leave that out."""
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
    """The page that the filters ask for; `CursorError` for a bad cursor."""
    wanted = filters.wanted(prefixes, now)
    page, counts = incidents.search(wanted, filters.cursor, PAGE), incidents.counts(wanted)
    total = sum(counts["state"].get(state, 0) for state in filters.states)
    return IncidentListing(
        page.items, page.next, total, counts["state"], counts["reason"], counts["category"], counts["recovery"]
    )
