"""The rendering of pages: templates, forms protected against forgery, and errors as pages."""

import hashlib
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import structlog
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from logdoctor import taxonomy
from logdoctor.errors import LogdoctorError, RequestRefused
from logdoctor.store.keeping.tokens import holds
from logdoctor.text import harmless
from logdoctor.web import drawing, rank_chart
from logdoctor.web.bodies import Allowed, whole
from logdoctor.web.dependencies import state_of
from logdoctor.web.gate import SESSION, Caller, check_form, form_key
from logdoctor.web.problems import answer
from logdoctor.words import phrases
from logdoctor.words.sources import coverage

log = structlog.get_logger()

FORM = Allowed(sent=16_384, unpacked=16_384, seconds=10.0)
"""Limits of a short form."""
WORDS = Allowed(sent=131_072, unpacked=131_072, seconds=10.0)
"""Limits of a form with text written by people, percent-encoded."""

_WEB = Path(__file__).parent
_WIDEST = 4001  # characters of one text, one more than of a line in `excerpts`
_LONGEST = 60_000  # characters of a verbatim text
_STEERING = {ord(c): "\N{REPLACEMENT CHARACTER}" for c in "\0\r\x1b"}  # could hide text on display
_MAX_NEXT = 2000
_BETWEEN = 0.2  # seconds between prepared templates, in which requests have the interpreter to themselves
_HERE = {
    "": "incidents",
    "incidents": "incidents",
    "attention": "incidents",
    "attempts": "attempts",
    "verdicts": "attempts",
    "jobs": "attempts",
    "nodes": "nodes",
    "node-tests": "nodes",
    "help": "nodes",
    "actions": "actions",
    "audit": "actions",
    "rules": "rules",
    "cases": "cases",
    "report": "report",
    "notifications": "notifications",
}
"""The navigation entry of a page, by the first part of its path."""
_MAX_FIELDS = 40
_TOLD = "told"
_MAX_TOLD = 500


def static_files() -> StaticFiles:
    """Return the files of the style sheet, the scripts and the icon."""
    return StaticFiles(directory=_WEB / "static")


def router() -> APIRouter:
    """Return a router for pages: errors are pages, and strangers are redirected to the login."""
    return APIRouter(include_in_schema=False, default_response_class=HTMLResponse, route_class=_PageRoute)


def page(request: Request, name: str, content: dict[str, Any], status: int = 200) -> Response:
    """Render a page; caches must not keep it."""
    gate = state_of(request).gate
    caller: Caller | None = getattr(request.state, "caller", None)
    by_session = gate.wants_token and SESSION in request.session
    inside = by_session or (caller is not None and caller.is_person)
    common = {
        "form_key": form_key(request) if inside else "",
        "wants_token": gate.wants_token,
        "base_url": str(request.base_url).rstrip("/"),
        "now": time.time(),
        "here": _HERE.get(request.url.path.split("/")[1], ""),
        "waiting": _waiting(request),
        "is_full": caller is not None and state_of(request).service.intake.is_full,
        "signed_in": caller.token if inside and caller else None,
        "signs_out": by_session and not (caller and caller.is_person),
        "bound": caller is not None and bool(caller.prefixes),
        "attentive": caller is not None and (caller.token is None or holds(caller.token, "read")),
        "may_be_named": caller is not None and not gate.wants_token,
        "known_as": caller.given if caller else "",
        "address": local(_address(request.url.path, request.url.query)) if request.method == "GET" else "/",
    }
    html = _TEMPLATES.get_template(name).render(common | content)
    return HTMLResponse(html, status, {"Cache-Control": "no-store"})


def tell(request: Request, words: str) -> None:
    """Let the next page of this browser show the result of a form."""
    request.session[_TOLD] = words[:_MAX_TOLD]


def told(request: Request) -> str:
    """Return the message that the previous page left for this one, once; "" without one."""
    return str(request.session.pop(_TOLD, ""))


def rendered(name: str, content: dict[str, Any]) -> str:
    """Render a page outside a service."""
    return _TEMPLATES.get_template(name).render(content)


def prepare(*names: str) -> None:
    """Compile templates, so that the first page after a start is not slower than others."""
    for name in ("base.html", "ui.html", *names):
        _TEMPLATES.get_template(name)


def prepare_others() -> None:
    """Compile all templates, bit by bit. Half a second of work must not delay the start or a request."""
    for name in _TEMPLATES.list_templates():
        time.sleep(_BETWEEN)
        prepare(name)


def _waiting(request: Request) -> int:
    """Return how many actions wait for a person, as far as the caller may know."""
    caller: Caller | None = getattr(request.state, "caller", None)
    return int(request.app.state.waiting(caller)) if caller is not None else 0


def local(target: str) -> str:
    """Return the target if it is a path of this service, else "/". Nobody is redirected to other sites."""
    if not target.startswith("/") or target.startswith("//") or len(target) > _MAX_NEXT:
        return "/"
    if "\\" in target or not target.isascii() or not target.isprintable() or " " in target:
        return "/"  # browsers read some of these as another site
    path = urlsplit(target).path
    return "/" if path in ("/login", "/logout") else target


async def checked_form(request: Request, allowed: Allowed = FORM) -> dict[str, str]:
    """Return the fields of a form that our pages made for this session. `RequestRefused` for any other."""
    given = await form(request, allowed)
    check_form(request, given.get("key", ""))
    return given


async def checked_fields(request: Request, allowed: Allowed, most: int) -> dict[str, list[str]]:
    """Return all values of a form that our pages made for this session. There are at most `most`; `RequestRefused` for
    any other form."""
    given = await _fields(request, allowed, most)
    check_form(request, given.get("key", [""])[0])
    return given


async def form(request: Request, allowed: Allowed = FORM) -> dict[str, str]:
    """Return the fields of a small form."""
    return {name: values[0] for name, values in (await _fields(request, allowed, _MAX_FIELDS)).items()}


async def _fields(request: Request, allowed: Allowed, most: int) -> dict[str, list[str]]:
    """Return the values of each field of a form."""
    body = await whole(request, allowed)
    try:
        return parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=most, errors="replace")
    except ValueError as error:
        raise RequestRefused(400, "bad_form", "the form", "it cannot be read", "Reload the page.") from error


class _PageRoute(APIRoute):
    """A route that has pages for errors, and redirects strangers to the login."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_for_people(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return problem_page(request, _invalid(error))
            except LogdoctorError as error:
                return problem_page(request, error)

        return handle_for_people


def _invalid(error: RequestValidationError) -> RequestRefused:
    """Return the error for a wrong address in words for people."""
    first = error.errors()[0]
    kind, name = str(first["loc"][0]), str(first["loc"][-1])
    if kind == "path":
        return RequestRefused(404, "not_found", "page not found", "nothing is at this address", "Check the address.")
    return RequestRefused(400, "invalid", f"the filter {name}", str(first["msg"]), "Choose from the list.")


def problem_page(request: Request, error: LogdoctorError) -> Response:
    """Render an error as a page; redirect to the login on 401."""
    plain = answer(error)
    if plain.status_code == 401:
        sent = request.method not in ("GET", "HEAD")
        target = _page_before(request) if sent else local(_address(request.url.path, request.url.query))
        query = ({} if target == "/" else {"next": target}) | ({"unsent": "1"} if sent else {})
        return RedirectResponse(f"/login?{urlencode(query)}" if query else "/login", 303)
    if plain.status_code >= 500:
        log.error("request failed", path=request.url.path, status=plain.status_code, cause=str(error))
    if not hasattr(request.state, "caller"):  # no route ran, or it failed
        request.state.caller = state_of(request).gate.known(request)
    shown = page(request, "problem.html", {"error": error}, plain.status_code)
    if "retry-after" in plain.headers:
        shown.headers["Retry-After"] = plain.headers["retry-after"]
    return shown


def _page_before(request: Request) -> str:
    """Return the page of a form by the Referer header, else its address's parent."""
    try:
        said = urlsplit(request.headers.get("referer", ""))
    except ValueError:
        said = urlsplit("")
    own = said.scheme in ("http", "https") and said.netloc.lower() == request.headers.get("host", "").lower()
    target = local(_address(said.path, said.query)) if own and said.netloc else "/"
    return target if target != "/" else local(request.url.path.rpartition("/")[0] or "/")


def _address(path: str, query: str) -> str:
    return f"{path}?{query}" if query else path


def _shown(value: Any) -> Any:
    """Return what a template prints, harmless: text from logs and senders is hostile."""
    return harmless(value, _WIDEST) if isinstance(value, str) and not isinstance(value, Markup) else value


def _verbatim(text: str) -> Markup:
    """Return a long text with its lines, harmless: no character hides the text before."""
    lines = (harmless(line.translate(_STEERING), _LONGEST) for line in text[:_LONGEST].split("\n"))
    cut = f"\n({len(text) - _LONGEST:,} more characters: see the JSON)" if len(text) > _LONGEST else ""
    return Markup("\n").join(escape(line) for line in lines) + cut


def _static(name: str) -> str:
    """Return the URL of a static file, which changes with its content."""
    return f"/static/{name}?v={hashlib.sha256((_WEB / 'static' / name).read_bytes()).hexdigest()[:12]}"


def _templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(_WEB / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.globals |= {
        "coverage": coverage,
        "words": phrases,
        "draw": drawing,
        "rank_chart": rank_chart,
        "static": {path.name: _static(path.name) for path in (_WEB / "static").iterdir()},
        "verbatim": _verbatim,
        "taxonomy": taxonomy,
    }
    return templates


_TEMPLATES = _templates()
