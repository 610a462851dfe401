"""What the forms of incident pages send: work on one incident, on many, and views of the list."""

from typing import Any, Literal, get_args
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor.errors import RequestRefused
from logdoctor.service.service import Service
from logdoctor.store.incidents import Incident
from logdoctor.web import wording
from logdoctor.web.dependencies import FormOperator, TheService
from logdoctor.web.gate import Caller
from logdoctor.web.incidents import working
from logdoctor.web.incidents.desk_api import OF_ALL, muted, saved_view
from logdoctor.web.incidents.filters import IncidentFilters
from logdoctor.web.incidents.requests import MOST_AT_ONCE, MuteIn
from logdoctor.web.incidents.working import BulkStep, Snooze, visible, worked
from logdoctor.web.parameters import IncidentId, whole_number
from logdoctor.web.problems import not_found
from logdoctor.web.rendering import WORDS, checked_fields, checked_form, local, router, tell

SPANS = {"1h": 3600, "8h": 8 * 3600, "1d": 86_400, "3d": 3 * 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400}
"""Seconds for which something is snoozed or muted, by what the forms call it."""

_MAX_NOTE = 2000
_MAX_WHO = 200
_DEEDS = ("mine", "assign", "snooze", "unsnooze", "comment", "merge", "split", "mute-fingerprint", "mute-node")
_DONE: dict[BulkStep, str] = {
    "acknowledge": "acknowledged",
    "resolve": "resolved",
    "reopen": "reopened",
    "assign": "assigned",
    "snooze": "snoozed",
    "unsnooze": "woken",
    "comment": "commented on",
    "merge": "merged",
}

pages = router()


@pages.post("/incidents/bulk")
async def bulk(request: Request, caller: FormOperator, service: TheService) -> Response:
    """Take a step on all incidents that were chosen; the list says what came of it."""
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


@pages.post("/incidents/views")
async def views(request: Request, caller: FormOperator, service: TheService) -> Response:
    """Save a view of the list under a name, or forget one."""
    given = await checked_form(request)
    caller.unbound(OF_ALL)
    name, query = given.get("name", "").strip(), given.get("query", "")
    try:
        filters = IncidentFilters.model_validate(dict(parse_qsl(query)))
    except (ValidationError, ValueError):
        raise RequestRefused(400, "invalid", "the view", "its filter is not one of this list", "Reload.") from None

    def keep() -> Response:
        if "forget" in given:
            service.desk.forget_view(given["forget"])
            return RedirectResponse("/attention#views", 303)
        saved_view(service, caller, name, filters.query)
        tell(request, f"Saved as the view {name}.")
        return RedirectResponse(filters.url(), 303)

    return await run_in_threadpool(keep)


@pages.post("/incidents/{id}/work")
async def work(request: Request, caller: FormOperator, service: TheService, id: IncidentId) -> Response:
    """Assign, snooze, mute, comment, merge or split; the page of the incident says what came of it."""
    fields = await checked_fields(request, WORDS, MOST_AT_ONCE + 20)
    given = {name: values[0] for name, values in fields.items()}
    deed = given.get("deed", "")

    def act() -> Response:
        if deed not in _DEEDS:
            raise RequestRefused(400, "invalid", "the form", "it has no step", "Reload the page.")
        shown = id
        try:
            shown = _work(service, caller, id, deed, given, fields.get("attempt", [])).id
        except RequestRefused as error:
            if error.status != 409:
                raise
            tell(request, f"{wording.problem(error)}. {error.next_step}")
        return RedirectResponse(f"/incidents/{shown}#work", 303)

    return await run_in_threadpool(act)


def _work(service: Service, caller: Caller, id: int, deed: str, given: dict[str, str], attempts: list[str]) -> Incident:
    """Return the incident to be shown after a deed."""
    by, note = caller.who, given.get("note", "").strip()[:_MAX_NOTE]
    if deed in ("mine", "assign"):
        assignee = by if deed == "mine" else given.get("assignee", "").strip()[:_MAX_WHO]
        return worked(service, caller, id, working.assign(id, assignee, by, note))
    if deed == "snooze":
        return worked(service, caller, id, working.snooze(id, _snooze(given), by, note))
    if deed == "unsnooze":
        return worked(service, caller, id, lambda all, now: all.unsnooze(id, by, note, now))
    if deed == "comment":
        return worked(service, caller, id, lambda all, now: all.comment(id, by, note, now))
    if deed == "merge":
        into = whole_number(given.get("into", ""))
        if into is None:
            raise RequestRefused(409, "refused", "the merge", "it names no incident", "Write the number of one.")
        return working.merged(service, caller, id, into, note)
    if deed == "split":
        return worked(service, caller, id, lambda all, now: all.split(id, _named(attempts), by, note, now))
    return _mute(service, caller, id, "node" if deed == "mute-node" else "fingerprint", given.get("span", ""), note)


def _mute(
    service: Service, caller: Caller, id: int, kind: Literal["fingerprint", "node"], span: str, why: str
) -> Incident:
    """Return the incident, whose fingerprint or node is muted."""
    caller.unbound(OF_ALL)
    found = visible(service, caller, id)
    value = found.node if kind == "node" else found.fingerprint
    if not value:
        raise RequestRefused(409, "refused", f"incident {id}", f"it has no {kind}", "Mute something else.")
    muted(service, caller, MuteIn(kind=kind, value=value, seconds=SPANS.get(span, SPANS["7d"]), why=why))
    return found


def _snooze(given: dict[str, str]) -> Snooze:
    """Return until when a form wants an incident snoozed: a span, a number of failures, or both."""
    span = SPANS.get(given.get("span", ""))
    return Snooze(None if span is None else float(span), None, whole_number(given.get("more", ""), 1_000_000))


def _named(attempts: list[str]) -> list[tuple[str, int]]:
    """Return the attempts that were ticked, as `NUMBER JOB`."""
    named = []
    for one in attempts:
        number, _, job = one.partition(" ")
        if not job or not (number.isascii() and number.isdecimal() and len(number) < 10):
            raise not_found(f"attempt {one[:80]}")
        named.append((job, int(number)))
    return named


def _outcome(results: list[working.BulkResult], wanted: BulkStep) -> str:
    """Return what came of a step on many incidents, in words."""
    refused = [one for one in results if one.cause]
    count = wording.count(len(results) - len(refused), "incident")
    said = f"{count} {_DONE[wanted]}." if len(refused) < len(results) else ""
    if refused:
        first = refused[0]
        said += f" {len(refused)} not: incident {first.id}: {first.cause}."
    return said.strip() or "Choose at least two incidents to merge."
