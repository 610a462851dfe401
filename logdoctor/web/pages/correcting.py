"""What people say of a verdict: that it is right, or what it was instead; what that teaches is shown before."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor.errors import LogdoctorError, RequestRefused
from logdoctor.live.confirming import Foreseen, Ruling
from logdoctor.live.service import Service
from logdoctor.store.confirmed import Confirmation
from logdoctor.store.records import StoredVerdict
from logdoctor.web.cases import decidable, enter, foresee, look_again
from logdoctor.web.excerpts import Viewer, ending, proofs
from logdoctor.web.gate import Caller, Gate, form_key
from logdoctor.web.models import VerdictId
from logdoctor.web.pages.rendering import WORDS, checked_form, page, router

SPOKEN = ("reason", "recovery", "fault", "fix", "comment", "suggestion")
"""Fields of what a person says."""
_REMARKS = ("fix", "comment", "suggestion")
_MAX_WORDS = 4000
_MAX_EVIDENCE = 20


def routes(service: Service, gate: Gate) -> APIRouter:
    """The routes of those who say what a failure was."""
    pages = router(gate)
    Operator = Annotated[Caller, Depends(gate.allows("operate"))]
    Sender = Annotated[Caller, Depends(gate.allows("operate", by_form=True))]

    @pages.post("/verdicts/{id}/confirm")
    async def confirm(request: Request, caller: Sender, id: VerdictId) -> Response:
        """A verdict is right."""
        given = await checked_form(request, WORDS)
        fix, comment, suggestion = (given.get(name, "").strip()[:_MAX_WORDS] for name in _REMARKS)
        ruling = Ruling(fix=fix, comment=comment, suggestion=suggestion)
        entered = await run_in_threadpool(enter, service, caller, id, ruling, _known(given))
        return RedirectResponse(_back(service, entered), 303)

    @pages.get("/verdicts/{id}/correct")
    def form(request: Request, caller: Operator, id: VerdictId) -> Response:
        """The form for what it was instead."""
        return _correct_page(request, gate, service, decidable(service, caller, id), {})

    @pages.post("/verdicts/{id}/correct")
    async def correct(request: Request, caller: Sender, id: VerdictId) -> Response:
        """What a correction will teach; with `step=save` it is entered."""
        given = await checked_form(request, WORDS)

        def take() -> Response:
            stored = decidable(service, caller, id)
            foreseen = None
            try:
                ruling = _ruling(given, service.streams(stored.job, stored.attempt))
                if given.get("step") == "save":
                    entered = enter(service, caller, id, ruling, _known(given))
                    return RedirectResponse(_back(service, entered), 303)
                foreseen = foresee(service, caller, id, ruling)
            except RequestRefused as error:
                if error.status not in (409, 422):
                    raise
                return _correct_page(request, gate, service, stored, given, None, error)
            return _correct_page(request, gate, service, stored, given, foreseen)

        return await run_in_threadpool(take)

    @pages.post("/verdicts/{id}/ask")
    async def ask(request: Request, caller: Sender, id: VerdictId) -> Response:
        """Have a failure looked up again."""
        await checked_form(request)
        await run_in_threadpool(look_again, service, caller, id)
        return RedirectResponse(f"/verdicts/{id}?asked=1#decision", 303)

    return pages


def _correct_page(
    request: Request,
    gate: Gate,
    service: Service,
    stored: StoredVerdict,
    given: Mapping[str, str],
    foreseen: Foreseen | None = None,
    refusal: LogdoctorError | None = None,
) -> Response:
    """The form, as it was filled in; with what it will teach, or why it cannot be taken."""
    live = service.casework.confirmed.live(stored.job, stored.attempt)
    attempt, streams = service.records.attempt(stored.job, stored.attempt), service.streams(stored.job, stored.attempt)
    lines = "\n".join(f"{one.stream}:{one.line}" for one in stored.verdict.evidence[:_MAX_EVIDENCE])
    content: dict[str, Any] = {
        "stored": stored,
        "verdict": stored.verdict,
        "viewer": Viewer(stored.job, stored.attempt, streams),
        "proofs": proofs(service, stored),
        "ending": None if stored.verdict.evidence else ending(service, stored, attempt, streams),
        "streams": streams,
        "attempt": attempt,
        "back": _page_of(service, stored.job, stored.attempt) or f"/verdicts/{stored.id}",
        "confirmed": live,
        "given": {"evidence": lines} | {name: text.replace("\r\n", "\n") for name, text in given.items()},
        "spoken": (*SPOKEN, "evidence"),
        "foreseen": foreseen,
        "refusal": refusal,
        "may_take": stored.current and stored.verdict.outcome == "failed",
        "known": live.id if live else 0,
        "key": form_key(request),
    }
    return page(request, gate, "correct.html", content, getattr(refusal, "status", 422) if refusal else 200)


def _page_of(service: Service, job: str, attempt: int) -> str:
    """The incident that an attempt is in, "" when it is in none."""
    number = service.incidents.of(job, attempt)
    return "" if number is None else f"/incidents/{number}"


def _back(service: Service, entered: Confirmation) -> str:
    """Where what was said is shown: the incident, which the correction may move to another one."""
    page = _page_of(service, entered.job, entered.attempt) or f"/verdicts/{entered.verdict}"
    return f"{page}?case={entered.id}#confirmed"


def _known(given: Mapping[str, str]) -> int:
    """The case that counted when the form was made, 0 for none."""
    said = given.get("known", "")
    return int(said) if said.isascii() and said.isdecimal() and len(said) < 19 else 0


def _ruling(given: Mapping[str, str], streams: Sequence[str]) -> Ruling:
    """What a person wrote into the form; `RequestRefused` without a reason and for lines that cannot be read."""
    said = {name: given.get(name, "").strip()[:_MAX_WORDS] for name in SPOKEN}
    if not (reason := said.pop("reason")):  # None would mean that the verdict is right
        raise RequestRefused(422, "no_reason", "the correction", "it gives no reason", "Choose one.")
    return Ruling(reason, **said, evidence=lines_of(given.get("evidence", ""), streams))


def lines_of(text: str, streams: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Lines of a log as people write them, one a row: `STREAM:NUMBER`, or the number where there is one stream."""
    found = []
    for row in text.splitlines():
        stream, _, number = row.strip().rpartition(":")
        if not row.strip():
            continue
        if not stream and len(streams) == 1:
            stream = streams[0]
        if not stream or not number.isascii() or not number.isdecimal() or len(number) > 15 or int(number) < 1:
            next_step = "Write one a row, STREAM:NUMBER, such as gpu-12:126."
            raise RequestRefused(422, "bad_line", f"the line {row.strip()[:80]!a}", "names none", next_step)
        found.append((stream, int(number)))
    if len(found) > _MAX_EVIDENCE:
        cause = f"there are {len(found)}, more than {_MAX_EVIDENCE}"
        raise RequestRefused(422, "bad_line", "the lines", cause, "Give those that name the failure.")
    return tuple(found)
