"""Pages for people."""

from fastapi import APIRouter

from logdoctor.live.service import Service
from logdoctor.web.gate import Gate
from logdoctor.web.pages import (
    actions,
    attempts,
    cases,
    correcting,
    incident,
    incidents,
    log,
    node_tests,
    nodes,
    notifications,
    report,
    rules,
    signing_in,
)


def routes(service: Service, gate: Gate) -> APIRouter:
    """The routes for browsers."""
    pages = APIRouter()
    for module in (incidents, attempts, incident, correcting, cases, rules, log, report, nodes, node_tests, actions):
        pages.include_router(module.routes(service, gate))
    pages.include_router(notifications.routes(service, gate))
    pages.include_router(signing_in.routes(gate))
    return pages
