"""The incidents of a service."""

from typing import get_args

from logdoctor.cli.client.connection import Connection, path
from logdoctor.cli.client.refusing import refused_as
from logdoctor.errors import IncidentRefused
from logdoctor.store.incidents.mutes import Mute, Muted
from logdoctor.store.incidents.table import Incident, IncidentEvent, IncidentPage, State, Step, WantedIncidents
from logdoctor.store.jobs.records import Page
from logdoctor.web.incidents.answers import IncidentStory, MuteList

_FILTERS = ("reason", "node", "user", "job", "text", "assignee", "quiet", "q")
_LIST = "List them: logdoctor incidents list"


class ServedIncidents:
    """The calls of `store.incidents.table.Incidents`, over HTTP; the token says who acts, the service's clock when."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def search(self, wanted: WantedIncidents, cursor: str | None = None, limit: int = 50) -> IncidentPage:
        """Return a page of the matching incidents, newest first."""
        filters = {name: getattr(wanted, name) for name in _FILTERS}
        filters["order"] = None if wanted.order == "last" else wanted.order
        states = wanted.states or get_args(State)
        return self._connection.page(IncidentPage, path("incidents"), cursor, state=states, limit=limit, **filters)

    def one(self, id: int) -> Incident | None:
        """Return the incident with this id."""
        return self._connection.get_if_any(Incident, path("incidents", id))

    def members(self, id: int, limit: int = 50) -> Page:
        """Return the current verdicts of its newest attempts."""
        return self._connection.get(Page, path("incidents", id, "attempts"), limit=limit)

    def events(self, id: int, limit: int = 100) -> list[IncidentEvent]:
        """Return its history, newest first."""
        return self._connection.get(IncidentStory, path("incidents", id, "events"), limit=limit).items

    def step(self, id: int, step: Step, by: str, note: str, at: float, seen_as: State | None) -> Incident:
        """Take a step, and return the incident."""
        with refused_as(IncidentRefused, _LIST):
            return self._connection.post(Incident, path("incidents", id, step), {"note": note, "seen_as": seen_as})

    def assign(self, id: int, assignee: str | None, by: str, note: str, at: float) -> Incident:
        """Assign the incident, and return it; None means the token's owner."""
        return self._worked(id, "assign", {"assignee": assignee, "note": note})

    def snooze(self, id: int, until: float | None, more: int | None, by: str, note: str, at: float) -> Incident:
        """Snooze the incident until a time or a number of further failures. A span is sent, because clocks differ."""
        seconds = None if until is None else until - at
        return self._worked(id, "snooze", {"seconds": seconds, "more": more, "note": note})

    def unsnooze(self, id: int, by: str, note: str, at: float) -> Incident:
        """End the snooze of the incident, and return it."""
        return self._worked(id, "unsnooze", {"note": note})

    def comment(self, id: int, by: str, note: str, at: float) -> Incident:
        """Add a comment to the incident, and return it."""
        return self._worked(id, "comment", {"note": note})

    def _worked(self, id: int, deed: str, body: dict[str, object]) -> Incident:
        with refused_as(IncidentRefused, _LIST):
            return self._connection.post(Incident, path("incidents", id, deed), body)


class ServedMutes:
    """The calls of `store.incidents.mutes.Mutes`, over HTTP."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self, now: float | None = None) -> list[Mute]:
        """Return the mutes, newest first; with `now` those in force."""
        return self._connection.get(MuteList, path("mutes"), past="true" if now is None else None).items

    def mute(self, kind: Muted, value: str, by: str, why: str, until: float, at: float) -> Mute:
        """Mute a fingerprint or a node, and return the mute."""
        with refused_as(IncidentRefused):
            body = {"kind": kind, "value": value, "why": why, "seconds": until - at}
            return self._connection.post(Mute, path("mutes"), body)

    def lift(self, id: int, by: str, at: float) -> Mute:
        """Lift the mute, and return it."""
        with refused_as(IncidentRefused, "List them: logdoctor incidents mutes"):
            return self._connection.post(Mute, path("mutes", id, "lift"))
