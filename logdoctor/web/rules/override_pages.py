"""Pages of overrides: the list, details, and the form to override a rule."""

from typing import Annotated, Any

from fastapi import Path, Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor.errors import LogdoctorError, RequestRefused
from logdoctor.learning.files.files import override_file, text_of
from logdoctor.learning.form import as_override
from logdoctor.service.service import Service
from logdoctor.web.dependencies import FormOperator, Reader, TheService
from logdoctor.web.gate import Caller, form_key, named
from logdoctor.web.rendering import WORDS, checked_form, page, router
from logdoctor.web.rules import words as rule_words
from logdoctor.web.rules.overrides_api import (
    OverrideId,
    entered,
    may_overrule,
    new_override,
    tried,
    visible_override,
    visible_overrides,
    withdrawn,
)
from logdoctor.web.rules.requests import OverrideIn

DAYS = 90
"""Default days for which an override is in force."""

_FIELDS = ("scope", "whose", "reason", "recovery", "fault", "why", "days")
_NOTE = 2000
Shipped = Annotated[str, Path(pattern=r"^diagnosis/[A-Za-z0-9._/-]+$", max_length=300)]

pages = router()


@pages.get("/rules/overrides")
def overrides(request: Request, caller: Reader, service: TheService) -> Response:
    """List overrides, newest first, including ended and withdrawn ones."""
    found = visible_overrides(service, caller, None, True)
    return page(request, "rule_overrides.html", {"overrides": found, "rule_words": rule_words})


@pages.get("/rules/override/{id}")
def override(request: Request, caller: Reader, service: TheService, id: OverrideId) -> Response:
    """Show one override: rule, jobs, meaning, author, and how to withdraw it."""
    found = visible_override(service, caller, id)
    content = {
        "override": found,
        "decides": may_overrule(caller),
        "text": text_of(override_file(as_override(found))),
        "rule_words": rule_words,
        "key": form_key(request),
    }
    return page(request, "rule_override.html", content)


@pages.post("/rules/override/{id}/restore")
async def restore(request: Request, caller: FormOperator, service: TheService, id: OverrideId) -> Response:
    """Withdraw an override: its rule applies again."""
    given = await checked_form(request, WORDS)
    caller = named(request, caller, given.get("who", ""))
    await run_in_threadpool(withdrawn, service, caller, id, given.get("why", "").strip()[:_NOTE])
    return RedirectResponse(f"/rules/override/{id}", 303)


@pages.get("/rules/{id:path}/override")
def form(request: Request, caller: FormOperator, service: TheService, id: Shipped) -> Response:
    """Show the form to override a shipped rule."""
    return _form(service, request, caller, id, {"scope": "job", "days": str(DAYS)})


@pages.post("/rules/{id:path}/override")
async def overrule(request: Request, caller: FormOperator, service: TheService, id: Shipped) -> Response:
    """Show what an override would change in past attempts; with `step=save` enter it."""
    given = await checked_form(request, WORDS)
    caller = named(request, caller, given.get("who", ""))

    def take() -> Response:
        try:
            new = new_override(_said(id, given))
            if given.get("step") == "save":
                return RedirectResponse(f"/rules/override/{entered(service, caller, new).id}", 303)
            return _form(service, request, caller, id, given, tried(service, caller, new).of(new.scope))
        except RequestRefused as error:
            return _form(service, request, caller, id, given, None, error)

    return await run_in_threadpool(take)


def _said(rule: str, given: dict[str, str]) -> OverrideIn:
    """Return the content of a form; `RequestRefused` for an invalid one."""
    fields: dict[str, Any] = {name: given.get(name, "").strip() for name in _FIELDS}
    if given.get("means") != "reason":
        fields |= {"reason": "", "recovery": "", "fault": ""}
    elif not fields["reason"]:
        raise RequestRefused(422, "no_reason", "the override", "it gives no reason", "Choose one, or mute the rule.")
    if fields["scope"] != "fleet" and not fields["whose"]:
        cause = f"it names no {'kind' if fields['scope'] == 'kind' else 'job'}"
        raise RequestRefused(422, "no_scope", "the override", cause, "Name it, or choose all jobs.")
    try:
        return OverrideIn(rule=rule, **fields | {"days": fields["days"] or None})
    except ValidationError as error:
        wrong = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise RequestRefused(422, "invalid", "the override", f"its {wrong} is out of range", "Change it.") from error


def _form(
    service: Service,
    request: Request,
    caller: Caller,
    id: str,
    given: dict[str, str],
    found: Any = None,
    error: LogdoctorError | None = None,
) -> Response:
    caller.unbound("an override acts on verdicts of jobs that it may not see")
    content = {
        "rule": id,
        "given": given,
        "tried": found,
        "refusal": error,
        "standing": visible_overrides(service, caller, id, False),
        "rule_words": rule_words,
        "key": form_key(request),
    }
    return page(request, "rule_overrule.html", content, getattr(error, "status", 422) if error else 200)
