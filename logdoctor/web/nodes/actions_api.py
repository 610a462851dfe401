"""Node actions over HTTP: waiting and decided ones, and the audit log."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from logdoctor.store.keeping.audit import AuditPage
from logdoctor.store.nodes.actions import ActionPage, ActionState, StoredAction
from logdoctor.web.dependencies import NodeOperator, NodeReader, TheNodeRecords, TheService
from logdoctor.web.json_answer import Json
from logdoctor.web.nodes.acting import CLUSTER, REFUSED, OfNode, actor_of, performed
from logdoctor.web.nodes.answers import ApprovedAction
from logdoctor.web.nodes.requests import NodeStepIn
from logdoctor.web.openapi import answers
from logdoctor.web.parameters import MAX_ID, ActionId, ThePage
from logdoctor.web.problems import describe, existing

OfTest = Annotated[int | None, Query(ge=1, le=MAX_ID, description="only what concerns this test")]
OfState = Annotated[ActionState | None, Query(description="only those in this state")]

router = APIRouter(default_response_class=Response, prefix="/v1", tags=["nodes"])


@router.get("/actions", responses=answers(ActionPage) | describe(400, 422))
def actions(caller: NodeReader, records: TheNodeRecords, page: ThePage, state: OfState = None) -> Response:
    """List node actions, newest first: tests, cordons, and advice; some wait for a person."""
    return Json(records.actions(state, *page))


@router.post("/actions/{id}/approve", responses=answers(ApprovedAction) | describe(404, 422) | REFUSED | CLUSTER)
def approve(
    caller: NodeOperator, service: TheService, records: TheNodeRecords, id: ActionId, said: NodeStepIn
) -> Response:
    """Approve a waiting action. A test or a cordon is carried out at once, the rest is for people to do."""
    existing(records.action(id), f"action {id}")
    actor = performed(lambda: actor_of(service))
    approved = performed(lambda: actor.approve(id, caller.who, said.why))
    return Json(ApprovedAction(**msgspec.structs.asdict(approved), test=actor.begun.get(id)))


@router.post("/actions/{id}/refuse", responses=answers(StoredAction) | describe(404, 422) | REFUSED)
def refuse(
    caller: NodeOperator, service: TheService, records: TheNodeRecords, id: ActionId, said: NodeStepIn
) -> Response:
    """Refuse a waiting action."""
    existing(records.action(id), f"action {id}")
    return Json(performed(lambda: actor_of(service).refuse(id, caller.who, said.why)))


@router.get("/audit", responses=answers(AuditPage) | describe(400, 422))
def audit(
    caller: NodeReader, records: TheNodeRecords, page: ThePage, node: OfNode = None, test: OfTest = None
) -> Response:
    """List every step on nodes, newest first: who took it, when and why."""
    return Json(records.audit(*page, node, test))
