"""Server-sent events, which resume after a break."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Annotated, TypeVar, cast

import msgspec
from fastapi import Depends, Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from logdoctor.errors import Busy, RequestRefused
from logdoctor.service.service import Service
from logdoctor.web.gate import Caller
from logdoctor.web.parameters import MAX_ID

_HEARTBEAT = 15.0  # seconds
_NODES_HEARTBEAT = 2.0  # without Redis, nothing reports the tests of other processes
_LISTENERS, _OF_ONE = 1000, 200  # in all, and of one token, person or address
_GATHERED = 0.5  # seconds within which publications wake listeners once, and what one of them read serves the others


T = TypeVar("T")


class Hub:
    """Wakes listeners when there is something new; they read it from the records, those that ask for the same once."""

    def __init__(self, heartbeat: float) -> None:
        self._heartbeat = heartbeat
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening: Counter[str] = Counter()
        self._waiting: set[asyncio.Event] = set()
        self._read: dict[Hashable, asyncio.Future[object]] = {}
        self._woken, self._will_wake = -_GATHERED, False
        self._closed = False

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to wake the listeners of a loop."""
        self._loop = loop

    def close(self) -> None:
        """End the streams of all listeners."""
        self._closed = True
        self._wake_now()

    def enter(self, who: str) -> None:
        """Count a listener, until it leaves; `Busy` with too many, in all or of the same caller."""
        if self._listening.total() >= _LISTENERS or self._listening[who] >= _OF_ONE:
            most = f"{_LISTENERS} listen" if self._listening[who] < _OF_ONE else f"{who!r} has {_OF_ONE} streams open"
            raise Busy("the events", f"{most} already", "Try again later.")
        self._listening[who] += 1

    def leave(self, who: str) -> None:
        """Count a listener no longer."""
        self._listening[who] -= 1
        self._listening += Counter()  # forgets callers without one

    async def shared(self, what: Hashable, read: Callable[[], T]) -> T:
        """Return what `read` returns in a thread; who asks for the same `what` before something new comes shares it."""
        if what not in self._read:
            self._read[what] = asyncio.ensure_future(run_in_threadpool(read))
            asyncio.get_running_loop().call_later(_GATHERED, self._read.pop, what, None)
        return cast(T, await asyncio.shield(self._read[what]))

    def publish(self, _new: object = None) -> None:
        """Wake all listeners; for any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._loop is not None and not self._will_wake:
            self._will_wake = True
            self._loop.call_at(self._woken + _GATHERED, self._wake_now)

    def _wake_now(self) -> None:
        self._will_wake = False
        self._woken = self._loop.time() if self._loop else self._woken
        self._read.clear()
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


async def beginning(seen: int | None, latest: Callable[[], int]) -> int:
    """Return the event after which a stream begins: the one `seen`, else the latest."""
    return await run_in_threadpool(latest) if seen is None or seen > MAX_ID else seen


def event(number: int, name: str, content: object) -> bytes:
    """Encode an event, its content as JSON."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, name.encode(), msgspec.json.encode(content))


class _Stream(StreamingResponse):
    """A stream of events, which calls `leave` when it has ended or was never begun."""

    def __init__(self, content: AsyncIterator[bytes], leave: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


def following(
    request: Request,
    hub: Hub,
    caller: Caller,
    admit: Callable[[Request], Awaitable[Caller]],
    news: Callable[[Caller], AsyncIterator[bytes | None]],
) -> StreamingResponse:
    """Stream `news` for the caller at each change and each heartbeat. Other processes may write, too. It ends with the
    token that opened it, or when `news` yields None. `Busy` with too many listeners."""
    who = caller.who
    hub.enter(who)

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

    return _Stream(stream(), lambda: hub.leave(who))
