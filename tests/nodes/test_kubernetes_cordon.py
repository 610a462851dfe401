"""Cordons of Kubernetes nodes, against a local server that speaks its API."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logdoctor.errors import CordonError, CordonRefused
from logdoctor.nodes.cordon.cordoner import carries, reason_text
from logdoctor.nodes.cordon.kubernetes import REASON, TAINT, KubernetesCordoner
from logdoctor.nodes.kubernetes_api import Cluster
from logdoctor.types.nodes import Mark
from tests.nodes.kube_server import KubeServer, Refusal, running

MARK = Mark("logdoctor", 45, 123, "failed 3 worlds with good partners")
FOREIGN = [
    {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "training", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "training", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"},
]


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeServer]:
    """A cluster of two nodes, one with taints of others."""
    with running(tmp_path, "gpu-1", "gpu-2") as kube:
        kube.nodes["gpu-1"]["spec"]["taints"] = copy.deepcopy(FOREIGN)
        yield kube


@pytest.fixture
def cordoner(kube: KubeServer) -> KubernetesCordoner:
    return KubernetesCordoner(Cluster(kube.kubeconfig(), seconds=20.0))


def taints(kube: KubeServer, node: str = "gpu-1") -> list[dict[str, Any]]:
    """The taints that are not the lifecycle controller's."""
    found = kube.nodes[node]["spec"].get("taints") or []
    return [each for each in found if each["key"] != "node.kubernetes.io/unschedulable"]


def without_version(node: dict[str, Any]) -> dict[str, Any]:
    found = copy.deepcopy(node)
    del found["metadata"]["resourceVersion"]
    return found


def test_a_cordon_and_back_leaves_the_node_as_it_was(kube: KubeServer, cordoner: KubernetesCordoner) -> None:
    before = without_version(kube.nodes["gpu-1"])
    cordoner.cordon("gpu-1", MARK)
    node = kube.nodes["gpu-1"]
    assert node["spec"]["unschedulable"] is True
    assert taints(kube) == [*FOREIGN, {"key": TAINT, "value": "45", "effect": "NoSchedule"}]
    assert {key: value for key, value in node["metadata"]["annotations"].items() if "logdoctor" in key} == {
        "logdoctor/owner": "logdoctor",
        "logdoctor/cordon": "45",
        "logdoctor/verdict": "123",
        "logdoctor/reason": "logdoctor cordon 45 verdict 123: failed 3 worlds with good partners",
    }
    state = cordoner.node("gpu-1")
    assert state is not None
    assert (state.cordoned, state.mark, state.raw) == (True, MARK, "Ready,SchedulingDisabled")
    assert carries(state, MARK)
    cordoner.uncordon("gpu-1", MARK)
    assert without_version(kube.nodes["gpu-1"]) == before


def test_a_node_without_taints_gets_its_empty_list_back(kube: KubeServer, cordoner: KubernetesCordoner) -> None:
    before = without_version(kube.nodes["gpu-2"])
    cordoner.cordon("gpu-2", MARK)
    cordoner.uncordon("gpu-2", MARK)
    assert without_version(kube.nodes["gpu-2"]) == before


def test_the_same_cordon_twice_changes_nothing(kube: KubeServer, cordoner: KubernetesCordoner) -> None:
    cordoner.cordon("gpu-1", MARK)
    before = copy.deepcopy(kube.nodes["gpu-1"])
    cordoner.cordon("gpu-1", MARK)
    assert kube.nodes["gpu-1"] == before


@pytest.mark.parametrize("verdict", [None, 0, 7])
def test_a_mark_comes_back_as_it_went(kube: KubeServer, cordoner: KubernetesCordoner, verdict: int | None) -> None:
    mark = Mark("logdoctor", 45, verdict, "why")
    cordoner.cordon("gpu-1", mark)
    found = cordoner.node("gpu-1")
    assert found is not None
    assert found.mark == mark
    cordoner.uncordon("gpu-1", mark)


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node["spec"].update(unschedulable=True),
        lambda node: node["spec"].update(taints=[{"key": TAINT, "value": "45", "effect": "NoSchedule"}]),
        lambda node: (
            node["spec"].update(unschedulable=True),
            node["metadata"]["annotations"].update({REASON: reason_text(MARK)}),
        ),
    ],
    ids=["kubectl cordon", "our taint without a mark", "a mark that is not whole"],
)
def test_a_node_that_others_cordoned_is_left_alone(kube: KubeServer, cordoner: KubernetesCordoner, change: Any) -> None:
    change(kube.nodes["gpu-1"])
    before = copy.deepcopy(kube.nodes["gpu-1"])
    with pytest.raises(CordonRefused, match="others cordoned it"):
        cordoner.cordon("gpu-1", MARK)
    with pytest.raises(CordonRefused, match="others cordoned it"):
        cordoner.uncordon("gpu-1", MARK)
    assert kube.nodes["gpu-1"] == before
    assert [state.mark for state in cordoner.nodes()] == [None, None]


@pytest.mark.parametrize(
    "other",
    [
        Mark("logdoctor", 46, 123, MARK.reason),
        Mark("logdoctor-b", 45, 123, MARK.reason),
        Mark("logdoctor", 45, None, MARK.reason),
        Mark("logdoctor", 45, 123, "else"),
    ],
)
def test_another_mark_is_left_alone(kube: KubeServer, cordoner: KubernetesCordoner, other: Mark) -> None:
    cordoner.cordon("gpu-1", other)
    before = copy.deepcopy(kube.nodes["gpu-1"])
    for act in (cordoner.cordon, cordoner.uncordon):
        with pytest.raises(CordonRefused, match="has another cordon"):
            act("gpu-1", MARK)
    assert kube.nodes["gpu-1"] == before


def test_what_was_never_cordoned_is_not_uncordoned(kube: KubeServer, cordoner: KubernetesCordoner) -> None:
    with pytest.raises(CordonRefused, match="no cordon"):
        cordoner.uncordon("gpu-1", MARK)
    assert not [seen for seen in kube.seen if seen.method == "PATCH"]


def test_our_taint_holds_when_a_person_uncordons_with_kubectl(kube: KubeServer, cordoner: KubernetesCordoner) -> None:
    cordoner.cordon("gpu-1", MARK)
    del kube.nodes["gpu-1"]["spec"]["unschedulable"]
    state = cordoner.node("gpu-1")
    assert carries(state, MARK)
    cordoner.uncordon("gpu-1", MARK)
    assert taints(kube) == FOREIGN


def test_taints_that_others_set_meanwhile_stay(kube: KubeServer, cordoner: KubernetesCordoner) -> None:
    cordoner.cordon("gpu-1", MARK)
    added = {"key": "example.com/maintenance", "effect": "NoExecute"}
    kube.nodes["gpu-1"]["spec"]["taints"].insert(0, dict(added))
    kube.nodes["gpu-1"]["metadata"]["annotations"]["example.com/by"] = "ops"
    cordoner.uncordon("gpu-1", MARK)
    assert taints(kube) == [added, *FOREIGN]
    assert kube.nodes["gpu-1"]["metadata"]["annotations"]["example.com/by"] == "ops"


def test_a_change_in_between_is_looked_at_again(kube: KubeServer, cordoner: KubernetesCordoner) -> None:
    added = {"key": "example.com/late", "effect": "NoSchedule"}

    def change(node: dict[str, Any]) -> None:
        node["spec"]["taints"].append(dict(added))
        node["metadata"]["resourceVersion"] = kube.version()
        kube.before_patch = lambda node: None

    kube.before_patch = change
    cordoner.cordon("gpu-1", MARK)
    assert added in taints(kube)
    assert carries(cordoner.node("gpu-1"), MARK)
    cordoner.uncordon("gpu-1", MARK)
    assert taints(kube) == [*FOREIGN, added]


def test_a_cordon_of_others_in_between_is_seen(kube: KubeServer, cordoner: KubernetesCordoner) -> None:
    def change(node: dict[str, Any]) -> None:
        node["spec"]["unschedulable"] = True
        node["metadata"]["resourceVersion"] = kube.version()

    kube.before_patch = change
    with pytest.raises(CordonRefused, match="others cordoned it"):
        cordoner.cordon("gpu-1", MARK)
    assert taints(kube) == FOREIGN


def test_a_node_that_never_rests_is_given_up(kube: KubeServer, cordoner: KubernetesCordoner) -> None:
    def change(node: dict[str, Any]) -> None:
        node["metadata"]["resourceVersion"] = kube.version()

    kube.before_patch = change
    with pytest.raises(CordonError, match="others keep changing it"):
        cordoner.cordon("gpu-1", MARK)
    assert len([seen for seen in kube.seen if seen.method == "PATCH"]) == 5


def test_a_change_that_the_cluster_swallows_is_told(kube: KubeServer, cordoner: KubernetesCordoner) -> None:
    kube.swallows_patches = True
    with pytest.raises(CordonError, match="accepted the change but did not apply it"):
        cordoner.cordon("gpu-1", MARK)


@pytest.mark.parametrize(
    "reason",
    [
        "line\nbreak\0and \x1b[31mred\x1b[0m",
        '"}},"spec":{"taints":null}} ',
        "x" * 300_000,
        "Grüße \u202e evil \ud800",
        "",
        "a cordon 1: b",
    ],
)
def test_a_hostile_reason_stays_text(kube: KubeServer, cordoner: KubernetesCordoner, reason: str) -> None:
    mark = Mark("logdoctor", 45, None, reason)
    cordoner.cordon("gpu-1", mark)
    text = kube.nodes["gpu-1"]["metadata"]["annotations"][REASON]
    assert text.isprintable()
    assert text.isascii()
    assert len(text) <= 200
    assert carries(cordoner.node("gpu-1"), mark)
    cordoner.uncordon("gpu-1", mark)
    assert taints(kube) == FOREIGN


def test_hostile_annotations_of_a_node_are_shown_as_harmless_text(
    kube: KubeServer, cordoner: KubernetesCordoner
) -> None:
    kube.nodes["gpu-1"]["metadata"]["annotations"] |= {REASON: "\x1b[2J" + "y" * 10_000, "logdoctor/cordon": "x"}
    state = cordoner.node("gpu-1")
    assert state is not None
    assert state.mark is None
    assert state.reason.isprintable()
    assert len(state.reason) < 400


@pytest.mark.parametrize("name", ["none", "", "..", ".", "a/b", "gpu-1/status", "gpu-1?x=y", "x" * 300, "-n"])
def test_a_name_that_no_node_has(kube: KubeServer, cordoner: KubernetesCordoner, name: str) -> None:
    assert cordoner.node(name) is None
    for act in (cordoner.cordon, cordoner.uncordon):
        with pytest.raises(CordonError, match="no such node"):
            act(name, MARK)


def test_the_fleet_and_a_part_of_it(kube: KubeServer, cordoner: KubernetesCordoner) -> None:
    kube.add_node("cpu-1", role="other")
    kube.not_ready("gpu-2")
    cordoner.cordon("gpu-1", MARK)
    found = {state.name: (state.cordoned, state.raw) for state in cordoner.nodes()}
    assert found == {
        "gpu-1": (True, "Ready,SchedulingDisabled"),
        "gpu-2": (False, "NotReady (unknown)"),
        "cpu-1": (False, "Ready"),
    }
    some = KubernetesCordoner(Cluster(kube.kubeconfig()), selector="role=other")
    assert [state.name for state in some.nodes()] == ["cpu-1"]


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (Refusal("PATCH", "/nodes/", 500, "etcd is away"), "etcd is away"),
        (Refusal("PATCH", "/nodes/", 403, "denied by policy"), "denied by policy"),
        (Refusal("GET", "/nodes/", 503, "not now"), "not now"),
    ],
)
def test_what_the_cluster_refuses_is_an_error_of_the_cordon(
    kube: KubeServer, cordoner: KubernetesCordoner, refusal: Refusal, words: str
) -> None:
    kube.refusals = [refusal]
    before = copy.deepcopy(kube.nodes["gpu-1"])
    with pytest.raises(CordonError, match=words) as caught:
        cordoner.cordon("gpu-1", MARK)
    assert not isinstance(caught.value, CordonRefused)
    assert kube.nodes["gpu-1"] == before


@pytest.mark.parametrize(("verb", "what"), [("get", "node"), ("patch", "cordon"), ("list", "nodes")])
def test_a_right_that_is_missing_is_named(kube: KubeServer, cordoner: KubernetesCordoner, verb: str, what: str) -> None:
    for rule in kube.rules:
        rule["verbs"] = [each for each in rule["verbs"] if each != verb]
    calls = {"node": lambda: cordoner.node("gpu-1"), "nodes": cordoner.nodes}
    calls["cordon"] = lambda: cordoner.cordon("gpu-1", MARK)
    with pytest.raises(CordonError, match=rf'cannot {verb} resource "nodes".*docs/nodes\.md'):
        calls[what]()


def test_a_cluster_that_is_down(kube: KubeServer, cordoner: KubernetesCordoner) -> None:
    kube.stop()
    for ask in (cordoner.nodes, lambda: cordoner.node("gpu-1"), lambda: cordoner.cordon("gpu-1", MARK)):
        with pytest.raises(CordonError, match="cannot be reached"):
            ask()


def test_a_misspelt_field_of_a_patch_would_fail(kube: KubeServer) -> None:
    from logdoctor.nodes.kubernetes_api import ClusterError

    with pytest.raises(ClusterError, match="'unschedulabel' was unexpected"):
        Cluster(kube.kubeconfig()).patch_node("gpu-1", {"spec": {"unschedulabel": True}})
    assert kube.wrong
    kube.wrong.clear()
