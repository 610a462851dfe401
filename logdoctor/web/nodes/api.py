"""Nodes over HTTP: their records, and their cordons."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from logdoctor.types.nodes import NodeHistory, PastCordon, checked_name
from logdoctor.web.dependencies import NodeOperator, NodeReader, TheNodeRecords, TheService
from logdoctor.web.json_answer import Json
from logdoctor.web.nodes.acting import CLUSTER, REFUSED, actor_of, cordoned, performed
from logdoctor.web.nodes.answers import NodeList
from logdoctor.web.nodes.requests import CordonIn, NodeStepIn
from logdoctor.web.openapi import answers
from logdoctor.web.parameters import Cursor, Limit, NodeName
from logdoctor.web.problems import describe, existing

WithCluster = Annotated[bool, Query(description="also ask the cluster how it knows its nodes")]
ManyNodes = Annotated[int, Query(ge=1, le=1000, description="nodes of a page")]

router = APIRouter(default_response_class=Response, prefix="/v1", tags=["nodes"])


@router.get("/nodes", responses=answers(NodeList) | describe(400, 422) | REFUSED | CLUSTER)
def nodes(
    caller: NodeReader,
    service: TheService,
    records: TheNodeRecords,
    cluster: WithCluster = False,
    cursor: Cursor = None,
    limit: ManyNodes = 1000,
) -> Response:
    """List the nodes on record, repeat offenders first: failures that suspect them, test findings, cordons."""
    found = records.node_page(None, cursor, limit)
    states = performed(lambda: actor_of(service).nodes()) if cluster else []
    return Json(NodeList(found.items, states, found.next))


@router.get("/nodes/{node}", responses=answers(NodeHistory) | describe(400, 422))
def node(caller: NodeReader, records: TheNodeRecords, node: NodeName, limit: Limit = 50) -> Response:
    """Return the records of a node, newest first; empty for an unknown node."""
    return Json(records.history(checked_name(node), limit))


@router.post("/nodes/{node}/cordon", responses=answers(PastCordon) | describe(400, 404, 422) | REFUSED | CLUSTER)
def cordon(
    caller: NodeOperator, service: TheService, records: TheNodeRecords, node: NodeName, said: CordonIn
) -> Response:
    """Cordon a node, so that no new job starts on it. Refused above the caps, and when others have cordoned it."""
    name = checked_name(node)
    if said.verdict is not None:
        existing(service.records.verdict(said.verdict), f"verdict {said.verdict}")
    if said.test is not None:
        existing(records.test(said.test), f"test {said.test}")
    actor = performed(lambda: actor_of(service))
    return Json(cordoned(actor, name, caller.who, said.reason, said.verdict, said.test))


@router.post("/nodes/{node}/uncordon", responses=answers(PastCordon) | describe(400, 422) | REFUSED | CLUSTER)
def uncordon(caller: NodeOperator, service: TheService, node: NodeName, said: NodeStepIn) -> Response:
    """Uncordon a node, if it has a cordon of ours."""
    name = checked_name(node)
    return Json(performed(lambda: actor_of(service).uncordon(name, caller.who, said.why)))
