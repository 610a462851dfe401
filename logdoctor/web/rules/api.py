"""Learned rules over HTTP: the rules, their history, and the steps that people take.

A token that is bound to jobs sees only the rules learned from these. It cannot change any, because a rule acts on all
jobs of its kind.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from logdoctor.errors import CursorError, RuleRefused
from logdoctor.learning.files.files import file_rule, text_of
from logdoctor.learning.files.why import why_learned
from logdoctor.rules.schema import FilterRule, Rule
from logdoctor.service.service import Service
from logdoctor.store.fit import MAX_PAGE
from logdoctor.store.learning.learned import Event, Learned, LearnedRules
from logdoctor.store.learning.refusals import StoredRefusal
from logdoctor.store.learning.rule_totals import Total
from logdoctor.web.bodies import STREAMED, Allowed, whole
from logdoctor.web.dependencies import Operator, Reader, TheService, once, state_of
from logdoctor.web.gate import Caller
from logdoctor.web.json_answer import Json
from logdoctor.web.openapi import TEXT, answers
from logdoctor.web.paging import visible_page
from logdoctor.web.parameters import KindOfJobs, RuleId, Status, ThePage, WantedPage
from logdoctor.web.problems import as_refusal, describe, not_found, problem, refusal
from logdoctor.web.rules.answers import (
    ImportedOut,
    ImportOut,
    LearnedRuleOut,
    LearnedRulePage,
    RefusalPage,
    RuleBookOut,
    RuleEventPage,
    SaidOut,
    ShippedRuleOut,
    ShippedRules,
    WhyOut,
)
from logdoctor.web.rules.importing import RuleImporter
from logdoctor.web.rules.listing import numbers_in, patterns_of
from logdoctor.web.rules.requests import ApproveIn, StepIn

_EXPORTED = 5000  # rules
_BODY = 2 << 20  # bytes of an import
_LOOKED_AT = 20_000  # rules that are tried on a line
_YAML = "application/yaml"
_REFUSED = refusal(409, "the rule cannot take this step from where it is")
_SENT = {"requestBody": {"required": True, "content": {_YAML: {"schema": {"type": "string"}}}}}
OF_ALL = "a rule acts on all jobs of its kind"
"""Why a token that is bound to jobs changes no rule."""
_HIDDEN = "(not shown to a token that is bound to jobs)"

Item = TypeVar("Item", Learned, Event, StoredRefusal)
Agent = Annotated[str | None, Query(max_length=200, description="only rules learned by this agent")]
OfStatus = Annotated[Status | None, Query(description="only rules of this status; those that wait are `proposed`")]
OfGuard = Annotated[str | None, Query(max_length=200, description="only what this guard refused")]
Line = Annotated[
    str, Query(max_length=8000, pattern=r"^[^\n]*$", description="a line of a log", examples=["loaded shard 3"])
]
NameOfKind = Annotated[str | None, Query(max_length=300, description="kind of jobs of rules that name none")]

TheImporter = Annotated[RuleImporter, Depends(once(RuleImporter))]

router = APIRouter(default_response_class=Response, prefix="/v1/rules", tags=["rules"])


@router.get("", responses=answers(LearnedRulePage) | describe(400, 422))
def learned(
    caller: Reader,
    service: TheService,
    page: ThePage,
    status: OfStatus = None,
    kind: KindOfJobs = None,
    agent: Agent = None,
) -> Response:
    """List learned rules that match all given filters, newest first."""

    def fetch(cursor: str | None, limit: int) -> tuple[list[Learned], str | None]:
        found = service.rules.page(kind, status, agent, cursor, limit)
        return found.items, found.next

    return Json(visible_page(fetch, page, lambda rule: sees(caller, rule.source.job)))


@router.get("/shipped", responses=answers(ShippedRules) | describe())
def shipped(caller: Reader, service: TheService) -> Response:
    """List the shipped rules, and how often each takes part in current verdicts."""
    totals = None if caller.prefixes else service.rule_totals.all()
    book = service.scanner.book
    every: tuple[Rule, ...] = (*book.diagnoses, *book.filters)
    return Json(ShippedRules([_shipped(rule, totals) for rule in every]))


@router.get("/book", responses=answers(RuleBookOut) | describe())
def book(caller: Reader, service: TheService) -> Response:
    """Return the complete shipped rules, with their examples and sources."""
    return Json(RuleBookOut(service.scanner.book.filters, service.scanner.book.diagnoses))


@router.get("/events", responses=answers(RuleEventPage) | describe(400, 422))
def events(caller: Reader, service: TheService, page: ThePage) -> Response:
    """List all steps of all rules, newest first: who took them, when and why."""
    return _events(service, caller, None, page)


@router.get("/refusals", responses=answers(RefusalPage) | describe(400, 422))
def refusals(
    caller: Reader, service: TheService, page: ThePage, kind: KindOfJobs = None, guard: OfGuard = None
) -> Response:
    """List refused proposals, newest first: which guard refused them, and why."""
    return Json(refusal_page(service.rules, caller, page, kind, guard))


@router.get("/why", responses=answers(WhyOut) | describe(422))
def why(caller: Reader, service: TheService, line: Line, kind: KindOfJobs = None) -> Response:
    """Return what all rules do to a line, and why, by kind of jobs. Kinds without a matching learned rule are one
    entry."""
    refusals = [one for one in service.rules.refusals.list(kind, limit=MAX_PAGE) if sees(caller, one.job)]
    said = why_learned(service.scanner, seen_rules(service.rules, caller, kind), line, refusals)
    return Json(WhyOut(line, [SaidOut(one.kind, list(one.findings)) for one in said]))


@router.get("/export", responses={**describe(422), 200: {"content": {"text/plain": TEXT}}})
def export(caller: Reader, service: TheService, status: OfStatus = "active", kind: KindOfJobs = None) -> Response:
    """Return learned rules as rule files, one YAML document each, for an import. There are 5,000 at most."""
    found = [rule for rule in service.rules.list(kind, status, limit=_EXPORTED) if sees(caller, rule.source.job)]
    body = "".join(f"---\n{file_text(service.rules, caller, rule)}" for rule in found)
    return Response(body, media_type="text/plain; charset=utf-8")


@router.post(
    "/import",
    responses=answers(ImportOut) | describe(400, 408, 413, 415, 422),
    openapi_extra=_SENT,
    max_body_size=STREAMED,
)
async def import_rules(request: Request, caller: Operator, importer: TheImporter, kind: NameOfKind = None) -> Response:
    """Import the rules of a YAML body: all, or none when one is refused.

    The body has one document for each rule, 200 at most. They pass the same guards as learned rules, and begin in
    shadow or wait for a person.
    """
    caller.unbound(OF_ALL)
    body = await whole(request, Allowed(_BODY, _BODY, state_of(request).options.allowed.seconds))
    return await run_in_threadpool(_entered, importer, caller, body, kind)


def _entered(importer: RuleImporter, caller: Caller, body: bytes, kind: str | None) -> Response:
    entered = importer.enter(body, kind, caller.who)
    if refused := [one for one in entered if one.outcome == "refused"]:
        cause = f"{len(refused)} of {len(entered)} are refused, and nothing was entered"
        listed = [{"rule": one.rule, "guard": one.guard, "cause": one.cause} for one in refused]
        more = {"refused": listed, "rules": [one._asdict() for one in entered]}
        return problem(422, "rules_refused", "the rules", cause, "Leave them out, or fix them.", **more)
    return Json(ImportOut([msgspec.convert(one._asdict(), ImportedOut) for one in entered]))


@router.get("/{id:path}/events", responses=answers(RuleEventPage) | describe(400, 404, 422))
def rule_events(caller: Reader, service: TheService, id: RuleId, page: ThePage) -> Response:
    """List the steps of one rule, newest first."""
    visible_rule(service.rules, caller, id)
    return _events(service, caller, id, page)


@router.get("/{id:path}", responses=answers(LearnedRuleOut) | describe(404, 422))
def rule(caller: Reader, service: TheService, id: RuleId) -> Response:
    """Return one learned rule: its pattern, examples, source, votes and numbers."""
    return Json(visible_rule(service.rules, caller, id))


@router.post("/{id:path}/approve", responses=answers(LearnedRuleOut) | describe(404, 422) | _REFUSED)
def approve(caller: Operator, service: TheService, id: RuleId, reason: ApproveIn) -> Response:
    """Approve a rule: from proposed or retired to shadow, or from shadow to active. Send with `seen_as` the status that
    you saw; then a repeated request takes no second step."""
    return _step(service, caller, id, reason, partial(service.rules.approve, expected=reason.seen_as))


@router.post("/{id:path}/retire", responses=answers(LearnedRuleOut) | describe(404, 422) | _REFUSED)
def retire(caller: Operator, service: TheService, id: RuleId, reason: StepIn) -> Response:
    """Retire a rule: it no longer counts or removes anything. Approving brings it back."""
    return _step(service, caller, id, reason, service.rules.retire)


@router.post("/{id:path}/undo", responses=answers(LearnedRuleOut) | describe(404, 422) | _REFUSED)
def undo(caller: Operator, service: TheService, id: RuleId, reason: StepIn) -> Response:
    """Undo the latest step of a rule that is not undone yet, whoever took it."""
    return _step(service, caller, id, reason, service.rules.undo)


def _step(
    service: Service, caller: Caller, id: str, reason: StepIn, take: Callable[[str, str, str, float], Learned]
) -> Response:
    caller.unbound(OF_ALL)
    visible_rule(service.rules, caller, id)
    try:
        rule = take(id, caller.who, reason.why, time.time())
    except RuleRefused as error:
        raise as_refusal(error, 409, "rule_refused") from error
    return Json(rule)


def _events(service: Service, caller: Caller, id: str | None, page: WantedPage) -> Response:
    jobs: dict[str, str | None] = {}

    def seen(event: Event) -> bool:
        if caller.prefixes and event.rule not in jobs:
            jobs[event.rule] = service.rules.one(event.rule).source.job
        return sees(caller, jobs.get(event.rule))

    def fetch(cursor: str | None, limit: int) -> tuple[list[Event], str | None]:
        found, following = _some(service.rules.events(id, limit + 1, _id(cursor)), limit)
        return [as_seen(caller, event) for event in found], following

    return Json(visible_page(fetch, page, seen))


def visible_rule(rules: LearnedRules, caller: Caller, id: str) -> Learned:
    """Return the rule, if the caller may see it; otherwise it is not found."""
    try:
        found = rules.one(id)
    except RuleRefused as error:
        raise not_found(f"rule {id}") from error
    if not sees(caller, found.source.job):
        raise not_found(f"rule {id}")
    return found


def seen_rules(rules: LearnedRules, caller: Caller, kind: str | None) -> list[Learned]:
    """Return the learned rules, of all kinds or one, visible to the caller. At most 20,000 are searched."""
    return [rule for rule in rules.list(kind, limit=_LOOKED_AT) if sees(caller, rule.source.job)]


def refusal_page(
    rules: LearnedRules, caller: Caller, page: WantedPage, kind: str | None, guard: str | None
) -> dict[str, object]:
    """Return a page of refused proposals visible to the caller, newest first, with the next cursor."""

    def fetch(cursor: str | None, limit: int) -> tuple[list[StoredRefusal], str | None]:
        return _some(rules.refusals.list(kind, guard, limit + 1, _id(cursor)), limit)

    return visible_page(fetch, page, lambda refusal: sees(caller, refusal.job))


def sees(caller: Caller, job: str | None) -> bool:
    """Return whether the caller may see rules from this job. Rules without a job need a token without prefixes."""
    return not caller.prefixes or (job is not None and caller.may("read", job))


def as_seen(caller: Caller, event: Event) -> Event:
    """Return the event as visible to the caller. A demotion may quote the log of another job."""
    hidden = caller.prefixes and event.step == "demote"
    return msgspec.structs.replace(event, why=_HIDDEN) if hidden else event


def file_text(rules: LearnedRules, caller: Caller, rule: Learned) -> str:
    """Return the rule's file as visible to the caller. The reason for its retirement may quote the log of another
    job."""
    made = file_rule(rule, rules)
    if caller.prefixes and made.retired is not None:
        made = msgspec.structs.replace(made, retired=msgspec.structs.replace(made.retired, why=_HIDDEN))
    return text_of(made)


def _shipped(rule: Rule, totals: dict[str, Total] | None) -> ShippedRuleOut:
    numbers = (None, None, None) if totals is None else numbers_in(totals, rule.id)
    kind: Literal["filter", "diagnosis"] = "filter" if isinstance(rule, FilterRule) else "diagnosis"
    return ShippedRuleOut(rule.id, kind, rule.status, rule.title, list(patterns_of(rule)), *numbers)


def _some(found: list[Item], limit: int) -> tuple[list[Item], str | None]:
    """Return a page of items and the next cursor. `found` has `limit` + 1 items if there are more, as far as a page of
    the store goes."""
    more = len(found) > limit or len(found) == MAX_PAGE
    items = found[:limit]
    return items, str(items[-1].id) if more else None


def _id(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if cursor.isascii() and cursor.isdigit() and len(cursor) < 20:
        return int(cursor)
    raise CursorError("the cursor", "was not given by a page of this list", "Begin again without a cursor.")
