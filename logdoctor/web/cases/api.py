"""Past cases over HTTP: confirmed causes of failures, and the model calls about them.

A token that is bound to jobs sees only the cases of these jobs. It cannot confirm any, because a case decides failures
of all jobs.
"""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from logdoctor.errors import ConfirmationRefused, ConfirmationSuperseded, RequestRefused
from logdoctor.learning.diagnoses.teacher import Preview
from logdoctor.rules.overrides import last_day_of
from logdoctor.service.confirming import Foreseen, Overrule, Ruling
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.store.learning.confirmed import Confirmation
from logdoctor.store.learning.exchanges import StoredExchange
from logdoctor.web.cases.answers import (
    AskOut,
    BackTestOut,
    CaseOut,
    CasePage,
    CitedOut,
    LessonClaimOut,
    LessonHitOut,
    LessonOut,
    LessonRefusalOut,
    LessonRuleOut,
    ModelCallOut,
    ModelCallPage,
    ObjectionOut,
    PutBackOut,
    SentOut,
)
from logdoctor.web.cases.requests import ConfirmIn, CorrectIn
from logdoctor.web.dependencies import Operator, Reader, TheService
from logdoctor.web.gate import Caller
from logdoctor.web.jobs.api import visible
from logdoctor.web.json_answer import Json
from logdoctor.web.openapi import answers
from logdoctor.web.paging import visible_page
from logdoctor.web.parameters import CaseId, ThePage, VerdictId, WantedPage
from logdoctor.web.problems import as_refusal, describe, not_found, refusal

HIDDEN = "(not shown to a token that is bound to jobs: it may tell of other jobs)"
"""Replaces the texts of model calls for such a token."""

_REFUSED = refusal(409, "this cannot be confirmed, asked or withdrawn")

OfReason = Annotated[str | None, Query(max_length=200, description="only cases of this reason")]
Withdrawn = Annotated[bool, Query(description="also those that were withdrawn or replaced")]
Why = Annotated[str, Query(max_length=2000, description="the reason, for those who ask later")]

router = APIRouter(default_response_class=Response, prefix="/v1", tags=["cases"])


@router.get("/cases", responses=answers(CasePage) | describe(400, 422))
def cases(
    caller: Reader, service: TheService, page: ThePage, reason: OfReason = None, withdrawn: Withdrawn = False
) -> Response:
    """List confirmed failures and what fixed them, newest first."""
    return Json(case_page(service, caller, page, reason, withdrawn))


@router.get("/cases/{id}", responses=answers(CaseOut) | describe(404, 422))
def case(caller: Reader, service: TheService, id: CaseId) -> Response:
    """Return one confirmed failure, withdrawn or not."""
    return Json(visible_case(service, caller, id))


@router.get("/verdicts/{id}/model-calls", responses=answers(ModelCallPage) | describe(404, 422))
def model_calls(caller: Reader, service: TheService, id: VerdictId) -> Response:
    """List the model calls about the attempt of a verdict, oldest first. Each has exactly what was sent and what came
    back, with tokens, dollars, seconds, and the digest of the prompt."""
    stored = visible(caller, service.records.verdict(id), f"verdict {id}")
    return Json(ModelCallPage([_call(call) for call in calls_about(service, caller, stored)]))


@router.post("/verdicts/{id}/confirm", responses=answers(CaseOut) | describe(404, 422) | _REFUSED)
def confirm(caller: Operator, service: TheService, id: VerdictId, said: ConfirmIn) -> Response:
    """Confirm a verdict: it becomes a case, which decides failures that look the same."""
    return Json(enter(service, caller, id, Ruling(**said.model_dump(exclude={"known"})), said.known))


@router.post("/verdicts/{id}/correct", responses=answers(CaseOut) | describe(404, 422) | _REFUSED)
def correct(caller: Operator, service: TheService, id: VerdictId, said: CorrectIn) -> Response:
    """Correct the cause of a failure. Without `evidence`, the lines that look most like errors identify it."""
    return Json(enter(service, caller, id, _ruling(said), said.known))


@router.post("/verdicts/{id}/lesson", responses=answers(LessonOut) | describe(404, 422) | _REFUSED)
def lesson(caller: Operator, service: TheService, id: VerdictId, said: CorrectIn) -> Response:
    """Return what a correction would teach: a rule with its back-test, or why none. Nothing is entered, and no model is
    asked."""
    return Json(_lesson(foresee(service, caller, id, _ruling(said))))


@router.post("/verdicts/{id}/ask", status_code=202, responses=answers(AskOut, 202) | describe(404, 422) | _REFUSED)
def ask(caller: Operator, service: TheService, id: VerdictId) -> Response:
    """Search past cases and ask the model again, in the background. A sure answer replaces the verdict."""
    look_again(service, caller, id)
    return Json(AskOut(id), 202)


@router.delete("/cases/{id}", responses=answers(CaseOut) | describe(404, 422) | _REFUSED)
def withdraw(caller: Operator, service: TheService, id: CaseId, why: Why = "") -> Response:
    """Withdraw a case: it stays on record but no longer decides anything."""
    return Json(take_back(service, caller, id, why))


def enter(service: Service, caller: Caller, id: int, ruling: Ruling, known: int | None = None) -> Confirmation:
    """Enter a caller's ruling on a verdict and return the case. `RequestRefused` when they may not, or it is invalid.

    `known` is the case that the caller saw in force, 0 for none; None skips the check.
    """
    decidable(service, caller, id)
    try:
        return service.casework.confirm(id, caller.who, ruling, known)
    except ConfirmationSuperseded as error:
        raise as_refusal(error, 409, "superseded") from error
    except ConfirmationRefused as error:
        raise as_refusal(error, 422, "case_refused") from error


def foresee(service: Service, caller: Caller, id: int, ruling: Ruling) -> Foreseen:
    """Return what a caller's ruling on a verdict would enter and teach. `RequestRefused` as for `enter`."""
    decidable(service, caller, id)
    try:
        return service.casework.preview(id, caller.who, ruling)
    except ConfirmationRefused as error:
        raise as_refusal(error, 422, "case_refused") from error


def decidable(service: Service, caller: Caller, id: int) -> StoredVerdict:
    """Return a failure that the caller may decide about; `RequestRefused` for any other."""
    stored = _operable(service, caller, id)
    caller.unbound("a case decides about failures of all jobs")
    if stored.verdict.outcome != "failed":
        cause = f"it says {stored.verdict.outcome}, not failed"
        raise RequestRefused(409, "not_failed", f"verdict {id}", cause, "Only failures become cases.")
    return stored


def take_back(service: Service, caller: Caller, id: int, why: str) -> Confirmation:
    """Withdraw a case and return it. `RequestRefused` when the caller may not, or it was withdrawn before."""
    visible_case(service, caller, id, "operate")
    caller.unbound("a case decides about failures of all jobs")
    try:
        return service.casework.withdraw(id, caller.who, why)
    except ConfirmationRefused as error:
        raise as_refusal(error, 409, "case_refused") from error


def look_again(service: Service, caller: Caller, id: int) -> None:
    """Start another look-up of a failure. `RequestRefused` when the caller may not, or when there is none."""
    _operable(service, caller, id)
    try:
        service.casework.ask(id)
    except ConfirmationRefused as error:
        raise as_refusal(error, 409, "cannot_ask") from error


def case_page(
    service: Service, caller: Caller, page: WantedPage, reason: str | None, withdrawn: bool
) -> dict[str, object]:
    """Return a page of the cases visible to the caller, newest first, with the next cursor."""

    def fetch(cursor: str | None, limit: int) -> tuple[list[Confirmation], str | None]:
        found = service.casework.confirmed.page(cursor, limit, reason, withdrawn)
        return found.items, found.next

    return visible_page(fetch, page, lambda case: caller.may("read", case.job))


def visible_case(service: Service, caller: Caller, id: int, scope: str = "read") -> Confirmation:
    """Return the case, if the caller has the scope for its job. Otherwise it is not found."""
    try:
        found = service.casework.confirmed.one(id)
    except ConfirmationRefused as error:
        raise not_found(f"case {id}") from error
    if not caller.may(scope, found.job):
        raise not_found(f"case {id}")
    return found


def calls_about(service: Service, caller: Caller, stored: StoredVerdict) -> list[StoredExchange]:
    """Return the last hundred model calls about an attempt, oldest first. Past cases of other jobs are shown to a
    model, so a caller who may not see these jobs gets the figures without the texts."""
    found = service.casework.exchanges.of(stored.job, stored.attempt)
    return [_without_texts(one) for one in found] if caller.prefixes else found


def may_decide(caller: Caller) -> bool:
    """Return whether the caller may confirm and withdraw."""
    return not caller.prefixes and caller.may("operate", "")


def _operable(service: Service, caller: Caller, id: int) -> StoredVerdict:
    """Return the verdict, if the caller may decide about its job. Otherwise it is not found."""
    stored = service.records.verdict(id)
    if stored is None or not caller.may("operate", stored.job):
        raise not_found(f"verdict {id}")
    return stored


def _without_texts(call: StoredExchange) -> StoredExchange:
    sent = tuple((role, HIDDEN) for role, _ in call.sent)
    return msgspec.structs.replace(call, sent=sent, request=HIDDEN, got=HIDDEN, calls="[]", cause="")


def _call(call: StoredExchange) -> ModelCallOut:
    fields = msgspec.structs.asdict(call) | {"sent": [SentOut(role, text) for role, text in call.sent]}
    return ModelCallOut(**fields)


def _ruling(said: CorrectIn) -> Ruling:
    evidence = tuple((one.stream, one.line) for one in said.evidence)
    overrule = None
    if said.overrule is not None:
        overrule = Overrule(said.overrule.scope, last_day_of(said.overrule.days))
    fields = said.model_dump(exclude={"evidence", "known", "suspects", "overrule"})
    nodes = None if said.suspects is None else tuple(said.suspects)
    return Ruling(**fields, evidence=evidence, nodes=nodes, overrule=overrule)


def _lesson(foreseen: Foreseen) -> LessonOut:
    """Return what a correction would teach."""
    said, lesson = foreseen.confirmation, foreseen.lesson
    rule, backtest = _lesson_rule(lesson) if lesson else (None, None)
    rules = foreseen.objections.rules if foreseen.objections else ()
    return LessonOut(
        nodes=None if said.nodes is None else list(said.nodes),
        objections=[ObjectionOut(*one) for one in rules],
        reason=said.reason,
        corrects=said.corrects,
        digests=list(said.digests),
        evidence=[CitedOut(one.stream, one.line, one.quote) for one in said.evidence],
        why=lesson.why if lesson else foreseen.why,
        rule=rule,
        known=lesson.known if lesson else "",
        backtest=backtest,
        refused=[LessonRefusalOut(*one) for one in lesson.refused] if lesson else [],
        put_back=[PutBackOut(one.rule.id, one.status) for one in lesson.steps] if lesson else [],
        asks=lesson.asks if lesson else "",
    )


def _lesson_rule(lesson: Preview) -> tuple[LessonRuleOut | None, BackTestOut | None]:
    """Return the rule that a lesson enters and its back-test, or None for both."""
    rule, found, tried = lesson.rule, lesson.candidate, lesson.tried
    if rule is None or found is None or rule.claim is None:
        return None, None
    claim = LessonClaimOut(**msgspec.structs.asdict(rule.claim))
    made = LessonRuleOut(
        rule.pattern, rule.title, rule.status, rule.waits_for, claim, found.stream, found.line, lesson.attempts
    )
    hits = [LessonHitOut(*hit) for hit in tried.hits]
    return made, BackTestOut(tried.attempts, tried.complete, tried.agree, tried.contradict, tried.open, hits)
