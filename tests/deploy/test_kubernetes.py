"""The objects for Kubernetes, as the published API has them, and what an operator of a cluster would look for."""

from typing import Any

import kubernetes.client
import pydantic
import pytest
import yaml

from tests.deploy.files import ROOT, image_environment, objects

OBJECTS = [pytest.param(one, id=f"{path.name}-{one['kind']}-{one['metadata']['name']}") for path, one in objects()]
PODS = [
    pytest.param(one["spec"]["template"]["spec"], id=one["metadata"]["name"])
    for _, one in objects()
    if one["kind"] == "Deployment"
]
_FREE = ("data", "stringData", "labels", "annotations", "matchLabels")  # their keys are the operator's


def checked(one: dict[str, Any]) -> Any:
    """The object in the model of its kind; an error for a field that the kind does not have."""
    assert not [key for key in _keys(one) if "_" in key], "the model would take such names, Kubernetes does not"
    model = getattr(kubernetes.client, one["apiVersion"].rpartition("/")[2].capitalize() + one["kind"])
    return model.model_validate(one)


def _keys(node: Any) -> list[str]:
    if isinstance(node, list):
        return [key for each in node for key in _keys(each)]
    if not isinstance(node, dict):
        return []
    return [*node, *(key for name, each in node.items() if name not in _FREE for key in _keys(each))]


@pytest.mark.parametrize("one", OBJECTS)
def test_it_is_what_kubernetes_takes(one: dict[str, Any]) -> None:
    checked(one)
    with pytest.raises(pydantic.ValidationError):
        checked(one | {"specs": {}})


@pytest.mark.parametrize("wrong", [{"run_as_user": 1}, {"readonlyRootFilesystem": True}])
def test_a_wrong_field_deep_inside_is_found(wrong: dict[str, Any]) -> None:
    web = next(one for _, one in objects() if one["kind"] == "Deployment")
    web["spec"]["template"]["spec"]["containers"][0]["securityContext"] |= wrong
    with pytest.raises((pydantic.ValidationError, AssertionError)):
        checked(web)


@pytest.mark.parametrize("pod", PODS)
def test_a_pod_may_do_little(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"memory"} <= container["resources"]["limits"].keys()
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


@pytest.mark.parametrize("pod", PODS)
def test_variables_that_kubernetes_makes_of_services_are_no_settings(pod: dict[str, Any]) -> None:
    """A Service `logdoctor` would set LOGDOCTOR_PORT=tcp://..., which no process would start with."""
    assert pod["enableServiceLinks"] is False


@pytest.mark.parametrize("pod", PODS)
def test_a_pod_has_time_to_stop_and_probes(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] >= 60 + 20 + 5
    assert {"startupProbe", "livenessProbe"} <= container.keys()
    is_web = "--role" in container["args"]
    assert ("readinessProbe" in container) == is_web
    if is_web:
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    else:
        assert "/var/lib/logdoctor/alive" in container["livenessProbe"]["exec"]["command"][-1]


@pytest.mark.parametrize("pod", PODS)
def test_a_pod_writes_where_the_image_expects(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    mounted = {volume["mountPath"] for volume in container["volumeMounts"]}
    assert {image_environment()["LOGDOCTOR_DATA_DIR"], "/tmp"} <= mounted
    assert {volume["name"] for volume in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_names_that_objects_use_of_each_other_exist() -> None:
    found = {(one["kind"], one["metadata"]["name"]) for _, one in objects()}
    labels = [one["spec"]["template"]["metadata"]["labels"] for _, one in objects() if one["kind"] == "Deployment"]
    for path, one in objects():
        spec = one.get("spec", {})
        for source in spec.get("template", {}).get("spec", {}).get("containers", [{}])[0].get("envFrom", []):
            kind, name = ("ConfigMap", "configMapRef") if "configMapRef" in source else ("Secret", "secretRef")
            assert (kind, source[name]["name"]) in found
        if one["kind"] in ("PodDisruptionBudget", "NetworkPolicy"):
            wanted = spec.get("selector", spec.get("podSelector")).get("matchLabels", {})
            assert any(wanted.items() <= each.items() for each in labels), (path, one["metadata"])
        if one["kind"].endswith("Binding"):
            assert (one["roleRef"]["kind"], one["roleRef"]["name"]) in found
            assert all((who["kind"], who["name"]) in found for who in one["subjects"])
        namespace = one["metadata"].get("namespace", "")
        assert not namespace or ("Namespace", namespace) in found


def test_only_who_chose_cordons_gives_rights() -> None:
    for path, one in objects():
        if path.name == "cordons.yaml":
            continue
        assert "Role" not in one["kind"]
        assert one["kind"] != "ServiceAccount" or one["automountServiceAccountToken"] is False
    rules = [rule for _, one in objects() if one["kind"].endswith("Role") for rule in one["rules"]]
    assert {"*"}.isdisjoint(word for rule in rules for words in rule.values() for word in words)
    assert {"secrets", "pods/exec"}.isdisjoint(name for rule in rules for name in rule["resources"])


def test_rights_are_those_of_the_documentation() -> None:
    block = (ROOT / "docs" / "nodes.md").read_text().split("```yaml\n")[1].split("```")[0]
    documented = [rule for one in yaml.safe_load_all(block) for rule in one.get("rules", [])]
    assert len(documented) == 5
    assert [rule for _, one in objects() if one["kind"].endswith("Role") for rule in one["rules"]] == documented
