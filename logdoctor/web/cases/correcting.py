"""Pages to confirm or correct a verdict; what that teaches is shown before."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor import taxonomy
from logdoctor.errors import LogdoctorError, RequestRefused
from logdoctor.service.confirming import Foreseen, Ruling
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.store.learning.confirmed import Confirmation
from logdoctor.web.cases.api import decidable, enter, foresee, look_again
from logdoctor.web.cases.choosing import Chosen, Place, chosen, named, passages, written
from logdoctor.web.cases.overruling import DAYS, chosen_overrule, overruling_content
from logdoctor.web.cases.saving import Ruled, ruled
from logdoctor.web.cases.suspecting import candidates, nodes_in, suspected
from logdoctor.web.dependencies import FormOperator, TheService
from logdoctor.web.gate import Caller, form_key
from logdoctor.web.gate import named as known_by
from logdoctor.web.jobs.excerpts import Viewer
from logdoctor.web.parameters import VerdictId
from logdoctor.web.rendering import WORDS, checked_fields, checked_form, page, router

SPOKEN = ("reason", "recovery", "fault", "fix", "comment", "suggestion", "detail")
"""Fields of a correction."""
_REMARKS = ("fix", "comment", "suggestion")
_NAMED = {name.lower(): name for name in taxonomy.REASONS}
_MAX_WORDS = 4000
_MAX_FIELDS = 500  # of a form: some boxes for each shown line

pages = router()


@pages.post("/verdicts/{id}/confirm")
async def confirm(request: Request, caller: FormOperator, service: TheService, id: VerdictId) -> Response:
    """Confirm a verdict."""
    given = await checked_form(request, WORDS)
    caller = known_by(request, caller, given.get("who", ""))
    fix, comment, suggestion = (given.get(name, "").strip()[:_MAX_WORDS] for name in _REMARKS)
    ruling = Ruling(fix=fix, comment=comment, suggestion=suggestion)
    entered = await run_in_threadpool(enter, service, caller, id, ruling, _known(given))
    return RedirectResponse(_back(service, entered), 303)


@pages.get("/verdicts/{id}/correct")
def form(request: Request, caller: FormOperator, service: TheService, id: VerdictId) -> Response:
    """Show the form for a correction. No line is checked: the evidence of a wrong verdict proves nothing else."""
    stored = decidable(service, caller, id)
    return _correct_page(request, service, caller, stored, {}, (), suspected(stored))


@pages.post("/verdicts/{id}/correct")
async def correct(request: Request, caller: FormOperator, service: TheService, id: VerdictId) -> Response:
    """Show what a correction will teach; with `step=save` enter it."""
    fields = await checked_fields(request, WORDS, _MAX_FIELDS)
    given, boxes = {name: values[0] for name, values in fields.items()}, fields.get("line", [])
    nodes = fields.get("node", [])
    caller = known_by(request, caller, given.get("who", ""))

    def take() -> Response:
        stored = decidable(service, caller, id)
        try:
            streams = service.streams(stored.job, stored.attempt)
            lines = named(boxes, given.get("naming", ""), given.get("evidence", ""), streams)
            ruling = _ruling(given, lines, _at_fault(stored, nodes, given.get("nodes", "")))
            if given.get("step") == "save":
                entered = enter(service, caller, id, ruling, _known(given))
                return RedirectResponse(_back(service, entered), 303)
            foreseen = foresee(service, caller, id, ruling)
        except RequestRefused as error:
            if error.status not in (409, 422):
                raise
            typed = given.get("evidence", "").replace("\r\n", "\n")
            left = Chosen(frozenset(boxes), typed, given.get("naming", ""))
            return _correct_page(request, service, caller, stored, given, left, nodes, None, error)
        chosen = ruling.nodes or ()
        return _correct_page(request, service, caller, stored, given, lines, chosen, foreseen)

    return await run_in_threadpool(take)


@pages.post("/verdicts/{id}/ask")
async def ask(request: Request, caller: FormOperator, service: TheService, id: VerdictId) -> Response:
    """Look a failure up again."""
    await checked_form(request)
    await run_in_threadpool(look_again, service, caller, id)
    return RedirectResponse(f"/verdicts/{id}?asked=1#decision", 303)


def _correct_page(
    request: Request,
    service: Service,
    caller: Caller,
    stored: StoredVerdict,
    given: Mapping[str, str],
    lines: Sequence[Place] | Chosen,
    nodes: Sequence[str],
    foreseen: Foreseen | None = None,
    refusal: LogdoctorError | None = None,
) -> Response:
    """Return the form as filled in, with what it will teach, or its refusal. Lines and nodes that are refused are shown
    as they were sent."""
    live = service.casework.confirmed.live(stored.job, stored.attempt)
    streams = service.streams(stored.job, stored.attempt)
    shown = passages(service, stored, streams)
    back = _page_of(service, stored.job, stored.attempt)
    cited = [one.quote for one in (foreseen.confirmation.evidence if foreseen else stored.verdict.evidence)]
    offered, more = candidates(service, stored, cited, nodes)
    content: dict[str, Any] = {
        "offered": offered,
        "more_nodes": more,
        "at_fault": set(nodes),
        "typed_nodes": given.get("nodes", "") if refusal else "",
        "overruling": overruling_content(service, caller, stored, foreseen) if foreseen else None,
        "days": DAYS,
        "stored": stored,
        "verdict": stored.verdict,
        "viewer": Viewer(stored.job, stored.attempt, streams),
        "passages": shown,
        "chosen": lines if isinstance(lines, Chosen) else chosen(lines, shown),
        "proof": "" if isinstance(lines, Chosen) else written(lines),
        "streams": streams,
        "here": "incidents" if back else "attempts",
        "back": back or f"/verdicts/{stored.id}",
        "confirmed": live,
        "given": given,
        "spoken": SPOKEN,
        "foreseen": foreseen,
        "ruled": foreseen and _ruled(service, stored, foreseen),
        "refusal": refusal,
        "may_take": stored.current and stored.verdict.outcome == "failed",
        "known": live.id if live else 0,
        "key": form_key(request),
    }
    return page(request, "correct.html", content, getattr(refusal, "status", 422) if refusal else 200)


def _ruled(service: Service, stored: StoredVerdict, foreseen: Foreseen) -> Ruled | None:
    """Return the rule that will still contradict the correction when it is saved."""
    put_back = [step.rule.id for step in foreseen.lesson.steps] if foreseen.lesson else []
    return ruled(service, foreseen.confirmation, stored.verdict, put_back)


def _page_of(service: Service, job: str, attempt: int) -> str:
    """Return the path of an attempt's incident; "" without one."""
    number = service.incidents.of(job, attempt)
    return "" if number is None else f"/incidents/{number}"


def _back(service: Service, entered: Confirmation) -> str:
    """Return where a ruling is shown: the incident, which the correction may change."""
    page = _page_of(service, entered.job, entered.attempt) or f"/verdicts/{entered.verdict}"
    return f"{page}?case={entered.id}#confirmed"


def _known(given: Mapping[str, str]) -> int:
    """Return the case in force when the form was made, 0 for none."""
    said = given.get("known", "")
    return int(said) if said.isascii() and said.isdecimal() and len(said) < 19 else 0


def _at_fault(stored: StoredVerdict, checked: Sequence[str], typed: str) -> tuple[str, ...] | None:
    """Return the nodes that a form names; None without any, where none was suspected before."""
    return nodes_in(checked, typed) or (() if suspected(stored) else None)


def _ruling(given: Mapping[str, str], lines: tuple[Place, ...], nodes: tuple[str, ...] | None) -> Ruling:
    """Return the ruling in a form, proved by lines; `RequestRefused` without a reason."""
    said = [given.get(name, "").strip()[:_MAX_WORDS] for name in SPOKEN]
    reason, recovery, fault, fix, comment, suggestion, detail = said
    if not reason:  # "" would mean that the verdict is right
        raise RequestRefused(422, "no_reason", "the correction", "it gives no reason", "Choose one.")
    reason = _NAMED.get(reason.lower(), reason)
    overrule = chosen_overrule(given.get("overrule", ""), given.get("days", ""))
    return Ruling(reason, recovery, fault, fix, comment, suggestion, lines, nodes, overrule, detail)
