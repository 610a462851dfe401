"""The OpenAPI document: what FastAPI knows of the routes, and what it does not: verdicts, tokens, errors, examples."""

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from logdoctor.types import Compression, DecidedBy, Evidence, Progress, RuleCount, Suspect, Symptom, Verdict
from logdoctor.web.incidents import answers as incident_answers
from logdoctor.web.nodes import answers as node_answers
from logdoctor.web.report import answers as report_answers

_REFERENCE = "#/components/schemas/{name}"
_OPEN = ("/healthz", "/readyz")
_OURS = {"ValidationError", "HTTPValidationError"}

VERDICT = {"$ref": _REFERENCE.format(name="Verdict")}
TEXT = {"schema": {"type": "string"}}

EXAMPLE = msgspec.to_builtins(
    Verdict(
        reason="ECC Error",
        category="Infrastructure",
        fault="infrastructure",
        recovery="isolate_and_restart",
        outcome="failed",
        confidence=0.95,
        suggestion="Take the node out and reset the GPU, so that the row is remapped.",
        evidence=(
            Evidence(
                "llama-7b/1/gpu-12",
                "gpu-12",
                126,
                "[gpu-12] Cuda failure 'uncorrectable ECC error encountered'",
                "diagnosis/infrastructure/ecc-uncorrectable",
                ("[gpu-12] Last error:",),
            ),
        ),
        suspects=(Suspect("gpu-12", 96, None, "GPU memory has an uncorrectable error (line 126)"),),
        first_rank=96,
        symptoms=(Symptom("NCCL Timeout Error", 189, "gpu-12", 55, "diagnosis/infrastructure/ecc-uncorrectable"),),
        decided_by=DecidedBy("rule", "diagnosis/infrastructure/ecc-uncorrectable", "9f2c4e1ab07d3356"),
        fingerprint="4d1f0c9be2a7",
        progress=Progress(1200, 500_000, 2.31, 412.5, 118, "gpu-12"),
        compression=Compression(281, 66, 63_902, 21_011, {"filter/nccl/info": RuleCount(215, 3, 120)}),
        nodes=("gpu-11", "gpu-12"),
        file="llama-7b/1/gpu-12",
    )
)
_STORED = {
    "id": 7,
    "event": 9,
    "job": "llama-7b",
    "attempt": 1,
    "at": 1795255505.2,
    "final": True,
    "current": True,
    "superseded_by": None,
    "user": "u17",
    "verdict": EXAMPLE,
}
_ATTEMPT = {
    "job": "llama-7b",
    "number": 1,
    "started": 1795250000.0,
    "ended": 1795255504.9,
    "settled": True,
    "ends": [{"stream": "", "exit_code": 1, "signal": None, "scheduler_state": None, "at": 1795255504.9}],
    "streams": ["gpu-12"],
    "verdict": 7,
}
_CONTEXT = {"stream": "gpu-12", "line": 126, "lines": [{"line": 125, "text": "[gpu-12] Last error:"}]}
_JOB = {"job": "llama-7b", "facts": {"user": "u17", "nodes": 128}, "created": 1795250000.0, "updated": 1795250000.0}
_VOTES = {"runs": 5, "agreed": [0, 1, 3, 4], "judge": "4 of 5 runs agree"}
_RULE = {
    "id": "learned/megatron/pretrain-gpt-py/bed3b86f",
    "place": 0,
    "kind": "megatron/pretrain_gpt.py",
    "pattern": "^Opening data shard [0-9]+ of [0-9]+$",
    "title": "opening data shard (N) of (N)",
    "examples": ["Opening data shard 3 of 9"],
    "metrics": [],
    "harmless": False,
    "status": "active",
    "waits_for": "",
    "agent": "miner",
    "source": {
        "job": "llama-7b",
        "attempt": 1,
        "framework": "megatron",
        "image": "registry.local/train:2026-11",
        "command": "torchrun pretrain_gpt.py",
        "user": "u17",
        "name": "llama 7b, run 3",
    },
    "votes": _VOTES,
    "jobs": 2,
    "lines": 24_062,
    "taken": 12_031,
    "created": 1795250000.0,
    "changed": 1795255505.2,
    "claim": None,
    "last_hit": 1795255505.2,
}
_SHIPPED_RULE = {
    "id": "diagnosis/infrastructure/gpu-off-the-bus",
    "kind": "diagnosis",
    "status": "active",
    "title": "The GPU has fallen off the bus",
    "patterns": [r"(?i)\bfallen off the bus"],
    "attempts": 4,
    "lines": 4,
    "last": 1795255505.2,
}
_EVENT = {
    "id": 12,
    "rule": "learned/megatron/pretrain-gpt-py/bed3b86f",
    "at": 1795255505.2,
    "by": "logdoctor",
    "step": "promote",
    "from_status": "shadow",
    "to_status": "active",
    "why": "watched in 2 attempts on 24062 lines, none of them evidence",
    "undoes": None,
    "harmless": False,
}
_REFUSAL = {
    "id": 3,
    "kind": "megatron/pretrain_gpt.py",
    "job": "llama-7b",
    "attempt": 1,
    "agent": "miner",
    "at": 1795250000.0,
    "pattern": "^.*$",
    "guard": "grammar",
    "cause": "the wildcard . for any character (at character 1)",
    "votes": _VOTES,
}
_SAID = {"kind": "megatron/pretrain_gpt.py", "findings": ["taken by   learned/megatron/pretrain-gpt-py/bed3b86f"]}
_IMPORTED = {
    "rule": "filter/learned/megatron/pretrain-gpt-py/bed3b86f",
    "outcome": "entered",
    "id": "learned/megatron/pretrain-gpt-py/bed3b86f",
    "status": "shadow",
    "waits_for": "",
}
_CASE = {
    "id": 12,
    "job": "llama-7b",
    "attempt": 1,
    "verdict": 7,
    "by": "ops",
    "at": 1795255505.2,
    "reason": "ECC Error",
    "fault": "infrastructure",
    "recovery": "isolate_and_restart",
    "fix": "drained the node, board returned",
    "comment": "",
    "suggestion": "",
    "corrects": False,
    "title": "Cuda failure 'uncorrectable ECC error encountered'",
    "digests": ["4d1f0c9be2a70f15"],
    "summary": "cuda failure 'uncorrectable ecc error encountered'",
    "evidence": [
        {"stream": "gpu-12", "line": 126, "quote": "[gpu-12] Cuda failure 'uncorrectable ECC error encountered'"}
    ],
    "withdrawn": False,
    "withdrawn_by": "",
    "withdrawn_why": "",
    "withdrawn_at": None,
}
_CALL = {
    "id": 40,
    "at": 1795255507.1,
    "job": "llama-7b",
    "attempt": 1,
    "purpose": "diagnose",
    "model": "a-model",
    "prompt": "1c2b9a40d7e35f88",
    "sent": [{"role": "user", "text": "You find out why a job that trains a large language model failed. ..."}],
    "request": '{"temperature":0.0,"max_tokens":1000}',
    "got": '{"candidates": []}',
    "calls": "[]",
    "tokens_in": 4120,
    "tokens_out": 210,
    "dollars": 0.0052,
    "seconds": 2.1,
    "cached": False,
    "failure": "",
    "cause": "",
    "cut": False,
}
_EXAMPLES = {
    "CaseOut": _CASE,
    "CasePage": {"items": [_CASE], "next": None},
    "ModelCallPage": {"items": [_CALL]},
    "LearnedRuleOut": _RULE,
    "LearnedRulePage": {"items": [_RULE], "next": None},
    "ShippedRuleOut": _SHIPPED_RULE,
    "ShippedRules": {"items": [_SHIPPED_RULE]},
    "RuleEventPage": {"items": [_EVENT], "next": None},
    "RefusalPage": {"items": [_REFUSAL], "next": None},
    "WhyOut": {"line": "Opening data shard 3 of 9", "said": [_SAID]},
    "ImportOut": {"rules": [_IMPORTED]},
    "Verdict": _STORED["verdict"],
    "VerdictOut": _STORED,
    "VerdictDetail": _STORED | {"context": [_CONTEXT], "history": [7]},
    "VerdictPage": {"items": [_STORED], "next": None},
    "AttemptOut": _ATTEMPT,
    "JobOut": _JOB | {"attempts": [_ATTEMPT]},
    "JobPage": {"items": [_JOB], "next": None},
}


def install(app: FastAPI) -> None:
    """Let the application give the document that `document` makes."""
    app.openapi = lambda: document(app)  # type: ignore[method-assign] # FastAPI's documented way


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of the application."""
    if app.openapi_schema is None:
        whole = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = whole["components"]["schemas"]
        ours = [Verdict, *incident_answers.ALL, *node_answers.ALL, *report_answers.ALL]
        schemas |= msgspec.json.schema_components(ours, ref_template=_REFERENCE)[1]
        for name in ("VerdictOut", "VerdictDetail"):
            schemas[name]["properties"]["verdict"] = VERDICT
        shown = _EXAMPLES | incident_answers.EXAMPLES | node_answers.EXAMPLES | report_answers.EXAMPLES
        for name, example in shown.items():
            schemas[name]["examples"] = [example]
        for name in _OURS:
            schemas.pop(name, None)
        whole["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, item in whole["paths"].items():
            for operation in item.values():
                _complete(path, operation)
        app.openapi_schema = whole
    return app.openapi_schema


def _complete(path: str, operation: dict[str, Any]) -> None:
    if path not in _OPEN:
        operation["security"] = [{"token": []}]
    for answer in operation["responses"].values():
        for content in answer.get("content", {}).values():
            if content.get("schema", {}).get("$ref", "").rsplit("/", 1)[-1] in _OURS:
                content["schema"] = {"$ref": _REFERENCE.format(name="Problem")}


def answers(kind: type, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """The good answer of an operation that is one of the types of `node_answers`, for the `responses` of a route."""
    reference = _REFERENCE.format(name=kind.__name__)
    return {status: {"description": "done", "content": {"application/json": {"schema": {"$ref": reference}}}}}


def streams(events: Sequence[str], data: str) -> dict[int | str, dict[str, Any]]:
    """The good answer of an operation that tells events as they come, for the `responses` of a route; `data` is what
    each carries."""
    text = {"type": "string"}
    schema = {
        "description": f"one event; `data` is {data} as JSON",
        "type": "object",
        "properties": {"id": text, "event": {"enum": list(events)}, "data": text},
    }
    return {200: {"content": {"text/event-stream": {"schema": schema}}}}


def shows(example: object, status: int = 200, schema: dict[str, Any] | None = None) -> dict[int | str, dict[str, Any]]:
    """The good answer of an operation with an example of its JSON, for the `responses` of a route."""
    return {status: {"content": {"application/json": {"schema": schema or {"type": "object"}, "example": example}}}}
