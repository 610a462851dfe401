"""Pages of node actions: the waiting queue, one action, and the audit log."""

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlencode

from fastapi import Depends, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor.errors import LogdoctorError, RequestRefused
from logdoctor.nodes.cordon.cordoning import Prospect
from logdoctor.service.service import Service
from logdoctor.service.testing import NodeTestOptions
from logdoctor.store.nodes.actions import POLICY, ActionState, StoredAction
from logdoctor.store.nodes.places import DRY_RUN
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.types.nodes import PERFORMED
from logdoctor.web.dependencies import once
from logdoctor.web.gate import Caller
from logdoctor.web.nodes import by_hand
from logdoctor.web.nodes.acting import performed
from logdoctor.web.nodes.background import DeedKey, Deeds, FleetAnswer, unreached
from logdoctor.web.nodes.running import Running, running_on
from logdoctor.web.nodes.visit import NodeOperatorVisit, NodeVisit, Visit
from logdoctor.web.parameters import ActionId, Cursor, OptionalId
from logdoctor.web.problems import existing
from logdoctor.web.rendering import checked_form, router
from logdoctor.web.url_query import PAGE

_MAX_WHY = 2000
_LOOKED_AT = 4  # nodes whose running jobs are named before a cordon

OfState = Annotated[ActionState, Query()]
OfNode = Annotated[str, Query(max_length=253)]
Step = Literal["approve", "refuse"]


class Outlook(NamedTuple):
    """The effect of a cordon on nodes and their running jobs, and the cluster's states."""

    prospects: Sequence[Prospect] = ()
    jobs: Running = Running((), True)
    cluster: FleetAnswer | None = None


def waiting(service: Service, caller: Caller) -> int:
    """Return how many actions wait for a person, 0 if the caller may not see them."""
    return 0 if caller.prefixes else NodeRecords(service.records.database).waiting()


pages = router()


TheDeeds = Annotated[Deeds, Depends(once(lambda _: Deeds("/actions")))]


@pages.get("/actions")
def actions(visit: NodeVisit, state: OfState = "waiting", cursor: Cursor = None) -> Response:
    """Show the actions that wait for a person, or those in another state, newest first."""
    found = visit.kept.actions(state, cursor, PAGE)
    rehearsed = {one.id for one in found.items if _is_rehearsed(visit.kept, one)}
    content = {
        "found": found,
        "state": state,
        "counts": visit.kept.counted(),
        "cursor": cursor,
        "rehearsed": rehearsed,
        "incidents": {one.id: _incident_of(visit.service, one) for one in found.items},
    }
    return visit.show("actions.html", content)


@pages.get("/actions/{id}")
def action(visit: NodeVisit, id: ActionId) -> Response:
    """Show one action: what, why, and its result."""
    return _action_page(visit, id)


@pages.get("/actions/{id}/approve")
def ask_approve(visit: NodeOperatorVisit, id: ActionId) -> Response:
    """Show the effect of an approval."""
    return _action_page(visit, id, "approve")


@pages.get("/actions/{id}/refuse")
def ask_refuse(visit: NodeOperatorVisit, id: ActionId) -> Response:
    """Show the effect of a refusal."""
    return _action_page(visit, id, "refuse")


@pages.post("/actions/{id}/approve")
async def approve(visit: NodeOperatorVisit, deeds: TheDeeds, id: ActionId) -> Response:
    """Approve an action. Show the page again, with the cause, when it fails or somebody was quicker."""
    return await _decide(visit, deeds, id, "approve")


@pages.post("/actions/{id}/by-hand")
async def done_by_hand(visit: NodeOperatorVisit, id: ActionId) -> Response:
    """Record that somebody did the action by hand."""
    form = await checked_form(visit.request)
    visit = visit.by(form)
    why = form.get("why", "").strip()[:_MAX_WHY]

    def take() -> Response:
        try:
            by_hand.performed_action(visit.kept, _stored(visit.kept, id), visit.caller.who, why)
        except RequestRefused as error:
            return _action_page(visit, id, "approve", error, why)
        return RedirectResponse(f"/actions/{id}", 303)

    return await run_in_threadpool(take)


@pages.post("/actions/{id}/refuse")
async def refuse(visit: NodeOperatorVisit, deeds: TheDeeds, id: ActionId) -> Response:
    """Refuse an action; show the page again, with the cause, when somebody was quicker."""
    return await _decide(visit, deeds, id, "refuse")


@pages.get("/audit")
def audit(visit: NodeVisit, node: OfNode = "", test: OptionalId = None, cursor: Cursor = None) -> Response:
    """List every step on nodes, newest first."""
    name = node.strip()
    if "" in visit.request.query_params.values():  # a form was sent: redirect to the short URL
        return RedirectResponse(f"/audit?{urlencode({'node': name})}" if name else "/audit", 303)
    found = visit.kept.audit(cursor, PAGE, name or None, test)
    given = {key: value for key, value in (("node", name), ("test", test)) if value}
    first = f"/audit?{urlencode(given)}" if given else "/audit"
    following = f"/audit?{urlencode({**given, 'cursor': found.next})}" if found.next else ""
    content = {
        "found": found,
        "node": name,
        "test": test,
        "first": first if cursor else "",
        "following": following,
        "rehearsed": visit.kept.made_by(DRY_RUN, [one.subject for one in found.items if one.what == "cordon"]),
    }
    return visit.show("audit.html", content)


async def _decide(visit: Visit, deeds: Deeds, id: int, step: Step) -> Response:
    form = await checked_form(visit.request)
    visit = visit.by(form)
    why = form.get("why", "").strip()[:_MAX_WHY]

    def act() -> str:
        _stored(visit.kept, id)
        actor = visit.actor()
        if step == "refuse":
            performed(lambda: actor.refuse(id, visit.caller.who, why))
            return f"/actions/{id}"
        decided = performed(lambda: actor.approve(id, visit.caller.who, why))
        visit.fleet.forget()
        if decided.state == "waiting":  # it failed for now, and can be approved again
            next_step = "The action waits again. Fix this and approve it again, or refuse it."
            raise RequestRefused(409, "refused", f"action {id} was not done", decided.why.rstrip("."), next_step)
        begun = actor.begun.get(id)
        return f"/node-tests/{begun}" if begun and decided.action.kind == "test_nodes" else f"/actions/{id}"

    try:
        return RedirectResponse(await deeds.begin(f"{step.capitalize()} action {id}", f"/actions/{id}", act), 303)
    except RequestRefused as error:
        if error.status == 404:
            raise
        return await run_in_threadpool(_action_page, visit, id, step, error, why)


def _action_page(
    visit: Visit, id: int, step: Step | None = None, error: RequestRefused | None = None, why: str = ""
) -> Response:
    """Return the page of an action with its effect, or with who was quicker."""
    stored, actor = _stored(visit.kept, id), visit.service.actor
    approving = step == "approve" and stored.state == "waiting" and actor is not None
    kind = stored.action.kind
    outlook = _outlook(visit, stored) if approving and kind == "cordon" else Outlook()
    plan = _plan(visit.service, stored) if approving and kind == "test_nodes" else None
    content = {
        "action": stored,
        "incident": _incident_of(visit.service, stored),
        "unreached": unreached(actor, stored.action.nodes, plan.launcher) if actor and plan else None,
        "step": step,
        "error": error,
        "why": why,
        "advice": kind not in PERFORMED,
        "by_policy": stored.by == POLICY,
        "rehearsed": _is_rehearsed(visit.kept, stored),
        "quicker": error is not None and stored.state != "waiting",
        "prospects": outlook.prospects,
        "jobs": outlook.jobs,
        "cluster": outlook.cluster,
        "plan": plan,
        "begun": actor.begun.get(id) if actor else None,
        "to_paste": _to_paste(visit, stored) if step == "approve" and stored.state == "waiting" else [],
    }
    return visit.show("action.html", content, error.status if error else 200)


def _to_paste(visit: Visit, stored: StoredAction) -> list[by_hand.Command]:
    """Return the commands for doing an action by hand."""
    action = stored.action
    if action.kind == "test_nodes":
        return by_hand.to_test(action.nodes, action.verdict)
    if action.kind != "cordon":
        return []
    reason = by_hand.reason_for(visit.service, action.verdict, action.why)
    return [command for node in action.nodes for command in by_hand.to_cordon(node, reason)]


def _outlook(visit: Visit, stored: StoredAction) -> Outlook:
    """Return the effect of the cordon that an action proposes."""
    actor, cluster, nodes = visit.service.actor, visit.fleet.ask(), stored.action.nodes
    prospects = [actor.prospect(node, cluster.states) for node in nodes] if actor and cluster.states else []
    seen = [running_on(visit.service, node) for node in nodes[:_LOOKED_AT]]
    attempts = tuple({one: None for each in seen for one in each.attempts})
    return Outlook(prospects, Running(attempts, all(one.all_seen for one in seen)), cluster)


def _incident_of(service: Service, stored: StoredAction) -> int | None:
    """Return the incident of an action."""
    if stored.job is None or stored.attempt is None:
        return None
    return service.incidents.of(stored.job, stored.attempt)


def _is_rehearsed(kept: NodeRecords, stored: StoredAction) -> bool:
    """Return whether a done action made its cordon only in a dry run."""
    if stored.action.kind != "cordon" or stored.state != "done":
        return False
    made = [one for node in stored.action.nodes[:1] for one in kept.cordons(node=node, limit=50)]
    mine = [one for one in made if one.test == stored.action.test and stored.at <= one.at <= stored.changed]
    return bool(mine) and mine[0].how == DRY_RUN


def _stored(kept: NodeRecords, id: int) -> StoredAction:
    return existing(kept.action(id), f"action {id}")


def _plan(service: Service, stored: StoredAction) -> NodeTestOptions | None:
    """Return the options of the test that an action proposes; None when it cannot run."""
    actor = service.actor
    if actor is None:
        return None
    try:
        return actor.plan(stored.action.nodes, verdict=stored.action.verdict)[1]
    except LogdoctorError:
        return None


@pages.get("/actions/under-way/{key}")
def under_way(visit: NodeVisit, deeds: TheDeeds, key: DeedKey) -> Response:
    """Show the progress of a background operation, or redirect to its result."""
    return deeds.page(visit.request, key)
