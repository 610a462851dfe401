"""The OpenAPI document: FastAPI's own, completed with verdicts, tokens, errors and examples."""

import re
from collections.abc import Sequence
from inspect import cleandoc
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from logdoctor.web import problems
from logdoctor.web.cases import answers as case_answers
from logdoctor.web.incidents import answers as incident_answers
from logdoctor.web.jobs import answers as job_answers
from logdoctor.web.nodes import answers as node_answers
from logdoctor.web.notifications import answers as notification_answers
from logdoctor.web.report import answers as report_answers
from logdoctor.web.rules import answers as rule_answers

_REFERENCE = "#/components/schemas/{name}"
_OPEN = ("/healthz", "/readyz")
_FASTAPIS = {"ValidationError", "HTTPValidationError"}
_TAGS = {
    "ingest": "Jobs, attempts and the bytes of their logs come in.",
    "push": "The push protocols of log shippers: Loki's and OpenTelemetry's.",
    "jobs": "Jobs, their attempts, verdicts and logs.",
    "incidents": "Failures grouped by their cause, and who looks after them.",
    "rules": "Rules, shipped and learned, and the steps that people take.",
    "cases": "What people say a failure was, and what a model was asked about it.",
    "nodes": "Nodes, their tests and cordons, and the actions that wait for a person.",
    "report": "What failures cost.",
    "notifications": "Who is notified of incidents.",
    "operations": "Liveness, readiness and metrics.",
}

TEXT = {"schema": {"type": "string"}}
TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
"""The schema of an object with texts as values."""
_EXAMPLES: tuple[msgspec.Struct, ...] = (
    *problems.EXAMPLES,
    *job_answers.EXAMPLES,
    *rule_answers.EXAMPLES,
    *case_answers.EXAMPLES,
    *incident_answers.EXAMPLES,
    *node_answers.EXAMPLES,
    *report_answers.EXAMPLES,
    *notification_answers.EXAMPLES,
)
"""An example of each answer: its type makes the schema."""


def install(app: FastAPI) -> None:
    """Make the application serve the result of `document`."""
    app.openapi = lambda: document(app)  # type: ignore[method-assign] # FastAPI's documented way


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of the application."""
    if app.openapi_schema is None:
        whole = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = whole["components"]["schemas"]
        schemas |= msgspec.json.schema_components([type(one) for one in _EXAMPLES], ref_template=_REFERENCE)[1]
        for example in _EXAMPLES:
            schemas[type(example).__name__]["examples"] = [msgspec.to_builtins(example)]
        for schema in schemas.values():
            if "description" in schema:
                schema["description"] = cleandoc(schema["description"])
        for name in _FASTAPIS:
            schemas.pop(name, None)
        whole["tags"] = [{"name": name, "description": text} for name, text in _TAGS.items()]
        whole["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for route in app.routes:  # FastAPI drops nulls, also from the routes' own additions
            for method in getattr(route, "methods", None) or ():
                operation = whole["paths"].get(getattr(route, "path_format", ""), {}).get(method.lower(), {})
                operation |= getattr(route, "openapi_extra", None) or {}
        for path, item in whole["paths"].items():
            for operation in item.values():
                _complete(path, operation)
        app.openapi_schema = whole
    return app.openapi_schema


def _complete(path: str, operation: dict[str, Any]) -> None:
    operation["summary"] = re.split(r"\.(?:\s|$)", operation.get("description", ""), maxsplit=1)[0].replace("\n", " ")
    if path not in _OPEN:
        operation["security"] = [{"token": []}]
    for answer in operation["responses"].values():
        for content in answer.get("content", {}).values():
            if content.get("schema", {}).get("$ref", "").rsplit("/", 1)[-1] in _FASTAPIS:
                content["schema"] = {"$ref": _REFERENCE.format(name="HttpProblem")}


def schema_of(kind: type) -> dict[str, Any]:
    """Return a reference to the schema of an answer's type."""
    return {"$ref": _REFERENCE.format(name=kind.__name__)}


def answers(kind: type, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """Return the successful answer of an operation, for a route's `responses`. Its type is in an `answers` module, with
    an example."""
    return {
        status: {"description": "Successful Response", "content": {"application/json": {"schema": schema_of(kind)}}}
    }


def streams(events: Sequence[str], data: str) -> dict[int | str, dict[str, Any]]:
    """Return the successful answer of an operation that streams events, for a route's `responses`. `data` describes the
    payload."""
    text = {"type": "string"}
    schema = {
        "description": f"one event; `data` is {data} as JSON",
        "type": "object",
        "properties": {"id": text, "event": {"enum": list(events)}, "data": text},
    }
    return {200: {"content": {"text/event-stream": {"schema": schema}}}}


def shows(example: object, status: int = 200, schema: dict[str, Any] | None = None) -> dict[int | str, dict[str, Any]]:
    """Return the successful answer of an operation with an example, for a route's `responses`."""
    return {status: {"content": {"application/json": {"schema": schema or {"type": "object"}, "example": example}}}}
