"""Incidents over HTTP: lists, contents, steps, and a stream of changes."""

from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from logdoctor.service.service import Service
from logdoctor.store.incidents.query import MAX_QUERY
from logdoctor.store.incidents.severity import Order
from logdoctor.store.incidents.table import Incident, IncidentPage, State, Step, WantedIncidents
from logdoctor.web.dependencies import Operator, Reader, TheHubs, TheService, admit_reader
from logdoctor.web.events import LastSeen, beginning, event, following
from logdoctor.web.gate import Caller
from logdoctor.web.incidents import working
from logdoctor.web.incidents.answers import BulkResults, Handover, IncidentCounts, IncidentStory
from logdoctor.web.incidents.requests import AssignIn, BulkIn, CommentIn, IncidentStepIn, SnoozeIn
from logdoctor.web.incidents.working import visible, worked
from logdoctor.web.jobs.answers import VerdictPage
from logdoctor.web.jobs.api import Filter, Time
from logdoctor.web.json_answer import Json
from logdoctor.web.openapi import answers, streams
from logdoctor.web.parameters import IncidentId, Limit, ThePage
from logdoctor.web.problems import describe, refusal
from logdoctor.words import handover as words

_PAGE = 100
_BOTH: tuple[Literal["hide"], Literal["only"]] = ("hide", "only")
_REFUSED = refusal(409, "it cannot take this step, or somebody was quicker; `cause` says who")

States = Annotated[
    list[State] | None, Query(description="only those in one of these states; without it new and acknowledged ones")
]
Words = Annotated[
    str | None, Query(max_length=300, description="words in reason, suspected nodes, job, user and first quote")
]
Quiet = Annotated[
    Literal["hide", "only"] | None,
    Query(description="open ones that are snoozed or muted: left out, or nothing else; without it all are listed"),
]
Asked = Annotated[
    str,
    Query(
        max_length=MAX_QUERY,
        description="a query as in docs/incidents.md; its states take the place of `state`",
        examples=['is:new node:os-* reason:"ECC Error" gpus:>256 age:<2h'],
    ),
]
Ordered = Annotated[Order, Query(description="the largest first; `last` is the time of the newest failure")]

router = APIRouter(default_response_class=Response, prefix="/v1/incidents", tags=["incidents"])


@router.get("", responses=answers(IncidentPage) | describe(400, 422))
def search(
    caller: Reader,
    service: TheService,
    page: ThePage,
    q: Asked = "",
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
    assignee: Filter = None,
    quiet: Quiet = None,
    order: Ordered = "last",
) -> Response:
    """List incidents that match all given filters, by default those with the newest attempt first."""
    states: tuple[State, ...] = tuple(state) if state else ("new", "acknowledged")
    filters = (reason, category, recovery, fault, node, user, job, fingerprint, text, since, until)
    wanted = WantedIncidents(states, *filters, caller.prefixes, assignee=assignee, quiet=quiet, order=order, q=q)
    return Json(service.incidents.search(wanted, *page))


@router.get("/counts", responses=answers(IncidentCounts) | describe(422))
def counts(caller: Reader, service: TheService) -> Response:
    """Count the open incidents that need attention, and those that are snoozed or muted."""
    loud, quiet = (
        service.incidents.counts(WantedIncidents(quiet=quiet, prefixes=caller.prefixes))["state"] for quiet in _BOTH
    )
    newest = service.incidents.newest(caller.prefixes)
    return Json(IncidentCounts(loud.get("new", 0), loud.get("acknowledged", 0), sum(quiet.values()), newest))


@router.post("/bulk", responses=answers(BulkResults) | describe(422))
def bulk(caller: Operator, service: TheService, said: BulkIn) -> Response:
    """Take one step on many incidents. One that cannot take it does not stop the others, and `cause` says why."""
    assignee = caller.who if said.assignee is None else said.assignee
    return Json(BulkResults(working.in_bulk(service, caller, said.ids, said.step, said.note, assignee, said.wanted())))


@router.get(
    "/stream", responses=streams(("incident",), "an Incident") | describe(422), response_class=StreamingResponse
)
async def stream(
    request: Request, caller: Reader, service: TheService, hubs: TheHubs, seen: LastSeen
) -> StreamingResponse:
    """Send new and changed incidents as events `incident`, from now on or after Last-Event-ID. An incident that changed
    several times comes once, in its latest state."""
    hub = hubs.incidents
    last = await beginning(seen, service.incidents.last_event)

    async def news(caller: Caller) -> AsyncIterator[bytes]:
        nonlocal last

        def newer() -> tuple[int, list[tuple[int, bytes]]]:
            reached = service.incidents.last_event()  # before the events up to it are looked for
            found = service.incidents.newer(last, _PAGE, caller.prefixes)
            return reached, [(one.event, event(one.event, "incident", one)) for one in found]

        while True:
            reached, found = await hub.shared((last, caller.prefixes), newer)
            if not found:
                break
            last = found[-1][0]
            for _, content in found:
                yield content
        last = max(last, reached)  # events of other jobs are not scanned again

    return following(request, hub, caller, admit_reader, news)


@router.get("/{id}", responses=answers(Incident) | describe(404, 422))
def incident(caller: Reader, service: TheService, id: IncidentId) -> Response:
    """Return one incident with the verdict of its newest attempt. A merged one returns its replacement."""
    return Json(visible(service, caller, id))


@router.get("/{id}/attempts", responses=answers(VerdictPage) | describe(400, 404, 422))
def attempts(caller: Reader, service: TheService, id: IncidentId, page: ThePage) -> Response:
    """List the current verdicts of its attempts, newest first."""
    visible(service, caller, id)
    return Json(service.incidents.members(id, *page, caller.prefixes))


@router.get("/{id}/events", responses=answers(IncidentStory) | describe(404, 422))
def events(caller: Reader, service: TheService, id: IncidentId, limit: Limit = 100) -> Response:
    """List its history, newest first: attempts that joined and left, steps that people took."""
    visible(service, caller, id)
    return Json(IncidentStory(service.incidents.events(id, limit, caller.prefixes)))


@router.get("/{id}/handover", responses=answers(Handover) | describe(404, 422))
def handover(caller: Reader, service: TheService, id: IncidentId) -> Response:
    """Return it in one paragraph for whoever takes it over, with the nodes to leave out; secrets are masked."""
    found = visible(service, caller, id)
    members = service.incidents.members(found.id, None, 50, caller.prefixes)
    told = service.incidents.events(found.id, 20, caller.prefixes)
    return Json(Handover(words.handover(found, members.items, told)))


@router.post("/{id}/acknowledge", responses=answers(Incident) | describe(404, 422) | _REFUSED)
def acknowledge(caller: Operator, service: TheService, id: IncidentId, said: IncidentStepIn) -> Response:
    """Acknowledge an incident: somebody is working on it."""
    return Json(_step(service, caller, id, "acknowledge", said))


@router.post("/{id}/resolve", responses=answers(Incident) | describe(404, 422) | _REFUSED)
def resolve(caller: Operator, service: TheService, id: IncidentId, said: IncidentStepIn) -> Response:
    """Resolve an incident; the next attempt that fails in the same way opens another one."""
    return Json(_step(service, caller, id, "resolve", said))


@router.post("/{id}/reopen", responses=answers(Incident) | describe(404, 422) | _REFUSED)
def reopen(caller: Operator, service: TheService, id: IncidentId, said: IncidentStepIn) -> Response:
    """Reopen an incident; refused while the same failure is open as another incident."""
    return Json(_step(service, caller, id, "reopen", said))


@router.post("/{id}/assign", responses=answers(Incident) | describe(404, 422) | _REFUSED)
def assign(caller: Operator, service: TheService, id: IncidentId, said: AssignIn) -> Response:
    """Assign an incident to the caller, to somebody or to nobody."""
    assignee = caller.who if said.assignee is None else said.assignee
    return Json(worked(service, caller, id, working.deed(id, "assign", caller.who, said.note, assignee)))


@router.post("/{id}/snooze", responses=answers(Incident) | describe(404, 422) | _REFUSED)
def snooze(caller: Operator, service: TheService, id: IncidentId, said: SnoozeIn) -> Response:
    """Snooze an incident until a time or until more attempts fail, whichever comes first. Then it counts as new."""
    return Json(worked(service, caller, id, working.deed(id, "snooze", caller.who, said.note, until=said.wanted())))


@router.post("/{id}/unsnooze", responses=answers(Incident) | describe(404, 422) | _REFUSED)
def unsnooze(caller: Operator, service: TheService, id: IncidentId, said: IncidentStepIn) -> Response:
    """End its snooze."""
    return Json(worked(service, caller, id, working.deed(id, "unsnooze", caller.who, said.note)))


@router.post("/{id}/comment", responses=answers(Incident) | describe(404, 422) | _REFUSED)
def comment(caller: Operator, service: TheService, id: IncidentId, said: CommentIn) -> Response:
    """Add a comment to its history, without any other change."""
    return Json(worked(service, caller, id, working.deed(id, "comment", caller.who, said.note)))


def _step(service: Service, caller: Caller, id: int, step: Step, said: IncidentStepIn) -> Incident:
    return worked(service, caller, id, lambda all, now: all.step(id, step, caller.who, said.note, now, said.seen_as))
