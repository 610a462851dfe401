"""Mutes and runbooks over HTTP. They apply to all jobs, so a token that is bound to jobs sees none."""

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from starlette.responses import Response

from logdoctor.errors import IncidentRefused
from logdoctor.service.service import Service
from logdoctor.store.incidents.mutes import Mute
from logdoctor.store.incidents.runbooks import Runbook
from logdoctor.web.dependencies import TheService, allows_unbound
from logdoctor.web.gate import Caller
from logdoctor.web.incidents.answers import MuteList, RunbookList
from logdoctor.web.incidents.requests import MuteIn, RunbookIn
from logdoctor.web.json_answer import Json
from logdoctor.web.openapi import answers
from logdoctor.web.parameters import MAX_ID
from logdoctor.web.problems import as_refusal, describe, not_found, refusal

OF_ALL = "it is for all jobs"
"""Why a token that is bound to jobs sees none of them."""
_REFUSED = refusal(409, "it cannot be done; `cause` says why")

DeskReader = Annotated[Caller, Depends(allows_unbound("read", OF_ALL))]
DeskOperator = Annotated[Caller, Depends(allows_unbound("operate", OF_ALL))]
MuteId = Annotated[int, Path(ge=1, le=MAX_ID, description="id of the mute", examples=[2])]
Past = Annotated[bool, Query(description="with those that are over")]

router = APIRouter(default_response_class=Response, prefix="/v1", tags=["incidents"])


@router.get("/mutes", responses=answers(MuteList) | describe(422))
def mutes(_: DeskReader, service: TheService, past: Past = False) -> Response:
    """List the mutes, newest first."""
    return Json(MuteList(service.mutes.all(None if past else time.time())))


@router.post("/mutes", responses=answers(Mute) | describe(422) | _REFUSED)
def mute(caller: DeskOperator, service: TheService, said: MuteIn) -> Response:
    """Mute a fingerprint or a node for a while. Its incidents are listed apart, and nobody is notified about them."""
    return Json(muted(service, caller, said))


@router.post("/mutes/{id}/lift", responses=answers(Mute) | describe(404, 422) | _REFUSED)
def lift(caller: DeskOperator, service: TheService, id: MuteId) -> Response:
    """End a mute."""
    return Json(lifted(service, caller, id))


@router.get("/runbooks", responses=answers(RunbookList) | describe())
def runbooks(_: DeskReader, service: TheService) -> Response:
    """List the runbooks of reasons, rules and fingerprints."""
    return Json(RunbookList(service.desk.runbooks()))


@router.post("/runbooks", responses=answers(RunbookList) | describe(404, 422) | _REFUSED)
def put_runbook(caller: DeskOperator, service: TheService, said: RunbookIn) -> Response:
    """Set the runbook of a reason, a rule or a fingerprint, and return all. An empty URL removes it."""
    if said.url:
        kept_runbook(service, caller, said)
    elif not service.desk.forget_runbook(said.kind, said.value):
        raise not_found(f"runbook of {said.kind} {said.value}")
    return Json(RunbookList(service.desk.runbooks()))


def muted(service: Service, caller: Caller, said: MuteIn) -> Mute:
    """Mute for the caller from now on, and return the mute."""
    now = time.time()
    try:
        return service.mutes.mute(said.kind, said.value, caller.who, said.why, now + said.seconds, now)
    except IncidentRefused as error:
        raise as_refusal(error) from error


def lifted(service: Service, caller: Caller, id: int) -> Mute:
    """Lift a mute for the caller, and return it."""
    try:
        return service.mutes.lift(id, caller.who, time.time())
    except IncidentRefused as error:
        raise as_refusal(error) from error


def kept_runbook(service: Service, caller: Caller, said: RunbookIn) -> Runbook:
    """Set a runbook for the caller, and return it."""
    try:
        return service.desk.put_runbook(said.kind, said.value, said.url, caller.who, time.time())
    except IncidentRefused as error:
        raise as_refusal(error) from error
