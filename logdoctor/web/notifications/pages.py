"""The page of notifications: targets, messages and their delivery."""

from urllib.parse import urlencode

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor.web.dependencies import TheService
from logdoctor.web.gate import form_key
from logdoctor.web.notifications.api import (
    NoticeFormOperator,
    NoticeReader,
    NotificationId,
    OfState,
    OfTarget,
    TheNotices,
    as_answer,
    sent_again,
    shown,
    targets,
    tried,
)
from logdoctor.web.parameters import Cursor, OptionalId
from logdoctor.web.rendering import checked_form, page, router

_PAGE = 50

pages = router()


@pages.get("/notifications")
def notifications(
    request: Request,
    caller: NoticeReader,
    service: TheService,
    kept: TheNotices,
    state: OfState = None,
    target: OfTarget = None,
    cursor: Cursor = None,
    sent: OptionalId = None,
) -> Response:
    """List targets, then messages, newest first. The result of the last test or retry is above."""
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
        "just_sent": as_answer(just_sent) if just_sent else None,
        "has_address": bool(service.notifier and service.notifier.terms.public_url),
        "routes": service.notifier.terms.routes if service.notifier else (),
        "may_act": service.notifier is not None and caller.may("operate", ""),
        "key": form_key(request),
    }
    return page(request, "notifications.html", content)


@pages.post("/notifications/test")
async def test(request: Request, caller: NoticeFormOperator, service: TheService) -> Response:
    """Send a target a test message; the page shows the result."""
    given = await checked_form(request)
    notice = await run_in_threadpool(tried, service, given.get("target", ""), caller.who)
    return RedirectResponse(f"/notifications?sent={notice.id}", 303)


@pages.post("/notifications/{id}/retry")
async def retry(request: Request, caller: NoticeFormOperator, service: TheService, id: NotificationId) -> Response:
    """Send a message again; the page shows the result."""
    await checked_form(request)
    notice = await run_in_threadpool(sent_again, service, id, caller.who)
    return RedirectResponse(f"/notifications?sent={notice.id}", 303)
