"""The push endpoints for log shippers that clusters already run: Loki's and OpenTelemetry's protocols."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from logdoctor import tracing
from logdoctor.errors import LimitReached, LogdoctorError, RequestRefused
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import JobFacts
from logdoctor.store.log.table import Reached
from logdoctor.web.births import AttemptLimits
from logdoctor.web.bodies import STREAMED, Allowed, whole
from logdoctor.web.dependencies import AppState, Sender, state_of
from logdoctor.web.gate import Caller
from logdoctor.web.jobs.ingest import room
from logdoctor.web.openapi import shows
from logdoctor.web.problems import answer, describe
from logdoctor.web.push import loki, otlp
from logdoctor.web.push.labels import Gathered, Placed
from logdoctor.web.push.pushes import PushLimits

router = APIRouter(default_response_class=Response, tags=["push"])
_LIMITS = PushLimits()


def _bodies(example: dict[str, Any]) -> dict[str, Any]:
    json_body = {"schema": {"type": "object"}, "example": example}
    content = {"application/json": json_body, "application/x-protobuf": {"schema": {"type": "string"}}}
    return {"requestBody": {"required": True, "content": content}}


_LINE = "iteration 120 | lm loss: 6.81E+00 |"
_LOKI = _bodies(
    {"streams": [{"stream": {"job": "llama-7b", "host": "gpu-12"}, "values": [["1795255505000000000", _LINE]]}]}
)
_OTLP = _bodies(
    {
        "resourceLogs": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "llama-7b"}}]},
                "scopeLogs": [
                    {"logRecords": [{"timeUnixNano": "1795255505000000000", "body": {"stringValue": _LINE}}]}
                ],
            }
        ]
    }
)


def _allowed(request: Request) -> Allowed:
    """Return the limits of a push's body."""
    allowed = state_of(request).options.allowed
    return allowed._replace(unpacked=min(allowed.unpacked, _LIMITS.bytes))


@router.post(
    "/loki/api/v1/push",
    responses=describe(400, 408, 413, 415, 507),
    status_code=204,
    openapi_extra=_LOKI,
    max_body_size=STREAMED,
)
async def push_loki(request: Request, caller: Sender) -> Response:
    """Accept a push of Loki's API: JSON, or Protocol Buffers in a Snappy block. Answers 204."""
    headers = request.headers
    body = await whole(request, _allowed(request), as_is=("snappy",))
    kind, encoding = headers.get("content-type", ""), headers.get("content-encoding", "")
    batches = await run_in_threadpool(loki.decode, body, kind, encoding, _LIMITS)
    gathered = await run_in_threadpool(state_of(request).options.labels.gather, batches)
    _, refusal = await _take(state_of(request), gathered, caller)
    if refusal is not None:  # as Loki does: the rest is stored, and the shipper must not send it again
        raise refusal
    return Response(status_code=204)


@router.post(
    "/v1/logs", responses=describe(400, 408, 413, 415, 507) | shows({}), openapi_extra=_OTLP, max_body_size=STREAMED
)
async def push_otlp(request: Request, caller: Sender) -> Response:
    """Accept OTLP/HTTP logs: JSON or Protocol Buffers. Records that belong to no job are rejected and counted."""
    kind = request.headers.get("content-type", "")
    try:
        batches = await run_in_threadpool(otlp.decode, await whole(request, _allowed(request)), kind, _LIMITS)
        gathered = await run_in_threadpool(state_of(request).options.labels.gather, batches)
        rejected, refusal = await _take(state_of(request), gathered, caller)
    except LogdoctorError as error:
        plain = answer(error)
        content, media_type = otlp.failure(kind, error)
        if media_type == otlp.JSON:  # what OTLP wants, and our own shape
            content = msgspec.json.encode(msgspec.json.decode(content) | msgspec.json.decode(plain.body))
        retry = {name: plain.headers[name] for name in ("Retry-After",) if name in plain.headers}
        return Response(content, _otlp_status(plain.status_code), retry, media_type)
    content, media_type = otlp.answer(kind, rejected, str(refusal or ""))
    return Response(content, media_type=media_type)


async def _take(state: AppState, gathered: Gathered, caller: Caller) -> tuple[int, LogdoctorError | None]:
    """Store each stream's lines durably; return how many entries were rejected for good, and why. If too many attempts
    would begin, the rest is stored, and the push refused, so that it comes again."""
    for placed in gathered.placed:
        if not caller.may("ingest", placed.key.job):
            cause = f"it is not allowed to send logs of job {placed.key.job!r}"
            raise RequestRefused(403, "forbidden", f"token {caller.name!r}", cause, "Use another token.")
    begun, service = time.time_ns(), state.service
    await room(service)
    rejected = gathered.rejected
    refusal: LogdoctorError | None = gathered.refusal
    refused = await state.once(AttemptLimits).refused(caller, [placed.key for placed in gathered.placed])
    failure: LogdoctorError | None = next(iter(refused.values()), None)
    taken = [placed for placed in gathered.placed if (placed.key.job, placed.key.attempt) not in refused]
    pushed = await run_in_threadpool(_push_all, service, taken)
    for placed, future in zip(taken, pushed, strict=True):
        try:
            await asyncio.wrap_future(future)
        except LimitReached as error:  # of this stream: the others must not suffer
            rejected, refusal = rejected + placed.batch.entries, refusal or error
        except LogdoctorError as error:
            failure = error
    if tracing.is_on():
        _trace(taken, begun)
    if failure is not None:
        raise failure
    return rejected, refusal


def _trace(pushed: Sequence[Placed], begun: int) -> None:
    """Record a span for each attempt in a push."""
    sizes: dict[tuple[str, int], tuple[int, int]] = {}
    for key, batch in pushed:
        streams, size = sizes.get((key.job, key.attempt), (0, 0))
        sizes[key.job, key.attempt] = streams + 1, size + len(batch.lines)
    for (job, number), (streams, size) in sizes.items():
        tracing.spent("post", job, number, begun, streams=streams, bytes=size)


def _push_all(service: Service, taken: Sequence[Placed]) -> list[Future[Reached]]:
    service.intake.open_all(placed.key for placed in taken if not placed.batch.facts)  # others: `tell` first
    return [_push_safely(service, placed) for placed in taken]


def _push_safely(service: Service, placed: Placed) -> Future[Reached]:
    try:
        return _push(service, placed)
    except LogdoctorError as error:
        failed: Future[Reached] = Future()
        failed.set_exception(error)
        return failed


def _push(service: Service, placed: Placed) -> Future[Reached]:
    facts = placed.batch.facts
    if facts and service.records.job(placed.key.job) is None:
        service.tell(placed.key.job, msgspec.convert(facts, JobFacts, strict=False), time.time())
    service.intake.open(placed.key)
    batch = placed.batch  # without a time it cannot be told from another with the same text
    return service.intake.push(placed.key, batch.lines, batch.digest if batch.first_ns else "")


def _otlp_status(status: int) -> int:
    """Return the status for OTLP clients: 503 for a full disk. They retry only 429, 502, 503 and 504."""
    return 503 if status == 507 else status
