"""Cordons of Kubernetes nodes: unschedulable, a taint, and annotations with the mark.

`spec.unschedulable` is what `kubectl cordon` sets, so that all tools understand it. The taint `logdoctor/cordon` stays
when a person uncordons with kubectl, unaware of whose cordon it was. A patch carries the resource version it was made
for: a node that changed meanwhile is read again.
"""

from collections.abc import Callable, Mapping
from typing import Any

from logdoctor.errors import CordonError, CordonRefused
from logdoctor.nodes.cordon.cordoner import carries, mark_of, reason_text
from logdoctor.nodes.kubernetes_api import Cluster, ClusterError, KubeNode
from logdoctor.text import harmless
from logdoctor.types.nodes import Mark, NodeState

TAINT = "logdoctor/cordon"
REASON = "logdoctor/reason"
"""The annotation with the whole mark; the others hold parts of it, for selecting by them."""

_ANNOTATIONS = ("logdoctor/owner", "logdoctor/cordon", "logdoctor/verdict", REASON)
_TRIES = 5
_WIDTH = 300


class KubernetesCordoner:
    """Cordons nodes of a Kubernetes cluster. `selector` is the label selector of the nodes that make the fleet."""

    how = "kubernetes"

    def __init__(self, cluster: Cluster, selector: str = "") -> None:
        self._cluster = cluster
        self._selector = selector

    def nodes(self) -> list[NodeState]:
        """Return the whole fleet."""
        try:
            return [state_of(node) for node in self._cluster.nodes(self._selector)]
        except ClusterError as error:
            raise _cordon_error(error) from error

    def node(self, name: str) -> NodeState | None:
        """Return one node's current state; None when the cluster does not know it."""
        found = self._read(name)
        return None if found is None else state_of(found)

    def cordon(self, name: str, mark: Mark) -> None:
        """Make the node unschedulable and write the mark on it; do nothing if it carries the mark already.

        `CordonRefused` for a node cordoned by others.
        """
        for _ in range(_TRIES):
            node = self._known(name)
            state = state_of(node)
            if carries(state, mark):
                return
            if state.cordoned:
                raise _of_others(state)
            if self._patched(node, cordoned(node, mark), lambda after: carries(after, mark)):
                return
        raise _restless(name)

    def uncordon(self, name: str, mark: Mark) -> None:
        """Remove the cordon and the mark from the node, and nothing else; `CordonRefused` unless it carries the
        mark."""
        for _ in range(_TRIES):
            node = self._known(name)
            state = state_of(node)
            if not carries(state, mark):
                raise _of_others(state)
            if self._patched(node, uncordoned(node), lambda after: not after.cordoned and after.mark is None):
                return
        raise _restless(name)

    def _known(self, name: str) -> KubeNode:
        node = self._read(name)
        if node is None:
            step = "See `kubectl get nodes` for the names."
            raise CordonError(f"node {name[:80]!r}", "the cluster has no such node", step)
        return node

    def _read(self, name: str) -> KubeNode | None:
        try:
            return self._cluster.node(name)
        except ClusterError as error:
            raise _cordon_error(error) from error

    def _patched(self, node: KubeNode, patch: Mapping[str, Any], wanted: Callable[[NodeState], bool]) -> bool:
        """Return whether the patch was applied; False when the node has changed since it was read."""
        name = node.metadata.name
        try:
            after = state_of(self._cluster.patch_node(name, patch))
        except ClusterError as error:
            if error.status == 409:
                return False
            raise _cordon_error(error) from error
        if not wanted(after):
            cause = "the cluster accepted the change but did not apply it"
            raise CordonError(f"node {name}", cause, "Look for an admission webhook that changes nodes.")
        return True


def state_of(node: KubeNode) -> NodeState:
    """Return a node's state; the mark is set only if taint and annotations agree."""
    annotations = node.metadata.annotations or {}
    taints = [each for each in node.spec.taints or () if each.get("key") == TAINT]
    mark = mark_of(annotations.get(REASON, ""))
    if mark is not None and (
        {key: annotations.get(key) for key in _ANNOTATIONS} != _annotations(mark)
        or any(each.get("value") != str(mark.cordon) for each in taints)
    ):
        mark = None
    ready = next((each.status for each in node.status.conditions or () if each.type == "Ready"), "Unknown")
    words = {"True": "Ready", "False": "NotReady"}.get(ready, "NotReady (unknown)")
    return NodeState(
        node.metadata.name,
        cordoned=bool(node.spec.unschedulable or taints),
        mark=mark,
        reason=harmless(annotations.get(REASON, ""), _WIDTH),
        raw=f"{words},SchedulingDisabled" if node.spec.unschedulable else words,
    )


def cordoned(node: KubeNode, mark: Mark) -> dict[str, Any]:
    """Return the merge patch that cordons a node. It repeats others' taints unchanged, because a merge replaces the
    whole list."""
    taint = {"key": TAINT, "value": str(mark.cordon), "effect": "NoSchedule"}
    return {
        "metadata": {"resourceVersion": node.metadata.resource_version, "annotations": _annotations(mark)},
        "spec": {"unschedulable": True, "taints": [*_others(node), taint]},
    }


def uncordoned(node: KubeNode) -> dict[str, Any]:
    """Return the merge patch that removes our cordon from a node."""
    return {
        "metadata": {
            "resourceVersion": node.metadata.resource_version,
            "annotations": dict.fromkeys(_ANNOTATIONS),  # null removes an annotation
        },
        "spec": {"unschedulable": None, "taints": _others(node) or None},
    }


def _annotations(mark: Mark) -> dict[str, str | None]:
    verdict = None if mark.verdict is None else str(mark.verdict)
    return dict(zip(_ANNOTATIONS, (mark.owner, str(mark.cordon), verdict, reason_text(mark)), strict=True))


def _others(node: KubeNode) -> list[dict[str, Any]]:
    return [each for each in node.spec.taints or () if each.get("key") != TAINT]


def _of_others(state: NodeState) -> CordonRefused:
    if state.mark is not None:
        cause = f"it has another cordon ({reason_text(state.mark)})"
    elif state.cordoned:
        cause = f"others cordoned it ({state.reason or 'no reason is written on it'})"
    else:
        cause = "it has no cordon"
    return CordonRefused(f"node {state.name}", cause, "See `kubectl describe node`; nothing was changed.")


def _restless(name: str) -> CordonError:
    return CordonError(f"node {name}", "others keep changing it", "Try again later.")


def _cordon_error(error: ClusterError) -> CordonError:
    return CordonError(error.thing, error.cause, error.next_step)
