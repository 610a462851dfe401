"""Jobs, attempts and the bytes of their streams come in."""

import asyncio
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from logdoctor import pipeline
from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.errors import Busy, InputError, OffsetMismatch, StorageFull
from logdoctor.pipeline import Limits
from logdoctor.service.service import Service
from logdoctor.service.streams import LiveStream
from logdoctor.store.names import checked, key
from logdoctor.store.records import End, JobFacts
from logdoctor.web.bodies import STREAMED, Allowed, chunks
from logdoctor.web.gate import Caller, Gate
from logdoctor.web.json_answer import Json
from logdoctor.web.models import (
    AttemptKey,
    AttemptNumber,
    AttemptNumberOut,
    EndIn,
    ExitCode,
    FileName,
    HasDied,
    JobIn,
    JobName,
    JobOut,
    Offset,
    StandingOut,
    StreamName,
)
from logdoctor.web.openapi import EXAMPLE, VERDICT, shows
from logdoctor.web.problems import describe, problem

_AHEAD = 2 << 20  # bytes of a body that may wait to become durable before more of it is read
_UPLOADS, _DIAGNOSES = 32, 2  # whole logs that are received and read at once
BREATH = 0.05
"""Seconds that a sender waits at a time while compression is behind."""
_RAW = {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}}}


def routes(service: Service, gate: Gate, allowed: Allowed, limits: Limits) -> APIRouter:
    """The routes for senders."""
    router = APIRouter(prefix="/v1", tags=["ingest"])
    intake = service.intake
    uploads, diagnoses = asyncio.Semaphore(_UPLOADS), asyncio.Semaphore(_DIAGNOSES)
    sender = [Depends(gate.allows("ingest"))]
    Sender = Annotated[Caller, Depends(gate.allows("ingest"))]

    @router.put("/jobs/{job}", responses=describe(400, 422), response_model=JobOut)
    def put_job(job: JobName, facts: JobIn, caller: Sender) -> Response:
        """Tell what is known of a job. Its `nodelist` is a claim unless the token has the scope `place`."""
        given = JobFacts(**facts.model_dump(), placed=facts.nodelist is not None and caller.places(job))
        return Json(service.tell(checked("job", job), given, time.time()))

    @router.post("/jobs/{job}/attempts", dependencies=sender, responses=describe(400, 422))
    def allot_attempt(job: JobName, key: AttemptKey) -> AttemptNumberOut:
        """Get the number of an attempt. All its nodes send the same key and get the same number."""
        return AttemptNumberOut(attempt=service.records.allot_attempt(checked("job", job), key.key, time.time()))

    @router.post(
        "/jobs/{job}/attempts/{attempt}/streams/{stream}/log",
        dependencies=sender,
        responses=describe(400, 408, 409, 413, 415, 422, 507),
        response_model=StandingOut,
        openapi_extra=_RAW,
        max_body_size=STREAMED,
    )
    async def take(
        request: Request, job: JobName, attempt: AttemptNumber, stream: StreamName, offset: Offset
    ) -> Response:
        """Send bytes of a stream, from `offset` on. When the answer comes they are durable.

        The body may be compressed (Content-Encoding gzip or zstd) and may be streamed.
        """
        name = key(job, attempt, stream)
        opened = intake.open(name) if intake.known(name) else await run_in_threadpool(intake.open, name)
        try:
            try:
                await _take_body(request, opened, offset)
            except OffsetMismatch as error:  # only what is durable may be told: the sender forgets the rest
                raise OffsetMismatch(str(name), offset, await _durable_offset(opened)) from error
            return Json(opened.standing()._asdict())
        finally:
            intake.close(opened)

    async def _durable_offset(stream: LiveStream) -> int:
        while not isinstance(reached := intake.durable_offset(stream), int):
            with suppress(StorageFull):
                await asyncio.wrap_future(reached)
        return reached

    async def _take_body(request: Request, stream: LiveStream, offset: int) -> None:
        waiting: deque[tuple[Future[None], int]] = deque()
        ahead = 0  # bytes
        try:
            intake.expect(stream, offset)
            async for chunk in chunks(request, allowed):
                while intake.is_behind(stream):
                    await asyncio.sleep(BREATH)
                waiting.append((intake.take(stream, offset, chunk), len(chunk)))
                offset += len(chunk)
                ahead += len(chunk)
                while ahead > _AHEAD:
                    future, size = waiting.popleft()
                    await asyncio.wrap_future(future)
                    ahead -= size
        finally:  # what came before an error is kept, and if it cannot be, that is the error to tell
            for future, _ in waiting:
                await asyncio.wrap_future(future)

    @router.get(
        "/jobs/{job}/attempts/{attempt}/streams/{stream}",
        dependencies=[Depends(gate.allows("ingest"))],
        responses=describe(400, 404, 422),
        response_model=StandingOut,
    )
    def standing(job: JobName, attempt: AttemptNumber, stream: StreamName) -> Response:
        """Where a stream stands: what a sender asks before it goes on."""
        name = key(job, attempt, stream)
        if known := intake.known(name):
            return Json(known.standing()._asdict())
        if not service.has_stream(name):
            return problem(404, "not_found", f"stream {name}", "nothing of it was sent", "Send from offset 0.")
        size, lines = intake.archived(name)
        return Json({"next_offset": size, "lines_in": lines, "lines_scanned": lines, "lines_kept": 0})

    @router.post(
        "/jobs/{job}/attempts/{attempt}/end",
        dependencies=sender,
        responses=describe(400, 422) | shows({"verdict": "/v1/jobs/llama-7b/attempts/1/verdict"}, 202),
        status_code=202,
    )
    def end(job: JobName, attempt: AttemptNumber, how: EndIn) -> dict[str, str]:
        """Tell how an attempt ended, or one of its processes; the verdict is made at once."""
        name = key(job, attempt, how.stream or "main")
        service.end(
            name.job, attempt, End(how.stream or "", how.exit_code, how.signal, how.scheduler_state, time.time())
        )
        return {"verdict": f"/v1/jobs/{job}/attempts/{attempt}/verdict"}

    @router.post(
        "/diagnose",
        responses=describe(400, 408, 413, 415, 422, 507) | shows(EXAMPLE, schema=VERDICT),
        response_class=Response,
        openapi_extra=_RAW,
        max_body_size=STREAMED,
    )
    async def diagnose(
        request: Request,
        caller: Annotated[Caller, Depends(gate.allows("ingest"))],
        name: FileName = "log",
        exit_code: ExitCode = None,
        died: HasDied = False,
    ) -> Response:
        """The verdict on a whole log in the body (plain, gzip or Zstandard), which is not kept: `curl -T train.log`.

        `exit_code` and `died` tell what the log cannot: how the job ended.
        """
        reported = ReportedEnd(exit_code=exit_code, died=died)
        if reported.contradicts_itself:
            raise InputError("died", "contradicts exit_code=0", "Send one of them.")
        if uploads.locked():
            raise Busy("the service", f"{_UPLOADS} logs are being sent already", "Try again later.")
        async with uploads:
            with service.scratch_file() as file:
                async for chunk in chunks(request, allowed._replace(sent=limits.unpacked, unpacked=limits.unpacked)):
                    await run_in_threadpool(file.write, chunk)
                streams = [pipeline.Stream("main", file.path, name)]
                async with diagnoses:
                    return Json(await run_in_threadpool(pipeline.diagnose, streams, service.scanner, limits, reported))

    return router
