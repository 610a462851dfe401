"""The forms of incident pages: work on one incident, and on many."""

from typing import Any, Literal, get_args

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor.errors import RequestRefused
from logdoctor.service.service import Service
from logdoctor.store.incidents.table import Incident
from logdoctor.web.dependencies import FormOperator, TheService
from logdoctor.web.gate import Caller
from logdoctor.web.incidents import working
from logdoctor.web.incidents.desk_api import OF_ALL, muted
from logdoctor.web.incidents.requests import MOST_AT_ONCE, MuteIn
from logdoctor.web.incidents.working import BulkStep, Snooze, visible, worked
from logdoctor.web.parameters import IncidentId, whole_number
from logdoctor.web.rendering import WORDS, checked_fields, checked_form, local, router, tell
from logdoctor.words import phrases

SPANS = {"1h": 3600, "8h": 8 * 3600, "1d": 86_400, "3d": 3 * 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400}
"""Seconds of a snooze or a mute, by their names in the forms."""

_MAX_NOTE = 2000
_MAX_WHO = 200
_DEEDS: dict[str, BulkStep] = {
    "mine": "assign",
    "assign": "assign",
    "snooze": "snooze",
    "unsnooze": "unsnooze",
    "comment": "comment",
}
_MUTES: dict[str, Literal["fingerprint", "node"]] = {"mute-fingerprint": "fingerprint", "mute-node": "node"}
_DONE: dict[BulkStep, str] = {
    "acknowledge": "acknowledged",
    "resolve": "resolved",
    "reopen": "reopened",
    "assign": "assigned",
    "snooze": "snoozed",
    "unsnooze": "woken",
    "comment": "commented on",
}

pages = router()


@pages.post("/incidents/bulk")
async def bulk(request: Request, caller: FormOperator, service: TheService) -> Response:
    """Take a step on all chosen incidents; the list shows the results."""
    given = await checked_fields(request, WORDS, MOST_AT_ONCE + 20)
    ids = [number for text in given.get("id", []) if (number := whole_number(text)) is not None][:MOST_AT_ONCE]
    wanted: Any = given.get("step", [""])[0]
    back = local(given.get("back", ["/"])[0])
    note = given.get("note", [""])[0].strip()[:_MAX_NOTE]

    def take() -> Response:
        if wanted not in get_args(BulkStep):
            raise RequestRefused(400, "invalid", "the form", "it has no step", "Reload the page.")
        if not ids:
            tell(request, "No incident was chosen: tick some first.")
            return RedirectResponse(back, 303)
        until = Snooze(seconds=SPANS["1d"])
        results = working.in_bulk(service, caller, ids, wanted, note, caller.who, until)
        tell(request, _outcome(results, wanted))
        return RedirectResponse(back, 303)

    return await run_in_threadpool(take)


@pages.post("/incidents/{id}/work")
async def work(request: Request, caller: FormOperator, service: TheService, id: IncidentId) -> Response:
    """Assign, snooze, mute or comment; the page of the incident shows the result."""
    given = await checked_form(request, WORDS)
    deed = given.get("deed", "")

    def act() -> Response:
        if deed not in _DEEDS and deed not in _MUTES:
            raise RequestRefused(400, "invalid", "the form", "it has no step", "Reload the page.")
        try:
            _work(service, caller, id, deed, given)
        except RequestRefused as error:
            if error.status != 409:
                raise
            tell(request, f"{phrases.problem(error)}. {error.next_step}")
        return RedirectResponse(f"/incidents/{id}#work", 303)

    return await run_in_threadpool(act)


def _work(service: Service, caller: Caller, id: int, deed: str, given: dict[str, str]) -> Incident:
    """Take a step on an incident, and return the incident."""
    by, note = caller.who, given.get("note", "").strip()[:_MAX_NOTE]
    if deed in _MUTES:
        return _mute(service, caller, id, _MUTES[deed], given.get("span", ""), note)
    assignee = by if deed == "mine" else given.get("assignee", "").strip()[:_MAX_WHO]
    return worked(service, caller, id, working.deed(id, _DEEDS[deed], by, note, assignee, _snooze(given)))


def _mute(
    service: Service, caller: Caller, id: int, kind: Literal["fingerprint", "node"], span: str, why: str
) -> Incident:
    """Mute an incident's fingerprint or node, and return the incident."""
    caller.unbound(OF_ALL)
    found = visible(service, caller, id)
    value = found.node if kind == "node" else found.fingerprint
    if not value:
        raise RequestRefused(409, "refused", f"incident {id}", f"it has no {kind}", "Mute something else.")
    muted(service, caller, MuteIn(kind=kind, value=value, seconds=SPANS.get(span, SPANS["7d"]), why=why))
    return found


def _snooze(given: dict[str, str]) -> Snooze:
    """Return the snooze of a form: a span, a number of failures, or both."""
    span = SPANS.get(given.get("span", ""))
    return Snooze(None if span is None else float(span), None, whole_number(given.get("more", ""), 1_000_000))


def _outcome(results: list[working.BulkResult], wanted: BulkStep) -> str:
    """Return the results of a step on many incidents, in words."""
    refused = [one for one in results if one.cause]
    count = phrases.count(len(results) - len(refused), "incident")
    said = f"{count} {_DONE[wanted]}." if len(refused) < len(results) else ""
    if refused:
        first = refused[0]
        said += f" {len(refused)} not: incident {first.id}: {first.cause}."
    return said.strip()
