"""Work on incidents, by pages and the API alike: permissions and results."""

import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from logdoctor.errors import IncidentRefused, RequestRefused
from logdoctor.service.service import Service
from logdoctor.store.incidents.table import Incident, Incidents
from logdoctor.web.gate import Caller
from logdoctor.web.problems import as_refusal, existing

BulkStep = Literal["acknowledge", "resolve", "reopen", "assign", "snooze", "unsnooze", "comment"]
"""Steps on many incidents at once."""

Deed = Callable[[Incidents, float], Incident]


class Snooze(NamedTuple):
    """The end of a snooze: seconds from now, a time, or a number of further failures."""

    seconds: float | None = None
    until: float | None = None
    more: int | None = None

    def end(self, now: float) -> float | None:
        """Return the time at which it ends."""
        return now + self.seconds if self.seconds is not None else self.until


class BulkResult(msgspec.Struct, frozen=True):
    """The result of a step on one of many incidents; `cause` is "" on success."""

    id: int
    cause: str


def visible(service: Service, caller: Caller, id: int) -> Incident:
    """Return the incident, if the caller may see it; otherwise it is not found."""
    return existing(service.incidents.one(id, caller.prefixes), f"incident {id}")


def worked(service: Service, caller: Caller, id: int, deed: Deed) -> Incident:
    """Take a step on an incident for the caller, and return the incident. `RequestRefused` with 403 when it has
    attempts of jobs that the caller may not see, with 409 when it is refused or somebody was quicker."""
    visible(service, caller, id)
    _covered(service, caller, id)
    try:
        return deed(service.incidents, time.time())
    except IncidentRefused as error:
        raise as_refusal(error) from error


def deed(id: int, wanted: BulkStep, by: str, note: str, assignee: str = "", until: Snooze | None = None) -> Deed:
    """Return the function that takes a step on an incident, whatever its state."""

    def done(incidents: Incidents, now: float) -> Incident:
        match wanted:
            case "assign":
                return incidents.assign(id, assignee, by, note, now)
            case "snooze":
                rest = until or Snooze()
                return incidents.snooze(id, rest.end(now), rest.more, by, note, now)
            case "unsnooze":
                return incidents.unsnooze(id, by, note, now)
            case "comment":
                return incidents.comment(id, by, note, now)
            case _:
                return incidents.step(id, wanted, by, note, now, None)

    return done


def in_bulk(
    service: Service,
    caller: Caller,
    ids: Sequence[int],
    wanted: BulkStep,
    note: str,
    assignee: str,
    until: Snooze,
) -> list[BulkResult]:
    """Return the result of a step on each of many incidents, in order. A refused one does not stop the others."""
    results = []
    for id in dict.fromkeys(ids):
        try:
            worked(service, caller, id, deed(id, wanted, caller.who, note, assignee, until))
            results.append(BulkResult(id, ""))
        except RequestRefused as error:
            results.append(BulkResult(id, error.cause))
    return results


def _covered(service: Service, caller: Caller, id: int) -> None:
    if not service.incidents.covers(id, caller.prefixes):
        cause = "the incident has attempts of jobs that it is not for"
        raise RequestRefused(403, "forbidden", f"token {caller.name!r}", cause, "Use a token without prefixes.")
