"""Faulty nodes and links are found, on real nodes: real launchers, real probes, real all-gathers."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from logdoctor.nodes.board import Board, NodeTestTerms
from logdoctor.nodes.conduct import Conducting
from logdoctor.nodes.launch.local import LocalLauncher
from logdoctor.nodes.launching import Launcher, ProbeOptions
from logdoctor.types.nodes import Conclusion, Node
from tests.nodes.faults import ended, faulty_python
from tests.nodes.namespaces import Network, namespaces
from tests.ports import free_port

SIZES = (4096, 1 << 20)


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with namespaces(nodes=6, groups=2) as made:
        yield made


def conducted(
    launcher: Launcher, nodes: Sequence[Node], seconds: float, python: str = "python3", witnesses: int = 0
) -> tuple[Conclusion, Board]:
    """What a test concludes; where that leaves nodes undecided, because this machine is busy, its worlds have more time
    in another one."""

    async def run() -> tuple[Conclusion, Board]:
        board = Board(nodes, NodeTestTerms(witnesses=witnesses))
        probe = ProbeOptions(seconds, SIZES, python=python)
        try:
            return await Conducting("story", launcher, board, probe, lambda _: None, port=free_port()).run(), board
        finally:
            await launcher.close()

    while True:
        found, board = asyncio.run(run())
        if not found.named("indeterminate") or seconds > 50:
            return found, board
        seconds *= 3


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
    launcher = LocalLauncher(8)
    nodes = asyncio.run(launcher.inventory([]))
    found, board = conducted(launcher, nodes, 300.0, faulty_python(tmp_path, {"local-3": "sends wrong"}), 2)
    assert found.named("faulty") == ("local-3",) and len(found.named("healthy")) == 7, found
    assert board.round == 2
