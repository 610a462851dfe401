"""Nodes over HTTP: what is on record of them, and taking them out or putting them back."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from logdoctor.node_types import NodeHistory, PastCordon, checked_name
from logdoctor.service.service import Service
from logdoctor.store.node_records import NodeRecords
from logdoctor.web.gate import Caller, Gate
from logdoctor.web.jobs.api import not_found
from logdoctor.web.json_answer import Json
from logdoctor.web.models import CordonIn, Cursor, Limit, NodeName, NodeStepIn
from logdoctor.web.nodes.acting import CLUSTER, OF_ALL, REFUSED, actor_of, cordoned, performed
from logdoctor.web.nodes.answers import NodeList
from logdoctor.web.openapi import answers
from logdoctor.web.problems import describe

WithCluster = Annotated[bool, Query(description="also ask the cluster how it knows its nodes")]
ManyNodes = Annotated[int, Query(ge=1, le=1000, description="nodes of a page")]


def routes(service: Service, gate: Gate) -> APIRouter:
    """The routes for nodes."""
    reading = APIRouter(prefix="/v1", tags=["nodes"])
    deciding = APIRouter(prefix="/v1", tags=["node decisions"])
    records = NodeRecords(service.records.database)
    Reader = Annotated[Caller, Depends(gate.allows_unbound("read", OF_ALL))]
    Operator = Annotated[Caller, Depends(gate.allows_unbound("operate", OF_ALL))]

    @reading.get(
        "/nodes", responses=answers(NodeList) | describe(400, 422) | REFUSED | CLUSTER, response_class=Response
    )
    def nodes(caller: Reader, cluster: WithCluster = False, cursor: Cursor = None, limit: ManyNodes = 1000) -> Response:
        """The nodes on record, repeat offenders first: failures that suspect them, what tests found, cordons."""
        found = records.node_page(None, cursor, limit)
        states = performed(lambda: actor_of(service).nodes()) if cluster else []
        return Json(NodeList(found.items, states, found.next))

    @reading.get("/nodes/{node}", responses=answers(NodeHistory) | describe(400, 422), response_class=Response)
    def node(caller: Reader, node: NodeName, limit: Limit = 50) -> Response:
        """What is on record of a node, newest first; nothing for a node that was never heard of."""
        return Json(records.history(checked_name(node), limit))

    @deciding.post(
        "/nodes/{node}/cordon",
        responses=answers(PastCordon) | describe(400, 404, 422) | REFUSED | CLUSTER,
        response_class=Response,
    )
    def cordon(caller: Operator, node: NodeName, said: CordonIn) -> Response:
        """Take a node out, so that no new job runs on it. Refused above the caps, and when others have cordoned it."""
        name = checked_name(node)
        if said.verdict is not None and service.records.verdict(said.verdict) is None:
            raise not_found(f"verdict {said.verdict}")
        if said.test is not None and records.test(said.test) is None:
            raise not_found(f"test {said.test}")
        actor = performed(lambda: actor_of(service))
        return Json(cordoned(actor, name, caller.who, said.reason, said.verdict, said.test))

    @deciding.post(
        "/nodes/{node}/uncordon",
        responses=answers(PastCordon) | describe(400, 422) | REFUSED | CLUSTER,
        response_class=Response,
    )
    def uncordon(caller: Operator, node: NodeName, said: NodeStepIn) -> Response:
        """Put a node back into service; only when it carries a cordon of ours."""
        name = checked_name(node)
        return Json(performed(lambda: actor_of(service).uncordon(name, caller.who, said.why)))

    router = APIRouter()
    router.include_router(reading)
    router.include_router(deciding)
    return router
