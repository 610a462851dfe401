"""The incidents of a service."""

from typing import get_args

from logdoctor.cli.client.connection import Connection, path
from logdoctor.cli.client.refusing import refused_as
from logdoctor.errors import IncidentRefused
from logdoctor.store.incidents.mutes import Mute, Muted
from logdoctor.store.incidents.table import Incident, IncidentEvent, IncidentPage, State, Step, WantedIncidents
from logdoctor.store.jobs.records import Page
from logdoctor.web.incidents.answers import IncidentStory, MuteList

_FILTERS = ("reason", "node", "user", "job", "text", "assignee", "quiet")
_LIST = "List them: logdoctor incidents list"


class ServedIncidents:
    """Asked for as `store.incidents.Incidents` are. Who takes a step is whose token it is, and when it is taken says
    the clock of the service."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def search(self, wanted: WantedIncidents, cursor: str | None = None, limit: int = 50) -> IncidentPage:
        """Return a page of the incidents that are wanted, the newest first."""
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
        """Return what happened to it, the newest first."""
        return self._connection.get(IncidentStory, path("incidents", id, "events"), limit=limit).items

    def step(self, id: int, step: Step, by: str, note: str, at: float, seen_as: State | None) -> Incident:
        """Return the incident after a step."""
        with refused_as(IncidentRefused, _LIST):
            return self._connection.post(Incident, path("incidents", id, step), {"note": note, "seen_as": seen_as})

    def assign(self, id: int, assignee: str | None, by: str, note: str, at: float) -> Incident:
        """Return the incident, which is with `assignee` now; None means whose token it is."""
        return self._worked(id, "assign", {"assignee": assignee, "note": note})

    def snooze(self, id: int, until: float | None, more: int | None, by: str, note: str, at: float) -> Incident:
        """Return the incident, snoozed until a time or until so many more failures. The span is what is sent: clocks
        differ."""
        seconds = None if until is None else until - at
        return self._worked(id, "snooze", {"seconds": seconds, "more": more, "note": note})

    def unsnooze(self, id: int, by: str, note: str, at: float) -> Incident:
        """Return the incident, which is not snoozed any more."""
        return self._worked(id, "unsnooze", {"note": note})

    def comment(self, id: int, by: str, note: str, at: float) -> Incident:
        """Return the incident, of which something was said."""
        return self._worked(id, "comment", {"note": note})

    def _worked(self, id: int, deed: str, body: dict[str, object]) -> Incident:
        with refused_as(IncidentRefused, _LIST):
            return self._connection.post(Incident, path("incidents", id, deed), body)


class ServedMutes:
    """Asked for as `store.mutes.Mutes` are."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self, now: float | None = None) -> list[Mute]:
        """Return the mutes, the newest first; with `now` those that hold."""
        return self._connection.get(MuteList, path("mutes"), past="true" if now is None else None).items

    def mute(self, kind: Muted, value: str, by: str, why: str, until: float, at: float) -> Mute:
        """Return the mute of a fingerprint or a node."""
        with refused_as(IncidentRefused):
            body = {"kind": kind, "value": value, "why": why, "seconds": until - at}
            return self._connection.post(Mute, path("mutes"), body)

    def lift(self, id: int, by: str, at: float) -> Mute:
        """Return the mute, which is over now."""
        with refused_as(IncidentRefused, "List them: logdoctor incidents mutes"):
            return self._connection.post(Mute, path("mutes", id, "lift"))
