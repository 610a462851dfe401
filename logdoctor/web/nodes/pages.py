"""Pages of nodes: all on record, the history of one, and its cordons."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import quote

from fastapi import Depends, Query
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor.errors import IncidentRefused, RequestRefused
from logdoctor.nodes.cordon.cordoner import plain_reason
from logdoctor.service.service import Service
from logdoctor.store.incidents.table import Incident
from logdoctor.store.nodes.places import DRY_RUN, WantedNodes
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.types.nodes import NodeHistory, PastCordon, PastFailure, PastFinding, Result
from logdoctor.web.dependencies import once
from logdoctor.web.nodes import by_hand
from logdoctor.web.nodes.acting import cordoned, performed
from logdoctor.web.nodes.background import DeedKey, Deeds
from logdoctor.web.nodes.running import Running, listed_by, running_on, seen
from logdoctor.web.nodes.visit import NodeOperatorVisit, NodeVisit, Visit
from logdoctor.web.parameters import NodeName, OptionalId, whole_number
from logdoctor.web.problems import existing
from logdoctor.web.rendering import checked_form, router
from logdoctor.web.url_query import PAGE, ListQuery

_HISTORY = 50  # failures, tests and cordons on the page of a node
_PROVEN = 5  # newest tests whose worlds are shown
_WORLDS = 12  # worlds of a test on the page of a node
_ACTIONS = 20
_STEPS = 15  # of the audit log on the page of a node
_MAX_REASON = 2000
_PREFILLED = 300


class NodeFilters(ListQuery):
    """The query of the list's URL."""

    path = "/nodes"

    text: str | None = Field(default=None, max_length=253)
    standing: Literal["healthy", "faulty", "slow", "indeterminate", "untested"] | None = None
    service: Literal["in-service", "cordoned", "dry-run"] | None = None
    testing: Literal["1"] | None = None
    order: Literal["recent", "all", "name"] | None = None

    @property
    def narrow(self) -> bool:
        """Return whether any filter is set."""
        return any((self.text, self.standing, self.service, self.testing))

    @property
    def wanted(self) -> WantedNodes:
        """Return the query for the store; repeat offenders of the last 30 days come first."""
        text = (self.text or "").strip() or None
        return WantedNodes(text, self.standing, self.service, self.testing is not None, self.order or "recent")


class Proven(NamedTuple):
    """A test's finding about a node, and its worlds (only of the newest tests)."""

    finding: PastFinding
    partners: tuple[str, ...]
    warnings: tuple[str, ...]
    worlds: list[Result]


pages = router()


TheDeeds = Annotated[Deeds, Depends(once(lambda _: Deeds("/nodes")))]


def _failure_url(service: Service, failure: PastFailure) -> str:
    """Return the URL of a failure that suspects a node: its incident."""
    incident = service.incidents.of(failure.job, failure.attempt)
    if incident is None:
        return f"/verdicts/{failure.verdict}"
    return f"/incidents/{incident}?verdict={failure.verdict}"


def _incident(service: Service, verdict: int | None) -> int | None:
    """Return the incident of a verdict."""
    stored = None if verdict is None else service.records.verdict(verdict)
    return None if stored is None else service.incidents.of(stored.job, stored.attempt)


def _open_incident(service: Service, verdict: int | None) -> Incident | None:
    """Return the incident of a verdict, unless it is resolved."""
    number = _incident(service, verdict)
    found = None if number is None else service.incidents.one(number)
    return None if found is None or found.state == "resolved" else found


def _resolve(visit: Visit, node: str, verdict: int | None) -> None:
    """Resolve the incident for which somebody cordoned a node, unless it is resolved already."""
    if found := _open_incident(visit.service, verdict):
        with suppress(IncidentRefused):
            note = f"cordoned {node} by hand"
            visit.service.incidents.step(found.id, "resolve", visit.caller.who, note, time.time(), found.state)


def _after(service: Service, node: str, cordon: PastCordon) -> str:
    """Return the page after a cordon was made or undone. It is that of its incident, where work continues, else that of
    the node."""
    incident = _incident(service, cordon.verdict) if cordon.state == "standing" else None
    return f"{f'/nodes/{quote(node)}' if incident is None else f'/incidents/{incident}'}?cordon={cordon.id}"


@pages.get("/nodes")
def nodes(visit: NodeVisit, filters: Annotated[NodeFilters, Query()]) -> Response:
    """List the nodes on record, repeat offenders first."""
    if "" in visit.request.query_params.values():  # a form was sent: redirect to the short URL
        return RedirectResponse(filters.url(), 303)
    found = visit.kept.node_page(filters.wanted, filters.cursor, PAGE)
    content = {"filters": filters, "found": found, "waiting_actions": visit.kept.waiting()}
    content["failure_url"] = partial(_failure_url, visit.service)
    tests = bool(visit.service.actor and visit.service.actor.launcher) or _tested(found.counts["standing"])
    if not tests:  # tests would say the same of all nodes
        content["seen"] = seen(visit.service, visit.kept, [one.node for one in found.items], time.time())
    return visit.show("nodes.html" if tests else "nodes_seen.html", content)


def _tested(standing: Mapping[str, int]) -> bool:
    """Return whether any node was ever tested."""
    return any(number for word, number in standing.items() if word != "untested")


@pages.get("/nodes/{node}")
def node(visit: NodeVisit, node: NodeName, cordon: OptionalId = None) -> Response:
    """Show one node: its state, its records, and possible actions."""
    history, cluster = visit.kept.history(node, _HISTORY), visit.fleet.ask()
    steps = visit.kept.audit(None, _STEPS, node).items
    tests = visit.kept.tests(None, _ACTIONS, node).items
    just_done = next((one for one in history.cordons if one.id == cordon), None)
    content = {
        "node": node,
        "history": history,
        "suspected": visit.kept.suspicions(node),
        "proven": _proven(visit.kept, node, history),
        "testing": [test for test in tests if test.state == "running"],
        "aborted": [test for test in tests if test.state == "aborted"],
        "waiting_for": visit.kept.actions("waiting", None, _ACTIONS, node).items,
        "audit": steps,
        "rehearsed": visit.kept.made_by(DRY_RUN, [one.subject for one in steps if one.what == "cordon"]),
        "state": cluster.of(node),
        "cluster": cluster,
        "standing": _standing(history),
        "failure_url": partial(_failure_url, visit.service),
        "just_done": just_done,
        "back_to": _incident(visit.service, just_done.verdict) if just_done else None,
    }
    return visit.show("node.html", content)


@pages.get("/nodes/{node}/cordon")
def ask_cordon(
    visit: NodeOperatorVisit, node: NodeName, verdict: OptionalId = None, test: OptionalId = None
) -> Response:
    """Show the effect of a cordon of the node."""
    reason = _reason(visit.service, visit.kept, node, verdict, test)
    return _cordon_page(visit, node, {"reason": reason, "verdict": verdict, "test": test})


@pages.post("/nodes/{node}/cordon")
async def cordon(visit: NodeOperatorVisit, deeds: TheDeeds, node: NodeName) -> Response:
    """Cordon the node; show the page again, with the cause, if that is refused."""
    form = await checked_form(visit.request)
    visit = visit.by(form)
    reason = form.get("reason", "").strip()[:_MAX_REASON]
    verdict, test = whole_number(form.get("verdict", "")), whole_number(form.get("test", ""))
    given = {"reason": reason, "verdict": verdict, "test": test}

    def act() -> PastCordon:
        if not reason:
            raise RequestRefused(422, "invalid", "the cordon", "it gives no reason", "Give a reason: others will ask.")
        return cordoned(visit.actor(), node, visit.caller.who, reason, verdict, test)

    return await _begun(visit, deeds, node, "cordon", act, partial(_cordon_page, visit, node, given))


@pages.post("/nodes/{node}/cordon/by-hand")
async def cordoned_by_hand(visit: NodeOperatorVisit, node: NodeName) -> Response:
    """Record that somebody cordoned the node by hand."""
    form = await checked_form(visit.request)
    visit = visit.by(form)
    reason = form.get("reason", "").strip()[:_MAX_REASON]
    verdict, test = whole_number(form.get("verdict", "")), whole_number(form.get("test", ""))

    def take() -> Response:
        try:
            done = by_hand.cordoned(visit.kept, node, visit.caller.who, reason or "by hand", verdict, test)
        except RequestRefused as error:
            return _cordon_page(visit, node, {"reason": reason, "verdict": verdict, "test": test}, error)
        if form.get("resolve"):
            _resolve(visit, node, verdict)
        return RedirectResponse(_after(visit.service, node, done), 303)

    return await run_in_threadpool(take)


@pages.post("/nodes/{node}/uncordon/by-hand")
async def uncordoned_by_hand(visit: NodeOperatorVisit, node: NodeName) -> Response:
    """Record that somebody uncordoned the node by hand."""
    form = await checked_form(visit.request)
    visit = visit.by(form)
    why = form.get("why", "").strip()[:_MAX_REASON]

    def take() -> Response:
        try:
            done = by_hand.uncordoned(visit.kept, node, visit.caller.who, why)
        except RequestRefused as error:
            return _uncordon_page(visit, node, {"why": why}, error)
        return RedirectResponse(f"/nodes/{quote(node)}?cordon={done.id}", 303)

    return await run_in_threadpool(take)


@pages.get("/help/nodes")
def setting_up(visit: NodeVisit) -> Response:
    """Show which settings let the service test and cordon nodes."""
    return visit.show("help_nodes.html", {})


@pages.get("/nodes/{node}/uncordon")
def ask_uncordon(visit: NodeOperatorVisit, node: NodeName) -> Response:
    """Show the effect of an uncordon of the node."""
    return _uncordon_page(visit, node, {"why": ""})


@pages.post("/nodes/{node}/uncordon")
async def uncordon(visit: NodeOperatorVisit, deeds: TheDeeds, node: NodeName) -> Response:
    """Uncordon the node; show the page again, with the cause, if that is refused."""
    form = await checked_form(visit.request)
    visit = visit.by(form)
    given = {"why": form.get("why", "").strip()[:_MAX_REASON]}

    def act() -> PastCordon:
        actor = visit.actor()
        return performed(lambda: actor.uncordon(node, visit.caller.who, given["why"]))

    return await _begun(visit, deeds, node, "uncordon", act, partial(_uncordon_page, visit, node, given))


async def _begun(
    visit: Visit,
    deeds: Deeds,
    node: str,
    step: str,
    act: Callable[[], PastCordon],
    again: Callable[[RequestRefused], Response],
) -> Response:
    """Redirect to the node once the step is taken, or to its progress. Return the form `again` if it is refused."""

    def take() -> str:
        cordon = act()
        visit.fleet.forget()
        return _after(visit.service, node, cordon)

    try:
        return RedirectResponse(
            await deeds.begin(f"{step.capitalize()} {node}", f"/nodes/{quote(node)}/{step}", take), 303
        )
    except RequestRefused as error:
        visit.fleet.forget()
        return await run_in_threadpool(again, error)


def _cordon_page(visit: Visit, node: str, given: dict[str, Any], error: RequestRefused | None = None) -> Response:
    """Return the page before a cordon: its effect, and the obstacles."""
    states, actor = visit.fleet.ask().states, visit.service.actor
    prospect = None if actor is None or states is None else actor.prospect(node, states)
    content = {"uncordon": False, "prospect": prospect, "jobs": running_on(visit.service, node)}
    return _confirm(visit, node, given, content, error)


def _uncordon_page(visit: Visit, node: str, given: dict[str, Any], error: RequestRefused | None = None) -> Response:
    """Return the page before an uncordon: its effect, and the cordon."""
    content = {"uncordon": True, "prospect": None, "jobs": Running((), False)}
    return _confirm(visit, node, given, content, error)


def _confirm(
    visit: Visit, node: str, given: dict[str, Any], content: dict[str, Any], error: RequestRefused | None
) -> Response:
    cluster, how = visit.fleet.ask(), visit.service.actor.cordons_with if visit.service.actor else ""
    held = visit.kept.cordons("standing", node, how, 1) if how else []
    content |= {"node": node, "cluster": cluster, "state": cluster.of(node), "given": given, "error": error}
    reason = by_hand.reason_for(visit.service, given.get("verdict"), given.get("reason", ""))
    to_paste = by_hand.to_uncordon(node) if content["uncordon"] else by_hand.to_cordon(node, reason)
    content |= {"how": how, "held": held[0] if held else None, "reason": reason, "to_paste": to_paste}
    content |= {"held_by_hand": by_hand.standing(visit.kept, node), "undo": by_hand.to_uncordon(node)}
    listed = None if content["uncordon"] else listed_by(visit.service, visit.kept, node, given.get("verdict"))
    content["listed_by"] = listed
    content["incident"] = None if content["uncordon"] else _open_incident(visit.service, given.get("verdict"))
    return visit.show("cordon.html", content, error.status if error else 200)


def _reason(service: Service, kept: NodeRecords, node: str, verdict: int | None, test: int | None) -> str:
    """Return the prefilled reason of a cordon, from a test or a verdict."""
    said = ""
    if test is not None:
        stored_test = existing(kept.test(test), f"test {test}")
        found = stored_test.conclusion.findings if stored_test.conclusion else ()
        said = next((one.why for one in found if one.node == node), "")
    if verdict is not None:
        stored = existing(service.records.verdict(verdict), f"verdict {verdict}")
        why = next((one.why for one in stored.verdict.suspects if one.node == node and one.why), "")
        cause = why or (stored.verdict.evidence[0].quote if stored.verdict.evidence else "")
        said = said or f"{stored.verdict.reason} in {stored.job}/{stored.attempt}{f': {cause}' if cause else ''}"
    return plain_reason(said)[:_PREFILLED]


def _standing(history: NodeHistory) -> Any:
    """Return our cordon that holds the node, preferably a real one to a dry run."""
    held = [one for one in history.cordons if one.state in ("standing", "wanted")]
    return min(held, key=lambda one: one.how == DRY_RUN, default=None)


def _proven(kept: NodeRecords, node: str, history: NodeHistory) -> list[Proven]:
    """Return the findings about a node, the newest with their worlds."""
    found = []
    for place, past in enumerate(history.findings):
        test = kept.test(past.test) if place < _PROVEN else None
        findings = test.conclusion.findings if test and test.conclusion else ()
        said = next((one for one in findings if one.node == node), None)
        worlds = kept.worlds(past.test, said.worlds[:_WORLDS]) if said else []
        found.append(Proven(past, said.partners if said else (), said.warnings if said else (), worlds))
    return found


@pages.get("/nodes/under-way/{key}")
def under_way(visit: NodeVisit, deeds: TheDeeds, key: DeedKey) -> Response:
    """Show the progress of a background operation, or redirect to its result."""
    return deeds.page(visit.request, key)
