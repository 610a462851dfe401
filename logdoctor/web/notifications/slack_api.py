"""Slack's requests at the press of a button, with Slack's signature instead of a token."""

import time
from collections import OrderedDict

import structlog
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from logdoctor.errors import IncidentRefused, RequestRefused
from logdoctor.service.notify.slack_actions import WINDOW, Pressed, check_signature, pressed
from logdoctor.service.service import Service
from logdoctor.web.bodies import Allowed, whole
from logdoctor.web.dependencies import AppState, TheService, state_of
from logdoctor.web.json_answer import Json
from logdoctor.web.problems import not_found

log = structlog.get_logger()

_BODY = Allowed(sent=65_536, unpacked=65_536, seconds=10.0)
_REMEMBERED = 10_000

router = APIRouter(default_response_class=Response, prefix="/slack", include_in_schema=False)


class _Seen:
    """The signatures of requests that could still be replayed."""

    def __init__(self, _state: AppState) -> None:
        self._at: OrderedDict[str, float] = OrderedDict()

    def again(self, signature: str, now: float) -> bool:
        """Return whether a request was received before."""
        while self._at and (len(self._at) > _REMEMBERED or next(iter(self._at.values())) < now - 2 * WINDOW):
            self._at.popitem(last=False)
        return self._at.setdefault(signature, now) != now


@router.post("/actions")
async def actions(request: Request, service: TheService) -> Response:
    """Acknowledge an incident, or assign it to whoever pressed the button. Slack says who that is."""
    secret = service.notifier.terms.slack_secret if service.notifier else ""
    if not secret:
        raise not_found("the address for Slack's buttons")
    body, now = await whole(request, _BODY), time.time()
    signature = request.headers.get("x-slack-signature", "")
    try:
        check_signature(secret, request.headers.get("x-slack-request-timestamp", ""), signature, body, now)
        if state_of(request).once(_Seen).again(signature, now):
            raise ValueError("it was sent before")
        wanted = pressed(body)
    except ValueError as error:
        await state_of(request).gate.count_wrong(request)
        raise RequestRefused(403, "forbidden", "the request", str(error), "Check the signing secret.") from None
    said = [await run_in_threadpool(_act, service, one) for one in wanted]
    return Json({"text": "; ".join(said)})


def _act(service: Service, wanted: Pressed) -> str:
    """Return the result of a button in words. Slack does not show it, but it helps whoever debugs."""
    by, now = f"{wanted.who} (Slack)", time.time()
    try:
        one = service.incidents.one(wanted.incident)
        if one is not None and one.merged_into is not None:
            one = service.incidents.one(one.merged_into)
        number = wanted.incident if one is None else one.id
        if wanted.action == "assign":
            service.incidents.assign(number, by, by, "", now)
        if wanted.action == "acknowledge" or (one is not None and one.state == "new"):
            service.incidents.step(number, "acknowledge", by, "", now, None)
    except IncidentRefused as error:
        log.info("button in Slack came to nothing", incident=wanted.incident, cause=error.cause)
        return str(error)
    return f"incident {number}: done"
