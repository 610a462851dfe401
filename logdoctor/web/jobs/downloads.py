"""Whole streams as files, read while they are sent."""

import re
import threading
import weakref
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends
from starlette.responses import StreamingResponse

from logdoctor.errors import Busy
from logdoctor.service.service import Service
from logdoctor.store.names import Key, key
from logdoctor.web.gate import Caller, Gate
from logdoctor.web.jobs.api import not_found
from logdoctor.web.models import AttemptNumber, JobName, StreamName
from logdoctor.web.openapi import TEXT
from logdoctor.web.problems import describe

_AT_ONCE = 64  # downloads; each holds a file and about a MiB


def routes(service: Service, gate: Gate) -> APIRouter:
    """The route for whole streams."""
    router = APIRouter(prefix="/v1", tags=["verdicts"])
    Reader = Annotated[Caller, Depends(gate.allows("read"))]
    places = threading.BoundedSemaphore(_AT_ONCE)

    @router.get(
        "/jobs/{job}/attempts/{attempt}/streams/{stream}/download",
        responses={**describe(400, 404, 422), 200: {"content": {"text/plain": TEXT}}},
        response_class=StreamingResponse,
    )
    def download(caller: Reader, job: JobName, attempt: AttemptNumber, stream: StreamName) -> StreamingResponse:
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
            raise Busy("the downloads", f"{_AT_ONCE} are on their way", "Try again later.")
        chunks = view.chunks()
        weakref.finalize(chunks, places.release)  # whether they are used up, given up, or never begun
        return StreamingResponse(chunks, media_type="text/plain; charset=utf-8", headers=headers)

    return router


def disposition(name: Key) -> str:
    """The header that makes a browser keep a stream as a file: its name in letters that every system takes, and the
    true one."""
    true = f"{name.job}-{name.attempt}-{name.stream}.log"
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", true).lstrip(".")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(true, safe='')}"
