"""The cordoner of Slurm against a real Slurm: drained by `scontrol`, shown by `sinfo`, undone."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from logdoctor.errors import CordonError, CordonRefused, InputError
from logdoctor.nodes.cordon.cordoner import carries, reason_text
from logdoctor.nodes.cordon.slurm import SlurmCordoner
from logdoctor.types.nodes import Mark
from tests.nodes.slurm_cluster import SlurmCluster, slurm_cluster

MARK = Mark("logdoctor", 45, 123, "wrong data in the gather")


@pytest.fixture(scope="module")
def shared() -> Iterator[SlurmCluster]:
    with slurm_cluster(nodes=4) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    monkeypatch.setattr("logdoctor.nodes.slurm._COMMAND_SECONDS", 300.0)
    shared.reset(heard=False)
    return shared


def _scontrol(cluster: SlurmCluster, node: str, *changes: str) -> None:
    cluster.command("scontrol", "update", f"NodeName={node}", *changes)


class TestCordon:
    def test_drains_the_node_with_the_mark_as_reason(self, cluster: SlurmCluster) -> None:
        cordoner = cluster.cordoner()
        cordoner.cordon("n2", MARK)
        shown = cluster.command("sinfo", "--noheader", "-N", "--partition=all", "--format=%N %t %E").splitlines()
        assert "n2 drain logdoctor cordon 45 verdict 123: wrong data in the gather" in [line.strip() for line in shown]
        assert [line.split()[1].rstrip("*") for line in shown] == ["idle", "drain", "idle", "idle"]
        state = cordoner.node("n2")
        assert state and state.cordoned and state.mark == MARK and carries(state, MARK)

    def test_no_job_is_started_there(self, cluster: SlurmCluster) -> None:
        cluster.cordoner().cordon("n2", MARK)
        assert "drained" in cluster.command("srun", "--immediate=1", "-N1", "-wn2", "hostname", ok=False)

    def test_jobs_on_the_node_go_on(self, cluster: SlurmCluster) -> None:
        with cluster.allocation("n1") as number:
            cluster.cordoner().cordon("n1", MARK)
            assert cluster.state("n1") == "drng"
            assert cluster.command("srun", f"--jobid={number}", "-N1", "hostname")
        cluster.wait_for(lambda: cluster.state("n1") == "drain", "it is drained")

    def test_twice_is_once(self, cluster: SlurmCluster) -> None:
        cordoner = cluster.cordoner()
        cordoner.cordon("n2", MARK)
        before = cordoner.node("n2")
        cordoner.cordon("n2", MARK)
        after = cordoner.node("n2")  # whose daemon may answer only now, which the raw state tells
        assert (after.cordoned, after.mark, after.reason) == (before.cordoned, before.mark, before.reason)

    def test_refuses_nodes_that_others_drained(self, cluster: SlurmCluster) -> None:
        _scontrol(cluster, "n3", "State=DRAIN", "Reason=bad DIMM, ticket 4711")
        with pytest.raises(CordonRefused, match="drained by others: IDLE\\+DRAIN, bad DIMM, ticket 4711"):
            cluster.cordoner().cordon("n3", MARK)
        state = cluster.cordoner().node("n3")
        assert state and state.cordoned and state.mark is None and state.reason == "bad DIMM, ticket 4711"

    @pytest.mark.parametrize("other", [Mark("logdoctor", 46, 123, MARK.reason), Mark("other", 45, 123, MARK.reason)])
    def test_refuses_nodes_under_another_mark(self, cluster: SlurmCluster, other: Mark) -> None:
        cluster.cordoner().cordon("n3", other)
        with pytest.raises(CordonRefused, match="was drained by others"):
            cluster.cordoner().cordon("n3", MARK)

    def test_refuses_nodes_that_a_person_set_down(self, cluster: SlurmCluster) -> None:
        _scontrol(cluster, "n3", "State=DOWN", "Reason=moved to another rack")
        with pytest.raises(CordonRefused, match="moved to another rack"):
            cluster.cordoner().cordon("n3", MARK)
        assert cluster.state("n3") == "down"

    def test_unknown_node(self, cluster: SlurmCluster) -> None:
        assert cluster.cordoner().node("n77") is None
        with pytest.raises(CordonError, match="node n77 is unknown to Slurm"):
            cluster.cordoner().cordon("n77", MARK)

    @pytest.mark.parametrize("name", ["n[1-4]", "ALL n1", "n1,n2", "--all", "n1 State=DOWN", "n1\nState=DOWN", ""])
    def test_names_are_checked_before_they_reach_a_command(self, cluster: SlurmCluster, name: str) -> None:
        for attempt in (cluster.cordoner().cordon, cluster.cordoner().uncordon):
            with pytest.raises(InputError, match="not a valid node name"):
                attempt(name, MARK)
        assert {cluster.state(node) for node in cluster.names} == {"idle"}

    def test_all_is_the_name_of_no_node(self, cluster: SlurmCluster) -> None:
        """To scontrol it means every node."""
        for name in ("ALL", "all"):
            with pytest.raises(CordonError, match="is unknown"):
                cluster.cordoner().cordon(name, MARK)
        assert {cluster.state(node) for node in cluster.names} == {"idle"}

    @pytest.mark.parametrize(
        "reason",
        [
            "Xid 79 on 'gpu-12', \"fell off\" the bus",
            "a\nReason=b\n\nNodeName=n1\n   State=DOWN",
            "Ünicode \N{SNOWMAN} \u202e turned",
            "x" * 5000,
            " State=RESUME # $(reboot) `reboot` \\ % = ; [root@2026-01-01T00:00:00]",
            "",
        ],
    )
    def test_hostile_reasons_make_the_round_trip(self, cluster: SlurmCluster, reason: str) -> None:
        cordoner, mark = cluster.cordoner(), Mark("logdoctor", 7, None, reason)
        cordoner.cordon("n1", mark)
        state = cordoner.node("n1")
        assert state and state.reason == reason_text(mark) and carries(state, mark)
        assert [cluster.state(node) for node in cluster.names] == ["drain", "idle", "idle", "idle"]
        cordoner.uncordon("n1", mark)
        assert not cordoner.node("n1").cordoned  # type: ignore[union-attr]


class TestUncordon:
    def test_gives_the_node_back_to_jobs(self, cluster: SlurmCluster) -> None:
        cordoner = cluster.cordoner()
        cordoner.cordon("n2", MARK)
        cordoner.uncordon("n2", MARK)
        state = cordoner.node("n2")
        assert state and not state.cordoned and state.reason == "" and state.mark is None
        cluster.wait_for(lambda: cluster.state("n2") == "idle", "Slurm hears from it again")
        assert cluster.command("srun", "--immediate=300", "-N1", "-wn2", "hostname")

    @pytest.mark.parametrize("text", ["bad DIMM", reason_text(MARK) + " and bad DIMM", "logdoctor cordon 4: other"])
    def test_refuses_what_others_did(self, cluster: SlurmCluster, text: str) -> None:
        _scontrol(cluster, "n2", "State=DRAIN", f"Reason={text}")
        with pytest.raises(CordonRefused, match="does not have cordon 45 of logdoctor"):
            cluster.cordoner().uncordon("n2", MARK)
        assert cluster.state("n2") == "drain"

    def test_refuses_when_others_took_it_over(self, cluster: SlurmCluster) -> None:
        cluster.cordoner().cordon("n2", MARK)
        _scontrol(cluster, "n2", "Reason=ticket 4711, do not touch")
        with pytest.raises(CordonRefused, match="ticket 4711"):
            cluster.cordoner().uncordon("n2", MARK)

    def test_refuses_what_is_not_cordoned(self, cluster: SlurmCluster) -> None:
        with pytest.raises(CordonRefused, match="does not have"):
            cluster.cordoner().uncordon("n2", MARK)
        _scontrol(cluster, "n2", f"Reason={reason_text(MARK)}")
        with pytest.raises(CordonRefused, match="does not have"):
            cluster.cordoner().uncordon("n2", MARK)

    def test_what_was_down_stays_down(self, cluster: SlurmCluster) -> None:
        """And the mark does not stay on it as the reason; it may be cordoned again."""
        _scontrol(cluster, "n4", "State=DOWN", "Reason=Not responding")
        cordoner = cluster.cordoner()
        assert not cordoner.node("n4").cordoned  # type: ignore[union-attr]
        cordoner.cordon("n4", MARK)
        assert cordoner.node("n4").raw.startswith("DOWN+DRAIN")  # type: ignore[union-attr]
        cordoner.uncordon("n4", MARK)
        after = cordoner.node("n4")
        assert after and "DOWN" in after.raw and not after.cordoned and after.mark is None
        assert after.reason == f"down, undone: {reason_text(MARK)}"
        assert cluster.state("n4").startswith("down")
        cordoner.cordon("n4", Mark("logdoctor", 46, None, "again"))

    def test_a_cordoned_node_that_goes_down_stays_ours(self, cluster: SlurmCluster) -> None:
        cordoner = cluster.cordoner()
        cordoner.cordon("n4", MARK)
        _scontrol(cluster, "n4", "State=DOWN", f"Reason={reason_text(MARK)}")  # as Slurm does, it keeps the reason
        assert carries(cordoner.node("n4"), MARK)
        cordoner.uncordon("n4", MARK)
        assert cluster.state("n4").startswith("down")


class TestTheFleet:
    def test_all_nodes(self, cluster: SlurmCluster) -> None:
        cordoner = cluster.cordoner()
        cordoner.cordon("n1", MARK)
        _scontrol(cluster, "n2", "State=DRAIN", "Reason=a\n\nNodeName=n3 X\n   State=IDLE+DRAIN\nNodeName=n9")
        states = cordoner.nodes()
        assert [(state.name, state.cordoned, state.mark) for state in states] == [
            ("n1", True, MARK),
            ("n2", True, None),
            ("n3", False, None),
            ("n4", False, None),
        ]

    def test_slurm_away(self, cluster: SlurmCluster) -> None:
        with pytest.raises(CordonError, match="Slurm does not list its nodes"):
            SlurmCordoner({"PATH": "/nowhere"}).nodes()

    def test_a_user_who_may_not(self, cluster: SlurmCluster, tmp_path: Path) -> None:
        """Slurm refuses; the message says what to do."""
        scontrol = tmp_path / "scontrol"
        real = shutil.which("scontrol", path=cluster.env["PATH"])
        scontrol.write_text(f'#!/bin/sh\nexec /usr/bin/setpriv --reuid=65534 --clear-groups {real} "$@"\n')
        scontrol.chmod(0o755)
        cluster.folder.chmod(0o755)
        cordoner = SlurmCordoner({**cluster.env, "PATH": str(tmp_path)})
        with pytest.raises(
            CordonError, match=r"n1: Slurm does not change it \(.*\). Run logdoctor as a Slurm administrator"
        ):
            cordoner.cordon("n1", MARK)
        assert cluster.state("n1") == "idle"
