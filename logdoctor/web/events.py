"""New verdicts as they are published: server-sent events, resumed after a break."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from logdoctor.errors import Busy, RequestRefused
from logdoctor.service.service import Service
from logdoctor.web.gate import Caller, Gate
from logdoctor.web.openapi import streams
from logdoctor.web.problems import describe

_HEARTBEAT = 15.0  # seconds
_PAGE = 100
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


def routes(service: Service, gate: Gate, hub: Hub) -> APIRouter:
    """The route for listeners."""
    router = APIRouter(prefix="/v1", tags=["verdicts"])
    admit = gate.allows("read")

    @router.get(
        "/events",
        responses=streams(("verdict",), "a VerdictOut") | describe(422),
        response_class=StreamingResponse,
    )
    async def events(
        request: Request,
        caller: Annotated[Caller, Depends(admit)],
        last_event_id: LastEventId = None,
        after: After = None,
    ) -> StreamingResponse:
        """Each new or changed verdict as an event `verdict`, from now on or after Last-Event-ID."""
        last = await beginning(hub, last_event_id, after, service.records.last_event)

        async def news(caller: Caller) -> AsyncIterator[bytes]:
            nonlocal last
            while found := await run_in_threadpool(service.records.newer, last, _PAGE):
                for stored in found:
                    last = stored.event
                    if caller.may("read", stored.job):
                        data = msgspec.json.encode(stored)
                        yield b"id: %d\nevent: verdict\ndata: %s\n\n" % (stored.event, data)

        return following(request, hub, admit, news)

    return router
