"""Groups of nodes out of what Slurm and labels say of the network; any text is read or refused, in bounded time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import InputError
from logdoctor.nodes.slurm import MAX_NODES
from logdoctor.nodes.topology import Switch, groups, label_groups, switches

CONF = """\
# two racks
SwitchName=leaf1 Nodes=gpu[01-03],login  # the old one
switchname=leaf2 \\
    linkspeed=400 nodes=gpu[04-05],gpu07
SwitchName=spine Switches=leaf[1-2]
"""
SHOWN = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=gpu[01-03],login
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=gpu[04-05,07]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=gpu[01-05,07],login Switches=leaf[1-2]
"""
LEAVES = {
    **dict.fromkeys(("gpu01", "gpu02", "gpu03", "login"), "leaf1"),
    **dict.fromkeys(("gpu04", "gpu05", "gpu07"), "leaf2"),
}


class TestGroups:
    def test_of_a_file_and_of_what_scontrol_shows_are_the_same(self) -> None:
        assert groups(SHOWN) == groups(CONF) == LEAVES

    def test_switches_above_the_leaves_have_no_nodes(self) -> None:
        rack1, rack2 = tuple(LEAVES)[:4], tuple(LEAVES)[4:]
        assert (
            switches(SHOWN) == switches(CONF) == [Switch("leaf1", rack1), Switch("leaf2", rack2), Switch("spine", ())]
        )

    def test_lines_go_on_behind_a_backslash(self) -> None:
        assert groups("SwitchName=s1 \\\n Nodes=n1 \\\n\n") == {"n1": "s1"}
        assert groups("SwitchName=s1 Nodes=n1\\") == {"n1": "s1"}

    def test_blocks_are_groups(self) -> None:
        text = "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2,4\n"
        assert groups(text) == {"n1": "b1", "n2": "b1", "n3": "b2", "n4": "b2"}

    def test_of_two_leaves_the_first(self) -> None:
        assert groups("SwitchName=rail1 Nodes=n[1-2]\nSwitchName=rail2 Nodes=n[1-3]") == {
            "n1": "rail1",
            "n2": "rail1",
            "n3": "rail2",
        }

    @pytest.mark.parametrize("text", ["", "No topology information available\n", "# nothing\n", "Nodes=n1"])
    def test_nothing_known(self, text: str) -> None:
        assert groups(text) == {}

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("\nSwitchName=a Nodes=n[1-\n", "topology, line 2, hostlist 'n[1-' is not in Slurm's notation"),
            ("SwitchName=a Nodes=@all", "line 1, hostlist '@all' is not in Slurm's notation"),
            ("SwitchName=a Nodes=n[1-9]&n1", "is not in Slurm's notation"),
            ("SwitchName=a Nodes=n[1-999999999999]", "stands for more than 65,536 nodes"),
            ("SwitchName=a Nodes=r[1-9999]n[1-9999]s[1-9999]", "stands for more than 65,536 nodes"),
            ("Include other.conf", "topology, line 1 includes another file"),
            ("SwitchName=\x1b[31m Nodes=n1", "topology, line 1 names a switch that cannot be printed"),
            (f"SwitchName=a Nodes=n[1-{MAX_NODES // 2}]\n" * 3, "topology, line 3 names too many nodes"),
            ("#" * (16 << 20) + "\n", "the topology is longer than 16 MiB"),
        ],
    )
    def test_what_cannot_be_used(self, text: str, told: str) -> None:
        with pytest.raises(InputError) as error:
            groups(text)
        assert told in str(error.value)

    @given(st.text() | st.text("SwitchName=odes[]-,\\# \n019"), st.booleans())
    def test_any_text(self, text: str, as_nodes: bool) -> None:
        try:
            found = groups(f"SwitchName=s Nodes={text}" if as_nodes else text)
        except InputError:
            return
        assert all(node and group for node, group in found.items())

    def test_a_big_cluster_is_quick(self) -> None:
        text = "\n".join(f"SwitchName=leaf{i} Nodes=gpu[{32 * i}-{32 * i + 31}]" for i in range(128))
        begin = time.process_time()
        assert len(groups(text)) == 4096
        assert time.process_time() - begin < 5


class TestLabelGroups:
    RACK, BLOCK = "topology.kubernetes.io/rack", "topology.kubernetes.io/block"

    def test_the_nearest_label_that_all_bear(self) -> None:
        labels = {"a": {self.RACK: "r1", self.BLOCK: "b"}, "b": {self.RACK: "r2", self.BLOCK: "b"}}
        assert label_groups(labels) == {"a": "r1", "b": "r2"}

    def test_one_label_for_all(self) -> None:
        labels = {"a": {self.RACK: "r1", self.BLOCK: "b"}, "b": {self.BLOCK: "b"}, "c": {self.BLOCK: ""}, "d": {}}
        assert label_groups(labels) == {"a": "b", "b": "b"}

    def test_a_label_of_ones_own(self) -> None:
        assert label_groups({"a": {"pod": "7"}}, keys=("pod",)) == {"a": "7"}

    @pytest.mark.parametrize("labels", [{}, {"a": {}}, {"a": {RACK: ""}}, {"a": {RACK: "\n"}}])
    def test_nothing_known(self, labels: dict[str, dict[str, str]]) -> None:
        assert label_groups(labels) == {}

    def test_no_keys(self) -> None:
        assert label_groups({"a": {self.RACK: "r1"}}, keys=()) == {}
