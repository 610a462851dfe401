"""The whole application on one page."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.concurrency import run_in_threadpool
from starlette.middleware.sessions import SessionMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from logdoctor.service.service import Service
from logdoctor.web import health, openapi, problems, rendering, signing_in
from logdoctor.web.cases import api as cases
from logdoctor.web.cases import correcting
from logdoctor.web.cases import pages as case_pages
from logdoctor.web.dependencies import AppOptions, AppState
from logdoctor.web.gate import Gate
from logdoctor.web.incidents import api as incidents
from logdoctor.web.incidents import incident_page
from logdoctor.web.incidents import pages as incident_pages
from logdoctor.web.jobs import api as jobs
from logdoctor.web.jobs import downloads, ingest, log_pages, news
from logdoctor.web.jobs import pages as attempt_pages
from logdoctor.web.nodes import actions_api, actions_pages, tests_api, tests_pages
from logdoctor.web.nodes import api as nodes
from logdoctor.web.nodes import pages as node_pages
from logdoctor.web.notifications import api as notifications
from logdoctor.web.notifications import pages as notification_pages
from logdoctor.web.problems import SECURITY_HEADERS
from logdoctor.web.push import api as push
from logdoctor.web.rates import Rates
from logdoctor.web.report import api as report
from logdoctor.web.report import pages as report_pages
from logdoctor.web.rules import api as rules
from logdoctor.web.rules import pages as rule_pages
from logdoctor.web.rules.importing import RuleImporter

_DESCRIPTION = """Training jobs send their logs here while they run; when one dies, the verdict says why, whose fault
it is, whether a restart helps and which node to cordon, with the lines that prove it."""


_API = (
    health,
    ingest,
    push,
    jobs,
    downloads,
    rules,
    cases,
    report,
    news,
    incidents,
    nodes,
    tests_api,
    actions_api,
    notifications,
)
_PAGES = (
    incident_pages,
    attempt_pages,
    incident_page,
    correcting,
    case_pages,
    rule_pages,
    log_pages,
    report_pages,
    node_pages,
    tests_pages,
    actions_pages,
    notification_pages,
    signing_in,
)
_QUIET: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""FastAPI would send the paths and errors of requests wherever the environment says; spans are made by `tracing`."""
_MAX_BODY = 1 << 20  # bytes of a JSON or form body, which is read whole


def application(service: Service, options: AppOptions) -> FastAPI:
    """Return the application over a service, which it starts and stops. `app.state.stopping()` ends what would not end
    by itself."""
    state = AppState(service, Gate(service.tokens, options.wants_token, options.rate, Rates(service.redis)), options)
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

    app = FastAPI(
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
    # as they are: `include_router` makes all of them anew at the first request, which waits for it
    app.router.routes += [route for part in _API for route in part.router.routes]
    app.router.routes += [route for part in _PAGES for route in part.pages.routes]
    app.mount("/static", rendering.static_files())
    problems.install(app)
    openapi.install(app)
    app.add_middleware(
        SessionMiddleware,
        secret_key=options.session_key,
        session_cookie="logdoctor",
        same_site="lax",
        https_only=options.over_https,
    )
    app.add_middleware(SecurityHeaders)
    return app


class SecurityHeaders:
    """Tells browsers to run and embed nothing that is not ours."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *SECURITY_HEADERS]
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)
