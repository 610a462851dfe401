"""What follows for nodes over HTTP: actions that wait for a person or were taken, and the audit of all steps."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from logdoctor.service.service import Service
from logdoctor.store.actions import ActionPage, ActionState, StoredAction
from logdoctor.store.audit import AuditPage
from logdoctor.store.node_records import NodeRecords
from logdoctor.web.gate import Caller, Gate
from logdoctor.web.jobs.api import not_found
from logdoctor.web.json_answer import Json
from logdoctor.web.models import ActionId, Cursor, Limit, NodeStepIn
from logdoctor.web.nodes.acting import CLUSTER, OF_ALL, REFUSED, OfNode, actor_of, performed
from logdoctor.web.openapi import answers
from logdoctor.web.problems import describe

OfTest = Annotated[int | None, Query(ge=1, le=(1 << 63) - 1, description="only what concerns this test")]
OfState = Annotated[ActionState | None, Query(description="only those in this state")]


def routes(service: Service, gate: Gate) -> APIRouter:
    """The routes for actions and the audit."""
    reading = APIRouter(prefix="/v1", tags=["nodes"])
    deciding = APIRouter(prefix="/v1", tags=["node decisions"])
    records = NodeRecords(service.records.database)
    Reader = Annotated[Caller, Depends(gate.allows_unbound("read", OF_ALL))]
    Operator = Annotated[Caller, Depends(gate.allows_unbound("operate", OF_ALL))]

    @reading.get("/actions", responses=answers(ActionPage) | describe(400, 422), response_class=Response)
    def actions(caller: Reader, state: OfState = None, cursor: Cursor = None, limit: Limit = 50) -> Response:
        """What is to be done with nodes, newest first: tests, cordons, and advice; some of it waits for a person."""
        return Json(records.actions(state, cursor, limit))

    @deciding.post(
        "/actions/{id}/approve",
        responses=answers(StoredAction) | describe(404, 422) | REFUSED | CLUSTER,
        response_class=Response,
    )
    def approve(caller: Operator, id: ActionId, said: NodeStepIn) -> Response:
        """Let an action that waits be done; a test or a cordon is done at once, the rest is for people to do."""
        _action(id)
        return Json(performed(lambda: actor_of(service).approve(id, caller.who, said.why)))

    @deciding.post(
        "/actions/{id}/refuse",
        responses=answers(StoredAction) | describe(404, 422) | REFUSED,
        response_class=Response,
    )
    def refuse(caller: Operator, id: ActionId, said: NodeStepIn) -> Response:
        """Say that an action that waits is not to be done."""
        _action(id)
        return Json(performed(lambda: actor_of(service).refuse(id, caller.who, said.why)))

    @reading.get("/audit", responses=answers(AuditPage) | describe(400, 422), response_class=Response)
    def audit(
        caller: Reader, node: OfNode = None, test: OfTest = None, cursor: Cursor = None, limit: Limit = 50
    ) -> Response:
        """Every step that was taken with nodes, newest first: who took it, when and why."""
        return Json(records.audit(cursor, limit, node, test))

    def _action(id: int) -> StoredAction:
        found = records.action(id)
        if found is None:
            raise not_found(f"action {id}")
        return found

    router = APIRouter()
    router.include_router(reading)
    router.include_router(deciding)
    return router
