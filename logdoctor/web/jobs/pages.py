"""The list of attempts: every current verdict, and attempts without one."""

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import RedirectResponse, Response

from logdoctor.web.dependencies import Reader, TheService
from logdoctor.web.incidents.underway import listed
from logdoctor.web.jobs.excerpts import Viewer
from logdoctor.web.jobs.filters import INCIDENTS, AttemptFilters, attempt_listing
from logdoctor.web.rendering import page, router

pages = router()


@pages.get("/attempts")
def attempts(
    request: Request, caller: Reader, service: TheService, filters: Annotated[AttemptFilters, Query()]
) -> Response:
    """List current verdicts, newest first."""
    if "" in request.query_params.values():  # a form was sent: redirect to the short URL
        return RedirectResponse(filters.url(), 303)
    event = service.records.last_event()  # read first, so that nothing is lost between the list and its stream
    found = attempt_listing(service.records, filters, caller.prefixes)
    to_look_at = sum(found.outcomes.get(outcome, 0) for outcome in INCIDENTS)
    begun = [
        (one, Viewer(one.job, one.attempt, service.streams(one.job, one.attempt)))
        for one in (found.unjudged.items if filters.shows_unjudged else ())
    ]
    content = {"filters": filters, "found": found, "event": event, "to_look_at": to_look_at, "begun": begun}
    content["to_do"] = listed(service, caller, found.items)
    content["failed"] = service.incidents.failed_at([(one.job, one.attempt) for one in found.items])
    return page(request, "attempts.html", content)
