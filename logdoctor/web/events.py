"""Server-sent events, which resume after a break."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

import msgspec
from fastapi import Depends, Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from logdoctor.errors import Busy, RequestRefused
from logdoctor.service.service import Service
from logdoctor.web.gate import Caller
from logdoctor.web.parameters import MAX_ID

_HEARTBEAT = 15.0  # seconds
_NODES_HEARTBEAT = 2.0  # without Redis, nothing reports the tests of other processes
_LISTENERS = 1000


class Hub:
    """Wakes listeners when there is something new; they read it from the records."""

    def __init__(self, heartbeat: float) -> None:
        self._heartbeat = heartbeat
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Event] = set()
        self._closed = False

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to wake the listeners of a loop."""
        self._loop = loop

    def close(self) -> None:
        """End the streams of all listeners."""
        self._closed = True
        self._wake()

    def publish(self, _new: object = None) -> None:
        """Wake all listeners; for any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    @property
    def listeners(self) -> int:
        """Return the number of listeners."""
        return len(self._waiting)

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    async def changes(self) -> AsyncIterator[bool]:
        """Yield True after each publication, False after a heartbeat without; end when the service stops."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            yield True
            while not self._closed:
                try:
                    await asyncio.wait_for(event.wait(), self._heartbeat)
                    event.clear()
                    yield True
                except TimeoutError:
                    yield False
        finally:
            self._waiting.discard(event)


class Hubs:
    """The hubs of an application: for verdicts, nodes and incidents."""

    def __init__(self) -> None:
        self.verdicts, self.nodes, self.incidents = Hub(_HEARTBEAT), Hub(_NODES_HEARTBEAT), Hub(_HEARTBEAT)

    def listen(self, service: Service) -> None:
        """Wake the listeners at news of a service."""
        service.listeners.append(self.verdicts.publish)
        service.news.changed.append(self.incidents.publish)
        service.wakeups.listen("nodes", self.nodes.publish)
        if service.actor is not None:
            service.actor.listeners.append(self.nodes.publish)

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to wake the listeners of a loop."""
        for hub in (self.verdicts, self.nodes, self.incidents):
            hub.open(loop)

    def close(self) -> None:
        """End the streams of all listeners."""
        for hub in (self.verdicts, self.nodes, self.incidents):
            hub.close()


LastEventId = Annotated[
    str | None, Header(max_length=20, pattern=r"^[0-9]*$", description="`id` of the last event seen")
]
After = Annotated[int | None, Query(ge=0, le=MAX_ID, description="as Last-Event-ID")]


async def _seen(last_event_id: LastEventId = None, after: After = None) -> int | None:
    return int(last_event_id) if last_event_id else after


LastSeen = Annotated[int | None, Depends(_seen)]
"""The last event that a listener saw, if given."""


async def beginning(hub: Hub, seen: int | None, latest: Callable[[], int]) -> int:
    """Return the event after which a stream begins: the one `seen`, else the latest. `Busy` with too many listeners."""
    if hub.listeners >= _LISTENERS:
        raise Busy("the events", f"{_LISTENERS} listen already", "Try again later.")
    return await run_in_threadpool(latest) if seen is None or seen > MAX_ID else seen


def event(number: int, name: str, content: object) -> bytes:
    """Encode an event, its content as JSON."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, name.encode(), msgspec.json.encode(content))


def following(
    request: Request,
    hub: Hub,
    admit: Callable[[Request], Awaitable[Caller]],
    news: Callable[[Caller], AsyncIterator[bytes | None]],
) -> StreamingResponse:
    """Stream `news` for the caller at each change and each heartbeat. Other processes may write, too. It ends with the
    token that opened it, or when `news` yields None."""

    async def stream() -> AsyncIterator[bytes]:
        yield b"retry: 2000\n\n"
        async for changed in hub.changes():
            try:
                caller = await admit(request)  # a token may expire or be revoked meanwhile
            except RequestRefused:
                return
            if not changed:
                yield b": still here\n\n"
            async for event in news(caller):
                if event is None:
                    return
                yield event

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)
