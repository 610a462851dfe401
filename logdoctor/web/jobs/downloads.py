"""Whole streams as files, read while they are sent."""

import asyncio
import re
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from urllib.parse import quote

import structlog
from fastapi import APIRouter, Request
from starlette.concurrency import iterate_in_threadpool
from starlette.responses import Response, StreamingResponse

from logdoctor.errors import Busy, StoreError
from logdoctor.store.names import Key, key
from logdoctor.web.dependencies import Reader, TheService
from logdoctor.web.openapi import TEXT
from logdoctor.web.parameters import AttemptNumber, JobName, StreamName
from logdoctor.web.problems import describe, not_found
from logdoctor.web.server import BREAK_OFF

log = structlog.get_logger()

_AT_ONCE = 64  # downloads; each holds a file and about a MiB
_BROKEN = 5.0  # seconds

router = APIRouter(default_response_class=Response, prefix="/v1", tags=["jobs"])

_PLACES = threading.BoundedSemaphore(_AT_ONCE)


@router.get(
    "/jobs/{job}/attempts/{attempt}/streams/{stream}/download",
    responses={**describe(400, 404, 422), 200: {"content": {"text/plain": TEXT}}},
    response_class=StreamingResponse,
)
def download(
    request: Request, caller: Reader, service: TheService, job: JobName, attempt: AttemptNumber, stream: StreamName
) -> StreamingResponse:
    """Return all bytes of a stream as a file, as of now. Its length is sent first, so that a broken download is
    noticed."""
    name = key(job, attempt, stream)
    if not service.has_stream(name):
        raise not_found(f"stream {name}")
    view = service.logs.view(name)
    headers = {
        "Content-Disposition": disposition(name),
        "Content-Length": str(view.bytes),
        "Cache-Control": "no-store",
        "X-Accel-Buffering": "no",
    }
    if not _PLACES.acquire(blocking=False):
        raise Busy("the downloads", f"{_AT_ONCE} are on their way", "Try again later.")
    chunks = view.chunks()
    weakref.finalize(chunks, _PLACES.release)  # whether used up, abandoned, or never started
    return StreamingResponse(_whole(chunks, name, request), media_type="text/plain; charset=utf-8", headers=headers)


async def _whole(chunks: Iterator[bytes], name: Key, request: Request) -> AsyncIterator[bytes]:
    """Yield all chunks. Break the connection off where the archive is damaged, so that nobody takes a part for the
    whole."""
    try:
        async for chunk in iterate_in_threadpool(chunks):
            yield chunk
    except StoreError as error:
        log.error("download broken off", stream=str(name), thing=error.thing, cause=error.cause)
        if (break_off := request.scope.get(BREAK_OFF)) is None:
            raise
        break_off()
        await asyncio.sleep(_BROKEN)  # cancelled when the connection is known to be closed


def disposition(name: Key) -> str:
    """Return the header for saving a stream, with a portable name and the true one."""
    true = f"{name.job}-{name.attempt}-{name.stream}.log"
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", true).lstrip(".")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(true, safe='')}"
