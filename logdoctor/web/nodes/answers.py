"""Answers about nodes, as in the OpenAPI document: types, each with an example."""

import msgspec

from logdoctor.store.keeping.audit import AuditEvent, AuditPage
from logdoctor.store.nodes.actions import ActionPage, StoredAction
from logdoctor.store.nodes.history import NodeSummary
from logdoctor.store.nodes.tests import StoredTest, TestPage
from logdoctor.types.nodes import (
    Action,
    Conclusion,
    Finding,
    Node,
    NodeHistory,
    NodeState,
    PastCordon,
    PastFailure,
    PastFinding,
    Reading,
    Result,
    World,
)


class NodeList(msgspec.Struct, frozen=True):
    """Nodes on record, repeat offenders first. `cluster` has the states of nodes in the cluster, empty unless
    requested; `next` is the cursor of the next page."""

    items: list[NodeSummary]
    cluster: list[NodeState] = []
    next: str | None = None


class NodeTest(msgspec.Struct, frozen=True):
    """A test of nodes with all its ended worlds, in the order of their ends."""

    test: StoredTest
    worlds: list[Result]


class ApprovedAction(StoredAction, frozen=True, kw_only=True):
    """An approved action; `test` is the id of the test that it started, if any."""

    test: int | None = None


_AT = 1795255505.2
_WHY = "gather fails: failed with gpu-11, gpu-14, which work with others, and passed with nobody"
_READING = Reading("gpu-12", False, "gather", "wrong data: 3 values", "torch/nccl", 8, "NVIDIA H100", boot="8c1f")
_WORLDS = [
    Result(World(1, 1, ("gpu-11", "gpu-12"), "first round"), "failed", "gpu-12: wrong data: 3 values", (), (_READING,)),
    Result(World(2, 1, ("gpu-13", "gpu-14"), "first round"), "passed", seconds=9.2),
]
_FINDINGS = (
    Finding("gpu-12", "faulty", _WHY, (1, 4), ("gpu-11", "gpu-14"), "wrong data"),
    Finding("gpu-11", "healthy", "passed with gpu-13", (3,), ("gpu-13",)),
)
_TEST = StoredTest(
    id=12,
    at=_AT,
    by="ops",
    launcher="slurm",
    verdict=7,
    state="finished",
    ended=_AT + 40,
    why="",
    nodes=tuple(Node(f"gpu-{number}", f"10.0.0.{number}", "leaf-1") for number in (11, 12, 13, 14)),
    options={"repeats": 1},
    conclusion=Conclusion(_FINDINGS, (), 2),
)
_FAILURE = PastFailure(7, "llama-7b", 1, _AT, "ECC Error")
_FINDING = PastFinding(12, _AT, "faulty", "wrong data", _WHY, "8c1f")
_CORDON = PastCordon(4, "gpu-12", "slurm", "standing", "ops", _AT, "gather fails", 7, 12, _AT)
_SUMMARY = NodeSummary("gpu-12", 3, _FAILURE, 1, _FINDING, _CORDON, 2, 1, None)
_ACTION = StoredAction(
    id=3,
    at=_AT,
    action=Action("cordon", ("gpu-12",), "ask", "test 12 found gpu-12 faulty", 7, 12),
    job="llama-7b",
    attempt=1,
    state="waiting",
    by="",
    why="",
    changed=_AT,
)
_APPROVED = ApprovedAction(**msgspec.structs.asdict(_ACTION) | {"state": "done", "by": "ops", "why": "so it is"})
_AUDIT = AuditEvent(id=40, at=_AT, by="ops", what="cordon", subject=4, node="gpu-12", step="standing", why="")
EXAMPLES = (
    NodeList([_SUMMARY], [NodeState("gpu-12", True, None, "cable", "IDLE+DRAIN")]),
    NodeHistory("gpu-12", (_FAILURE,), (_FINDING,), (_CORDON,)),
    NodeTest(_TEST, _WORLDS),
    TestPage([_TEST], None),
    ActionPage([_ACTION], None),
    AuditPage([_AUDIT], None),
    _TEST,
    _ACTION,
    _APPROVED,
    _CORDON,
)
"""One of each answer."""
