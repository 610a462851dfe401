"""Nodes over HTTP: what is on record of them, tests, cordons, and actions that wait for a person.

A token that is bound to jobs may do none of this and sees nothing of it: a node is shared by the jobs of all.
"""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from logdoctor.errors import (
    ActionRefused,
    CordonError,
    CordonRefused,
    LaunchError,
    NodeTestRefused,
    RequestRefused,
)
from logdoctor.live.acting import Actor
from logdoctor.live.service import Service
from logdoctor.nodes import NodeHistory, PastCordon, checked_name
from logdoctor.store.actions import ActionPage, ActionState, StoredAction
from logdoctor.store.audit import AuditPage
from logdoctor.store.node_records import NodeRecords
from logdoctor.store.node_tests import StoredTest, TestPage
from logdoctor.web.events import After, Hub, LastEventId, beginning, following
from logdoctor.web.gate import Caller, Gate
from logdoctor.web.models import (
    ActionId,
    CordonIn,
    Cursor,
    Limit,
    NodeName,
    NodeStepIn,
    NodeTestId,
    NodeTestIn,
)
from logdoctor.web.node_answers import NodeList, NodeTest
from logdoctor.web.openapi import answers, streams
from logdoctor.web.problems import Problem, describe
from logdoctor.web.verdicts import not_found

_REFUSED: dict[int | str, dict[str, Any]] = {409: {"model": Problem, "description": "this may not be done, or not now"}}
_CLUSTER: dict[int | str, dict[str, Any]] = {
    502: {"model": Problem, "description": "the cluster was asked and did not do it"}
}
_ENDED: dict[int | str, dict[str, Any]] = {204: {"description": "the test has ended, and all of it was seen"}}

Done = TypeVar("Done")
OfNode = Annotated[str | None, Query(max_length=253, description="only what concerns this node")]
OfTest = Annotated[int | None, Query(ge=1, le=(1 << 63) - 1, description="only what concerns this test")]
OfState = Annotated[ActionState | None, Query(description="only those in this state")]
WithCluster = Annotated[bool, Query(description="also ask the cluster how it knows its nodes")]
ManyNodes = Annotated[int, Query(ge=1, le=1000, description="nodes of a page")]


def routes(service: Service, gate: Gate, hub: Hub) -> APIRouter:
    """The routes for nodes; `hub` wakes listeners when a test goes on."""
    reading = APIRouter(prefix="/v1", tags=["nodes"])
    deciding = APIRouter(prefix="/v1", tags=["node decisions"])
    records = NodeRecords(service.records.database)
    admit = gate.allows("read")

    async def reader(request: Request) -> Caller:
        return unbound(await admit(request))

    admit_operator = gate.allows("operate")

    async def operator(request: Request) -> Caller:
        return unbound(await admit_operator(request))

    Reader = Annotated[Caller, Depends(reader)]
    Operator = Annotated[Caller, Depends(operator)]

    @reading.get(
        "/nodes", responses=answers(NodeList) | describe(400, 422) | _REFUSED | _CLUSTER, response_class=Response
    )
    def nodes(caller: Reader, cluster: WithCluster = False, cursor: Cursor = None, limit: ManyNodes = 1000) -> Response:
        """The nodes on record, repeat offenders first: failures that suspect them, what tests found, cordons."""
        found = records.node_page(None, cursor, limit)
        return _json(NodeList(found.items, performed(lambda: _actor().nodes()) if cluster else [], found.next))

    @reading.get("/nodes/{node}", responses=answers(NodeHistory) | describe(400, 422), response_class=Response)
    def node(caller: Reader, node: NodeName, limit: Limit = 50) -> Response:
        """What is on record of a node, newest first; nothing for a node that was never heard of."""
        return _json(records.history(checked_name(node), limit))

    @deciding.post(
        "/nodes/{node}/cordon",
        responses=answers(PastCordon) | describe(400, 404, 422) | _REFUSED | _CLUSTER,
        response_class=Response,
    )
    def cordon(caller: Operator, node: NodeName, said: CordonIn) -> Response:
        """Take a node out, so that no new job runs on it. Refused above the caps, and when others have cordoned it."""
        name = checked_name(node)
        if said.verdict is not None and service.records.verdict(said.verdict) is None:
            raise not_found(f"verdict {said.verdict}")
        if said.test is not None:
            _test(said.test)
        try:
            return _json(performed(lambda: _actor().cordon(name, caller.who, said.reason, said.verdict, said.test)))
        except RequestRefused as error:
            if error.status == 502 and name not in {state.name for state in performed(_actor().nodes)}:
                raise not_found(f"node {name}") from error
            raise

    @deciding.post(
        "/nodes/{node}/uncordon",
        responses=answers(PastCordon) | describe(400, 422) | _REFUSED | _CLUSTER,
        response_class=Response,
    )
    def uncordon(caller: Operator, node: NodeName, said: NodeStepIn) -> Response:
        """Put a node back into service; only when it carries a cordon of ours."""
        name = checked_name(node)
        return _json(performed(lambda: _actor().uncordon(name, caller.who, said.why)))

    @reading.get("/node-tests", responses=answers(TestPage) | describe(400, 422), response_class=Response)
    def tests(caller: Reader, node: OfNode = None, cursor: Cursor = None, limit: Limit = 50) -> Response:
        """Tests of nodes, newest first."""
        return _json(records.tests(cursor, limit, node))

    @deciding.post(
        "/node-tests",
        status_code=202,
        responses=answers(StoredTest, 202) | describe(400, 422) | _REFUSED | _CLUSTER,
        response_class=Response,
    )
    def begin(caller: Operator, wanted: NodeTestIn) -> Response:
        """Test nodes in the background: pairs run an all-gather, and who fails is tried again with nodes that work."""
        if not wanted.nodes and wanted.verdict is None:
            cause = "it names neither nodes nor a verdict"
            raise RequestRefused(422, "invalid", "the test", cause, "Name the nodes, or a verdict whose job had them.")
        names = tuple(dict.fromkeys(checked_name(name) for name in wanted.nodes))
        given = wanted.model_dump(exclude={"nodes"})
        started = performed(lambda: _actor().test(names, caller.who, **given))
        return _json(_test(started), 202)

    @reading.get("/node-tests/{id}", responses=answers(NodeTest) | describe(404, 422), response_class=Response)
    def test(caller: Reader, id: NodeTestId) -> Response:
        """A test with all its worlds that have ended, and what it found."""
        return _json(NodeTest(_test(id), records.results(id)))

    @deciding.post(
        "/node-tests/{id}/cancel",
        status_code=202,
        responses=answers(StoredTest, 202) | describe(404, 422) | _REFUSED,
        response_class=Response,
    )
    def cancel(caller: Operator, id: NodeTestId) -> Response:
        """Stop a test, whoever runs it; its worlds are ended, and nothing is concluded from it. One that another
        process runs is ended on record, which that process sees within seconds."""
        _test(id)
        performed(lambda: _actor().cancel(id, caller.who))
        return _json(_test(id), 202)

    @reading.get(
        "/node-tests/{id}/events",
        responses=streams(("world", "test"), "a Result or a StoredTest") | _ENDED | describe(404, 422),
        response_class=StreamingResponse,
    )
    async def events(
        request: Request, caller: Reader, id: NodeTestId, last_event_id: LastEventId = None, after: After = None
    ) -> Response:
        """Each world of a test as an event `world` when it ends, from the first or after Last-Event-ID; then an event
        `test` with what was found, and the stream ends."""
        last = await beginning(hub, last_event_id, after, lambda: 0)
        found = await run_in_threadpool(_test, id)
        if found.state != "running" and last > len(await run_in_threadpool(records.results, id)):
            return Response(status_code=204)

        async def news(caller: Caller) -> AsyncIterator[bytes | None]:
            nonlocal last
            stored = await run_in_threadpool(_test, id)  # before the worlds: when it has ended they are all there
            worlds = await run_in_threadpool(records.results, id)
            for number, world in enumerate(worlds[last:], last + 1):
                yield b"id: %d\nevent: world\ndata: %s\n\n" % (number, msgspec.json.encode(world))
            last = max(last, len(worlds))
            if stored.state != "running":
                yield b"id: %d\nevent: test\ndata: %s\n\n" % (len(worlds) + 1, msgspec.json.encode(stored))
                yield None

        return following(request, hub, reader, news)

    @reading.get("/actions", responses=answers(ActionPage) | describe(400, 422), response_class=Response)
    def actions(caller: Reader, state: OfState = None, cursor: Cursor = None, limit: Limit = 50) -> Response:
        """What is to be done with nodes, newest first: tests, cordons, and advice; some of it waits for a person."""
        return _json(records.actions(state, cursor, limit))

    @deciding.post(
        "/actions/{id}/approve",
        responses=answers(StoredAction) | describe(404, 422) | _REFUSED | _CLUSTER,
        response_class=Response,
    )
    def approve(caller: Operator, id: ActionId, said: NodeStepIn) -> Response:
        """Let an action that waits be done; a test or a cordon is done at once, the rest is for people to do."""
        _action(id)
        return _json(performed(lambda: _actor().approve(id, caller.who, said.why)))

    @deciding.post(
        "/actions/{id}/refuse",
        responses=answers(StoredAction) | describe(404, 422) | _REFUSED,
        response_class=Response,
    )
    def refuse(caller: Operator, id: ActionId, said: NodeStepIn) -> Response:
        """Say that an action that waits is not to be done."""
        _action(id)
        return _json(performed(lambda: _actor().refuse(id, caller.who, said.why)))

    @reading.get("/audit", responses=answers(AuditPage) | describe(400, 422), response_class=Response)
    def audit(
        caller: Reader, node: OfNode = None, test: OfTest = None, cursor: Cursor = None, limit: Limit = 50
    ) -> Response:
        """Every step that was taken with nodes, newest first: who took it, when and why."""
        return _json(records.audit(cursor, limit, node, test))

    def _actor() -> Actor:
        if service.actor is None:
            raise ActionRefused("nodes", "this service acts on none", "Use one that `logdoctor serve` began.")
        return service.actor

    def _test(id: int) -> StoredTest:
        found = records.test(id)
        if found is None:
            raise not_found(f"test {id}")
        return found

    def _action(id: int) -> StoredAction:
        found = records.action(id)
        if found is None:
            raise not_found(f"action {id}")
        return found

    router = APIRouter()
    router.include_router(reading)
    router.include_router(deciding)
    return router


def unbound(caller: Caller) -> Caller:
    """The caller; `RequestRefused` when the token is bound to jobs."""
    if caller.prefixes:
        cause = "it is bound to jobs, but nodes are shared by all jobs"
        raise RequestRefused(403, "forbidden", f"token {caller.name!r}", cause, "Use a token without prefixes.")
    return caller


def performed(act: Callable[[], Done]) -> Done:
    """What an act gives; its refusal as `RequestRefused`."""
    try:
        return act()
    except (ActionRefused, CordonRefused, NodeTestRefused) as error:
        raise RequestRefused(409, "refused", error.thing, error.cause, error.next_step) from error
    except LaunchError as error:
        raise RequestRefused(422, "cannot_test", error.thing, error.cause, error.next_step) from error
    except CordonError as error:
        raise RequestRefused(502, "cluster_failed", error.thing, error.cause, error.next_step) from error


def _json(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")
