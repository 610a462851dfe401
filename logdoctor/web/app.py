"""The whole application on one page."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.concurrency import run_in_threadpool
from starlette.middleware.sessions import SessionMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from logdoctor.pipeline import ReadLimits
from logdoctor.service.service import Service
from logdoctor.web import (
    actions,
    cases,
    downloads,
    events,
    health,
    incidents,
    ingest,
    node_tests,
    nodes,
    notifications,
    openapi,
    pages,
    problems,
    report,
    rules,
    shippers,
    verdicts,
)
from logdoctor.web.bodies import Allowed
from logdoctor.web.gate import Gate
from logdoctor.web.labels import LabelMap
from logdoctor.web.pages import rendering
from logdoctor.web.problems import SECURITY_HEADERS

_DESCRIPTION = """Training jobs send their logs here while they run; when one dies, the verdict says why, whose fault
it is, whether a restart helps and which node to take out, with the lines that prove it."""


_MAX_BODY = 1 << 20  # bytes of a JSON or form body, which is read whole


class Options(NamedTuple):
    """What the application needs beside the service: whether it wants tokens, requests per second, bounds of
    bodies and logs, labels of pushes, the key that signs browser sessions, and whether browsers come over HTTPS."""

    wants_token: bool
    rate: int
    allowed: Allowed
    limits: ReadLimits
    labels: LabelMap
    session_key: str
    over_https: bool = False


def application(service: Service, options: Options) -> FastAPI:
    """The application over a service, which it starts and stops. `app.state.stopping()` ends what would not end
    by itself."""
    hub, of_nodes, of_incidents, state = events.Hub(), events.Hub(), events.Hub(), health.State()
    service.listeners += [hub.publish, of_incidents.publish]
    service.incidents.listeners.append(of_incidents.publish)
    if service.actor is not None:
        service.actor.listeners.append(of_nodes.publish)

    def stopping() -> None:
        state.ready = False
        hub.close()
        of_nodes.close()
        of_incidents.close()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        hub.open(asyncio.get_running_loop())
        of_nodes.open(asyncio.get_running_loop())
        of_incidents.open(asyncio.get_running_loop())
        await run_in_threadpool(service.start)
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
        docs_url=None,
        redoc_url=None,
    )
    app.state.stopping = stopping
    app.state.waiting = partial(pages.actions.waiting, service)
    gate = Gate(service.tokens, options.wants_token, options.rate)
    app.state.problem_page = partial(rendering.problem_page, gate)
    for router in (
        health.routes(service, gate, state),
        ingest.routes(service, gate, options.allowed, options.limits),
        shippers.routes(service, gate, options.allowed, options.labels),
        verdicts.routes(service, gate),
        downloads.routes(service, gate),
        rules.routes(service, gate, options.allowed.seconds),
        cases.routes(service, gate),
        report.routes(service, gate),
        events.routes(service, gate, hub),
        incidents.routes(service, gate, of_incidents),
        nodes.routes(service, gate),
        node_tests.routes(service, gate, of_nodes),
        actions.routes(service, gate),
        notifications.routes(service, gate),
        *pages.routes(service, gate),
    ):
        # as they are: `include_router` makes all of them anew at the first request, which waits for it
        app.router.routes += [found.original_route for found in iter_route_contexts(router.routes)]
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
