"""The stream of new and changed verdicts."""

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
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
    last = await beginning(seen, service.records.last_event)

    def newer() -> list[tuple[int, str, bytes]]:
        found = service.records.newer(last, _PAGE)
        return [(one.event, one.job, event(one.event, "verdict", one)) for one in found]

    async def news(caller: Caller) -> AsyncIterator[bytes]:
        nonlocal last
        while found := await hub.shared(last, newer):
            for number, job, content in found:
                last = number
                if caller.may("read", job):
                    yield content

    return following(request, hub, caller, admit_reader, news)
