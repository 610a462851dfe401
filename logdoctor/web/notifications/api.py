"""Notifications over HTTP: targets, messages and their delivery, tests, and retries.

Messages are about all jobs, so a token that is bound to jobs sees none.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from starlette.responses import Response

from logdoctor.errors import NoticeRefused, RequestRefused
from logdoctor.service.notify.messages import describe, numbers, read
from logdoctor.service.notifying import Notifier, TargetState
from logdoctor.service.service import Service
from logdoctor.store.incidents.notices import Notice, NoticePage, Notices
from logdoctor.web.dependencies import TheService, allows_unbound, once
from logdoctor.web.gate import Caller
from logdoctor.web.json_answer import Json
from logdoctor.web.notifications.answers import NoticeState, NotificationOut, NotificationPage, TargetOut
from logdoctor.web.notifications.requests import TestIn
from logdoctor.web.openapi import answers
from logdoctor.web.parameters import MAX_ID, ThePage
from logdoctor.web.problems import as_refusal, existing, not_found, refusal
from logdoctor.web.problems import describe as errors

NotificationId = Annotated[int, Path(ge=1, le=MAX_ID, description="id of the notification", examples=[3])]
OfState = Annotated[NoticeState | None, Query(description="only those in this state")]
OfTarget = Annotated[str | None, Query(max_length=40, description="only those to this target")]
OF_ALL = "notifications tell of all jobs"
"""Why a token that is bound to jobs sees none."""
_REFUSED = refusal(409, "this may not be done, or not now")


TheNotices = Annotated[Notices, Depends(once(lambda state: Notices(state.service.records.database)))]
NoticeReader = Annotated[Caller, Depends(allows_unbound("read", OF_ALL))]
"""A reader of notifications: a token without prefixes."""
NoticeOperator = Annotated[Caller, Depends(allows_unbound("operate", OF_ALL))]
NoticeFormOperator = Annotated[Caller, Depends(allows_unbound("operate", OF_ALL, by_form=True))]

router = APIRouter(default_response_class=Response, prefix="/v1", tags=["notifications"])


@router.get("/notifications", responses=answers(NotificationPage) | errors(400, 422))
def notifications(
    caller: NoticeReader,
    service: TheService,
    kept: TheNotices,
    page: ThePage,
    state: OfState = None,
    target: OfTarget = None,
) -> Response:
    """List the targets, and the messages with their delivery, newest first."""
    found = kept.notices(*page, state, target)
    return Json(NotificationPage(targets(service), shown(found), found.next))


@router.post("/notifications/test", responses=answers(NotificationOut) | errors(404, 422) | _REFUSED)
def test(caller: NoticeOperator, service: TheService, said: TestIn) -> Response:
    """Send a target a test message, and return its delivery. One that takes longer than 8 seconds is still waiting."""
    return Json(as_answer(tried(service, said.target, caller.who)))


@router.get("/notifications/{id}", responses=answers(NotificationOut) | errors(404, 422))
def notification(caller: NoticeReader, kept: TheNotices, id: NotificationId) -> Response:
    """Return one message and its delivery."""
    return Json(as_answer(existing(kept.notice(id), f"notification {id}")))


@router.post("/notifications/{id}/retry", responses=answers(NotificationOut) | errors(404, 422) | _REFUSED)
def retry(caller: NoticeOperator, service: TheService, id: NotificationId) -> Response:
    """Send a waiting or given-up message again, now, with the same webhook-id."""
    return Json(as_answer(sent_again(service, id, caller.who)))


def targets(service: Service) -> list[TargetOut]:
    """Return the notification targets."""
    return [_target(one) for one in service.notifier.targets()] if service.notifier else []


def shown(page: NoticePage) -> list[NotificationOut]:
    """Return the messages of a page."""
    return [as_answer(one) for one in page.items]


def as_answer(notice: Notice) -> NotificationOut:
    """Return a message in the type of answers."""
    fields = {name: getattr(notice, name) for name in NotificationOut.__struct_fields__ if hasattr(notice, name)}
    message = read(notice.body)
    return NotificationOut(**fields, incidents=numbers(message), about=describe(message), webhook_id=notice.key)


def tried(service: Service, target: str, by: str) -> Notice:
    """Send a test message and return it. `RequestRefused` for an unknown target, or while a test is running."""
    notifier = _notifier(service)
    if target not in {one.name for one in notifier.targets()}:
        raise not_found(f"target {target[:80]!a}")
    try:
        return notifier.test(target, by)
    except NoticeRefused as error:
        raise as_refusal(error) from error


def sent_again(service: Service, id: int, by: str) -> Notice:
    """Send a message again and return it; `RequestRefused` if that is not possible."""
    notifier = _notifier(service)
    existing(notifier.notices.notice(id), f"notification {id}")
    try:
        return notifier.retry(id, by)
    except NoticeRefused as error:
        raise as_refusal(error) from error


def _notifier(service: Service) -> Notifier:
    if service.notifier is None:
        raise RequestRefused(409, "refused", "the service", "it sends no notifications", "Use `logdoctor serve`.")
    return service.notifier


def _target(one: TargetState) -> TargetOut:
    fields = {name: getattr(one, name) for name in ("name", "kind", "url", "waiting", "held", "dead")}
    closed, last = one.closed, one.last
    if last is not None:
        fields |= {"answer": last.why, "answered": last.changed, "works": last.state == "delivered"}
    else:
        fields |= {"answer": "", "answered": None, "works": None}
    return TargetOut(**fields, gone=closed.at if closed else None, why=closed.why if closed else "")
