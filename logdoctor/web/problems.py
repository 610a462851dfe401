"""Errors as HTTP answers: one JSON shape, the right status, and when to try again."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from logdoctor.errors import (
    Busy,
    CursorError,
    InputError,
    LimitReached,
    LogdoctorError,
    NameRefused,
    OffsetMismatch,
    RequestRefused,
    StorageFull,
    StoreDamaged,
    StoreError,
)

log = structlog.get_logger()

Thing = TypeVar("Thing")

_KINDS: dict[type[LogdoctorError], tuple[int, str]] = {
    InputError: (400, "bad_input"),
    NameRefused: (400, "bad_name"),
    CursorError: (400, "bad_cursor"),
    OffsetMismatch: (409, "offset_mismatch"),
    LimitReached: (422, "limit_reached"),
    Busy: (503, "busy"),
    StorageFull: (507, "storage_full"),
    StoreDamaged: (500, "store_damaged"),
    StoreError: (503, "store_failed"),
}
SECURITY_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every answer: browsers may run and embed only our own content."""
_RETRY_AFTER = {429: 1, 503: 5, 507: 10}
_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}


_FOLDERS = re.compile(r"(?<![\w/])(?:[a-z0-9+]+:/)?(?:/[^\s/'\"]*)*/(?=[^\s/])")
"""Matches the folders of an absolute path or a URL, up to the last name."""
_FOR_PEOPLE = {
    404: ("page not found", "nothing is at this address", "Check the address."),
    405: ("this address is not a page", "it accepts only forms", "Go back and reload the page."),
}
"""What a wrong address means to a person."""


class Details(msgspec.Struct, frozen=True):
    """An error: code, thing, cause and next step."""

    code: str
    thing: str
    cause: str
    next_step: str
    next_offset: Annotated[int | None, Meta(description="with `offset_mismatch` only")] = None


class HttpProblem(msgspec.Struct, frozen=True):
    """The shape of all errors."""

    error: Details


EXAMPLES = (
    HttpProblem(
        Details(
            "offset_mismatch", "stream llama-7b/1/gpu-12", "it has 4096 bytes, not 0", "Send from offset 4096.", 4096
        )
    ),
)
"""One of each answer."""
_CONTENT = {"application/json": {"schema": {"$ref": f"#/components/schemas/{HttpProblem.__name__}"}}}


def describe(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error answers of an operation, for the OpenAPI document."""
    meanings = {
        400: "a name or the body is wrong",
        401: "no valid token",
        403: "the token may not do this",
        404: "there is no such thing",
        408: "the body arrived too slowly",
        409: "the bytes do not continue the stream; `next_offset` tells where to go on",
        413: "the body is too large",
        415: "the encoding or type is not supported",
        422: "a parameter is wrong, or a limit is reached",
        429: "too many requests; see Retry-After",
        503: "stopping, overloaded, or without its database; see Retry-After",
        507: "the disk is full; nothing was kept; see Retry-After",
    }
    found: dict[int | str, dict[str, Any]] = {}
    for status in (*statuses, 401, 403, 429, 503):
        found |= refusal(status, meanings[status])
    return found


def refusal(status: int, meaning: str) -> dict[int | str, dict[str, Any]]:
    """Return the error answer of an operation with this status, for the OpenAPI document."""
    return {status: {"description": meaning, "content": _CONTENT}}


def problem(status: int, code: str, thing: str, cause: str, next_step: str, **more: Any) -> Response:
    """Return an error answer."""
    headers = {"Retry-After": str(_RETRY_AFTER[status])} if status in _RETRY_AFTER else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not read
    content = {"error": {"code": code, "thing": thing, "cause": cause, "next_step": next_step, **more}}
    return JSONResponse(content, status, headers)


def too_large() -> Response:
    """Return the answer to a body refused for its length before it is read."""
    return problem(413, "too_large", "the body", "it is larger than this address takes", "Send smaller bodies.")


def _without_folders(text: str) -> str:
    """Remove folders of the server from an error of the store. They are in the server's log."""
    return _FOLDERS.sub("", text)


def answer(error: LogdoctorError) -> Response:
    """Return the answer for an error raised on purpose."""
    if isinstance(error, RequestRefused):
        return problem(error.status, error.code, error.thing, error.cause, error.next_step)
    kind = next((kind for kind in type(error).__mro__ if kind in _KINDS), None)
    status, code = _KINDS[kind] if kind is not None else (500, "failed")
    more = {"next_offset": error.next_offset} if isinstance(error, OffsetMismatch) else {}
    thing, cause = error.thing, error.cause
    if status >= 500:
        thing, cause = _without_folders(thing), _without_folders(cause)
    return problem(status, code, thing, cause, error.next_step, **more)


def not_found(thing: str) -> RequestRefused:
    """Return the error for a missing thing."""
    return RequestRefused(404, "not_found", thing, "does not exist", "Check its name or number.")


def existing(thing: Thing | None, name: str) -> Thing:
    """Return the thing; `RequestRefused` (404) for None."""
    if thing is None:
        raise not_found(name)
    return thing


def as_refusal(error: LogdoctorError, status: int = 409, code: str = "refused") -> RequestRefused:
    """Return an error as a refusal of the request."""
    return RequestRefused(status, code, error.thing, error.cause, error.next_step)


def install(app: FastAPI) -> None:
    """Make the application answer all errors in one shape."""
    app.add_exception_handler(LogdoctorError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _failed)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, LogdoctorError)
    result = answer(error)
    if result.status_code >= 500:
        log.error("request failed", path=request.url.path, status=result.status_code, cause=str(error))
    return result


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first: Mapping[str, Any] = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return problem(422, "invalid", place, first["msg"], "See /openapi.json for what is expected.")


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if _wants_page(request) and error.status_code in _FOR_PEOPLE:
        refused = RequestRefused(error.status_code, _CODES[error.status_code], *_FOR_PEOPLE[error.status_code])
        result: Response = request.app.state.problem_page(request, refused)
    else:
        code = _CODES.get(error.status_code, "refused")
        result = problem(error.status_code, code, request.url.path, str(error.detail), "See /openapi.json.")
    for name, value in (error.headers or {}).items():
        result.headers[name] = value
    return result


def _wants_page(request: Request) -> bool:
    """Return whether a browser asks, not a program."""
    return "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/v1/")


async def _failed(request: Request, error: Exception) -> Response:
    log.error("request failed", path=request.url.path, exc_info=error)
    cause = "the service failed; its log has the details"
    return problem(500, "failed", request.url.path, cause, "Try again, and report it if it happens again.")
