"""The assembly of the whole application."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware.sessions import SessionMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from logdoctor.service.service import Service
from logdoctor.store.keeping.sessions import LASTING
from logdoctor.web import health, openapi, problems, reference, rendering, signing_in
from logdoctor.web.cases import api as cases
from logdoctor.web.cases import correcting
from logdoctor.web.cases import pages as case_pages
from logdoctor.web.dependencies import AppOptions, AppState
from logdoctor.web.gate import Gate
from logdoctor.web.incidents import api as incidents
from logdoctor.web.incidents import attention_page, desk_api, incident_page, work_pages
from logdoctor.web.incidents import pages as incident_pages
from logdoctor.web.jobs import api as jobs
from logdoctor.web.jobs import downloads, ingest, log_pages, news, past, runs, scores
from logdoctor.web.jobs import pages as attempt_pages
from logdoctor.web.nodes import actions_api, actions_pages, tests_api, tests_pages
from logdoctor.web.nodes import api as nodes
from logdoctor.web.nodes import pages as node_pages
from logdoctor.web.notifications import api as notifications
from logdoctor.web.notifications import pages as notification_pages
from logdoctor.web.notifications import slack_api
from logdoctor.web.problems import SECURITY_HEADERS
from logdoctor.web.push import api as push
from logdoctor.web.rates import Rates
from logdoctor.web.report import api as report
from logdoctor.web.report import pages as report_pages
from logdoctor.web.rules import api as rules
from logdoctor.web.rules import override_pages, overrides_api
from logdoctor.web.rules import pages as rule_pages
from logdoctor.web.rules.importing import RuleImporter
from logdoctor.web.traffic import Traffic

_DESCRIPTION = """Training jobs send their logs here while they run; when one dies, the verdict says why, whose fault
it is, whether a restart helps and which node to cordon, with the lines that prove it."""


_API = (
    health,
    ingest,
    past,
    push,
    jobs,
    runs,
    scores,
    downloads,
    rules,
    overrides_api,
    cases,
    report,
    news,
    incidents,
    desk_api,
    nodes,
    tests_api,
    actions_api,
    notifications,
    slack_api,
)
_PAGES = (
    incident_pages,
    attempt_pages,
    runs,
    work_pages,
    attention_page,
    incident_page,
    correcting,
    case_pages,
    override_pages,
    rule_pages,
    log_pages,
    report_pages,
    node_pages,
    tests_pages,
    actions_pages,
    notification_pages,
    signing_in,
    reference,
)
_QUIET: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""FastAPI would send paths and errors of requests wherever the environment says; spans are made by `tracing`."""
_PLAIN_TEXT = (b"content-type", b"text/plain; charset=utf-8")
_MAX_BODY = 1 << 20  # bytes of a JSON or form body, which is read whole


def application(service: Service, options: AppOptions) -> FastAPI:
    """Return the application over a service, which it starts and stops. `app.state.stopping()` ends open streams."""
    wants_token, rates = options.wants_token, Rates(service.redis, options.clock)
    gate = Gate(service.tokens, service.sessions, wants_token, options.rate, rates, options.sign_on, options.clock)
    state = AppState(service, gate, options)
    state.hubs.listen(service)

    def stopping() -> None:
        state.ready = False
        state.hubs.close()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state.hubs.open(asyncio.get_running_loop())
        await run_in_threadpool(service.start)
        await run_in_threadpool(state.once, RuleImporter)
        threading.Thread(target=rendering.prepare_others, daemon=True).start()
        state.ready = True
        yield
        stopping()
        await run_in_threadpool(service.stop)

    app = _Application(
        max_body_size=_MAX_BODY,
        redirect_slashes=False,
        title="logdoctor",
        version="1",
        description=_DESCRIPTION,
        lifespan=lifespan,
        telemetry=_QUIET,
        docs_url=None,
        redoc_url=None,
    )
    app.state.logdoctor = state
    app.state.stopping = stopping
    app.state.waiting = partial(actions_pages.waiting, service)
    app.state.problem_page = rendering.problem_page
    # directly: `include_router` rebuilds all of them at the first request, which waits for it
    app.router.routes += [route for part in _API for route in part.router.routes]
    app.router.routes += [route for part in _PAGES for route in part.pages.routes]
    app.mount("/static", rendering.static_files())
    problems.install(app)
    openapi.install(app)
    app.add_middleware(_Cookies, options.session_key, options.over_https)
    return app


class _Application(FastAPI):
    """FastAPI that counts all answers, with our headers and error format."""

    def build_middleware_stack(self) -> ASGIApp:
        """Return the application with all middleware."""
        return _Answers(super().build_middleware_stack(), self.state.logdoctor.traffic)


class _Cookies:
    """Keeps what pages need of a browser in a signed cookie. It is `Secure` when pages come `over_https`, as the
    settings or a proxy say. A false claim only makes the claimant's own cookie stricter."""

    def __init__(self, app: ASGIApp, key: str, over_https: bool) -> None:
        kept: dict[str, Any] = {"secret_key": key, "session_cookie": "logdoctor", "same_site": "lax"}
        kept["max_age"] = int(LASTING)
        self._secure = SessionMiddleware(app, https_only=True, **kept)
        self._plain = self._secure if over_https else SessionMiddleware(app, https_only=False, **kept)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_secure = scope["type"] == "http" and _came_over_https(scope)
        await (self._secure if is_secure else self._plain)(scope, receive, send)


def _came_over_https(scope: Scope) -> bool:
    said = Headers(scope=scope)
    forwarded = said.get("forwarded", "").lower().replace('"', "")
    proto, _, _ = said.get("x-forwarded-proto", "").lower().partition(",")  # that of the first of several proxies
    return "https" in (scope["scheme"], proto.strip()) or "proto=https" in forwarded


class _Answers:
    """Forbids browsers foreign content, answers HEAD as GET without a body, and rewrites the framework's plain-text
    refusal of long bodies."""

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app, self._traffic = app, traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_replaced = False
        heads, begun = scope["type"] == "http" and scope["method"] == "HEAD", asyncio.Event()
        if heads:
            scope = {**scope, "method": "GET"}

        async def hung_up() -> Message:  # so that a stream of events ends
            await begun.wait()
            return {"type": "http.disconnect"}

        async def as_ours(message: Message) -> None:
            nonlocal is_replaced
            if message["type"] == "http.response.start":
                self._traffic.count(scope, message["status"])
                is_replaced = message["status"] == 413 and _PLAIN_TEXT in message["headers"]
                message["headers"] = [*message["headers"], *SECURITY_HEADERS]
            if heads and message["type"] == "http.response.body":
                if not begun.is_set():
                    await send({**message, "body": b"", "more_body": False})
                begun.set()
            elif not is_replaced:
                await send(message)
            elif message["type"] == "http.response.start":
                await self._too_large(scope, receive, send)

        if heads:
            await self._app(scope, hung_up, as_ours)
        else:
            await self._app(scope, receive, as_ours if scope["type"] == "http" else send)

    async def _too_large(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = problems.too_large()
        answer.raw_headers += SECURITY_HEADERS
        await answer(scope, receive, send)
