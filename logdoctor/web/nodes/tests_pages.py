"""Pages of node tests: list, start, progress and cancel."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor.errors import InputError, LogdoctorError, RequestRefused
from logdoctor.nodes.slurm import expanded
from logdoctor.service.acting import Actor
from logdoctor.service.service import Service
from logdoctor.service.testing import NodeTestOptions
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.store.nodes.tests import StoredTest
from logdoctor.types.nodes import Conclusion, Finding, Result, World, checked_name
from logdoctor.web.dependencies import once
from logdoctor.web.nodes import by_hand
from logdoctor.web.nodes.acting import performed
from logdoctor.web.nodes.background import DeedKey, Deeds, unreached
from logdoctor.web.nodes.visit import NodeOperatorVisit, NodeVisit, Visit
from logdoctor.web.parameters import Cursor, NodeTestId, OptionalId, whole_number
from logdoctor.web.problems import existing
from logdoctor.web.rendering import WORDS, checked_form, router
from logdoctor.web.url_query import PAGE

SHOWN = 150
"""Worlds of a round on a page: those that prove a fault first."""
_FINDINGS = 200  # on a page, those of healthy nodes last
_TEXT = 100_000  # characters of a list of nodes
_BLANKS = re.compile(r"[\s,]+")
_WORST_FIRST = ("faulty", "slow", "indeterminate", "healthy")
_ENDED = {"failed": 0, "void": 1, "passed": 2}

OfNode = Annotated[str, Query(max_length=253)]
NodeList = Annotated[str, Query(max_length=_TEXT)]
Round = Annotated[int | None, Query(ge=1, le=1_000_000)]


class NodeTestOutlook(NamedTuple):
    """A planned test: its nodes and options, with time limits in seconds. `world` is that of one world, `most` that of
    all."""

    nodes: Sequence[str]
    options: NodeTestOptions
    world: float
    most: float


class NodeTestProgress(NamedTuple):
    """The progress of a test: numbers of worlds by result, running ones, and rounds so far."""

    passed: int
    failed: int
    void: int
    running: tuple[World, ...]
    rounds: int


pages = router()


TheDeeds = Annotated[Deeds, Depends(once(lambda _: Deeds("/node-tests")))]


@pages.get("/node-tests")
def tests(visit: NodeVisit, node: OfNode = "", cursor: Cursor = None) -> Response:
    """List tests, newest first."""
    found = visit.kept.tests(cursor, PAGE, node.strip() or None)
    return visit.show("node_tests.html", {"found": found, "node": node.strip(), "cursor": cursor})


@pages.get("/node-tests/new")
def ask(visit: NodeOperatorVisit, nodes: NodeList = "", verdict: OptionalId = None) -> Response:
    """Show which nodes would be tested, and how long that takes."""
    if verdict is not None:
        existing(visit.service.records.verdict(verdict), f"verdict {verdict}")
    return _ask_page(visit, {"nodes": nodes, "verdict": verdict, "repeats": None, "seconds": None})


@pages.post("/node-tests/new")
async def begin(visit: NodeOperatorVisit, deeds: TheDeeds) -> Response:
    """Start the test; show the page again, with the cause, if that fails."""
    form = await checked_form(visit.request, WORDS)
    visit = visit.by(form)
    given: dict[str, Any] = {
        "nodes": form.get("nodes", "")[:_TEXT],
        "verdict": whole_number(form.get("verdict", "")),
        "repeats": whole_number(form.get("repeats", ""), 1000),
        "seconds": whole_number(form.get("seconds", ""), 3600),
    }

    def act() -> str:
        actor = visit.actor()
        names = _names(actor, given["nodes"])
        if not names and given["verdict"] is None:
            cause = "it names neither nodes nor a verdict"
            raise RequestRefused(422, "invalid", "the test", cause, "Name the nodes.")
        options = {name: given[name] for name in ("verdict", "repeats", "seconds")}
        return f"/node-tests/{performed(lambda: actor.test(names, visit.caller.who, **options))}"

    try:
        return RedirectResponse(await deeds.begin("Test nodes", "/node-tests/new", act), 303)
    except (RequestRefused, InputError) as error:
        return await run_in_threadpool(_ask_page, visit, given, error)


@pages.get("/node-tests/{id}")
def test(visit: NodeVisit, id: NodeTestId, round: Round = None) -> Response:
    """Show a test: its findings with the proof, and its worlds, including running ones."""
    stored = _stored(visit.kept, id)
    results = visit.kept.results(id)
    running = _unended(visit.service.actor, stored, results)
    progress = _progress(results, running)
    shown = [one for one in results if round is None or one.world.round == round]
    proof = {number for one in _findings(stored.conclusion) for number in one.worlds if one.standing != "healthy"}
    shown.sort(key=lambda one: (one.world.number not in proof, _ENDED[one.ended], -one.world.number))
    content = {
        "test": stored,
        "progress": progress,
        "findings": _findings(stored.conclusion),
        "shown": shown[:SHOWN],
        "in_all": len(shown),
        "numbers": {one.world.number for one in shown[:SHOWN]},
        "round": round,
        "ended": len(results),
        "most_findings": _FINDINGS,
        "incident": _incident_of(visit.service, stored.verdict),
        "planned": visit.service.actor is not None and bool(visit.service.actor.worlds(id)),
    }
    return visit.show("node_test.html", content)


@pages.get("/node-tests/{id}/cancel")
def ask_cancel(visit: NodeOperatorVisit, id: NodeTestId) -> Response:
    """Show what cancelling a test means."""
    return _cancel_page(visit, id)


@pages.post("/node-tests/{id}/cancel")
async def cancel(visit: NodeOperatorVisit, deeds: TheDeeds, id: NodeTestId) -> Response:
    """Cancel a test; show the page again, with the cause, if it has ended before."""
    visit = visit.by(await checked_form(visit.request))

    def act() -> str:
        _stored(visit.kept, id)
        actor = visit.actor()
        performed(lambda: actor.cancel(id, visit.caller.who))
        return f"/node-tests/{id}"

    try:
        return RedirectResponse(await deeds.begin(f"Cancel test {id}", f"/node-tests/{id}", act), 303)
    except RequestRefused as error:
        if error.status == 404:
            raise
        return await run_in_threadpool(_cancel_page, visit, id, error)


def _ask_page(visit: Visit, given: Mapping[str, Any], error: LogdoctorError | None = None) -> Response:
    """Return the page before a test: its nodes and options, or the field for names."""
    outlook, actor = None, visit.service.actor
    if actor is not None and actor.launcher and (given["nodes"].strip() or given["verdict"]):
        try:
            outlook = _outlook(actor, given)
        except (RequestRefused, InputError) as refusal:
            error = error or refusal
    lacking = None
    if actor is not None and outlook is not None:
        lacking = unreached(actor, outlook.nodes, outlook.options.launcher)
    names = outlook.nodes if outlook else _typed(given["nodes"])
    to_paste = by_hand.to_test(names, given["verdict"]) if names or given["verdict"] else []
    content = {"given": given, "outlook": outlook, "error": error, "unreached": lacking, "to_paste": to_paste}
    status = 200 if error is None else error.status if isinstance(error, RequestRefused) else 400
    return visit.show("node_test_new.html", content, status)


def _cancel_page(visit: Visit, id: int, error: RequestRefused | None = None) -> Response:
    stored = _stored(visit.kept, id)
    content = {"test": stored, "error": error, "ended": len(visit.kept.results(id))}
    return visit.show("node_test_cancel.html", content, error.status if error else 200)


def _incident_of(service: Service, verdict: int | None) -> int | None:
    """Return the incident that led to a test."""
    stored = None if verdict is None else service.records.verdict(verdict)
    return None if stored is None else service.incidents.of(stored.job, stored.attempt)


def _stored(kept: NodeRecords, id: int) -> StoredTest:
    return existing(kept.test(id), f"test {id}")


def _outlook(actor: Actor, given: Mapping[str, Any]) -> NodeTestOutlook:
    """Return the plan of the requested test; `RequestRefused` and `InputError` when it cannot run."""
    names = _names(actor, given["nodes"])
    asked = {name: given[name] for name in ("verdict", "repeats", "seconds")}
    nodes, options = performed(lambda: actor.plan(names, **asked))
    world = options.seconds * (1 + 0.05 * (2 * options.repeats - 1))  # repeated worlds gather twice as often
    return NodeTestOutlook(nodes, options, world, options.minutes * 60 + world)


def _names(actor: Actor, text: str) -> list[str]:
    """Parse a list of nodes as people and schedulers write it. `InputError` for an invalid one."""
    plain = _BLANKS.sub(",", text.strip()).strip(",")
    return [checked_name(name) for name in dict.fromkeys(actor.expand(plain))] if plain else []


def _typed(text: str) -> list[str]:
    """Parse a list of nodes without an actor; [] for an invalid one."""
    try:
        return list(dict.fromkeys(expanded(_BLANKS.sub(",", text.strip()).strip(","))))
    except InputError:
        return []


def _unended(actor: Actor | None, test: StoredTest, results: Sequence[Result]) -> tuple[World, ...]:
    """Return the worlds that run now, as far as this process knows."""
    if actor is None or test.state != "running":
        return ()
    ended = {result.world.number for result in results}
    return tuple(world for world in actor.worlds(test.id) if world.number not in ended)


def _progress(results: Sequence[Result], running: tuple[World, ...]) -> NodeTestProgress:
    count = {"passed": 0, "failed": 0, "void": 0}
    for result in results:
        count[result.ended] += 1
    rounds = max((world.round for world in (*(result.world for result in results), *running)), default=0)
    return NodeTestProgress(count["passed"], count["failed"], count["void"], running, rounds)


def _findings(conclusion: Conclusion | None) -> list[Finding]:
    """Return the findings, the worst first."""
    return sorted(conclusion.findings if conclusion else (), key=lambda one: _WORST_FIRST.index(one.standing))


@pages.get("/node-tests/under-way/{key}")
def under_way(visit: NodeVisit, deeds: TheDeeds, key: DeedKey) -> Response:
    """Show the progress of a background operation, or redirect to its result."""
    return deeds.page(visit.request, key)
