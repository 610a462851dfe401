"""Whole streams as files, read while they are sent."""

import re
import threading
import weakref
from urllib.parse import quote

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from logdoctor.errors import Busy
from logdoctor.store.names import Key, key
from logdoctor.web.dependencies import Reader, TheService
from logdoctor.web.openapi import TEXT
from logdoctor.web.parameters import AttemptNumber, JobName, StreamName
from logdoctor.web.problems import describe, not_found

_AT_ONCE = 64  # downloads; each holds a file and about a MiB

router = APIRouter(default_response_class=Response, prefix="/v1", tags=["jobs"])

_PLACES = threading.BoundedSemaphore(_AT_ONCE)


@router.get(
    "/jobs/{job}/attempts/{attempt}/streams/{stream}/download",
    responses={**describe(400, 404, 422), 200: {"content": {"text/plain": TEXT}}},
    response_class=StreamingResponse,
)
def download(
    caller: Reader, service: TheService, job: JobName, attempt: AttemptNumber, stream: StreamName
) -> StreamingResponse:
    """Return all bytes of a stream, as it stands at this moment, as a file. One that breaks off was cut: its length was
    told before."""
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
    weakref.finalize(chunks, _PLACES.release)  # whether they are used up, given up, or never begun
    return StreamingResponse(chunks, media_type="text/plain; charset=utf-8", headers=headers)


def disposition(name: Key) -> str:
    """Return the header that makes a browser keep a stream as a file: its name in letters that every system takes, and
    the true one."""
    true = f"{name.job}-{name.attempt}-{name.stream}.log"
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", true).lstrip(".")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(true, safe='')}"
