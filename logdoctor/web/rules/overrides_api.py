"""Overrides of shipped diagnosis rules over HTTP: rules, jobs, and expiry.

A token that is bound to jobs sees those for its jobs; it cannot enter or withdraw any.
"""

import time
from functools import partial
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from logdoctor.errors import RequestRefused, RuleError, RuleRefused
from logdoctor.learning.files.overriding import Retried, retried
from logdoctor.learning.form import overriding
from logdoctor.rules.overrides import last_day_of
from logdoctor.rules.schema import DiagnosisRule
from logdoctor.service.service import Service
from logdoctor.store.learning.overrides import NewOverride, StoredOverride
from logdoctor.web.dependencies import Operator, Reader, TheService
from logdoctor.web.gate import Caller
from logdoctor.web.json_answer import Json
from logdoctor.web.openapi import answers
from logdoctor.web.parameters import MAX_ID
from logdoctor.web.problems import as_refusal, describe, not_found, refusal
from logdoctor.web.rules.answers import ChangeOut, OverrideOut, OverridesOut, RetriedOut
from logdoctor.web.rules.requests import OverrideIn

SECONDS = 2.0
"""Limit of a back-test."""
OF_MANY = "an override acts on verdicts of jobs that it may not see"

OverrideId = Annotated[int, Path(ge=1, le=MAX_ID, description="id of the override", examples=[7])]
OfRule = Annotated[str | None, Query(max_length=300, description="only those of this rule")]
Withdrawn = Annotated[bool, Query(description="also those that were withdrawn or replaced")]
Why = Annotated[str, Query(max_length=2000, description="the reason, for those who ask later")]

_REFUSED = refusal(409, "this rule cannot be overruled, or the override was withdrawn")

router = APIRouter(default_response_class=Response, prefix="/v1/rule-overrides", tags=["rules"])


@router.get("", responses=answers(OverridesOut) | describe(422))
def overrides(caller: Reader, service: TheService, rule: OfRule = None, withdrawn: Withdrawn = False) -> Response:
    """List the overrides of shipped rules, newest first, including ended ones."""
    return Json(OverridesOut([out(one) for one in visible_overrides(service, caller, rule, withdrawn)]))


@router.get("/{id}", responses=answers(OverrideOut) | describe(404, 422))
def override(caller: Reader, service: TheService, id: OverrideId) -> Response:
    """Return one override, in force or not."""
    return Json(out(visible_override(service, caller, id)))


@router.post("", status_code=201, responses=answers(OverrideOut, 201) | describe(404, 422) | _REFUSED)
def add(caller: Operator, service: TheService, said: OverrideIn) -> Response:
    """Override a shipped diagnosis rule from now on; earlier verdicts stay as they are."""
    return Json(out(entered(service, caller, new_override(said))), 201)


@router.post("/preview", responses=answers(RetriedOut) | describe(404, 422) | _REFUSED)
def preview(caller: Operator, service: TheService, said: OverrideIn) -> Response:
    """Return what an override would have changed in stored attempts. Nothing is entered."""
    found = tried(service, caller, new_override(said))
    return Json(
        RetriedOut(
            found.attempts,
            found.complete,
            found.changed.get(said.scope, 0),
            found.contradicted.get(said.scope, 0),
            [ChangeOut(*one[:7]) for one in found.changes if said.scope in one.scopes],
        )
    )


@router.delete("/{id}", responses=answers(OverrideOut) | describe(404, 422) | _REFUSED)
def withdraw(caller: Operator, service: TheService, id: OverrideId, why: Why = "") -> Response:
    """Withdraw an override: its rule applies again; the override stays on record."""
    return Json(out(withdrawn(service, caller, id, why)))


def new_override(said: OverrideIn) -> NewOverride:
    """Convert a request to an override."""
    fields = said.model_dump(exclude={"days"})
    return NewOverride(**fields, expires=last_day_of(said.days))


def entered(service: Service, caller: Caller, new: NewOverride) -> StoredOverride:
    """Enter a caller's override and return it. `RequestRefused` when they may not, or it is invalid."""
    caller.unbound(OF_MANY)
    _require_shipped(service, new.rule)
    try:
        found = service.rules.overrides.add(new, caller.who, time.time())
    except RuleRefused as error:
        raise as_refusal(error, 422, "rule_refused") from error
    service.overruling.look()
    return found


def withdrawn(service: Service, caller: Caller, id: int, why: str) -> StoredOverride:
    """Withdraw an override and return it. `RequestRefused` when the caller may not, or it was withdrawn before."""
    caller.unbound(OF_MANY)
    visible_override(service, caller, id)
    try:
        found = service.rules.overrides.withdraw(id, caller.who, why, time.time())
    except RuleRefused as error:
        raise as_refusal(error, 409, "rule_refused") from error
    service.overruling.look()
    return found


def tried(service: Service, caller: Caller, new: NewOverride) -> Retried:
    """Return what an override would change in stored past attempts."""
    caller.unbound(OF_MANY)
    _require_shipped(service, new.rule)
    kind_of = service.overruling.kind
    job = new.whose if new.scope == "job" else ""
    kind = new.whose if new.scope == "kind" else ""
    rules, confirmed = [overriding(new, new.rule)], service.casework.confirmed
    return retried(rules, service.scanner, confirmed, kind_of, partial(caller.may, "read"), job, SECONDS, kind=kind)


def visible_override(service: Service, caller: Caller, id: int) -> StoredOverride:
    """Return the override, if the caller may see it; otherwise it is not found."""
    try:
        found = service.rules.overrides.one(id)
    except RuleRefused as error:
        raise not_found(f"override {id}") from error
    if not _sees(caller, found):
        raise not_found(f"override {id}")
    return found


def may_overrule(caller: Caller) -> bool:
    """Return whether a caller may override rules."""
    return not caller.prefixes and caller.may("operate", "")


def visible_overrides(service: Service, caller: Caller, rule: str | None, withdrawn: bool) -> list[StoredOverride]:
    """Return the overrides that a caller may see, newest first."""
    return [one for one in service.rules.overrides.list(rule, withdrawn) if _sees(caller, one)]


def out(one: StoredOverride) -> OverrideOut:
    """Return the override in the type of answers."""
    return msgspec.convert(msgspec.to_builtins(one), OverrideOut)


def _sees(caller: Caller, one: StoredOverride) -> bool:
    return not caller.prefixes or (one.scope == "job" and caller.may("read", one.whose))


def _require_shipped(service: Service, rule: str) -> None:
    """Refuse anything but a shipped diagnosis rule. A filter rule decides nothing, a learned one can be retired."""
    try:
        found = service.scanner.book.rule(rule)
    except RuleError as error:
        if rule.startswith("learned/"):
            step = "Retire it: logdoctor rules retire."
            raise RequestRefused(409, "not_shipped", f"rule {rule[:200]!r}", "was learned", step) from error
        raise not_found(f"rule {rule[:200]!r}") from error
    if not isinstance(found, DiagnosisRule):
        cause = "is a filter rule, which decides nothing"
        raise RequestRefused(409, "no_diagnosis", f"rule {rule!r}", cause, "Choose the diagnosis rule that decided.")
