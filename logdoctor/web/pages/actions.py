"""Pages of what is to be done with nodes: the queue that waits for people, one action, and the audit."""

from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor.errors import LogdoctorError, RequestRefused
from logdoctor.node_types import PERFORMED
from logdoctor.service.service import Service
from logdoctor.service.testing import NodeTestOptions
from logdoctor.store.actions import POLICY, ActionState, StoredAction
from logdoctor.store.node_places import DRY_RUN
from logdoctor.store.node_records import NodeRecords
from logdoctor.web import node_wording
from logdoctor.web.acting import OF_ALL, performed
from logdoctor.web.gate import Caller, Gate, form_key
from logdoctor.web.models import ActionId, Cursor
from logdoctor.web.pages.background import Deeds, Fleet, unreached
from logdoctor.web.pages.rendering import checked_form, page, router
from logdoctor.web.running import Running, running_on
from logdoctor.web.url_query import PAGE
from logdoctor.web.verdicts import not_found

_MAX_WHY = 2000
_LOOKED_AT = 4  # nodes whose running jobs are named before they are cordoned

OfState = Annotated[ActionState, Query()]
OfNode = Annotated[str, Query(max_length=253)]
OfTest = Annotated[int | None, Query(ge=1, le=(1 << 63) - 1)]
Step = Literal["approve", "refuse"]


def waiting(service: Service, caller: Caller) -> int:
    """How many actions wait for a person; none for a caller who may not see them."""
    return 0 if caller.prefixes else NodeRecords(service.records.database).waiting()


def routes(service: Service, gate: Gate) -> APIRouter:
    """The routes of actions and their audit."""
    pages, kept = router(gate), NodeRecords(service.records.database)
    fleet, deeds = Fleet(service.actor), Deeds("/actions")
    Reader = Annotated[Caller, Depends(gate.allows_unbound("read", OF_ALL))]
    Operator = Annotated[Caller, Depends(gate.allows_unbound("operate", OF_ALL, by_form=True))]

    @pages.get("/actions")
    def actions(request: Request, caller: Reader, state: OfState = "waiting", cursor: Cursor = None) -> Response:
        """What waits for a person, or what became of the rest; newest first."""
        found = kept.actions(state, cursor, PAGE)
        rehearsed = {one.id for one in found.items if is_rehearsed(one)}
        content = {
            "found": found,
            "state": state,
            "counts": kept.counted(),
            "cursor": cursor,
            "rehearsed": rehearsed,
            "incidents": {one.id: incident_of(one) for one in found.items},
        }
        return show(request, caller, "actions.html", content)

    @pages.get("/actions/{id}")
    def action(request: Request, caller: Reader, id: ActionId) -> Response:
        """One action: what, why, and what became of it."""
        return action_page(request, caller, id)

    @pages.get("/actions/{id}/approve")
    def ask_approve(request: Request, caller: Operator, id: ActionId) -> Response:
        """What an approval will do."""
        return action_page(request, caller, id, "approve")

    @pages.get("/actions/{id}/refuse")
    def ask_refuse(request: Request, caller: Operator, id: ActionId) -> Response:
        """What a refusal will do."""
        return action_page(request, caller, id, "refuse")

    @pages.post("/actions/{id}/approve")
    async def approve(request: Request, caller: Operator, id: ActionId) -> Response:
        """Let an action be done; the page again, with the cause, when it cannot be or somebody was quicker."""
        return await decide(request, caller, id, "approve")

    @pages.post("/actions/{id}/refuse")
    async def refuse(request: Request, caller: Operator, id: ActionId) -> Response:
        """Leave an action undone; the page again, with the cause, when somebody was quicker."""
        return await decide(request, caller, id, "refuse")

    @pages.get("/audit")
    def audit(
        request: Request, caller: Reader, node: OfNode = "", test: OfTest = None, cursor: Cursor = None
    ) -> Response:
        """Every step that was taken with nodes, newest first."""
        name = node.strip()
        if "" in request.query_params.values():  # a form was sent: give the list its short name
            return RedirectResponse(f"/audit?{urlencode({'node': name})}" if name else "/audit", 303)
        found = kept.audit(cursor, PAGE, name or None, test)
        given = {key: value for key, value in (("node", name), ("test", test)) if value}
        first = f"/audit?{urlencode(given)}" if given else "/audit"
        following = f"/audit?{urlencode({**given, 'cursor': found.next})}" if found.next else ""
        content = {
            "found": found,
            "node": name,
            "test": test,
            "first": first if cursor else "",
            "following": following,
            "rehearsed": kept.made_by(DRY_RUN, [one.subject for one in found.items if one.what == "cordon"]),
        }
        return show(request, caller, "audit.html", content)

    async def decide(request: Request, caller: Caller, id: int, step: Step) -> Response:
        form = await checked_form(request)
        why = form.get("why", "").strip()[:_MAX_WHY]

        def act() -> str:
            found(id)
            actor = service.actor
            if actor is None:
                next_step = f"Use one that `logdoctor serve` began: {node_wording.DOCUMENT}."
                raise RequestRefused(409, "refused", f"action {id}", "this service acts on no nodes", next_step)
            if step == "refuse":
                performed(lambda: actor.refuse(id, caller.who, why))
                return f"/actions/{id}"
            decided = performed(lambda: actor.approve(id, caller.who, why))
            fleet.forget()
            if decided.state == "waiting":  # it could not be done now, and can be approved again
                next_step = "The action waits again. Mend this and approve it anew, or refuse it."
                raise RequestRefused(409, "refused", f"action {id} was not done", decided.why.rstrip("."), next_step)
            begun = actor.begun.get(id)
            return f"/node-tests/{begun}" if begun and decided.action.kind == "test_nodes" else f"/actions/{id}"

        try:
            return RedirectResponse(await deeds.begin(f"{step.capitalize()} action {id}", f"/actions/{id}", act), 303)
        except RequestRefused as error:
            if error.status == 404:
                raise
            return await run_in_threadpool(action_page, request, caller, id, step, error, why)

    def action_page(
        request: Request,
        caller: Caller,
        id: int,
        step: Step | None = None,
        error: RequestRefused | None = None,
        why: str = "",
    ) -> Response:
        """An action with what will happen; who was quicker, when it waits no more."""
        stored, actor = found(id), service.actor
        approving = step == "approve" and stored.state == "waiting" and actor is not None
        kind = stored.action.kind
        prospects, jobs, told = [], Running((), True), None
        if approving and actor is not None and kind == "cordon":
            told = fleet.ask()
            prospects = [actor.prospect(node, told.states or []) for node in stored.action.nodes] if told.states else []
            seen = [running_on(service, node) for node in stored.action.nodes[:_LOOKED_AT]]
            jobs = Running(
                tuple({one: None for each in seen for one in each.attempts}), all(one.all_seen for one in seen)
            )
        plan = _plan(service, stored) if approving and kind == "test_nodes" else None
        content = {
            "action": stored,
            "incident": incident_of(stored),
            "unreached": unreached(actor, stored.action.nodes, plan.launcher) if actor and plan else None,
            "step": step,
            "error": error,
            "why": why,
            "advice": kind not in PERFORMED,
            "by_policy": stored.by == POLICY,
            "rehearsed": is_rehearsed(stored),
            "quicker": error is not None and stored.state != "waiting",
            "prospects": prospects,
            "jobs": jobs,
            "told": told,
            "plan": plan,
            "begun": actor.begun.get(id) if actor else None,
        }
        return show(request, caller, "action.html", content, error.status if error else 200)

    def incident_of(stored: StoredAction) -> int | None:
        """The incident that an action is about."""
        if stored.job is None or stored.attempt is None:
            return None
        return service.incidents.of(stored.job, stored.attempt)

    def is_rehearsed(stored: StoredAction) -> bool:
        """Whether an action that is done cordoned nothing, but in a dry run."""
        if stored.action.kind != "cordon" or stored.state != "done":
            return False
        made = [one for node in stored.action.nodes[:1] for one in kept.cordons(node=node, limit=50)]
        mine = [one for one in made if one.test == stored.action.test and stored.at <= one.at <= stored.changed]
        return bool(mine) and mine[0].how == DRY_RUN

    def show(request: Request, caller: Caller, name: str, content: dict[str, Any], status: int = 200) -> Response:
        actor = service.actor
        common = {
            "tell": node_wording,
            "key": form_key(request),
            "may_act": caller.may("operate", ""),
            "acts": actor is not None,
            "launcher": actor.launcher if actor else "",
            "cordons_with": actor.cordons_with if actor else "",
        }
        return page(request, gate, name, common | content, status)

    def found(id: int) -> StoredAction:
        stored = kept.action(id)
        if stored is None:
            raise not_found(f"action {id}")
        return stored

    pages.include_router(deeds.routes(gate))
    return pages


def _plan(service: Service, stored: StoredAction) -> NodeTestOptions | None:
    """How the test that an action wants would be made; None when it cannot be."""
    actor = service.actor
    if actor is None:
        return None
    try:
        return actor.plan(stored.action.nodes, verdict=stored.action.verdict)[1]
    except LogdoctorError:
        return None
