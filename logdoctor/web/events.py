"""News as it comes: server-sent events, resumed after a break."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

from fastapi import Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from logdoctor.errors import Busy, RequestRefused
from logdoctor.service.service import Service
from logdoctor.web.gate import Caller

_HEARTBEAT = 15.0  # seconds
_LISTENERS = 1000


class Hub:
    """Wakes those who listen when there is something new; what they then read comes from the records."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Event] = set()
        self._closed = False

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to wake the listeners of a loop."""
        self._loop = loop

    def close(self) -> None:
        """End all listeners' streams."""
        self._closed = True
        self._wake()

    def publish(self, _new: object) -> None:
        """Wake all, because of something new; for any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    @property
    def listeners(self) -> int:
        """How many listen."""
        return len(self._waiting)

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    async def changes(self) -> AsyncIterator[bool]:
        """True after something was published, False after a while without; ends when the service stops."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            yield True
            while not self._closed:
                try:
                    await asyncio.wait_for(event.wait(), _HEARTBEAT)
                    event.clear()
                    yield True
                except TimeoutError:
                    yield False
        finally:
            self._waiting.discard(event)


class Hubs:
    """The hubs of an application: for verdicts, nodes and incidents."""

    def __init__(self) -> None:
        self.verdicts, self.nodes, self.incidents = Hub(), Hub(), Hub()

    def listen(self, service: Service) -> None:
        """Be told by a service of what is new."""
        service.listeners += [self.verdicts.publish, self.incidents.publish]
        service.incidents.listeners.append(self.incidents.publish)
        if service.actor is not None:
            service.actor.listeners.append(self.nodes.publish)

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to wake the listeners of a loop."""
        for hub in (self.verdicts, self.nodes, self.incidents):
            hub.open(loop)

    def close(self) -> None:
        """End all listeners' streams."""
        for hub in (self.verdicts, self.nodes, self.incidents):
            hub.close()


LastEventId = Annotated[
    str | None, Header(max_length=20, pattern=r"^[0-9]*$", description="`id` of the last event seen")
]
After = Annotated[int | None, Query(ge=0, le=(1 << 63) - 1, description="as Last-Event-ID")]


async def beginning(hub: Hub, last_event_id: str | None, after: int | None, latest: Callable[[], int]) -> int:
    """The event after which a stream begins, the latest unless the listener names one; `Busy` when too many listen."""
    if hub.listeners >= _LISTENERS:
        raise Busy("the events", f"{_LISTENERS} listen already", "Try again later.")
    begin = int(last_event_id) if last_event_id else after
    return await run_in_threadpool(latest) if begin is None or begin >= 1 << 63 else begin


def following(
    request: Request,
    hub: Hub,
    admit: Callable[[Request], Awaitable[Caller]],
    news: Callable[[Caller], AsyncIterator[bytes | None]],
) -> StreamingResponse:
    """What is new for the caller, whenever the hub says that something is and at each heartbeat, since other processes
    may write, too; until the token ends that opened it, or `news` says with None that there is no more."""

    async def told() -> AsyncIterator[bytes]:
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
    return StreamingResponse(told(), media_type="text/event-stream", headers=headers)
