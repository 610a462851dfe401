"""The document tells the truth, and nothing that fits it makes the service fail."""

import os
import time
import warnings
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import schemathesis
    from schemathesis import Case
    from schemathesis.checks import not_a_server_error
    from schemathesis.core.failures import FailureGroup
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_headers_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

from logdoctor.rules.scanner import Scanner
from logdoctor.web.reference import example_of
from tests import waiting
from tests.recorded_nodes import CORDON, NODES, NOW, RecordedLauncher, kept_test
from tests.web.conftest import FAILED, local_client, new_service, serving
from tests.web.test_nodes import acting

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
LOG = b"".join(b"preparing %d\n" % number for number in range(130)) + FAILED
"""A log with the lines that examples name."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, scanner: Scanner) -> Iterator[str]:
    """Where a service with one verdict is, one test of nodes, and one action."""
    service = new_service(tmp_path_factory.mktemp("fuzz"), scanner)
    actor = acting(service, RecordedLauncher([node.name for node in NODES]), tmp_path_factory.mktemp("cordons"))
    kept_test(actor.records, at=time.time())
    actor.records.propose(CORDON, "llama-7b", 1, NOW)
    with serving(service) as served, served.client() as client:
        client.post("/v1/jobs/llama-7b/attempts/1/streams/gpu-12/log", params={"offset": 0}, content=LOG)
        client.post("/v1/jobs/llama-7b/attempts/1/end", json={"exit_code": 1})
        waiting.until(lambda: client.get("/v1/verdicts/1").status_code == 200)
        yield served.url


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory, scanner: Scanner) -> dict[str, Any]:
    """The document, as an application gives it that was not started."""
    client = local_client(new_service(tmp_path_factory.mktemp("document"), scanner))
    return client.get("/openapi.json").json()  # type: ignore[no-any-return]


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that a reference stands for."""
    while "$ref" in schema:
        found = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def has_example(document: dict[str, Any], content: dict[str, Any]) -> bool:
    """Whether a media type shows what it may look like: as a whole, or each of its properties does."""
    schema = resolved(document, content.get("schema", {}))
    if {"example", "examples"} & (content.keys() | schema.keys()):
        return True
    parts = [resolved(document, part) for part in schema.get("properties", {}).values()]
    return bool(parts) and all(shows(document, part) for part in parts)


def shows(document: dict[str, Any], part: dict[str, Any]) -> bool:
    """Whether a property has an example, or only one thing can stand there."""
    part = resolved(document, part)
    if {"example", "examples", "const", "enum", "default"} & part.keys() or part.get("type") == "boolean":
        return True
    if "items" in part:
        return has_example(document, {"schema": part["items"]}) or shows(document, part["items"])
    return bool(part.get("properties")) and all(shows(document, inner) for inner in part["properties"].values())


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    schemathesis.openapi.from_dict(document).validate()
    assert document["openapi"].startswith("3.1")
    assert document["info"]["description"]


def test_everything_is_described(document: dict[str, Any]) -> None:
    missing = []
    names = [operation["operationId"] for _, operation in operations(document)]
    assert len(names) == len(set(names))
    tags = {tag["name"] for tag in document["tags"] if tag["description"]}
    for name, operation in operations(document):
        if not operation.get("summary") or not operation.get("description"):
            missing.append(f"{name}: no summary or description")
        if len(operation.get("tags", [])) != 1 or operation["tags"][0] not in tags:
            missing.append(f"{name}: not one tag that is described")
        for parameter in operation.get("parameters", []):
            if not parameter.get("description") and not parameter["schema"].get("description"):
                missing.append(f"{name}: parameter {parameter['name']} has no description")
        body = operation.get("requestBody", {})
        if body and not body.get("content"):
            missing.append(f"{name}: request body without content")
        for kind, content in body.get("content", {}).items():
            if not content.get("schema"):
                missing.append(f"{name}: request {kind} without a schema")
            elif "json" in kind and not has_example(document, content):
                missing.append(f"{name}: request {kind} without an example")
        good = {status: answer for status, answer in operation["responses"].items() if status.startswith("2")}
        if not good:
            missing.append(f"{name}: no good answer")
        for status, answer in good.items():
            if status != "204" and not answer.get("content"):
                missing.append(f"{name}: {status} without content")
            for kind, content in answer.get("content", {}).items():
                if not content.get("schema"):
                    missing.append(f"{name}: {status} {kind} without a schema")
                elif "json" in kind and not has_example(document, content):
                    missing.append(f"{name}: {status} {kind} without an example")
    assert not missing, "\n" + "\n".join(missing)


def test_examples_fit_their_schemas(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        whole = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        for example in schema.get("examples", []):
            jsonschema.validate(example, whole)
        for part in schema.get("properties", {}).values():
            for example in part.get("examples", []):
                jsonschema.validate(example, part | {"components": document["components"]})


def path_of(template: str, operation: dict[str, Any]) -> str:
    """The path with the examples of its parameters, and of those parameters of the query that must be there."""
    wanted = [one for one in operation.get("parameters", ()) if one["in"] in ("path", "query") and one.get("required")]
    values = {one["name"]: (one.get("examples") or one["schema"].get("examples") or [0])[0] for one in wanted}
    query = {one["name"]: values[one["name"]] for one in wanted if one["in"] == "query"}
    return template.format(**values) + (f"?{urlencode(query)}" if query else "")


def test_what_the_document_shows_is_accepted(document: dict[str, Any], url: str) -> None:
    """Things that are not there are 404, and steps that cannot be taken now 409; the form of no example is wrong."""
    refused, sent = [], 0
    with httpx.Client(base_url=url) as client:
        for name, operation in operations(document):
            method, template = name.split()
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                if kind == "application/json" and (example := example_of(document, content)):
                    sent += 1
                    answer = client.request(
                        method, path_of(template, operation), content=example, headers={"content-type": kind}
                    )
                    if answer.status_code not in (200, 201, 202, 204, 404, 409):
                        refused.append(f"{name}: {answer.status_code} {answer.text[:300]}")
    assert not refused, "\n" + "\n".join(refused)
    assert sent > 20


def test_errors_are_described_alike(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        for status, answer in operation["responses"].items():
            if status[0] in "45":
                reference = answer["content"]["application/json"]["schema"].get("$ref", "")
                assert reference.endswith("/HttpProblem"), f"{name}: {status}"
                assert answer["description"]
        if "health" not in name and "ready" not in name:
            assert operation["responses"].keys() >= {"401", "403", "429"}, name


def test_the_document_names_the_token(document: dict[str, Any]) -> None:
    schemes = document["components"].get("securitySchemes", {})
    assert any(scheme["type"] == "http" and scheme["scheme"] == "bearer" for scheme in schemes.values())
    for name, operation in operations(document):
        if name not in ("GET /healthz", "GET /readyz"):
            assert operation.get("security") or document.get("security"), name


@pytest.fixture(scope="module")
def requests(document: dict[str, Any]) -> list["Case[Any]"]:
    """Requests of each operation that fit the document, drawn before there is a service whose threads run beside."""
    endless = ["/v1/events", "/v1/incidents/stream"]
    found: list[Case[Any]] = []
    for each in schemathesis.openapi.from_dict(document).exclude(path=endless).get_all_operations():
        operation: Any = each.ok()  # type: ignore[union-attr] # a document that is wrong raises

        @settings(
            max_examples=1000 if SOAK else 3,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=not SOAK,
            database=None,
        )
        @given(case=operation.as_strategy())
        def draw(case: Case[Any]) -> None:
            found.append(case)

        draw()
    return found


def test_fuzz_no_request_breaks_the_service_and_answers_are_as_described(requests: list["Case[Any]"], url: str) -> None:
    failures: list[str] = []
    for case in requests:
        try:
            case.call_and_validate(base_url=url, checks=CHECKS, timeout=None)
        except FailureGroup as group:
            failures.append(f"{case.operation.label}: {group}")
    assert not failures, "\n\n".join(failures)
