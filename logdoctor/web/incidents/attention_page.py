"""The page of mutes, runbooks and notification targets."""

import time
from collections.abc import Callable

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor import taxonomy
from logdoctor.errors import RequestRefused
from logdoctor.web.dependencies import FormOperator, TheService
from logdoctor.web.gate import form_key
from logdoctor.web.incidents.desk_api import OF_ALL, DeskReader, MuteId, kept_runbook, lifted, muted
from logdoctor.web.incidents.requests import MuteIn, RunbookIn
from logdoctor.web.incidents.work_pages import SPANS
from logdoctor.web.rendering import checked_form, page, router, tell, told
from logdoctor.words import phrases

_MAX_VALUE = 300
_OVER = 20  # past mutes, the newest

pages = router()


@pages.get("/attention")
def attention(request: Request, caller: DeskReader, service: TheService) -> Response:
    """Show mutes, runbooks and notification targets."""
    now = time.time()
    every = service.mutes.all()
    content = {
        "mutes": [one for one in every if one.lifted is None and one.until > now],
        "over": [one for one in every if one.lifted is not None or one.until <= now][:_OVER],
        "runbooks": service.desk.runbooks(),
        "reasons": sorted(taxonomy.REASONS),
        "spans": SPANS,
        "may_work": caller.may("operate", ""),
        "key": form_key(request),
        "done": told(request),
    }
    return page(request, "attention.html", content)


@pages.post("/attention/mutes")
async def mute(request: Request, caller: FormOperator, service: TheService) -> Response:
    """Mute a fingerprint or a node."""
    given = await checked_form(request)
    caller.unbound(OF_ALL)
    value, why = given.get("value", "").strip()[:_MAX_VALUE], given.get("why", "").strip()[:2000]
    kind = given.get("kind", "")

    def keep() -> None:
        if kind not in ("fingerprint", "node") or not value:
            raise RequestRefused(409, "refused", "the mute", "it names nothing", "Say what is to be muted.")
        seconds = SPANS.get(given.get("span", ""), SPANS["7d"])
        made = muted(service, caller, MuteIn(kind=kind, value=value, seconds=seconds, why=why))  # type: ignore[arg-type]
        tell(request, f"The {made.kind} {made.value} is muted.")

    return await _back(request, keep, "#mutes")


@pages.post("/attention/mutes/{id}/lift")
async def lift(request: Request, caller: FormOperator, service: TheService, id: MuteId) -> Response:
    """End a mute."""
    await checked_form(request)
    caller.unbound(OF_ALL)

    def end() -> None:
        over = lifted(service, caller, id)
        tell(request, f"The {over.kind} {over.value} is not muted any more.")

    return await _back(request, end, "#mutes")


@pages.post("/attention/runbooks")
async def runbook(request: Request, caller: FormOperator, service: TheService) -> Response:
    """Set a runbook, or remove one."""
    given = await checked_form(request)
    caller.unbound(OF_ALL)
    kind, value, url = (given.get(name, "").strip() for name in ("kind", "value", "url"))

    def keep() -> None:
        if kind not in ("reason", "rule", "fingerprint") or not 0 < len(value) <= _MAX_VALUE or len(url) > 2000:
            raise RequestRefused(409, "refused", "the runbook", "it is for nothing", "Say what it is for.")
        if url:
            kept_runbook(service, caller, RunbookIn(kind=kind, value=value, url=url))  # type: ignore[arg-type]
        else:
            service.desk.forget_runbook(kind, value)  # type: ignore[arg-type] # checked above
        tell(request, f"The runbook of the {kind} {value} is {'set' if url else 'gone'}.")

    return await _back(request, keep, "#runbooks")


async def _back(request: Request, act: Callable[[], None], anchor: str) -> Response:
    """Redirect to the page after an action; it says why, if that was refused."""

    def taken() -> Response:
        try:
            act()
        except RequestRefused as error:
            if error.status != 409:
                raise
            tell(request, f"{phrases.problem(error)}. {error.next_step}")
        return RedirectResponse(f"/attention{anchor}", 303)

    return await run_in_threadpool(taken)
