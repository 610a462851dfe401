"""Pages of nodes: all on record, the history of one, and taking it out or putting it back."""

from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor.errors import RequestRefused
from logdoctor.node_types import NodeHistory, PastFailure, PastFinding, Result
from logdoctor.nodes.cordon.cordoner import plain_reason
from logdoctor.service.service import Service
from logdoctor.store.node_places import DRY_RUN, WantedNodes
from logdoctor.store.node_records import NodeRecords
from logdoctor.web.gate import Caller, Gate, form_key
from logdoctor.web.jobs.api import not_found
from logdoctor.web.models import NodeName
from logdoctor.web.nodes import words as node_wording
from logdoctor.web.nodes.acting import OF_ALL, cordoned, performed
from logdoctor.web.nodes.background import Deeds, Fleet
from logdoctor.web.nodes.running import Running, running_on
from logdoctor.web.rendering import checked_form, page, router
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


def routes(service: Service, gate: Gate) -> APIRouter:
    """The routes of nodes."""
    pages, kept = router(gate), NodeRecords(service.records.database)
    fleet, deeds = Fleet(service.actor), Deeds("/nodes")
    Reader = Annotated[Caller, Depends(gate.allows_unbound("read", OF_ALL))]
    Operator = Annotated[Caller, Depends(gate.allows_unbound("operate", OF_ALL, by_form=True))]

    def failure_url(failure: PastFailure) -> str:
        """Where a failure that suspects a node is shown: its incident."""
        incident = service.incidents.of(failure.job, failure.attempt)
        if incident is None:
            return f"/verdicts/{failure.verdict}"
        return f"/incidents/{incident}?verdict={failure.verdict}"

    @pages.get("/nodes")
    def nodes(request: Request, caller: Reader, filters: Annotated[NodeFilters, Query()]) -> Response:
        """The nodes on record, repeat offenders first."""
        if "" in request.query_params.values():  # a form was sent: give the list its short name
            return RedirectResponse(filters.url(), 303)
        found = kept.node_page(filters.wanted, filters.cursor, PAGE)
        content = {"filters": filters, "found": found, "waiting_actions": kept.waiting()}
        return show(request, caller, "nodes.html", content)

    @pages.get("/nodes/{node}")
    def node(request: Request, caller: Reader, node: NodeName, cordon: Id = None) -> Response:
        """One node: its state, what is on record of it, and what may be done."""
        history, told, steps = kept.history(node, _HISTORY), fleet.ask(), kept.audit(None, _STEPS, node).items
        tests = kept.tests(None, _ACTIONS, node).items
        content = {
            "node": node,
            "history": history,
            "suspected": kept.suspicions(node),
            "proven": _proven(kept, node, history),
            "testing": [test for test in tests if test.state == "running"],
            "untold": [test for test in tests if test.state == "aborted"],
            "waiting_for": kept.actions("waiting", None, _ACTIONS, node).items,
            "audit": steps,
            "rehearsed": kept.made_by(DRY_RUN, [one.subject for one in steps if one.what == "cordon"]),
            "state": told.of(node),
            "told": told,
            "standing": _standing(history),
            "just_done": next((one for one in history.cordons if one.id == cordon), None),
        }
        return show(request, caller, "node.html", content)

    @pages.get("/nodes/{node}/cordon")
    def ask_cordon(request: Request, caller: Operator, node: NodeName, verdict: Id = None, test: Id = None) -> Response:
        """What a cordon of the node will do."""
        reason = _reason(node, verdict, test)
        return cordon_page(request, caller, node, {"reason": reason, "verdict": verdict, "test": test})

    @pages.post("/nodes/{node}/cordon")
    async def cordon(request: Request, caller: Operator, node: NodeName) -> Response:
        """Take the node out; the page again, with the cause, when that is refused."""
        form = await checked_form(request)
        reason = form.get("reason", "").strip()[:_MAX_REASON]
        verdict, test = _number(form.get("verdict", "")), _number(form.get("test", ""))
        given = {"reason": reason, "verdict": verdict, "test": test}

        def act() -> str:
            if not reason:
                raise RequestRefused(422, "invalid", "the cordon", "it gives no reason", "Say why: others will ask.")
            actor = service.actor
            if actor is None:
                raise _acts_on_none()
            made = cordoned(actor, node, caller.who, reason, verdict, test)
            fleet.forget()
            return f"/nodes/{quote(node)}?cordon={made.id}"

        try:
            return RedirectResponse(await deeds.begin(f"Cordon {node}", f"/nodes/{quote(node)}/cordon", act), 303)
        except RequestRefused as error:
            fleet.forget()
            return await run_in_threadpool(cordon_page, request, caller, node, given, error)

    @pages.get("/nodes/{node}/uncordon")
    def ask_uncordon(request: Request, caller: Operator, node: NodeName) -> Response:
        """What the end of the node's cordon will do."""
        return uncordon_page(request, caller, node, {"why": ""})

    @pages.post("/nodes/{node}/uncordon")
    async def uncordon(request: Request, caller: Operator, node: NodeName) -> Response:
        """Put the node back; the page again, with the cause, when that is refused."""
        form = await checked_form(request)
        given = {"why": form.get("why", "").strip()[:_MAX_REASON]}

        def act() -> str:
            actor = service.actor
            if actor is None:
                raise _acts_on_none()
            undone = performed(lambda: actor.uncordon(node, caller.who, given["why"]))
            fleet.forget()
            return f"/nodes/{quote(node)}?cordon={undone.id}"

        try:
            return RedirectResponse(await deeds.begin(f"Uncordon {node}", f"/nodes/{quote(node)}/uncordon", act), 303)
        except RequestRefused as error:
            fleet.forget()
            return await run_in_threadpool(uncordon_page, request, caller, node, given, error)

    def cordon_page(
        request: Request, caller: Caller, node: str, given: dict[str, Any], error: RequestRefused | None = None
    ) -> Response:
        """What will happen, and what stands in its way."""
        told, actor = fleet.ask(), service.actor
        prospect = None if actor is None or told.states is None else actor.prospect(node, told.states)
        held = kept.cordons("standing", node, actor.cordons_with, 1) if actor else []
        content = {
            "uncordon": False,
            "how": actor.cordons_with if actor else "",
            "prospect": prospect,
            "held": held[0] if held else None,
            "jobs": _jobs(node),
        }
        return confirm(request, caller, node, told, given, content, error)

    def uncordon_page(
        request: Request, caller: Caller, node: str, given: dict[str, Any], error: RequestRefused | None = None
    ) -> Response:
        """What will happen, to which cordon."""
        actor = service.actor
        held = kept.cordons("standing", node, actor.cordons_with, 1) if actor else []
        content = {
            "uncordon": True,
            "how": actor.cordons_with if actor else "",
            "prospect": None,
            "held": held[0] if held else None,
            "jobs": Running((), False),
        }
        return confirm(request, caller, node, fleet.ask(), given, content, error)

    def confirm(
        request: Request,
        caller: Caller,
        node: str,
        told: Any,
        given: dict[str, Any],
        content: dict[str, Any],
        error: RequestRefused | None,
    ) -> Response:
        content |= {"node": node, "told": told, "state": told.of(node), "given": given, "error": error}
        return show(request, caller, "cordon.html", content, error.status if error else 200)

    def show(request: Request, caller: Caller, name: str, content: dict[str, Any], status: int = 200) -> Response:
        actor = service.actor
        common = {
            "tell": node_wording,
            "failure_url": failure_url,
            "key": form_key(request),
            "may_act": caller.may("operate", ""),
            "acts": actor is not None,
            "launcher": actor.launcher if actor else "",
            "cordons_with": actor.cordons_with if actor else "",
        }
        return page(request, gate, name, common | content, status)

    def _jobs(node: str) -> Running:
        return running_on(service, node)

    def _reason(node: str, verdict: int | None, test: int | None) -> str:
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

    pages.include_router(deeds.routes(gate))
    return pages


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
    cause = "this service acts on none"
    return RequestRefused(
        409, "refused", "nodes", cause, f"Use one that `logdoctor serve` began: {node_wording.DOCUMENT}."
    )


def _number(text: str) -> int | None:
    """The id in a hidden field, None for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 and int(text) > 0 else None
