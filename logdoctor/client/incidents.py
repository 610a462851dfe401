"""The incidents of a service."""

from typing import get_args

from logdoctor.client.connection import Connection, path
from logdoctor.client.refusing import refused_as
from logdoctor.errors import IncidentRefused
from logdoctor.store.incidents import Incident, IncidentEvent, IncidentPage, State, Step, WantedIncidents
from logdoctor.store.records import Page
from logdoctor.web.incidents.answers import IncidentStory


class ServedIncidents:
    """Asked for as `store.incidents.Incidents` are. Who takes a step is whose token it is, and when it is taken says
    the clock of the service."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def search(self, wanted: WantedIncidents, cursor: str | None = None, limit: int = 50) -> IncidentPage:
        """Return a page of the incidents that are wanted, the newest first."""
        filters = {name: getattr(wanted, name) for name in ("reason", "node", "user", "job", "text")}
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
        with refused_as(IncidentRefused, "List them: logdoctor incidents list"):
            return self._connection.post(Incident, path("incidents", id, step), {"note": note, "seen_as": seen_as})
