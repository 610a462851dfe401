"""The stream of new and changed verdicts."""

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from logdoctor.web.dependencies import Reader, TheHubs, TheService, admit_reader
from logdoctor.web.events import LastSeen, beginning, event, following
from logdoctor.web.gate import Caller
from logdoctor.web.openapi import streams
from logdoctor.web.problems import describe

_PAGE = 100

router = APIRouter(default_response_class=Response, prefix="/v1", tags=["jobs"])


@router.get(
    "/events", responses=streams(("verdict",), "a VerdictOut") | describe(422), response_class=StreamingResponse
)
async def events(
    request: Request, caller: Reader, service: TheService, hubs: TheHubs, seen: LastSeen
) -> StreamingResponse:
    """Send new and changed verdicts as events `verdict`, from now on or after Last-Event-ID."""
    hub = hubs.verdicts
    last = await beginning(hub, seen, service.records.last_event)

    async def news(caller: Caller) -> AsyncIterator[bytes]:
        nonlocal last
        while found := await run_in_threadpool(service.records.newer, last, _PAGE):
            for stored in found:
                last = stored.event
                if caller.may("read", stored.job):
                    yield event(stored.event, "verdict", stored)

    return following(request, hub, admit_reader, news)
