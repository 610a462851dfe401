"""Pages for people."""

from fastapi import APIRouter

from logdoctor.service.service import Service
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


def routes(service: Service, gate: Gate) -> list[APIRouter]:
    """The routes for browsers, part by part."""
    parts = (incidents, attempts, incident, correcting, cases, rules, log, report, nodes, node_tests, actions)
    return [*(part.routes(service, gate) for part in (*parts, notifications)), signing_in.routes(gate)]
