"""Pages for people: the list of incidents, one incident with its proof, and the way in."""

import hashlib
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode, urlsplit

import structlog
from fastapi import APIRouter, Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from logdoctor.errors import LogdoctorError, RequestRefused
from logdoctor.live.service import Service
from logdoctor.store.records import Attempt, End
from logdoctor.store.tokens import holds
from logdoctor.text import harmless
from logdoctor.web import wording
from logdoctor.web.bodies import Allowed, whole
from logdoctor.web.excerpts import proofs
from logdoctor.web.gate import TOKEN, Caller, Gate, check_form, form_key
from logdoctor.web.listing import INCIDENTS, Filters, listing
from logdoctor.web.models import VerdictId
from logdoctor.web.problems import answer
from logdoctor.web.verdicts import visible

log = structlog.get_logger()

_HERE = Path(__file__).parent
_WIDEST = 4001  # characters of one text, one more than of a line in `excerpts`
_FORM = Allowed(sent=16_384, unpacked=16_384, seconds=10.0)
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
        job, attempt = records.job(stored.job), records.attempt(stored.job, stored.attempt)
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
        }
        return _page(request, gate, "incident.html", content)

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


async def _form(request: Request) -> dict[str, str]:
    """The fields of a small form."""
    body = await whole(request, _FORM)
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
        "static": {name: _static(name) for name in ("style.css", "live.js", "icon.svg")},
    }
    return templates


_TEMPLATES = _templates()
