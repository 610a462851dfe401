"""The list of incidents: failures grouped by cause, newest first."""

import time
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import RedirectResponse, Response

from logdoctor.errors import InputError
from logdoctor.store.incidents.query import FIELDS, written
from logdoctor.store.jobs.records import Wanted
from logdoctor.store.keeping.tokens import holds
from logdoctor.web.dependencies import Reader, TheService
from logdoctor.web.gate import form_key
from logdoctor.web.incidents.filters import (
    IncidentFilters,
    incident_listing,
    says_nothing,
    suggestions,
    volume,
)
from logdoctor.web.incidents.underway import listed
from logdoctor.web.jobs.excerpts import gist
from logdoctor.web.rendering import page, router, told

pages = router()


@pages.get("/")
def incidents(
    request: Request, caller: Reader, service: TheService, filters: Annotated[IncidentFilters, Query()]
) -> Response:
    """List incidents, newest first."""
    if "" in request.query_params.values():  # a form was sent: redirect to the short URL
        return RedirectResponse(filters.url(), 303)
    event = service.incidents.last_event()  # read first, so that nothing is lost between the list and its stream
    refused, now = None, time.time()
    try:
        found = incident_listing(service.incidents, filters, caller.prefixes, now)
    except InputError as error:
        refused, asked, filters = error, filters.q, IncidentFilters(order=filters.order)
        found = incident_listing(service.incidents, filters, caller.prefixes, now)._replace(items=[], next=None)
    wanted = filters.wanted(caller.prefixes, now)
    failed = service.incidents.failures([one.id for one in found.items], caller.prefixes)
    content: dict[str, Any] = {
        "filters": filters,
        "query": asked if refused else filters.q,
        "refused": refused,
        "found": found,
        "suggestions": suggestions(found),
        "fields": FIELDS,
        "event": event,
        "attempts": 0,
        "unjudged": 0,
        "gist": gist,
        "volume": volume(service.incidents.times(wanted), now, filters) if found.items else [],
        "sparks": {id: volume(times, now) for id, times in failed.items() if len(times) > 1},
        "last_attempts": service.records.last_attempts(one.newest.job for one in found.items if one.newest),
        "says_nothing": says_nothing,
        "to_do": listed(service, caller, [one.newest for one in found.items if one.newest]),
        "may_work": caller.token is None or holds(caller.token, "operate"),
        "me": caller.who,
        "mine": written("assignee", caller.who),
        "key": form_key(request),
        "done": told(request),
    }
    if not (found.items or filters.q or refused):
        mine = Wanted(prefixes=caller.prefixes)
        content["unjudged"] = service.records.unjudged(mine, 1).total
        content["attempts"] = sum(service.records.counts(mine)["outcome"].values()) + content["unjudged"]
    return page(request, "incidents.html", content, 400 if refused else 200)
