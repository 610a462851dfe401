"""The page of notifications: who is told of incidents, and what became of each message."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor.service.service import Service
from logdoctor.store.notices import Notices
from logdoctor.web.gate import Caller, Gate, form_key
from logdoctor.web.models import Cursor
from logdoctor.web.notifications.api import (
    OF_ALL,
    NotificationId,
    OfState,
    OfTarget,
    sent_again,
    shown,
    targets,
    told,
    tried,
)
from logdoctor.web.rendering import checked_form, page, router

_PAGE = 50
OfNotice = Annotated[int | None, Query(ge=1, le=(1 << 63) - 1)]


def routes(service: Service, gate: Gate) -> APIRouter:
    """The routes of the page."""
    pages, kept = router(gate), Notices(service.records.database)
    Reader = Annotated[Caller, Depends(gate.allows_unbound("read", OF_ALL))]
    Operator = Annotated[Caller, Depends(gate.allows_unbound("operate", OF_ALL, by_form=True))]

    @pages.get("/notifications")
    def notifications(
        request: Request,
        caller: Reader,
        state: OfState = None,
        target: OfTarget = None,
        cursor: Cursor = None,
        sent: OfNotice = None,
    ) -> Response:
        """Targets, then messages, newest first; what came of the one that was just sent stands above."""
        found = kept.notices(cursor, _PAGE, state, target)
        chosen = {name: value for name, value in (("state", state), ("target", target)) if value}
        just_sent = kept.notice(sent) if sent else None
        content = {
            "targets": targets(service),
            "items": shown(found),
            "state": state or "",
            "target": target or "",
            "first": f"/notifications?{urlencode(chosen)}" if cursor else "",
            "following": f"/notifications?{urlencode({**chosen, 'cursor': found.next})}" if found.next else "",
            "found_next": found.next,
            "cursor": cursor,
            "just_sent": told(just_sent) if just_sent else None,
            "has_address": bool(service.notifier and service.notifier.terms.public_url),
            "may_act": service.notifier is not None and caller.may("operate", ""),
            "key": form_key(request),
        }
        return page(request, gate, "notifications.html", content)

    @pages.post("/notifications/test")
    async def test(request: Request, caller: Operator) -> Response:
        """Send a target a test; the page tells what came of it."""
        given = await checked_form(request)
        notice = await run_in_threadpool(tried, service, given.get("target", ""), caller.who)
        return RedirectResponse(f"/notifications?sent={notice.id}", 303)

    @pages.post("/notifications/{id}/retry")
    async def retry(request: Request, caller: Operator, id: NotificationId) -> Response:
        """Send a message again; the page tells how it stands."""
        await checked_form(request)
        notice = await run_in_threadpool(sent_again, service, id, caller.who)
        return RedirectResponse(f"/notifications?sent={notice.id}", 303)

    return pages
