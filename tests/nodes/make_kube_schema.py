"""Writes `kube_schema/kubernetes.json` from the models of the official client, which are generated from the published
OpenAPI document of a Kubernetes release: `python -m tests.nodes.make_kube_schema`."""

import inspect
import json
from pathlib import Path
from typing import Any

import kubernetes
import regex
from kubernetes import client

FILE = Path(__file__).with_name("kube_schema") / "kubernetes.json"
KINDS = (client.V1Job, client.V1Node, client.V1DeleteOptions)
APIS = (client.CoreV1Api, client.BatchV1Api)
OPERATIONS = {
    *("list_node", "read_node", "patch_node", "list_namespaced_pod", "read_namespaced_pod_log"),
    *("list_namespaced_event", "create_namespaced_job", "list_namespaced_job", "delete_namespaced_job"),
}
_KEPT = ("type", "properties", "required", "additionalProperties", "items", "$ref", "anyOf", "format", "enum")


def schema() -> dict[str, Any]:
    """The definitions of what is sent, without their descriptions, and the parameters of each operation."""
    definitions: dict[str, Any] = {}
    for kind in KINDS:
        made = kind.model_json_schema(by_alias=True, mode="serialization", ref_template="#/definitions/{model}")
        definitions |= {name: _bare(each) for name, each in made.pop("$defs").items()} | {kind.__name__: _bare(made)}
    found = regex.search(r"OpenAPI document: (\S+)", inspect.getsource(inspect.getmodule(client.V1Job)))
    return {
        "source": f"models of the Python package kubernetes {kubernetes.__version__}, generated from api/openapi-spec "
        f"of kubernetes/kubernetes {found[1]}",
        "definitions": dict(sorted(definitions.items())),
        "operations": dict(sorted(_operation(api, name) for api in APIS for name in OPERATIONS if hasattr(api, name))),
    }


def _bare(node: Any) -> Any:
    """A schema without texts and defaults, and without the null that a model has for what is left out."""
    if "anyOf" in node:
        choices = [_bare(each) for each in node["anyOf"] if each.get("type") != "null"]
        return choices[0] if len(choices) == 1 else {"anyOf": choices}
    bare = {key: value for key, value in node.items() if key in _KEPT}
    for key in ("items", "additionalProperties"):
        if isinstance(bare.get(key), dict):
            bare[key] = _bare(bare[key])
    if "properties" in bare:
        bare["properties"] = {name: _bare(each) for name, each in bare["properties"].items()}
    return bare


def _operation(api: type, name: str) -> tuple[str, list[str]]:
    source = inspect.getsource(getattr(api, f"_{name}_serialize"))
    path = regex.search(r"resource_path='([^']+)'", source)[1]
    method = regex.search(r"method='([A-Z]+)'", source)[1]
    return f"{method} {path}", sorted(regex.findall(r"_query_params\.append\(\('(\w+)'", source))


if __name__ == "__main__":
    FILE.write_text(json.dumps(schema(), indent=1) + "\n")
