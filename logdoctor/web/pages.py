"""Pages for people: the list of incidents, one incident with its proof, and the way in."""

import hashlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode, urlsplit

import structlog
from fastapi import APIRouter, Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from logdoctor import taxonomy
from logdoctor.consult.ladder import is_open
from logdoctor.errors import LogdoctorError, RequestRefused
from logdoctor.live.confirming import Ruling
from logdoctor.live.service import Service
from logdoctor.store.records import Attempt, End, StoredVerdict
from logdoctor.store.tokens import holds
from logdoctor.text import harmless
from logdoctor.web import wording
from logdoctor.web.bodies import Allowed, whole
from logdoctor.web.cases import calls_about, case_page, enter, look_again, may_decide, take_back, visible_case
from logdoctor.web.excerpts import proofs
from logdoctor.web.gate import TOKEN, Caller, Gate, check_form, form_key
from logdoctor.web.listing import INCIDENTS, Filters, listing
from logdoctor.web.models import CaseId, Cursor, VerdictId
from logdoctor.web.problems import answer
from logdoctor.web.verdicts import visible

log = structlog.get_logger()

_HERE = Path(__file__).parent
_WIDEST = 4001  # characters of one text, one more than of a line in `excerpts`
_FORM = Allowed(sent=16_384, unpacked=16_384, seconds=10.0)
_WORDS = Allowed(sent=131_072, unpacked=131_072, seconds=10.0)  # what a person writes, percent-encoded
_SPOKEN = ("reason", "recovery", "fault", "fix", "comment", "suggestion")  # fields of what a person says
_MAX_WORDS = 4000
_MAX_EVIDENCE = 20
_CALLS = 20  # model calls on a page, the newest
_CALL_TEXT = 60_000  # characters of what was sent or came back
_CASES = 50
_STEERING = {ord(c): "\N{REPLACEMENT CHARACTER}" for c in "\0\r\x1b"}  # what would hide text when it is shown
OfReason = Annotated[str | None, Query(max_length=200)]
_MAX_NEXT = 2000
_ENDS = 20
_RULES = 20


def static_files() -> StaticFiles:
    """The style sheet, the script and the icon."""
    return StaticFiles(directory=_HERE / "static")


def routes(service: Service, gate: Gate) -> APIRouter:
    """The routes for browsers."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, route_class=_route_class(gate))
    records = service.records
    Reader = Annotated[Caller, Depends(gate.allows("read"))]
    Operator = Annotated[Caller, Depends(gate.allows("operate", by_form=True))]

    @router.get("/")
    def incidents(request: Request, caller: Reader, filters: Annotated[Filters, Query()]) -> Response:
        """Current verdicts, newest first."""
        if "" in request.query_params.values():  # a form was sent: give the list its short name
            return RedirectResponse(filters.url(), 303)
        event = records.last_event()  # asked for first, so that nothing falls between the list and its news
        found = listing(records, filters, caller.prefixes)
        content = {"filters": filters, "found": found, "event": event, "incident_outcomes": INCIDENTS}
        return _page(request, gate, "incidents.html", content)

    @router.get("/verdicts/{id}")
    def incident(request: Request, caller: Reader, id: VerdictId) -> Response:
        """One verdict: the answer, then its proof."""
        stored = visible(caller, records.verdict(id), f"verdict {id}")
        return _incident_page(request, gate, service, caller, stored)

    @router.post("/verdicts/{id}/confirm")
    async def confirm(request: Request, caller: Operator, id: VerdictId) -> Response:
        """What a person says of a verdict: that it is right, or what it was instead."""
        given = await _checked_form(request, _WORDS)

        def take() -> Response:
            stored = visible(caller, records.verdict(id), f"verdict {id}")
            try:
                enter(service, caller, id, _ruling(given, stored, service.streams(stored.job, stored.attempt)))
            except RequestRefused as error:
                if error.status != 422:
                    raise
                return _incident_page(request, gate, service, caller, stored, given, error)
            return RedirectResponse(f"/verdicts/{id}#confirmed", 303)

        return await run_in_threadpool(take)

    @router.post("/verdicts/{id}/ask")
    async def ask(request: Request, caller: Operator, id: VerdictId) -> Response:
        """Have a failure looked up again."""
        await _checked_form(request)
        await run_in_threadpool(look_again, service, caller, id)
        return RedirectResponse(f"/verdicts/{id}?asked=1#decision", 303)

    @router.get("/cases")
    def cases(request: Request, caller: Reader, reason: OfReason = None, cursor: Cursor = None) -> Response:
        """What past failures were, newest first."""
        if reason == "":
            return RedirectResponse("/cases", 303)
        found = case_page(service, caller, cursor, _CASES, reason, False)
        content = {"cases": found["items"], "next": found["next"], "reason": reason, "cursor": cursor}
        return _page(request, gate, "cases.html", content)

    @router.get("/cases/{id}")
    def case(request: Request, caller: Reader, id: CaseId) -> Response:
        """One past failure: what it was, what fixed it, who says so."""
        content = {"case": visible_case(service, caller, id), "may_decide": may_decide(caller)}
        return _page(request, gate, "case.html", content | {"key": form_key(request)})

    @router.post("/cases/{id}/withdraw")
    async def withdraw(request: Request, caller: Operator, id: CaseId) -> Response:
        """Let a case decide nothing any more."""
        given = await _checked_form(request, _WORDS)
        await run_in_threadpool(take_back, service, caller, id, given.get("why", "")[:_MAX_WORDS])
        return RedirectResponse(f"/cases/{id}", 303)

    @router.get("/login")
    async def login_form(request: Request, next: Annotated[str, Query()] = "/") -> Response:
        """The form for a token; who is in already goes on."""
        target = local(next)
        secret = str(request.session.get(TOKEN, ""))
        if not gate.wants_token or (secret and await _refusal_of(gate, request, secret) is None):
            return RedirectResponse(target, 303)
        ended = "Your token has expired or was revoked. Paste another one." if secret else ""
        request.session.pop(TOKEN, None)
        return _login_page(request, gate, target, ended)

    @router.post("/login")
    async def login(request: Request) -> Response:
        """In, with a token that may read."""
        form = await _form(request)
        target, secret = local(form.get("next", "/")), form.get("token", "").strip()
        if not gate.wants_token:
            return RedirectResponse(target, 303)
        try:
            check_form(request, form.get("key", ""))
        except RequestRefused:
            message = "This form is too old, or your browser keeps no cookies. Allow them for this site and try again."
            return _login_page(request, gate, target, message, 403)
        if (refusal := await _refusal_of(gate, request, secret)) is not None:
            return _login_page(request, gate, target, *refusal)
        request.session.clear()
        request.session[TOKEN] = secret
        return RedirectResponse(target, 303)

    @router.post("/logout")
    async def logout(request: Request) -> Response:
        """Out; the token stays as it is."""
        check_form(request, (await _form(request)).get("key", ""))
        request.session.clear()
        return RedirectResponse("/login" if gate.wants_token else "/", 303)

    return router


def local(target: str) -> str:
    """The target when it is a path of this service, else "/": nobody is sent to other sites."""
    if not target.startswith("/") or target.startswith("//") or len(target) > _MAX_NEXT:
        return "/"
    if "\\" in target or not target.isascii() or not target.isprintable() or " " in target:
        return "/"  # browsers read some of these as another site
    path = urlsplit(target).path
    return "/" if path in ("/login", "/logout") else target


async def _refusal_of(gate: Gate, request: Request, secret: str) -> tuple[str, int] | None:
    """Why a token does not open the pages, in words, and the HTTP status; None when it does."""
    if not secret:
        return "Paste a token first.", 400
    try:
        token = await gate.token(secret, request.client.host if request.client else "")
    except RequestRefused as error:
        return "Too many wrong tokens came from your address. Wait a minute, then try again.", error.status
    if token is None:
        return "This token is unknown, expired or revoked. Check that you pasted all of it.", 401
    if not holds(token, "read"):
        return "This token may not read. Ask for one with the scope read.", 403
    return None


def _incident_page(
    request: Request,
    gate: Gate,
    service: Service,
    caller: Caller,
    stored: StoredVerdict,
    given: Mapping[str, str] = {},
    refusal: LogdoctorError | None = None,
) -> Response:
    """One verdict: the answer, its proof, and what people may say of it; `given` again what could not be taken."""
    records = service.records
    job, attempt = records.job(stored.job), records.attempt(stored.job, stored.attempt)
    live = service.casework.confirmed.live(stored.job, stored.attempt)
    decides = may_decide(caller) and stored.current and stored.verdict.outcome == "failed"
    calls = calls_about(service, caller, stored)
    content = {
        "stored": stored,
        "verdict": stored.verdict,
        "proofs": proofs(service, stored),
        "facts": job.facts if job else None,
        "attempt": attempt,
        "ends": _ends(attempt),
        "streams": service.streams(stored.job, stored.attempt),
        "history": records.history(stored.job, stored.attempt),
        "rules": sorted(stored.verdict.compression.rules.items(), key=lambda item: -item[1].lines)[:_RULES],
        "confirmed": live,
        "case": _case_shown(service, caller, stored),
        "may_decide": decides,
        "may_ask": stored.current and is_open(stored.verdict) and caller.may("operate", stored.job),
        "asked": "asked" in request.query_params,
        "calls": calls[-_CALLS:],
        "calls_in_all": len(calls),
        "given": given,
        "refusal": refusal,
        "key": form_key(request),
    }
    return _page(request, gate, "incident.html", content, 422 if refusal else 200)


def _case_shown(service: Service, caller: Caller, stored: StoredVerdict) -> int | None:
    """The number of the case that decided, when there is one that the caller may see."""
    number = wording.case_of(stored.verdict.decided_by)
    try:
        return None if number is None else visible_case(service, caller, number).id
    except RequestRefused:
        return None


def _ruling(given: Mapping[str, str], stored: StoredVerdict, streams: Sequence[str]) -> Ruling:
    """What a person wrote into the form; `RequestRefused` for lines that cannot be read."""
    said = {name: given.get(name, "").strip()[:_MAX_WORDS] for name in _SPOKEN}
    if "reason" in given and not said["reason"]:  # None would mean that the verdict is right
        raise RequestRefused(422, "no_reason", "the correction", "it gives no reason", "Choose one.")
    evidence = _lines_of(given.get("evidence", ""), streams)
    reason = said.pop("reason") or None
    return Ruling(reason, **said, evidence=evidence)


def _lines_of(text: str, streams: Sequence[str]) -> tuple[tuple[str, int], ...]:
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


async def _checked_form(request: Request, allowed: Allowed = _FORM) -> dict[str, str]:
    """The fields of a form that a page of ours made for this session; `RequestRefused` for any other."""
    given = await _form(request, allowed)
    check_form(request, given.get("key", ""))
    return given


async def _form(request: Request, allowed: Allowed = _FORM) -> dict[str, str]:
    """The fields of a small form."""
    body = await whole(request, allowed)
    try:
        fields = parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=20, errors="replace")
    except ValueError as error:
        raise RequestRefused(400, "bad_form", "the form", "it cannot be read", "Load the page again.") from error
    return {name: values[0] for name, values in fields.items()}


def _ends(attempt: Attempt | None) -> list[End]:
    """How the attempt and its processes ended: the attempt first, then those that failed."""
    ends = attempt.ends if attempt else ()
    return sorted(ends, key=lambda end: (end.stream != "", not (end.exit_code or end.signal), end.at))[:_ENDS]


def _login_page(request: Request, gate: Gate, target: str, message: str, status: int = 200) -> Response:
    return _page(request, gate, "login.html", {"next": target, "message": message, "key": form_key(request)}, status)


def _route_class(gate: Gate) -> type[APIRoute]:
    """Routes that answer errors with pages, and lead strangers to the login."""

    class Route(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def handle_for_people(request: Request) -> Response:
                try:
                    return await handle(request)
                except RequestValidationError as error:
                    return _problem_page(request, gate, _invalid(error))
                except LogdoctorError as error:
                    return _problem_page(request, gate, error)

            return handle_for_people

    return Route


def _invalid(error: RequestValidationError) -> RequestRefused:
    """What a wrong address means to a person."""
    first = error.errors()[0]
    kind, name = str(first["loc"][0]), str(first["loc"][-1])
    if kind == "path":
        return RequestRefused(404, "not_found", "this page", "there is none", "Check the address.")
    return RequestRefused(400, "invalid", f"the filter {name}", str(first["msg"]), "Choose from the list.")


def _problem_page(request: Request, gate: Gate, error: LogdoctorError) -> Response:
    """The error as a page; the login for one who has to say who they are."""
    told = answer(error)
    if told.status_code == 401:
        asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        target = local(asked) if request.method in ("GET", "HEAD") else "/"
        return RedirectResponse("/login" if target == "/" else f"/login?{urlencode({'next': target})}", 303)
    if told.status_code >= 500:
        log.error("request failed", path=request.url.path, status=told.status_code, cause=error.cause)
    page = _page(request, gate, "problem.html", {"error": error}, told.status_code)
    if "retry-after" in told.headers:
        page.headers["Retry-After"] = told.headers["retry-after"]
    return page


def _page(request: Request, gate: Gate, name: str, content: dict[str, Any], status: int = 200) -> Response:
    """A page, which no cache keeps."""
    inside = gate.wants_token and TOKEN in request.session
    html = _TEMPLATES.get_template(name).render(
        form_key=form_key(request) if inside else "",
        wants_token=gate.wants_token,
        base_url=str(request.base_url).rstrip("/"),
        now=time.time(),
        **content,
    )
    return HTMLResponse(html, status, {"Cache-Control": "no-store"})


def _shown(value: Any) -> Any:
    """What a template prints: text from logs and senders is hostile, so all text is made harmless in one place."""
    return harmless(value, _WIDEST) if isinstance(value, str) and not isinstance(value, Markup) else value


def _verbatim(text: str) -> Markup:
    """A long text with its lines, harmless and otherwise as it is: nothing in it hides what stands before."""
    lines = (harmless(line.translate(_STEERING), _CALL_TEXT) for line in text[:_CALL_TEXT].split("\n"))
    cut = f"\n({len(text) - _CALL_TEXT:,} more characters: see the JSON)" if len(text) > _CALL_TEXT else ""
    return Markup("\n").join(escape(line) for line in lines) + cut


def _static(name: str) -> str:
    """The URL of a static file, which changes with its content."""
    return f"/static/{name}?v={hashlib.sha256((_HERE / 'static' / name).read_bytes()).hexdigest()[:12]}"


def _templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.globals |= {
        "words": wording,
        "static": {name: _static(name) for name in ("style.css", "forms.css", "live.js", "icon.svg")},
        "verbatim": _verbatim,
        "taxonomy": taxonomy,
    }
    return templates


_TEMPLATES = _templates()
