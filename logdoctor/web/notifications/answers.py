"""Answers about notifications, with an example of each."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

NoticeState = Literal["waiting", "held", "delivered", "dead", "withdrawn", "summed"]


class TargetOut(msgspec.Struct, frozen=True):
    """A notification target. Only scheme, host and the last characters of the URL are shown, for it may hold a
    secret."""

    name: str
    kind: Literal["webhook", "slack"]
    url: str
    waiting: Annotated[int, Meta(description="messages that are to be sent")]
    held: Annotated[int, Meta(description="... that are held back until quiet hours end")]
    dead: Annotated[int, Meta(description="... that were given up")]
    answer: Annotated[str, Meta(description="result of the last message that was sent or tried")]
    answered: Annotated[float | None, Meta(description="when that was")]
    works: Annotated[bool | None, Meta(description="whether that one arrived; null before the first")]
    gone: Annotated[float | None, Meta(description="when it said that it is gone; it is sent nothing since")]
    why: Annotated[str, Meta(description="what it said then")]


class NotificationOut(msgspec.Struct, frozen=True):
    """A message to a target, and its delivery."""

    id: int
    at: float
    target: str
    event: Literal["incident.opened", "incident.resolved", "incidents.summary", "test"]
    incident: int | None
    incidents: Annotated[list[int], Meta(description="those that it tells of, the first 20 of a summary")]
    about: str
    webhook_id: Annotated[str, Meta(description="by which receivers tell that it is the same")]
    state: NoticeState
    tries: int
    due: Annotated[float, Meta(description="when it is tried next, while it waits")]
    until: Annotated[float, Meta(description="when it is given up")]
    changed: float
    why: Annotated[str, Meta(description="result of the last attempt")]
    by: Annotated[str, Meta(description="who wanted it sent; nobody for what is sent by itself")]
    summary: Annotated[int | None, Meta(description="the message that stands for it")]
    body: Annotated[str, Meta(description="what a webhook is sent, as JSON")]


class NotificationPage(msgspec.Struct, frozen=True):
    """The targets, and a page of messages, newest first."""

    targets: list[TargetOut]
    items: list[NotificationOut]
    next: str | None


_AT = 1795255505.2
_TARGET = TargetOut(
    name="ops",
    kind="webhook",
    url="https://hooks.slack.com/\N{HORIZONTAL ELLIPSIS}f3Qz",
    waiting=0,
    held=0,
    dead=1,
    answer="204",
    answered=_AT,
    works=True,
    gone=None,
    why="",
)
_NOTIFICATION = NotificationOut(
    id=3,
    at=_AT,
    target="ops",
    event="incident.opened",
    incident=12,
    incidents=[12],
    about="incident 12: ECC Error on gpu-12, llama-7b",
    webhook_id="msg_5f0c1e2a",
    state="delivered",
    tries=1,
    due=_AT,
    until=_AT + 259_200,
    changed=_AT,
    why="204",
    by="",
    summary=None,
    body='{"type": "incident.opened"}',
)
EXAMPLES = (_TARGET, _NOTIFICATION, NotificationPage([_TARGET], [_NOTIFICATION], None))
"""One of each answer."""
