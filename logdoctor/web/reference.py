"""`/docs`: the OpenAPI document as a page of our own.

The usual viewers are scripts of another site, or need a looser content policy.
"""

import json
from typing import Any, NamedTuple

from fastapi import Request
from starlette.responses import Response

from logdoctor.web.rendering import page, router

pages = router()


class Operation(NamedTuple):
    """One method of one path: its parameters, examples of request and response, and statuses."""

    id: str
    method: str
    path: str
    summary: str
    description: str
    parameters: list[dict[str, str]]
    sends: dict[str, str]
    answers: list[tuple[str, str, dict[str, str]]]


@pages.get("/docs")
def docs(request: Request) -> Response:
    """Show the API, as described by /openapi.json."""
    document: dict[str, Any] = request.app.openapi()
    operations: dict[str, list[Operation]] = {tag["name"]: [] for tag in document["tags"]}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            operations[operation["tags"][0]].append(_operation(document, method.upper(), path, operation))
    return page(
        request,
        "docs.html",
        {"about": _on_one_line(document["info"]["description"]), "tags": document["tags"], "operations": operations},
    )


def _operation(document: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> Operation:
    return Operation(
        operation["operationId"],
        method,
        path,
        operation["summary"],
        _on_one_line(operation["description"]).removeprefix(operation["summary"]).lstrip(". "),
        [_parameter(document, one) for one in operation.get("parameters", ())],
        _examples(document, operation.get("requestBody", {})),
        [
            (status, answer.get("description", ""), _examples(document, answer) if status[0] == "2" else {})
            for status, answer in sorted(operation["responses"].items())
        ],
    )


def _parameter(document: dict[str, Any], parameter: dict[str, Any]) -> dict[str, str]:
    schema = _resolved(document, parameter["schema"])
    return {
        "name": parameter["name"],
        "place": parameter["in"] + ("" if parameter.get("required") else ", optional"),
        "type": _type(document, schema),
        "meaning": _on_one_line(parameter.get("description") or schema.get("description", "")),
    }


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _type(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return the type of a parameter in a word, or its possible values."""
    schema = _resolved(document, schema)
    if "anyOf" in schema:
        named = [_type(document, one) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(named)
    if "enum" in schema:
        return ", ".join(str(one) for one in schema["enum"])
    return str(schema.get("const") or schema.get("type", ""))


def _examples(document: dict[str, Any], of: dict[str, Any]) -> dict[str, str]:
    """Return an example of each media type of a body; "" without one."""
    return {kind: example_of(document, content) for kind, content in of.get("content", {}).items()}


def example_of(document: dict[str, Any], content: dict[str, Any]) -> str:
    """Return an example of a media type as JSON, composed from its parts if needed, or ""."""
    schema = _resolved(document, content.get("schema", {}))
    found = content.get("example", next(iter(schema.get("examples", ())), None))
    if found is None and (parts := schema.get("properties")):
        found = {name: given for name, part in parts.items() if (given := _of_part(document, part)) is not None}
    return json.dumps(found, indent=2, ensure_ascii=False) if found else ""


def _of_part(document: dict[str, Any], part: dict[str, Any]) -> Any:
    part = _resolved(document, part)
    return next(iter(part.get("examples", ())), part.get("default", part.get("const")))


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the target of a reference."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
    return schema
