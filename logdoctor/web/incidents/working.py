"""What people do with incidents, on pages and over the API alike: who may, and what comes of it."""

import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from logdoctor.errors import IncidentRefused, RequestRefused
from logdoctor.service.service import Service
from logdoctor.store.incidents import Incident, Incidents, Step
from logdoctor.web.gate import Caller
from logdoctor.web.problems import as_refusal, existing

BulkStep = Literal["acknowledge", "resolve", "reopen", "assign", "snooze", "unsnooze", "comment"]
"""What is done with many incidents at once."""

Deed = Callable[[Incidents, float], Incident]


class Snooze(NamedTuple):
    """Until when an incident is snoozed: for so many seconds, or until a time, or until so many more failures."""

    seconds: float | None = None
    until: float | None = None
    more: int | None = None

    def end(self, now: float) -> float | None:
        """Return the time at which it ends."""
        return now + self.seconds if self.seconds is not None else self.until


class BulkResult(msgspec.Struct, frozen=True):
    """What came of a step on one of many incidents: "" as `cause` says that it was done."""

    id: int
    cause: str


def visible(service: Service, caller: Caller, id: int) -> Incident:
    """Return the incident, as far as the caller may see it; otherwise it is not found."""
    return existing(service.incidents.one(id, caller.prefixes), f"incident {id}")


def worked(service: Service, caller: Caller, id: int, deed: Deed) -> Incident:
    """Return what comes of a deed of the caller on an incident, at this moment. `RequestRefused` with 403 when it has
    attempts of jobs that the caller may not see, with 409 when it cannot be done or somebody was quicker."""
    visible(service, caller, id)
    _covered(service, caller, id)
    try:
        return deed(service.incidents, time.time())
    except IncidentRefused as error:
        raise as_refusal(error) from error


def step(id: int, step: Step, by: str, note: str) -> Deed:
    """Return the deed of a step, whatever state was seen."""
    return lambda incidents, now: incidents.step(id, step, by, note, now, None)


def assign(id: int, assignee: str, by: str, note: str) -> Deed:
    """Return the deed that gives an incident to somebody."""
    return lambda incidents, now: incidents.assign(id, assignee, by, note, now)


def snooze(id: int, wanted: Snooze, by: str, note: str) -> Deed:
    """Return the deed that snoozes an incident."""
    return lambda incidents, now: incidents.snooze(id, wanted.end(now), wanted.more, by, note, now)


def in_bulk(
    service: Service,
    caller: Caller,
    ids: Sequence[int],
    wanted: BulkStep,
    note: str,
    assignee: str,
    until: Snooze,
) -> list[BulkResult]:
    """Return what came of a step on each of many incidents, in order; one that is refused holds up no other."""
    by = caller.who

    def one(id: int) -> None:
        deeds: dict[str, Deed] = {
            "assign": assign(id, assignee, by, note),
            "snooze": snooze(id, until, by, note),
            "unsnooze": lambda incidents, now: incidents.unsnooze(id, by, note, now),
            "comment": lambda incidents, now: incidents.comment(id, by, note, now),
        }
        worked(service, caller, id, deeds[wanted] if wanted in deeds else _stepped(id, wanted, by, note))

    results = []
    for id in dict.fromkeys(ids):
        try:
            one(id)
            results.append(BulkResult(id, ""))
        except RequestRefused as error:
            results.append(BulkResult(id, error.cause))
    return results


def _stepped(id: int, wanted: str, by: str, note: str) -> Deed:
    steps: dict[str, Step] = {"acknowledge": "acknowledge", "resolve": "resolve", "reopen": "reopen"}
    return step(id, steps[wanted], by, note)


def _covered(service: Service, caller: Caller, id: int) -> None:
    if not service.incidents.covers(id, caller.prefixes):
        cause = "the incident has attempts of jobs that it is not for"
        raise RequestRefused(403, "forbidden", f"token {caller.name!r}", cause, "Use a token without prefixes.")
