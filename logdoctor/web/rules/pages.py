"""Pages of rules: the list, one with its history, steps, and tests of lines."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from logdoctor.errors import Busy, LogdoctorError, RequestRefused, RuleError, RuleRefused
from logdoctor.learning.backtest import Tried
from logdoctor.learning.files.backtest import backtest
from logdoctor.learning.files.files import text_of
from logdoctor.learning.files.trial import tried, verdict
from logdoctor.rules.schema import DiagnosisRule, FilterRule
from logdoctor.service.service import Service
from logdoctor.store.fit import MAX_PAGE
from logdoctor.store.learning.learned import STATUSES, Learned
from logdoctor.store.learning.refusals import MAX_REFUSALS
from logdoctor.web.dependencies import AppState, FormOperator, FormReader, Reader, TheService, once
from logdoctor.web.gate import Caller, form_key, named
from logdoctor.web.parameters import Cursor, WantedPage
from logdoctor.web.problems import not_found
from logdoctor.web.rendering import FORM, WORDS, checked_form, page, router
from logdoctor.web.rules import words as rule_words
from logdoctor.web.rules.api import OF_ALL, as_seen, file_text, refusal_page, seen_rules, sees, visible_rule
from logdoctor.web.rules.listing import STATES, Catalogue, RuleFilters, numbers_in, numbers_of, patterns_of
from logdoctor.web.rules.overrides_api import may_overrule, visible_overrides

_LINES = 50  # that are tried at once
_LINE = 8000  # characters of one
_SECONDS = 2.0  # for trying lines, and for a back-test
_TRYING = 2  # trials at once: each keeps a processor busy
_NOTE = 2000
_REFUSALS = 50
_KINDS = 200  # kinds of jobs to choose from
_STEPS = ("approve", "retire", "undo")

RuleName = Annotated[str, Path(pattern=r"^(learned|filter|diagnosis)/[A-Za-z0-9._/-]+$", max_length=300)]
Line = Annotated[str | None, Query(max_length=_LINE)]
Text = Annotated[str | None, Query(max_length=300)]

pages = router()

_WORKING = threading.BoundedSemaphore(_TRYING)


def _catalogue(state: AppState) -> Catalogue:
    service = state.service
    return Catalogue(service.scanner.book, service.rules, service.rule_totals)


TheCatalogue = Annotated[Catalogue, Depends(once(_catalogue))]


@pages.get("/rules")
def listed(
    request: Request, caller: Reader, catalogue: TheCatalogue, filters: Annotated[RuleFilters, Query()]
) -> Response:
    """List all rules: those that wait for a person, other learned ones, shipped ones."""
    if "" in request.query_params.values():  # a form was sent: redirect to the short URL
        return RedirectResponse(filters.url(), 303)
    found = catalogue.listing(filters, partial(sees, caller), not caller.prefixes)
    content = {"filters": filters, "found": found, "states": STATES, "bound": bool(caller.prefixes)}
    return page(request, "rules.html", content | {"rule_words": rule_words})


@pages.get("/rules/try")
def trial_form(request: Request, caller: Reader, service: TheService, line: Line = None, kind: Text = None) -> Response:
    """Show the form for lines; with a line, what the rules do to it."""
    return _trial(service, request, caller, [] if line is None else _lines(line), kind or "")


@pages.post("/rules/try")
async def trial(request: Request, caller: FormReader, service: TheService) -> Response:
    """Show what the rules do to pasted lines; nothing is stored."""
    given = await checked_form(request, WORDS)
    lines, kind = _lines(given.get("lines", "")), given.get("kind", "")[:300]
    return await run_in_threadpool(_trial, service, request, caller, lines, kind)


def _trial(service: Service, request: Request, caller: Caller, lines: list[str], kind: str) -> Response:
    asked, visible = lines[:_LINES], seen_rules(service.rules, caller, None)
    kinds = sorted({rule.kind for rule in visible if rule.claim is None})[:_KINDS]
    content: dict[str, Any] = {"lines": lines, "most": _LINES, "kind": kind, "kinds": kinds, "tried": []}
    if asked:
        chosen = [rule for rule in visible if not kind or rule.claim is not None or rule.kind == kind]
        with _turn():
            content["tried"] = tried(service.scanner, chosen, asked, _SECONDS)
            content["verdict"] = verdict(service.scanner, chosen, asked)
    content |= {"rule_words": rule_words, "key": form_key(request)}
    return page(request, "rule_try.html", content)


@pages.get("/rules/refused")
def refused(
    request: Request, caller: Reader, service: TheService, guard: Text = None, kind: Text = None, cursor: Cursor = None
) -> Response:
    """List refused proposals, newest first: which guard refused them, and why."""
    if "" in request.query_params.values():
        given = urlencode({name: value for name, value in (("guard", guard), ("kind", kind)) if value})
        return RedirectResponse(f"/rules/refused?{given}" if given else "/rules/refused", 303)
    found = refusal_page(service.rules, caller, WantedPage(cursor, _REFUSALS), kind, guard)
    counts = {} if caller.prefixes else service.rules.refusals.counts()
    content = {"refusals": found["items"], "next": found["next"], "guard": guard, "kind": kind, "cursor": cursor}
    return page(request, "rules_refused.html", content | {"counts": counts, "kept": MAX_REFUSALS})


@pages.get("/rules/{id:path}")
def rule(
    request: Request,
    caller: Reader,
    service: TheService,
    id: RuleName,
    step: Text = None,
    backtest: Text = None,
    done: Text = None,
) -> Response:
    """Show one rule, and on request the effect of a step, or a back-test."""
    if not id.startswith("learned/"):
        return _shipped(service, request, caller, id)
    found = visible_rule(service.rules, caller, id)
    if step is not None and step not in _STEPS:
        raise not_found(f"step {step[:50]!r}")
    test = _tested(service, caller, found) if backtest else None
    return _learned(service, request, caller, found, step=step, test=test, done=done is not None)


@pages.post("/rules/{id:path}/approve")
async def approve(request: Request, caller: FormOperator, service: TheService, id: RuleName) -> Response:
    """Approve a rule: from proposed or retired to shadow, or from shadow to active."""
    return await _take(service, request, caller, id, "approve")


@pages.post("/rules/{id:path}/retire")
async def retire(request: Request, caller: FormOperator, service: TheService, id: RuleName) -> Response:
    """Retire a rule."""
    return await _take(service, request, caller, id, "retire")


@pages.post("/rules/{id:path}/undo")
async def undo(request: Request, caller: FormOperator, service: TheService, id: RuleName) -> Response:
    """Undo the latest step."""
    return await _take(service, request, caller, id, "undo")


async def _take(service: Service, request: Request, caller: Caller, id: str, name: str) -> Response:
    given = await checked_form(request, FORM)
    caller = named(request, caller, given.get("who", ""))
    return await run_in_threadpool(_step, service, request, caller, id, name, given)


def _step(service: Service, request: Request, caller: Caller, id: str, name: str, given: dict[str, str]) -> Response:
    caller.unbound(OF_ALL)
    found = visible_rule(service.rules, caller, id)
    note, seen_as = given.get("note", "")[:_NOTE], given.get("seen_as", "")
    try:
        _taking(service, name, seen_as)(id, caller.who, note, time.time())
    except RuleRefused as error:
        return _learned(service, request, caller, service.rules.one(found.id), refusal=error, given=note, status=409)
    return RedirectResponse(f"/rules/{id}?done=1", 303)


def _taking(service: Service, name: str, seen_as: str) -> Callable[[str, str, str, float], Learned]:
    """Return the step, which fails when the rule has changed since it was seen."""
    if name == "undo" and seen_as.isascii() and seen_as.isdigit() and len(seen_as) < 19:
        return partial(service.rules.undo, expected=int(seen_as))
    if name != "undo" and seen_as in STATUSES:
        return partial(service.rules.approve if name == "approve" else service.rules.retire, expected=seen_as)
    raise RequestRefused(400, "bad_form", "the form", "it does not say what you saw", "Reload the page.")


def _learned(
    service: Service,
    request: Request,
    caller: Caller,
    found: Learned,
    *,
    step: str | None = None,
    test: Tried | LogdoctorError | None = None,
    done: bool = False,
    refusal: RuleRefused | None = None,
    given: str = "",
    status: int = 200,
) -> Response:
    events = service.rules.events(found.id, MAX_PAGE)
    last = rule_words.last_step(events)
    decides = not caller.prefixes and caller.may("operate", "")
    source = found.source
    job = source.job if source.job is not None and sees(caller, source.job) else None
    stands = service.records.current(job, source.attempt) if job and source.attempt is not None else None
    case = service.casework.confirmed.live(job, source.attempt) if job and source.attempt is not None else None
    content = {
        "rule": found,
        "numbers": numbers_of(found),
        "events": [as_seen(caller, event) for event in events],
        "last": last,
        "steps": [name for name in _STEPS if decides and rule_words.leads_to(found, name, last)],
        "step": step if decides and step and rule_words.leads_to(found, step, last) else None,
        "stands": stands,
        "case": case if found.claim is not None else None,
        "test": test,
        "seconds": _SECONDS,
        "done": done,
        "refusal": refusal,
        "given": given,
        "bound": bool(caller.prefixes),
        "text": file_text(service.rules, caller, found),
        "rule_words": rule_words,
        "key": form_key(request),
    }
    return page(request, "rule.html", content, status)


def _tested(service: Service, caller: Caller, found: Learned) -> Tried | LogdoctorError:
    """Return the result of a back-test, or why the rule does not compile."""
    with _turn():
        try:
            confirmed = service.casework.confirmed
            return backtest(found, confirmed, service.records, partial(sees, caller), _SECONDS)
        except RuleError as error:
            return error


def _shipped(service: Service, request: Request, caller: Caller, id: str) -> Response:
    try:
        found = service.scanner.book.rule(id)
    except RuleError as error:
        raise not_found(f"rule {id}") from error
    examples = [one if isinstance(one, str) else one.text for one in found.must_match]
    denied = [one if isinstance(one, str) else one.text for one in found.must_not_match]
    content = {
        "rule": found,
        "filters": isinstance(found, FilterRule),
        "numbers": None if caller.prefixes else numbers_in(service.rule_totals.all(), id),
        "patterns": patterns_of(found),
        "unless": found.when.unless if isinstance(found, DiagnosisRule) else (),
        "examples": examples,
        "denied": denied,
        "text": text_of(found),
        "overrides": visible_overrides(service, caller, id, True),
        "may_overrule": isinstance(found, DiagnosisRule) and may_overrule(caller),
        "rule_words": rule_words,
    }
    return page(request, "rule_shipped.html", content)


@contextmanager
def _turn() -> Iterator[None]:
    """Take a turn of trying rules, which keeps a processor busy. `Busy` when none is free."""
    if not _WORKING.acquire(timeout=_SECONDS):
        raise Busy("the service", "others have rules tried just now", "Try again in some seconds.")
    try:
        yield
    finally:
        _WORKING.release()


def _lines(text: str) -> list[str]:
    """Return the lines of a text that are not blank, cut to the longest allowed."""
    return [line[:_LINE] for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
