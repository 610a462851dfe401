"""From a faulty node to its cordon and back, on real clusters: real launchers, real probes, real all-gathers."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from logdoctor import build
from logdoctor.node_types import Conclusion, Node
from logdoctor.nodes.board import Board, NodeTestTerms
from logdoctor.nodes.conduct import Conducting
from logdoctor.nodes.launch.local import LocalLauncher
from logdoctor.nodes.launching import Launcher, ProbeOptions
from logdoctor.service.acting import Actor
from logdoctor.settings import Settings
from tests.nodes.faults import Fault, ended, faulty_python
from tests.nodes.namespaces import Network, namespaces
from tests.nodes.slurm_cluster import SlurmCluster, slurm_cluster

SIZES = (4096, 1 << 20)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with slurm_cluster(nodes=8) as running:
        yield running


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with namespaces(nodes=6, groups=2) as made:
        yield made


@pytest.fixture
def actor(cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Actor]:
    """An actor of the settings of a site with Slurm, some of whose nodes are faulty."""
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    faults: dict[str, Fault] = {"n2": "probe killed", "n3": "hangs", "n5": "sends wrong", "n7": "blocked", "n8": "slow"}
    settings = Settings(
        data_dir=tmp_path / "data",
        launcher="slurm",
        cordon_with="slurm",
        act_cordon="auto",
        cordon_share=0.6,
        cordon_at_once=4,
        cordon_per_hour=4,
        test_python=faulty_python(tmp_path, faults),
        test_seconds=30,
        test_sizes=",".join(map(str, SIZES)),
    )
    acting = build.actor(settings, taking_up=True)
    acting.start()
    yield acting
    acting.stop()


def test_faulty_nodes_of_five_kinds_are_found_drained_and_brought_back(cluster: SlurmCluster, actor: Actor) -> None:
    test = actor.test([], "u1")
    assert actor.wait(test, 400)
    kept = actor.records.test(test)
    assert kept is not None and kept.conclusion is not None, kept
    told = {finding.node: finding for finding in kept.conclusion.findings}
    words = "\n".join(f"{one.node} {one.standing} {one.fault}: {one.why}" for one in told.values())
    assert kept.conclusion.named("faulty") == ("n2", "n3", "n5", "n7"), words
    assert kept.conclusion.named("slow") == ("n8",), words
    assert kept.conclusion.named("healthy") == ("n1", "n4", "n6"), words
    assert told["n5"].fault == "wrong data" and told["n2"].fault == "killed", words
    assert {node.group for node in kept.nodes} == {"leaf1", "leaf2"}  # the switches that Slurm told

    drained = {state.name for state in actor.nodes() if state.cordoned}
    assert drained == {"n2", "n3", "n5", "n7"}  # a slow node waits for a person
    for name in drained:
        assert cluster.state(name) in ("drain", "drng")
    assert "logdoctor cordon" in cluster.command("sinfo", "-R", "-o", "%N %E")
    waiting = [one for one in actor.records.actions("waiting").items if one.action.kind == "cordon"]
    assert [one.action.nodes for one in waiting] == [("n8",)]

    for name in sorted(drained):
        assert actor.uncordon(name, "u1", "repaired").state == "undone"
    assert not any(state.cordoned for state in actor.nodes())
    cluster.wait_for(lambda: all(cluster.state(name) == "idle" for name in cluster.names), "all are idle again")
    steps = [event.step for event in actor.records.audit(limit=500).items if event.node == "n5"]
    assert [step for step in steps if step in ("wanted", "standing", "undone")] == ["undone", "standing", "wanted"]


def conducted(
    launcher: Launcher, nodes: Sequence[Node], seconds: float, python: str = "python3", witnesses: int = 0
) -> tuple[Conclusion, Board]:
    board = Board(nodes, NodeTestTerms(witnesses=witnesses))
    probe = ProbeOptions(seconds, SIZES, python=python)
    conducting = Conducting("story", launcher, board, probe, lambda _: None)

    async def run() -> Conclusion:
        try:
            return await conducting.run()
        finally:
            await launcher.close()

    return asyncio.run(run()), board


def test_a_node_that_loses_packets_is_found(net: Network) -> None:
    net.loss("n4", 60)
    try:
        found, _ = conducted(net.launcher(), net.nodes, seconds=20.0)
    finally:
        net.heal()
    assert [one.node for one in found.findings if one.standing in ("faulty", "slow")] == ["n4"], found
    assert len(found.named("healthy")) == 5 and not found.links
    assert ended("story")


def test_a_link_between_two_good_nodes_is_found_and_no_node_blamed(net: Network) -> None:
    one, other = net.nodes[0].name, net.nodes[1].name  # neighbours, which the first round pairs
    net.cut_between(one, other)
    try:
        found, _ = conducted(net.launcher(), net.nodes, seconds=20.0)
    finally:
        net.heal()
    assert len(found.named("healthy")) == 6, found
    assert [link.ends for link in found.links] == [(one, other)]


def test_parted_switches_are_a_link_and_no_node(net: Network) -> None:
    net.cut_trunk()
    try:
        found, _ = conducted(net.launcher(), net.nodes, seconds=20.0)
    finally:
        net.heal()
    assert len(found.named("healthy")) == 6, found
    assert [link.between for link in found.links] == ["groups"]


def test_two_rounds_of_eight_local_nodes(tmp_path: Path) -> None:
    begin, launcher = time.monotonic(), LocalLauncher(8)
    nodes = asyncio.run(launcher.inventory([]))
    found, board = conducted(launcher, nodes, 60.0, faulty_python(tmp_path, {"local-3": "sends wrong"}), 2)
    assert found.named("faulty") == ("local-3",) and len(found.named("healthy")) == 7, found
    assert board.round == 2
    print(f"two rounds of 8 local nodes: {time.monotonic() - begin:.1f} s")  # under 60 s on two cores
