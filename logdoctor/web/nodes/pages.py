"""Pages of nodes: all on record, the history of one, and taking it out or putting it back."""

from functools import partial
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import quote

from fastapi import Depends, Query
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor.errors import RequestRefused
from logdoctor.node_types import NodeHistory, PastFailure, PastFinding, Result
from logdoctor.nodes.cordon.cordoner import plain_reason
from logdoctor.service.service import Service
from logdoctor.store.node_places import DRY_RUN, WantedNodes
from logdoctor.store.node_records import NodeRecords
from logdoctor.web.dependencies import once
from logdoctor.web.nodes import words as node_wording
from logdoctor.web.nodes.acting import cordoned, performed
from logdoctor.web.nodes.background import DeedKey, Deeds
from logdoctor.web.nodes.running import Running, running_on
from logdoctor.web.nodes.visit import NodeOperatorVisit, NodeVisit, Visit
from logdoctor.web.parameters import NodeName
from logdoctor.web.problems import not_found
from logdoctor.web.rendering import checked_form, router
from logdoctor.web.url_query import PAGE, ListQuery

_HISTORY = 50  # failures, tests and cordons on the page of a node
_PROVEN = 5  # tests, the newest, of which the worlds are shown
_WORLDS = 12  # worlds of a test on the page of a node
_ACTIONS = 20
_STEPS = 15  # of the audit on the page of a node
_MAX_REASON = 2000
_PREFILLED = 300

Id = Annotated[int | None, Query(ge=1, le=(1 << 63) - 1)]


class NodeFilters(ListQuery):
    """What the URL of the list asks for."""

    path = "/nodes"

    text: str | None = Field(default=None, max_length=253)
    standing: Literal["healthy", "faulty", "slow", "indeterminate", "untested"] | None = None
    service: Literal["in-service", "cordoned", "dry-run"] | None = None
    testing: Literal["1"] | None = None
    order: Literal["recent", "all", "name"] | None = None

    @property
    def narrow(self) -> bool:
        """Whether not all nodes are asked for."""
        return any((self.text, self.standing, self.service, self.testing))

    @property
    def wanted(self) -> WantedNodes:
        """What to look for; repeat offenders of the last 30 days come first."""
        text = (self.text or "").strip() or None
        return WantedNodes(text, self.standing, self.service, self.testing is not None, self.order or "recent")


class Proven(NamedTuple):
    """What a test found of a node, and the worlds that count for it (of the newest tests; none of older ones)."""

    finding: PastFinding
    partners: tuple[str, ...]
    warnings: tuple[str, ...]
    worlds: list[Result]


pages = router()


TheDeeds = Annotated[Deeds, Depends(once(lambda _: Deeds("/nodes")))]


def _failure_url(service: Service, failure: PastFailure) -> str:
    """Where a failure that suspects a node is shown: its incident."""
    incident = service.incidents.of(failure.job, failure.attempt)
    if incident is None:
        return f"/verdicts/{failure.verdict}"
    return f"/incidents/{incident}?verdict={failure.verdict}"


@pages.get("/nodes")
def nodes(visit: NodeVisit, filters: Annotated[NodeFilters, Query()]) -> Response:
    """The nodes on record, repeat offenders first."""
    if "" in visit.request.query_params.values():  # a form was sent: give the list its short name
        return RedirectResponse(filters.url(), 303)
    found = visit.kept.node_page(filters.wanted, filters.cursor, PAGE)
    content = {"filters": filters, "found": found, "waiting_actions": visit.kept.waiting()}
    content["failure_url"] = partial(_failure_url, visit.service)
    return visit.show("nodes.html", content)


@pages.get("/nodes/{node}")
def node(visit: NodeVisit, node: NodeName, cordon: Id = None) -> Response:
    """One node: its state, what is on record of it, and what may be done."""
    history, told = visit.kept.history(node, _HISTORY), visit.fleet.ask()
    steps = visit.kept.audit(None, _STEPS, node).items
    tests = visit.kept.tests(None, _ACTIONS, node).items
    content = {
        "node": node,
        "history": history,
        "suspected": visit.kept.suspicions(node),
        "proven": _proven(visit.kept, node, history),
        "testing": [test for test in tests if test.state == "running"],
        "untold": [test for test in tests if test.state == "aborted"],
        "waiting_for": visit.kept.actions("waiting", None, _ACTIONS, node).items,
        "audit": steps,
        "rehearsed": visit.kept.made_by(DRY_RUN, [one.subject for one in steps if one.what == "cordon"]),
        "state": told.of(node),
        "told": told,
        "standing": _standing(history),
        "failure_url": partial(_failure_url, visit.service),
        "just_done": next((one for one in history.cordons if one.id == cordon), None),
    }
    return visit.show("node.html", content)


@pages.get("/nodes/{node}/cordon")
def ask_cordon(visit: NodeOperatorVisit, node: NodeName, verdict: Id = None, test: Id = None) -> Response:
    """What a cordon of the node will do."""
    reason = _reason(visit.service, visit.kept, node, verdict, test)
    return _cordon_page(
        visit,
        node,
        {"reason": reason, "verdict": verdict, "test": test},
    )


@pages.post("/nodes/{node}/cordon")
async def cordon(visit: NodeOperatorVisit, deeds: TheDeeds, node: NodeName) -> Response:
    """Take the node out; the page again, with the cause, when that is refused."""
    form = await checked_form(visit.request)
    reason = form.get("reason", "").strip()[:_MAX_REASON]
    verdict, test = _number(form.get("verdict", "")), _number(form.get("test", ""))
    given = {"reason": reason, "verdict": verdict, "test": test}

    def act() -> str:
        if not reason:
            raise RequestRefused(422, "invalid", "the cordon", "it gives no reason", "Give a reason: others will ask.")
        actor = visit.service.actor
        if actor is None:
            raise _acts_on_none()
        made = cordoned(actor, node, visit.caller.who, reason, verdict, test)
        visit.fleet.forget()
        return f"/nodes/{quote(node)}?cordon={made.id}"

    try:
        return RedirectResponse(await deeds.begin(f"Cordon {node}", f"/nodes/{quote(node)}/cordon", act), 303)
    except RequestRefused as error:
        visit.fleet.forget()
        return await run_in_threadpool(_cordon_page, visit, node, given, error)


@pages.get("/nodes/{node}/uncordon")
def ask_uncordon(visit: NodeOperatorVisit, node: NodeName) -> Response:
    """What the end of the node's cordon will do."""
    return _uncordon_page(visit, node, {"why": ""})


@pages.post("/nodes/{node}/uncordon")
async def uncordon(visit: NodeOperatorVisit, deeds: TheDeeds, node: NodeName) -> Response:
    """Put the node back; the page again, with the cause, when that is refused."""
    form = await checked_form(visit.request)
    given = {"why": form.get("why", "").strip()[:_MAX_REASON]}

    def act() -> str:
        actor = visit.service.actor
        if actor is None:
            raise _acts_on_none()
        undone = performed(lambda: actor.uncordon(node, visit.caller.who, given["why"]))
        visit.fleet.forget()
        return f"/nodes/{quote(node)}?cordon={undone.id}"

    try:
        return RedirectResponse(await deeds.begin(f"Uncordon {node}", f"/nodes/{quote(node)}/uncordon", act), 303)
    except RequestRefused as error:
        visit.fleet.forget()
        return await run_in_threadpool(_uncordon_page, visit, node, given, error)


def _cordon_page(visit: Visit, node: str, given: dict[str, Any], error: RequestRefused | None = None) -> Response:
    """What will happen, and what stands in its way."""
    told, actor = visit.fleet.ask(), visit.service.actor
    prospect = None if actor is None or told.states is None else actor.prospect(node, told.states)
    held = visit.kept.cordons("standing", node, actor.cordons_with, 1) if actor else []
    content = {
        "uncordon": False,
        "how": actor.cordons_with if actor else "",
        "prospect": prospect,
        "held": held[0] if held else None,
        "jobs": running_on(visit.service, node),
    }
    return _confirm(visit, node, told, given, content, error)


def _uncordon_page(visit: Visit, node: str, given: dict[str, Any], error: RequestRefused | None = None) -> Response:
    """What will happen, to which cordon."""
    actor = visit.service.actor
    held = visit.kept.cordons("standing", node, actor.cordons_with, 1) if actor else []
    content = {
        "uncordon": True,
        "how": actor.cordons_with if actor else "",
        "prospect": None,
        "held": held[0] if held else None,
        "jobs": Running((), False),
    }
    return _confirm(visit, node, visit.fleet.ask(), given, content, error)


def _confirm(
    visit: Visit, node: str, told: Any, given: dict[str, Any], content: dict[str, Any], error: RequestRefused | None
) -> Response:
    content |= {"node": node, "told": told, "state": told.of(node), "given": given, "error": error}
    return visit.show("cordon.html", content, error.status if error else 200)


def _reason(service: Service, kept: NodeRecords, node: str, verdict: int | None, test: int | None) -> str:
    """The words that a cordon begins with: what a test found, or what a verdict says."""
    said = ""
    if test is not None:
        stored_test = kept.test(test)
        if stored_test is None:
            raise not_found(f"test {test}")
        found = stored_test.conclusion.findings if stored_test.conclusion else ()
        said = next((one.why for one in found if one.node == node), "")
    if verdict is not None:
        stored = service.records.verdict(verdict)
        if stored is None:
            raise not_found(f"verdict {verdict}")
        why = next((one.why for one in stored.verdict.suspects if one.node == node and one.why), "")
        cause = why or (stored.verdict.evidence[0].quote if stored.verdict.evidence else "")
        said = said or f"{stored.verdict.reason} in {stored.job}/{stored.attempt}{f': {cause}' if cause else ''}"
    return plain_reason(said)[:_PREFILLED]


def _standing(history: NodeHistory) -> Any:
    """The cordon of ours that holds the node, a real one before one of a dry run."""
    held = [one for one in history.cordons if one.state in ("standing", "wanted")]
    return min(held, key=lambda one: one.how == DRY_RUN, default=None)


def _proven(kept: NodeRecords, node: str, history: NodeHistory) -> list[Proven]:
    """The findings of a node, the newest with their worlds."""
    found = []
    for place, past in enumerate(history.findings):
        test = kept.test(past.test) if place < _PROVEN else None
        findings = test.conclusion.findings if test and test.conclusion else ()
        said = next((one for one in findings if one.node == node), None)
        worlds = kept.worlds(past.test, said.worlds[:_WORLDS]) if said else []
        found.append(Proven(past, said.partners if said else (), said.warnings if said else (), worlds))
    return found


def _acts_on_none() -> RequestRefused:
    cause = "this service does not act on nodes"
    return RequestRefused(409, "refused", "nodes", cause, f"Start it with `logdoctor serve`: {node_wording.DOCUMENT}.")


def _number(text: str) -> int | None:
    """The id in a hidden field, None for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 and int(text) > 0 else None


@pages.get("/nodes/under-way/{key}")
def under_way(visit: NodeVisit, deeds: TheDeeds, key: DeedKey) -> Response:
    """How an act goes on; where it leads once it is done."""
    return deeds.page(visit.request, key)
