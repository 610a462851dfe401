"""The query of the list of incidents in its URL, and the resulting page."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from pydantic import Field, model_validator

from logdoctor.store.incidents.query import CHOICES, FIELDS, OPEN, State, Term, is_flag, parse, states_of, written
from logdoctor.store.incidents.severity import LEVELS, Order
from logdoctor.store.incidents.table import Incident, Incidents, WantedIncidents
from logdoctor.web.url_query import PAGE, ListQuery

_AGES = {"hour": "<1h", "day": "<1d", "week": "<7d", "month": "<30d"}
_SPANS = {"15m": 900, "1h": 3600, "3h": 10_800, "12h": 43_200, "1d": 86_400, "2d": 172_800, "7d": 604_800}
_SPANS["30d"] = 2_592_000
_COLUMNS = 48
_FORMER = ("reason", "category", "recovery", "node", "job", "user", "fingerprint", "assignee")


class IncidentFilters(ListQuery):
    """The query of the list's URL. Parameters of former addresses become terms of `q`."""

    path = "/"

    q: Annotated[str, Field(max_length=4000)] = ""
    order: Order | None = None

    @model_validator(mode="before")
    @classmethod
    def _folded(cls, values: dict[str, Any]) -> dict[str, Any]:
        given = {name: str(value).strip() for name, value in values.items()}
        terms = [given.get("q", ""), written("is", given["state"]) if given.get("state") else ""]
        terms += [written(name, given[name]) for name in _FORMER if given.get(name)]
        terms += ["age:" + _AGES.get(given["within"], given["within"])] if given.get("within") else []
        terms += [written("", word) for word in given.get("text", "").split()]
        return values | {"q": " ".join(filter(None, terms))}

    @property
    def terms(self) -> tuple[Term, ...]:
        """Return the terms; `InputError` when the query has no meaning."""
        return parse(self.q)

    @property
    def state(self) -> str | None:
        """Return the value of the only `is:` term: the chosen tab. "open" without one, None for several."""
        values = ["" if one.excludes else one.value for one in self.terms if one.field == "is"]
        return "open" if not values else values[0] if len(values) == 1 else None

    @property
    def rest(self) -> str:
        """Return the query without its `is:` terms."""
        return " ".join(one.text for one in self.terms if one.field != "is")

    def of_state(self, state: str) -> str:
        """Return the URL for another state."""
        return self.url(q=" ".join(filter(None, [f"is:{state}" if state != "open" else "", self.rest])))

    def without(self, term: Term) -> str:
        """Return the URL without a term."""
        return self.url(q=" ".join(one.text for one in self.terms if one != term))

    def with_term(self, field: str, value: str) -> str:
        """Return the URL with another term."""
        term = written(field, value)
        return self.url(q=" ".join(dict.fromkeys([*(one.text for one in self.terms), term])))

    def wanted(self, prefixes: tuple[str, ...], now: float) -> WantedIncidents:
        """Return the query for the store; `now` is in seconds since the epoch. Quiet incidents are left out, unless an
        `is:` term is about them or all are asked for."""
        hides = not any(is_flag(one) or one[1:3] == ("is", "all") for one in self.terms)
        return WantedIncidents(
            prefixes=prefixes, quiet="hide" if hides else None, now=now, order=self.order or "last", q=self.q
        )


def says_nothing(one: Incident) -> bool:
    """Return whether an incident names neither a node nor other jobs. Small screens leave that line out."""
    named = one.newest is not None and any(
        who.node or who.gpu or who.rank is not None for who in one.newest.verdict.suspects
    )
    return not (one.node or one.jobs > 1 or named)


class IncidentListing(NamedTuple):
    """A page of incidents, their total, the totals by state without `is:` terms, and by reason and so on. `quiet` ones,
    which are snoozed or muted, are not among the open `states`."""

    items: list[Incident]
    next: str | None
    total: int
    states: dict[str, int]
    facets: dict[str, dict[str, int]]
    quiet: int


def incident_listing(
    incidents: Incidents, filters: IncidentFilters, prefixes: tuple[str, ...], now: float
) -> IncidentListing:
    """Return the page for the query; `CursorError` for a bad cursor, `InputError` for a bad query."""
    wanted = filters.wanted(prefixes, now)
    page, counts = incidents.search(wanted, filters.cursor, PAGE), incidents.counts(wanted)
    free = msgspec.structs.replace(wanted, q=filters.rest)
    loud, silent = (incidents.counts(msgspec.structs.replace(free, quiet=quiet))["state"] for quiet in ("hide", "only"))
    states: tuple[State, ...] = states_of(filters.terms) or OPEN
    total = sum(counts["state"].get(state, 0) for state in states)
    facets = {name: counts[name] for name in ("reason", "category", "recovery")}
    return IncidentListing(page.items, page.next, total, loud, facets, sum(silent.values()))


def volume(times: Sequence[float], now: float, filters: IncidentFilters | None = None) -> list[tuple[int, str, str]]:
    """Return how many of the times are in each span, oldest first, with words and the URL of its incidents. Without
    filters they are those of the last 30 days, and lead nowhere."""
    oldest = now - min(times, default=now)
    name = next((name for name, span in _SPANS.items() if oldest < span * _COLUMNS), "30d") if filters else "1d"
    counts, size, unit = Counter(int(max(now - at, 0) // _SPANS[name]) for at in times), int(name[:-1]), name[-1]
    rest = [one.text for one in filters.terms if one.field != "age"] if filters else []
    found = []
    for at in reversed(range(min(max(counts, default=0) + 1, _COLUMNS) if filters else 30)):
        span = f"{at * size}{unit}..{(at + 1) * size}{unit}"
        url = filters.url(q=" ".join([*rest, f"age:{span}"])) if filters else ""
        found.append((counts[at], f"{counts[at]:,}, {span.replace('..', ' to ')} ago", url))
    return found


def suggestions(found: IncidentListing) -> list[str]:
    """Return terms to narrow a list with: those that find something, most first, then examples of all fields."""
    counted = {name: sorted(values, key=values.__getitem__, reverse=True) for name, values in found.facets.items()}
    newest = [one.newest for one in found.items if one.newest]
    counted["node"] = [who.node for one in newest for who in one.verdict.suspects if who.node]
    counted |= {"job": [one.job for one in newest], "user": [one.user for one in newest if one.user]}
    terms = [written(name, value) for name, values in counted.items() for value in dict.fromkeys(values)]
    terms += [f"is:{value}" for value in CHOICES["is"]] + [f"severity:{name}" for _, name in LEVELS]
    examples = ["age:<2h", "age:<1d", "age:1d..7d", "gpus:>256", "hours:>1000", "attempts:>1"]
    return [*terms, *examples, *(f"{name}:" for name in FIELDS)]
