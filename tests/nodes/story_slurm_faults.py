"""From a faulty node to its cordon and back, on a real Slurm cluster: real probes, real all-gathers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from logdoctor.service.acting import Actor
from logdoctor.settings import Settings
from logdoctor.wiring import nodes
from tests.nodes.faults import Fault, faulty_python
from tests.nodes.slurm_cluster import SlurmCluster, slurm_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with slurm_cluster(nodes=8) as running:
        yield running


@pytest.fixture
def actor(cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Actor]:
    """An actor of the settings of a site with Slurm, some of whose nodes are faulty."""
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr("logdoctor.nodes.slurm._COMMAND_SECONDS", 300.0)
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
        test_sizes="4096,1048576",
    )
    acting = nodes.actor(settings, taking_up=True)
    acting.start()
    yield acting
    acting.stop()


def test_faulty_nodes_of_five_kinds_are_found_drained_and_brought_back(cluster: SlurmCluster, actor: Actor) -> None:
    test = actor.test([], "u1")
    assert actor.wait(test, 3600)
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
