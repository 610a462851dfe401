"""Notifications over HTTP: who is told of incidents, what became of each message, tests, and sending again.

Messages tell of the jobs of all, so a token that is bound to jobs sees nothing of them.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from logdoctor.errors import NoticeRefused, RequestRefused
from logdoctor.notify.messages import describe, numbers, read
from logdoctor.service.notifying import Notifier, TargetState
from logdoctor.service.service import Service
from logdoctor.store.notices import Notice, NoticePage, Notices
from logdoctor.web.dependencies import AppState, TheService, allows_unbound, once
from logdoctor.web.gate import Caller
from logdoctor.web.models import Cursor, Limit
from logdoctor.web.problems import Problem, not_found
from logdoctor.web.problems import describe as errors

State = Literal["waiting", "held", "delivered", "dead", "withdrawn", "summed"]
NotificationId = Annotated[int, Path(ge=1, le=(1 << 63) - 1, description="id of the notification", examples=[3])]
OfState = Annotated[State | None, Query(description="only those in this state")]
OfTarget = Annotated[str | None, Query(max_length=40, description="only those to this target")]
OF_ALL = "notifications tell of all jobs"
"""Why a token that is bound to jobs sees none."""
_REFUSED: dict[int | str, dict[str, Any]] = {409: {"model": Problem, "description": "this may not be done, or not now"}}
_AT = 1795255505.2


class TargetOut(BaseModel):
    """Who is told. Of the URL there are scheme, host and the last characters, for it may hold a secret."""

    name: str = Field(examples=["ops"])
    kind: Literal["webhook", "slack"]
    url: str = Field(examples=["https://hooks.slack.com/\N{HORIZONTAL ELLIPSIS}f3Qz"])
    waiting: int = Field(examples=[0], description="messages that are to be sent")
    held: int = Field(examples=[0], description="... that are held back until quiet hours end")
    dead: int = Field(examples=[1], description="... that were given up")
    answer: str = Field(examples=["204"], description="what came of the last message that was tried")
    answered: float | None = Field(examples=[_AT], description="when that was")
    works: bool | None = Field(examples=[True], description="whether that one arrived; null before the first")
    gone: float | None = Field(examples=[None], description="when it said that it is gone; it is sent nothing since")
    why: str = Field(examples=[""], description="what it said then")


class NotificationOut(BaseModel):
    """A message to a target, and what became of it."""

    id: int = Field(examples=[3])
    at: float = Field(examples=[_AT])
    target: str = Field(examples=["ops"])
    event: Literal["incident.opened", "incident.resolved", "incidents.summary", "test"]
    incident: int | None = Field(examples=[12])
    incidents: list[int] = Field(examples=[[12]], description="those that it tells of, the first 20 of a summary")
    about: str = Field(examples=["incident 12: ECC Error on gpu-12, llama-7b"])
    webhook_id: str = Field(examples=["msg_5f0c1e2a"], description="by which receivers tell that it is the same")
    state: State
    tries: int = Field(examples=[1])
    due: float = Field(examples=[_AT], description="when it is tried next, while it waits")
    changed: float = Field(examples=[_AT])
    why: str = Field(examples=["204"], description="what came of the last try")
    by: str = Field(examples=[""], description="who wanted it sent; nobody for what is told by itself")
    summary: int | None = Field(examples=[None], description="the message that stands for it")


class NotificationPage(BaseModel):
    """Who is told, and some messages, the newest first."""

    targets: list[TargetOut]
    items: list[NotificationOut]
    next: str | None = Field(examples=[None])


class TestIn(BaseModel):
    """Which target is to be tried."""

    __test__ = False
    model_config = ConfigDict(extra="forbid")
    target: str = Field(min_length=1, max_length=40, examples=["ops"])


def _notices(state: AppState) -> Notices:
    return Notices(state.service.records.database)


TheNotices = Annotated[Notices, Depends(once(_notices))]
NoticeReader = Annotated[Caller, Depends(allows_unbound("read", OF_ALL))]
"""Who may see notifications: a token without prefixes."""
NoticeOperator = Annotated[Caller, Depends(allows_unbound("operate", OF_ALL))]
NoticeFormOperator = Annotated[Caller, Depends(allows_unbound("operate", OF_ALL, by_form=True))]

router = APIRouter(prefix="/v1", tags=["notifications"])


@router.get("/notifications", responses=errors(400, 422))
def notifications(
    caller: NoticeReader,
    service: TheService,
    kept: TheNotices,
    state: OfState = None,
    target: OfTarget = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> NotificationPage:
    """Who is told of incidents, and what became of the messages, newest first."""
    found = kept.notices(cursor, limit, state, target)
    return NotificationPage(targets=targets(service), items=shown(found), next=found.next)


@router.post("/notifications/test", responses=errors(404, 422) | _REFUSED)
def test(caller: NoticeOperator, service: TheService, said: TestIn) -> NotificationOut:
    """Send a target a test, and tell what came of it; one that takes longer than 8 seconds still waits then."""
    return told(tried(service, said.target, caller.who))


@router.post("/notifications/{id}/retry", responses=errors(404, 422) | _REFUSED)
def retry(caller: NoticeOperator, service: TheService, id: NotificationId) -> NotificationOut:
    """Send again, now, what waits or was given up, with the same webhook-id."""
    return told(sent_again(service, id, caller.who))


def targets(service: Service) -> list[TargetOut]:
    """Who is told."""
    return [_target(one) for one in service.notifier.targets()] if service.notifier else []


def shown(page: NoticePage) -> list[NotificationOut]:
    """The messages of a page."""
    return [told(one) for one in page.items]


def told(notice: Notice) -> NotificationOut:
    """A message as callers see it."""
    fields = {name: getattr(notice, name) for name in NotificationOut.model_fields if hasattr(notice, name)}
    message = read(notice.body)
    return NotificationOut(**fields, incidents=numbers(message), about=describe(message), webhook_id=notice.key)


def tried(service: Service, target: str, by: str) -> Notice:
    """A test of a target; `RequestRefused` when there is no such target or a test is under way."""
    notifier = _notifier(service)
    if target not in {one.name for one in notifier.targets()}:
        raise not_found(f"target {target[:80]!a}")
    try:
        return notifier.test(target, by)
    except NoticeRefused as error:
        raise _conflict(error) from error


def sent_again(service: Service, id: int, by: str) -> Notice:
    """A message that is sent again; `RequestRefused` for one that cannot be."""
    notifier = _notifier(service)
    if notifier.notices.notice(id) is None:
        raise not_found(f"notification {id}")
    try:
        return notifier.retry(id, by)
    except NoticeRefused as error:
        raise _conflict(error) from error


def _notifier(service: Service) -> Notifier:
    if service.notifier is None:
        raise RequestRefused(409, "refused", "the service", "it sends no notifications", "Use `logdoctor serve`.")
    return service.notifier


def _conflict(error: NoticeRefused) -> RequestRefused:
    return RequestRefused(409, "refused", error.thing, error.cause, error.next_step)


def _target(one: TargetState) -> TargetOut:
    fields = {name: getattr(one, name) for name in ("name", "kind", "url", "waiting", "held", "dead")}
    closed, last = one.closed, one.last
    if last is not None:
        fields |= {"answer": last.why, "answered": last.changed, "works": last.state == "delivered"}
    else:
        fields |= {"answer": "", "answered": None, "works": None}
    return TargetOut(**fields, gone=closed.at if closed else None, why=closed.why if closed else "")
