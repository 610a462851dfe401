"""The intake of jobs, attempts and the bytes of their streams."""

import asyncio
import hashlib
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Annotated, Any
from weakref import WeakValueDictionary

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from logdoctor import pipeline, tracing
from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.errors import Busy, InputError, OffsetMismatch
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import End, JobFacts
from logdoctor.store.log.table import Reached, Standing
from logdoctor.store.names import Key, checked, key
from logdoctor.types import Verdict
from logdoctor.web.births import FACTS_CHANGED, AttemptLimits
from logdoctor.web.bodies import STREAMED, chunks, whole
from logdoctor.web.dependencies import AppState, Sender, TheService, once, state_of
from logdoctor.web.jobs.answers import AttemptNumberOut, JobOut, StandingOut
from logdoctor.web.jobs.requests import AttemptKey, EndIn, JobIn
from logdoctor.web.json_answer import Json
from logdoctor.web.openapi import TEXTS, answers, shows
from logdoctor.web.parameters import (
    AttemptNumber,
    ExitCode,
    FileName,
    HasDied,
    IdempotencyKey,
    JobName,
    JsonRecords,
    OptionalOffset,
    StreamName,
)
from logdoctor.web.problems import describe, problem
from logdoctor.web.push.json_records import whole_lines

_AHEAD = 2 << 20  # bytes of a body that may wait to become durable before more is read
_APPENDED = 8 << 20  # bytes of a body without an offset, which is appended as a whole
_LARGE = 1 << 20  # bytes of a body above which it is not of our own senders
_UPLOADS, _DIAGNOSES = 32, 2  # whole logs that are received and read at once
_BREATH, _PATIENCE = 0.05, 10.0
"""Seconds between checks while the log is too full, and until the sender must retry."""
_OFFSET, _NUMBER = re.compile(rb"offset=([0-9]{1,18})"), re.compile(r"[0-9]{1,9}", re.ASCII)
_RAW = {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}}}


router = APIRouter(default_response_class=Response, prefix="/v1", tags=["ingest"])


class LogTurns:
    """Turns for whole logs: to be received, and to be read."""

    def __init__(self, _: AppState) -> None:
        self._diagnoses = asyncio.Semaphore(_DIAGNOSES)
        self._own: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._uploads: Counter[str] = Counter()

    @contextmanager
    def upload(self, who: str) -> Iterator[None]:
        """Hold a place for a log that is being received. `Busy` for a caller who holds as many as are left, so that
        some are left for others, however slowly one caller sends."""
        taken, mine = self._uploads.total(), self._uploads[who]
        if mine >= _UPLOADS - taken:
            cause = f"{taken} logs are being sent already, {mine} of them by {who!r}"
            raise Busy("the service", cause, "Try again later.")
        self._uploads[who] += 1
        try:
            yield
        finally:
            self._uploads[who] -= 1
            if not self._uploads[who]:
                del self._uploads[who]

    @asynccontextmanager
    async def diagnosis(self, who: str) -> AsyncIterator[None]:
        """Wait for a turn to read a log. Each caller waits for one turn at a time, so callers take turns however much
        one of them sent."""
        own = self._own.setdefault(who, asyncio.Lock())
        async with own, self._diagnoses:
            yield


TheLogTurns = Annotated[LogTurns, Depends(once(LogTurns))]
TheBirths = Annotated[AttemptLimits, Depends(once(AttemptLimits))]


@router.put("/jobs/{job}", responses=answers(JobOut) | describe(400, 422))
async def put_job(job: JobName, facts: JobIn, caller: Sender, service: TheService, births: TheBirths) -> Response:
    """Record facts about a job. Its `nodelist` is a claim unless the token has the scope `place`."""
    given = JobFacts(**facts.model_dump(), placed=facts.nodelist is not None and caller.places(job))
    name = checked("job", job)
    await births.require(caller, (name, FACTS_CHANGED), lambda: service.records.job(name) is not None)
    return Json(await run_in_threadpool(service.tell, name, given, time.time()))


@router.post("/jobs/{job}/attempts", responses=answers(AttemptNumberOut) | describe(400, 422))
async def allot_attempt(
    caller: Sender, service: TheService, births: TheBirths, job: JobName, key: AttemptKey
) -> Response:
    """Allot the number of an attempt. All its nodes send the same key and get the same number."""
    name = checked("job", job)
    await births.require(caller, (name, key.key), lambda: service.records.has_key(name, key.key))
    number = await run_in_threadpool(service.records.allot_attempt, name, key.key, time.time())
    return Json(AttemptNumberOut(number))


class _QuickRoute(APIRoute):
    """The fast route for logs, hundreds per second: plain requests skip FastAPI. Its parameter parsing takes as long as
    all else together; other requests get its error messages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request."""
        thorough = super().get_route_handler()

        async def answer(request: Request) -> Response:
            place, offset = request.path_params, _OFFSET.fullmatch(request.scope["query_string"])
            if offset is None or not _NUMBER.fullmatch(place["attempt"]):
                return await thorough(request)
            state = state_of(request)
            await state.gate.admit(request, "ingest")
            name = key(place["job"], int(place["attempt"]), place["stream"])
            return await _taken(request, state.service, name, int(offset[1]))

        return answer


async def take(
    request: Request,
    caller: Sender,
    service: TheService,
    job: JobName,
    attempt: AttemptNumber,
    stream: StreamName,
    offset: OptionalOffset = None,
    json: JsonRecords = "text",
    idempotency_key: IdempotencyKey = "",
) -> Response:
    """Send bytes of a stream, from `offset` on; they are durable when the answer arrives.

    Without `offset` the body is whole lines that continue the stream wherever it ends, as log shippers send them: all
    of them are kept or none, and those with an `Idempotency-Key` only once. The body may be compressed
    (Content-Encoding gzip or zstd), and streamed.
    """
    name = key(job, attempt, stream)
    if offset is not None:
        return await _taken(request, service, name, offset)
    return await _appended(request, service, name, idempotency_key, json == "text")


router.add_api_route(
    "/jobs/{job}/attempts/{attempt}/streams/{stream}/log",
    take,
    methods=["POST"],
    responses=answers(StandingOut) | describe(400, 408, 409, 413, 415, 422, 507),
    openapi_extra=_RAW,
    max_body_size=STREAMED,
    route_class_override=_QuickRoute,
)


async def _taken(request: Request, service: Service, name: Key, offset: int) -> Response:
    with tracing.span("post", name.job, name.attempt, stream=name.stream, offset=offset) as posting:
        await _open(request, service, name)
        if "expect" in request.headers:  # it asks before it sends
            ends = (await run_in_threadpool(service.logs.standing, name)).next
            if offset != ends:
                raise OffsetMismatch(str(name), offset, ends)
        reached = await _take_body(service, request, name, offset)
        posting.add(bytes=reached.next - offset)
        return Json(StandingOut(*reached))


async def _open(request: Request, service: Service, name: Key) -> None:
    """Begin an attempt, if it has not begun and may."""
    if not service.intake.is_open(name):
        state = state_of(request)
        await state.once(AttemptLimits).require_attempt(request.state.caller, name)
        await run_in_threadpool(service.intake.open, name)


async def _appended(request: Request, service: Service, name: Key, given: str, as_text: bool) -> Response:
    """Append whole lines to a stream, wherever it ends."""
    allowed = state_of(request).options.allowed
    with tracing.span("post", name.job, name.attempt, stream=name.stream) as posting:
        body = await whole(request, allowed._replace(unpacked=min(allowed.unpacked, _APPENDED)))
        lines = await run_in_threadpool(whole_lines, body, as_text)
        mark = _mark(given, body)
        await _open(request, service, name)
        await room(service)
        reached = await asyncio.wrap_future(service.intake.push(name, lines, mark))
        posting.add(bytes=len(lines))
        return Json(StandingOut(*reached))


def _mark(given: str, body: bytes) -> str:
    """Return the identity of a request within its stream; "" without a key. It includes the body, because two clients
    may use the same keys."""
    return hashlib.sha256(given.encode() + b"\n" + body).hexdigest() if given else ""


async def room(service: Service) -> None:
    """Wait until the log has room; `Busy` when that takes too long."""
    until = time.monotonic() + _PATIENCE
    while service.intake.is_behind:
        if time.monotonic() > until:
            raise Busy("the service", "too much waits to be archived", "Try again later.")
        await asyncio.sleep(_BREATH)


class Shares:
    """How much of a body may wait to become durable: `_AHEAD` bytes. The large bodies of one caller share that, so that
    others do not wait behind all of them."""

    def __init__(self, _: AppState) -> None:
        self._large: Counter[str] = Counter()

    @contextmanager
    def of(self, who: str) -> Iterator[Callable[[int], int]]:
        """Yield a function that maps the bytes received so far to a body's share."""
        is_large = False

        def share(taken: int) -> int:
            nonlocal is_large
            if taken > _LARGE and not is_large:
                is_large = True
                self._large[who] += 1
            return _AHEAD // self._large[who] if is_large else _AHEAD

        try:
            yield share
        finally:
            self._large[who] -= is_large
            if not self._large[who]:
                del self._large[who]


async def _take_body(service: Service, request: Request, name: Key, offset: int) -> Reached:
    """Store a body durably, and return the position after it."""
    state = state_of(request)
    with state.once(Shares).of(request.state.caller.name) as share:
        return await _take_chunks(service, chunks(request, state.options.allowed), name, offset, share)


async def _take_chunks(
    service: Service, body: AsyncIterator[bytes], name: Key, offset: int, share: Callable[[int], int]
) -> Reached:
    waiting: deque[tuple[Future[Reached], int]] = deque()
    ahead, begin, reached = 0, offset, Reached()
    try:
        async for chunk in body:
            await room(service)
            waiting.append((service.intake.take(name, offset, chunk), len(chunk)))
            offset += len(chunk)
            ahead += len(chunk)
            while ahead > share(offset - begin) or waiting[0][0].done():
                future, size = waiting.popleft()
                reached = await asyncio.wrap_future(future)
                ahead -= size
                if not waiting:
                    break
        if offset == begin:
            waiting.append((service.intake.take(name, offset, b""), 0))
    finally:  # what came before an error is kept; if that fails, it is the error to raise
        for future, _ in waiting:
            reached = await asyncio.wrap_future(future)
    return reached


def _standing(stands: Standing) -> StandingOut:
    return StandingOut(stands.next, stands.lines, stands.scanned, stands.kept)


@router.get("/jobs/{job}/attempts/{attempt}/streams/{stream}", responses=answers(StandingOut) | describe(400, 404, 422))
def standing(caller: Sender, service: TheService, job: JobName, attempt: AttemptNumber, stream: StreamName) -> Response:
    """Return the position of a stream, from which a sender resumes."""
    name = key(job, attempt, stream)
    stands = service.logs.standing(name)
    if not stands.next:
        return problem(404, "not_found", f"stream {name}", "nothing was sent for it", "Send from offset 0.")
    return Json(_standing(stands))


@router.post(
    "/jobs/{job}/attempts/{attempt}/end",
    responses=describe(400, 422) | shows({"verdict": "/v1/jobs/llama-7b/attempts/1/verdict"}, 202, TEXTS),
    status_code=202,
)
async def end(
    caller: Sender, service: TheService, births: TheBirths, job: JobName, attempt: AttemptNumber, how: EndIn
) -> Response:
    """Record how an attempt or one of its processes ended. The verdict is made at once."""
    name = key(job, attempt, how.stream or "main")
    await births.require_attempt(caller, name)
    told = End(how.stream or "", how.exit_code, how.signal, how.scheduler_state, time.time())
    await run_in_threadpool(service.end, name.job, attempt, told)
    return Json({"verdict": f"/v1/jobs/{job}/attempts/{attempt}/verdict"}, 202)


@router.post(
    "/diagnose",
    responses=describe(400, 408, 413, 415, 422, 507) | answers(Verdict),
    openapi_extra=_RAW,
    max_body_size=STREAMED,
)
async def diagnose(
    request: Request,
    caller: Sender,
    service: TheService,
    turns: TheLogTurns,
    name: FileName = "log",
    exit_code: ExitCode = None,
    died: HasDied = False,
) -> Response:
    """Return the verdict on a log in the body, which is not stored: `curl -T train.log`.

    The log is plain, gzip or Zstandard. `exit_code` and `died` state how the job ended, which the log may not show.
    """
    reported = ReportedEnd(exit_code=exit_code, died=died)
    if reported.contradicts_itself:
        raise InputError("died", "contradicts exit_code=0", "Send one of them.")
    state = state_of(request)
    allowed, limits = state.options.allowed, state.options.limits

    def look() -> None:
        if not state.ready:
            raise Busy("the service", "it is stopping", "Send the log again in a while.")

    with turns.upload(caller.name):
        with service.scratch_file() as file:
            async for chunk in chunks(request, allowed._replace(sent=limits.unpacked, unpacked=limits.unpacked)):
                look()
                await run_in_threadpool(file.write, chunk)
            streams = [pipeline.LogFile("main", file.path, name)]
            read = partial(pipeline.diagnose, streams, service.scanner, limits, reported, look=look)
            async with turns.diagnosis(caller.name):
                return Json(await run_in_threadpool(read))
