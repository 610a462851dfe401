"""The intake of past attempts, with their verdicts and without their logs."""

import time
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from logdoctor.errors import RequestRefused
from logdoctor.service.service import Service
from logdoctor.store.jobs.past import PastAttempt, PastRecords
from logdoctor.store.names import checked
from logdoctor.web.bodies import STREAMED, Allowed, whole
from logdoctor.web.dependencies import Operator, TheService, state_of
from logdoctor.web.gate import Caller
from logdoctor.web.jobs.answers import PAST_EXAMPLE, EnteredAttempts
from logdoctor.web.json_answer import Json
from logdoctor.web.openapi import answers
from logdoctor.web.problems import describe

MAX_BODY = 4 << 20
"""Largest request with past attempts, in bytes."""


class PastAttempts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request."""

    attempts: list[PastAttempt]


_decode = msgspec.json.Decoder(PastAttempts).decode
_SENT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object"},
                "example": {"attempts": [msgspec.to_builtins(PAST_EXAMPLE)]},
            }
        },
    }
}

router = APIRouter(default_response_class=Response, prefix="/v1", tags=["jobs"])


@router.post(
    "/past-attempts",
    responses=answers(EnteredAttempts) | describe(400, 408, 413, 415, 422, 507),
    openapi_extra=_SENT,
    max_body_size=STREAMED,
)
async def enter_past(request: Request, caller: Operator, service: TheService) -> Response:
    """Enter past attempts with their verdicts and dates: all, or none when one is invalid.

    They appear in lists, reports and the search of cases like others. Nobody is notified, and no node action follows.
    The same `key` of a job is the same attempt: sent again, it replaces changed verdicts and dates. A live attempt with
    its number takes its place.
    """
    body = await whole(request, Allowed(MAX_BODY, MAX_BODY, state_of(request).options.allowed.seconds))
    return await run_in_threadpool(_entered, caller, service, body)


def _entered(caller: Caller, service: Service, body: bytes) -> Response:
    try:
        sent = _decode(body).attempts
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        cause = f"it has not the form of past attempts ({str(error)[:200]})"
        raise RequestRefused(422, "invalid", "the body", cause, "Compare it with /openapi.json.") from error
    found = [_checked(caller, one) for one in sent]
    return Json(EnteredAttempts(PastRecords(service.records.database).enter_past(found, time.time())))


def _checked(caller: Caller, past: PastAttempt) -> PastAttempt:
    """Return a past attempt that the caller may enter; `RequestRefused` otherwise."""
    job = checked("job", past.job)
    if not caller.may("operate", job):
        cause = f"it does not allow 'operate' for job {job!r}"
        raise RequestRefused(403, "forbidden", f"token {caller.name!r}", cause, "Use another token.")
    return past
