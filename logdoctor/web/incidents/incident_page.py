"""An incident with the verdict on one of its attempts: answer, proof, and next steps."""

import time
from typing import Any

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor.errors import IncidentRefused, LogdoctorError, RequestRefused
from logdoctor.service.service import Service
from logdoctor.store.incidents.table import Incident, Step, WantedIncidents
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.types.nodes import PastCordon
from logdoctor.web.cases import saving
from logdoctor.web.cases.saving import Saved
from logdoctor.web.dependencies import FormOperator, Reader, TheService
from logdoctor.web.gate import Caller, form_key, named
from logdoctor.web.incidents.telling import verdict_content
from logdoctor.web.jobs.api import visible
from logdoctor.web.parameters import Cursor, IncidentId, OptionalId, VerdictId
from logdoctor.web.problems import existing, not_found
from logdoctor.web.rendering import WORDS, checked_form, page, router, told
from logdoctor.web.rules.overrides_api import may_overrule
from logdoctor.words.handover import handover

_MAX_NOTE = 2000
_MEMBERS = 25
_EVENTS = 50

pages = router()


@pages.get("/incidents/{id}")
def incident(
    request: Request,
    caller: Reader,
    service: TheService,
    id: IncidentId,
    verdict: OptionalId = None,
    case: OptionalId = None,
    cursor: Cursor = None,
    cordon: OptionalId = None,
) -> Response:
    """Show one incident, with the verdict on its newest attempt or on another one. `case` shows a case just entered, in
    whichever incident its attempt is now; `cordon` a cordon just made for it."""
    if case is not None and (moved := saving.moved(service, caller, case, id)):
        return RedirectResponse(moved, 303)
    found = _visible_incident(service, caller, id)
    if found.id != id:
        return RedirectResponse(f"/incidents/{found.id}", 303)
    said = saving.saved(service, caller, case)
    stored = found.newest if verdict is None else _of_incident(service, caller, found, verdict)
    shown = said.stored if said else stored
    made = None if cordon is None or caller.prefixes else _made_for(service, found, cordon)
    return _incident_page(request, service, caller, found, shown, cursor, said=said, made=made)


@pages.post("/incidents/{id}/{step}")
async def step(request: Request, caller: FormOperator, service: TheService, id: IncidentId, step: Step) -> Response:
    """Acknowledge, resolve or reopen an incident; if somebody was quicker, the page says who."""
    given = await checked_form(request, WORDS)
    caller = named(request, caller, given.get("who", ""))
    note, seen_as = given.get("note", "").strip()[:_MAX_NOTE], given.get("seen_as", "")
    seen: Any = seen_as if seen_as in ("new", "acknowledged", "resolved") else None

    def take() -> Response:
        found = _visible_incident(service, caller, id)
        if not may_step(service, caller, found):
            cause = "it is not allowed to decide for all of its attempts"
            raise RequestRefused(403, "forbidden", f"token {caller.name!r}", cause, "Use another token.")
        try:
            service.incidents.step(id, step, caller.who, note, time.time(), seen)
        except IncidentRefused as error:
            now = _visible_incident(service, caller, id)
            return _incident_page(request, service, caller, now, now.newest, None, error, note)
        return RedirectResponse(f"/incidents/{id}#next", 303)  # the next step has the focus

    return await run_in_threadpool(take)


@pages.get("/verdicts/{id}")
def verdict(request: Request, caller: Reader, service: TheService, id: VerdictId, case: OptionalId = None) -> Response:
    """Show one verdict, of an attempt that failed or not."""
    stored = visible(caller, service.records.verdict(id), f"verdict {id}")
    number = service.incidents.of(stored.job, stored.attempt) if stored.verdict.outcome == "failed" else None
    incident = None if number is None else service.incidents.one(number, caller.prefixes)
    said = saving.saved(service, caller, case)
    content = verdict_content(service, caller, stored, incident) | _around(request, service, caller, incident, said)
    return saving.refreshed(page(request, "verdict.html", content), said, f"/verdicts/{id}")


def may_step(service: Service, caller: Caller, incident: Incident) -> bool:
    """Return whether the caller may acknowledge, resolve and reopen an incident with all its attempts."""
    if not caller.prefixes:
        return caller.may("operate", "")
    if incident.newest is None or not caller.may("operate", incident.newest.job):
        return False
    return service.incidents.covers(incident.id, caller.prefixes)


def _incident_page(
    request: Request,
    service: Service,
    caller: Caller,
    incident: Incident,
    stored: StoredVerdict | None,
    cursor: str | None,
    refusal: LogdoctorError | None = None,
    note: str = "",
    said: Saved | None = None,
    made: PastCordon | None = None,
) -> Response:
    """Return the page of an incident, with a refused note, or the cordon just `made`."""
    around = _around(request, service, caller, incident, said) | {"refusal": refusal, "note": note, "made": made}
    status = 409 if refusal else 200
    around["events"] = service.incidents.events(incident.id, _EVENTS, caller.prefixes)
    if stored is None:
        return page(request, "incident_left.html", around, status)
    members = service.incidents.members(incident.id, cursor, _MEMBERS, caller.prefixes)
    around |= {"members": members.items, "next": members.next, "cursor": cursor}
    around["handover"] = handover(incident, members.items, around["events"])
    content = verdict_content(service, caller, stored, incident, members.items) | around
    return saving.refreshed(page(request, "incident.html", content, status), said, f"/incidents/{incident.id}")


def _around(
    request: Request, service: Service, caller: Caller, incident: Incident | None, said: Saved | None
) -> dict[str, Any]:
    """Return the page's content about the incident and the request."""
    return {
        "saved": said,
        "may_overrule": may_overrule(caller),
        "incident": incident,
        "may_step": incident is not None and may_step(service, caller, incident),
        "asked_again": "asked" in request.query_params,
        "refusal": None,
        "made": None,
        "note": "",
        "key": form_key(request),
        "me": caller.who,
        "done": told(request),
        "following": _next_new(service, caller, incident.id) if incident else None,
        "mutes": service.mutes.of(incident.fingerprint, incident.node) if incident and not caller.prefixes else [],
    }


def _visible_incident(service: Service, caller: Caller, id: int) -> Incident:
    """Return the incident, or the one it was merged into. If the caller may not see both, it is not found."""
    found = service.incidents.one(id, caller.prefixes)
    while found is not None and found.merged_into is not None:
        found = service.incidents.one(found.merged_into, caller.prefixes)
    return existing(found, f"incident {id}")


def _next_new(service: Service, caller: Caller, after: int) -> Incident | None:
    """Return the newest incident that nobody works on yet: the next one `after` another."""
    wanted = WantedIncidents(("new",), prefixes=caller.prefixes, quiet="hide", now=time.time())
    return next((one for one in service.incidents.search(wanted, limit=2).items if one.id != after), None)


def _made_for(service: Service, incident: Incident, cordon: int) -> PastCordon | None:
    """Return a cordon, if it was made because of a verdict of the incident."""
    made = NodeRecords(service.records.database).cordon(cordon)
    stored = service.records.verdict(made.verdict) if made is not None and made.verdict is not None else None
    return made if stored is not None and service.incidents.of(stored.job, stored.attempt) == incident.id else None


def _of_incident(service: Service, caller: Caller, incident: Incident, verdict: int) -> StoredVerdict:
    """Return a verdict on an attempt of the incident."""
    stored = visible(caller, service.records.verdict(verdict), f"verdict {verdict}")
    if service.incidents.of(stored.job, stored.attempt) != incident.id:
        raise not_found(f"verdict {verdict} in incident {incident.id}")
    return stored
