"""The notifications of a service."""

import time

import msgspec

from logdoctor.cli.client.connection import Connection, path
from logdoctor.cli.client.refusing import refused_as
from logdoctor.errors import NoticeRefused
from logdoctor.service.notify.messages import read
from logdoctor.store.incidents.notices import Notice, NoticePage
from logdoctor.web.notifications.answers import NotificationOut, NotificationPage, TargetOut

_ASKED_EVERY = 0.5  # seconds


class ServedNotices:
    """The calls of `store.incidents.notices.Notices` and `service.notifying.Notifier`, over HTTP. The token says who
    acts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def targets(self) -> list[TargetOut]:
        """Return the notification targets."""
        return self._connection.get(NotificationPage, path("notifications"), limit=1).targets

    def notices(
        self, cursor: str | None = None, limit: int = 50, state: str | None = None, target: str | None = None
    ) -> NoticePage:
        """Return a page of messages, newest first."""
        wanted = {"cursor": cursor, "limit": limit, "state": state, "target": target}
        found = self._connection.get(NotificationPage, path("notifications"), **wanted)
        return NoticePage([self._notice(one) for one in found.items], found.next)

    def test(self, target: str, by: str, seconds: float) -> Notice:
        """Send a test message to a target, and return it after one try. It is still waiting if that takes too long."""
        with refused_as(NoticeRefused):
            sent = self._connection.post(NotificationOut, path("notifications", "test"), {"target": target})
        return self._settled(sent, seconds)

    def retry(self, id: int, by: str, seconds: float) -> Notice:
        """Send a message again, and return it after one try. It is still waiting if that takes too long."""
        with refused_as(NoticeRefused, "List the notifications."):
            sent = self._connection.post(NotificationOut, path("notifications", id, "retry"))
        return self._settled(sent, seconds)

    def _settled(self, sent: NotificationOut, seconds: float) -> Notice:
        """Return a message once the service has tried to send it, or after `seconds`."""
        end = time.monotonic() + seconds
        while sent.state == "waiting" and not sent.tries and time.monotonic() < end:
            time.sleep(_ASKED_EVERY)
            sent = self._connection.get(NotificationOut, path("notifications", sent.id))
        return self._notice(sent)

    def _notice(self, one: NotificationOut) -> Notice:
        """Return a message in the type of the data folder. `ServiceError` when its text cannot be read."""
        fields = {name: getattr(one, name) for name in Notice.__struct_fields__ if name != "key"}
        try:
            read(one.body)
        except msgspec.MsgspecError as error:
            raise self._connection.not_understood(f"message {one.id}: {error}") from error
        return Notice(**fields, key=one.webhook_id)
