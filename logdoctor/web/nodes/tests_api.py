"""Tests of nodes over HTTP: start, list, follow and stop."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from logdoctor.errors import RequestRefused
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.store.nodes.tests import StoredTest, TestPage
from logdoctor.types.nodes import checked_name
from logdoctor.web.dependencies import NodeOperator, NodeReader, TheHubs, TheNodeRecords, TheService, admit_node_reader
from logdoctor.web.events import LastSeen, beginning, event, following
from logdoctor.web.gate import Caller
from logdoctor.web.json_answer import Json
from logdoctor.web.nodes.acting import CLUSTER, REFUSED, OfNode, actor_of, performed
from logdoctor.web.nodes.answers import NodeTest
from logdoctor.web.nodes.requests import NodeTestIn
from logdoctor.web.openapi import answers, streams
from logdoctor.web.parameters import MAX_ID, NodeTestId, ThePage
from logdoctor.web.problems import describe, existing

_ENDED: dict[int | str, dict[str, Any]] = {204: {"description": "the test has ended, and all of it was seen"}}
AfterWorlds = Annotated[
    int, Query(ge=0, le=MAX_ID, description="leave the first so many worlds out, for those who have seen them")
]

router = APIRouter(default_response_class=Response, prefix="/v1", tags=["nodes"])


@router.get("/node-tests", responses=answers(TestPage) | describe(400, 422))
def tests(caller: NodeReader, records: TheNodeRecords, page: ThePage, node: OfNode = None) -> Response:
    """List tests of nodes, newest first."""
    return Json(records.tests(*page, node))


@router.post(
    "/node-tests", status_code=202, responses=answers(StoredTest, 202) | describe(400, 422) | REFUSED | CLUSTER
)
def begin(caller: NodeOperator, service: TheService, records: TheNodeRecords, wanted: NodeTestIn) -> Response:
    """Test nodes in the background: pairs run an all-gather. Nodes that fail are tried again with nodes that work."""
    if not wanted.nodes and wanted.verdict is None and not wanted.all:
        cause = "it names neither nodes nor a verdict"
        step = "Name the nodes, or a verdict whose job had them, or say that all are meant."
        raise RequestRefused(422, "invalid", "the test", cause, step)
    names = tuple(dict.fromkeys(checked_name(name) for name in wanted.nodes))
    given = wanted.model_dump(exclude={"nodes", "all"})
    started = performed(lambda: actor_of(service).test(names, caller.who, **given))
    return Json(_test(records, started), 202)


@router.get("/node-tests/{id}", responses=answers(NodeTest) | describe(404, 422))
def test(caller: NodeReader, records: TheNodeRecords, id: NodeTestId, after: AfterWorlds = 0) -> Response:
    """Return a test with all its ended worlds, and its conclusion."""
    return Json(NodeTest(_test(records, id), records.results(id, after)))


@router.post(
    "/node-tests/{id}/cancel", status_code=202, responses=answers(StoredTest, 202) | describe(404, 422) | REFUSED
)
def cancel(caller: NodeOperator, service: TheService, records: TheNodeRecords, id: NodeTestId) -> Response:
    """Stop a test, whoever runs it; its worlds are ended, without a conclusion. One that another process runs is ended
    on record, which that process sees within seconds."""
    _test(records, id)
    performed(lambda: actor_of(service).cancel(id, caller.who))
    return Json(_test(records, id), 202)


@router.get(
    "/node-tests/{id}/events",
    responses=streams(("world", "test"), "a Result or a StoredTest") | _ENDED | describe(404, 422),
    response_class=StreamingResponse,
)
async def events(
    request: Request, caller: NodeReader, records: TheNodeRecords, hubs: TheHubs, id: NodeTestId, seen: LastSeen
) -> Response:
    """Send each world of a test as an event `world` when it ends. They start with the first, or after Last-Event-ID; at
    last comes an event `test` with the conclusion."""
    last = await beginning(seen, lambda: 0)
    found = await run_in_threadpool(_test, records, id)
    if found.state != "running" and last > len(await run_in_threadpool(records.results, id)):
        return Response(status_code=204)

    async def news(caller: Caller) -> AsyncIterator[bytes | None]:
        nonlocal last
        stored = await run_in_threadpool(_test, records, id)  # before the worlds: when it has ended they are all there
        worlds = await run_in_threadpool(records.results, id)
        for number, world in enumerate(worlds[last:], last + 1):
            yield event(number, "world", world)
        last = max(last, len(worlds))
        if stored.state != "running":
            yield event(len(worlds) + 1, "test", stored)
            yield None

    return following(request, hubs.nodes, caller, admit_node_reader, news)


def _test(records: NodeRecords, id: int) -> StoredTest:
    return existing(records.test(id), f"test {id}")
