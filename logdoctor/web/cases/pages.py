"""Pages of past cases: what failures were, what fixed them, who says so."""

from typing import Annotated

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor.store.learning.confirmed import Confirmation
from logdoctor.store.learning.overrides import StoredOverride
from logdoctor.web.cases.api import case_page, may_decide, take_back, visible_case
from logdoctor.web.cases.saving import corrected, still_ruled
from logdoctor.web.dependencies import FormOperator, Reader, TheService
from logdoctor.web.gate import form_key, named
from logdoctor.web.parameters import CaseId, Cursor, WantedPage
from logdoctor.web.rendering import WORDS, checked_form, page, router
from logdoctor.web.rules.overrides_api import may_overrule

_MAX_WORDS = 4000
_CASES = 50
OfReason = Annotated[str | None, Query(max_length=200)]

pages = router()


@pages.get("/cases")
def cases(
    request: Request, caller: Reader, service: TheService, reason: OfReason = None, cursor: Cursor = None
) -> Response:
    """List past failures, newest first."""
    if reason == "":
        return RedirectResponse("/cases", 303)
    found = case_page(service, caller, WantedPage(cursor, _CASES), reason, False)
    content = {"cases": found["items"], "next": found["next"], "reason": reason, "cursor": cursor}
    return page(request, "cases.html", content)


@pages.get("/cases/{id}")
def case(request: Request, caller: Reader, service: TheService, id: CaseId) -> Response:
    """Show one past failure: what it was, what fixed it, who says so."""
    said = visible_case(service, caller, id)
    content = {
        "incident": service.incidents.of(said.job, said.attempt),
        "overrides": [one for one in service.rules.overrides.list(withdrawn=True) if _came_with(one, said)],
        "case": said,
        "correction": corrected(service, said),
        "ruled": None if said.withdrawn else still_ruled(service, said),
        "current": service.records.current(said.job, said.attempt),
        "may_decide": may_decide(caller),
        "may_overrule": may_overrule(caller),
        "key": form_key(request),
    }
    return page(request, "case.html", content)


def _came_with(one: StoredOverride, said: Confirmation) -> bool:
    """Return whether an override was entered with a case."""
    return said.verdict is not None and (one.verdict, one.at) == (said.verdict, said.at)


@pages.post("/cases/{id}/withdraw")
async def withdraw(request: Request, caller: FormOperator, service: TheService, id: CaseId) -> Response:
    """Withdraw a case."""
    given = await checked_form(request, WORDS)
    caller = named(request, caller, given.get("who", ""))
    await run_in_threadpool(take_back, service, caller, id, given.get("why", "")[:_MAX_WORDS])
    return RedirectResponse(f"/cases/{id}", 303)
