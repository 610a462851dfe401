"""Whole streams as files, read while they are sent."""

import re
import threading
import weakref
from urllib.parse import quote

from fastapi import APIRouter
from starlette.responses import StreamingResponse

from logdoctor.errors import Busy
from logdoctor.store.names import Key, key
from logdoctor.web.dependencies import Reader, TheService
from logdoctor.web.models import AttemptNumber, JobName, StreamName
from logdoctor.web.openapi import TEXT
from logdoctor.web.problems import describe, not_found

_AT_ONCE = 64  # downloads; each holds a file and about a MiB

router = APIRouter(prefix="/v1", tags=["jobs"])

places = threading.BoundedSemaphore(_AT_ONCE)


@router.get(
    "/jobs/{job}/attempts/{attempt}/streams/{stream}/download",
    responses={**describe(400, 404, 422), 200: {"content": {"text/plain": TEXT}}},
    response_class=StreamingResponse,
)
def download(
    caller: Reader, service: TheService, job: JobName, attempt: AttemptNumber, stream: StreamName
) -> StreamingResponse:
    """All bytes of a stream, as it stands at this moment, as a file. One that breaks off was cut: its length was
    told before."""
    name = key(job, attempt, stream)
    if not service.has_stream(name):
        raise not_found(f"stream {name}")
    view = service.intake.view(name)
    headers = {
        "Content-Disposition": disposition(name),
        "Content-Length": str(view.bytes),
        "Cache-Control": "no-store",
        "X-Accel-Buffering": "no",
    }
    if not places.acquire(blocking=False):
        raise Busy("the downloads", f"{_AT_ONCE} downloads are running", "Try again later.")
    chunks = view.chunks()
    weakref.finalize(chunks, places.release)  # whether they are used up, given up, or never begun
    return StreamingResponse(chunks, media_type="text/plain; charset=utf-8", headers=headers)


def disposition(name: Key) -> str:
    """The header that makes a browser keep a stream as a file: its name in letters that every system takes, and the
    true one."""
    true = f"{name.job}-{name.attempt}-{name.stream}.log"
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", true).lstrip(".")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(true, safe='')}"
