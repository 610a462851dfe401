"""Incidents over HTTP: lists of them, what is in each, what people do about them, and changes as they come."""

import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from logdoctor.errors import IncidentRefused, RequestRefused
from logdoctor.service.service import Service
from logdoctor.store.incidents import Incident, IncidentPage, State, Step, WantedIncidents
from logdoctor.web.dependencies import Operator, Reader, TheHubs, TheService, admit_reader
from logdoctor.web.events import LastSeen, beginning, event, following
from logdoctor.web.gate import Caller
from logdoctor.web.incidents.answers import IncidentStory
from logdoctor.web.incidents.requests import IncidentStepIn
from logdoctor.web.jobs.answers import VerdictPage
from logdoctor.web.jobs.api import Filter, Time
from logdoctor.web.json_answer import Json
from logdoctor.web.openapi import answers, streams
from logdoctor.web.parameters import IncidentId, Limit, ThePage
from logdoctor.web.problems import as_refusal, describe, existing, refusal

_PAGE = 100
_REFUSED = refusal(409, "it cannot take this step, or somebody was quicker; `cause` says who")

States = Annotated[
    list[State] | None, Query(description="only those in one of these states; without it new and acknowledged ones")
]
Words = Annotated[
    str | None, Query(max_length=300, description="words in reason, suspected nodes, job, user and first quote")
]

router = APIRouter(default_response_class=Response, prefix="/v1/incidents", tags=["incidents"])


@router.get("", responses=answers(IncidentPage) | describe(400, 422))
def search(
    caller: Reader,
    service: TheService,
    page: ThePage,
    state: States = None,
    reason: Filter = None,
    category: Filter = None,
    recovery: Filter = None,
    fault: Filter = None,
    node: Filter = None,
    user: Filter = None,
    job: Filter = None,
    fingerprint: Filter = None,
    text: Words = None,
    since: Time = None,
    until: Time = None,
) -> Response:
    """List incidents, those with the newest attempt first. All filters that are given must hold."""
    states: tuple[State, ...] = tuple(state) if state else ("new", "acknowledged")
    filters = (reason, category, recovery, fault, node, user, job, fingerprint, text, since, until)
    return Json(service.incidents.search(WantedIncidents(states, *filters, caller.prefixes), *page))


@router.get(
    "/stream", responses=streams(("incident",), "an Incident") | describe(422), response_class=StreamingResponse
)
async def stream(
    request: Request, caller: Reader, service: TheService, hubs: TheHubs, seen: LastSeen
) -> StreamingResponse:
    """Send each new or changed incident as an event `incident`, from now on or after Last-Event-ID; an incident that
    changed several times comes once, as it is now."""
    last = await beginning(hubs.incidents, seen, service.incidents.last_event)

    async def news(caller: Caller) -> AsyncIterator[bytes]:
        nonlocal last
        reached = await run_in_threadpool(service.incidents.last_event)
        while found := await run_in_threadpool(service.incidents.newer, last, _PAGE, caller.prefixes):
            last = found[-1].event
            for one in found:
                yield event(one.event, "incident", one)
        last = max(last, reached)  # what is between is not theirs, and is not looked through again

    return following(request, hubs.incidents, admit_reader, news)


@router.get("/{id}", responses=answers(Incident) | describe(404, 422))
def incident(caller: Reader, service: TheService, id: IncidentId) -> Response:
    """Return one incident with the verdict of its newest attempt. One that was merged names the one it stands for."""
    return Json(_visible(service, caller, id))


@router.get("/{id}/attempts", responses=answers(VerdictPage) | describe(400, 404, 422))
def attempts(caller: Reader, service: TheService, id: IncidentId, page: ThePage) -> Response:
    """List the current verdicts of its attempts, newest first."""
    _visible(service, caller, id)
    return Json(service.incidents.members(id, *page, caller.prefixes))


@router.get("/{id}/events", responses=answers(IncidentStory) | describe(404, 422))
def events(caller: Reader, service: TheService, id: IncidentId, limit: Limit = 100) -> Response:
    """List what happened to it, newest first: attempts that joined and left, steps that people took."""
    _visible(service, caller, id)
    return Json(IncidentStory(service.incidents.events(id, limit, caller.prefixes)))


@router.post("/{id}/acknowledge", responses=answers(Incident) | describe(404, 422) | _REFUSED)
def acknowledge(caller: Operator, service: TheService, id: IncidentId, said: IncidentStepIn) -> Response:
    """Say that somebody looks after it."""
    return Json(_step(service, caller, id, "acknowledge", said))


@router.post("/{id}/resolve", responses=answers(Incident) | describe(404, 422) | _REFUSED)
def resolve(caller: Operator, service: TheService, id: IncidentId, said: IncidentStepIn) -> Response:
    """Say that it is over; the next attempt that fails so opens another incident."""
    return Json(_step(service, caller, id, "resolve", said))


@router.post("/{id}/reopen", responses=answers(Incident) | describe(404, 422) | _REFUSED)
def reopen(caller: Operator, service: TheService, id: IncidentId, said: IncidentStepIn) -> Response:
    """Say that it is not over; refused while the same failure is open as another incident."""
    return Json(_step(service, caller, id, "reopen", said))


def _step(service: Service, caller: Caller, id: int, step: Step, said: IncidentStepIn) -> Incident:
    return _take(service, caller, _visible(service, caller, id).id, step, said.note, said.seen_as)


def _visible(service: Service, caller: Caller, id: int) -> Incident:
    return existing(service.incidents.one(id, caller.prefixes), f"incident {id}")


def _take(service: Service, caller: Caller, id: int, step: Step, note: str, seen_as: State | None) -> Incident:
    """Return the incident after the caller's step, at this moment. `RequestRefused` with 403 when it has attempts of
    jobs that the caller may not see, with 409 when it cannot take the step or somebody was quicker."""
    if not service.incidents.covers(id, caller.prefixes):
        cause = "the incident has attempts of jobs that it is not for"
        raise RequestRefused(403, "forbidden", f"token {caller.name!r}", cause, "Use a token without prefixes.")
    try:
        return service.incidents.step(id, step, caller.who, note, time.time(), seen_as)
    except IncidentRefused as error:
        raise as_refusal(error) from error
