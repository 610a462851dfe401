"""What a test says of nodes, links and speeds, and why."""

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.nodes.board import NodeTestTerms
from logdoctor.types.nodes import Node, Reading, Result, World
from tests.nodes.clusters import cluster, concluded, ending


@pytest.mark.parametrize(("count", "witnesses", "rounds"), [(6, 3, 3), (20, 2, 2)])
def test_a_faulty_node_and_its_proof(count: int, witnesses: int, rounds: int) -> None:
    found, board = concluded(cluster(count), ending(bad=["n3"]))
    assert found.named("faulty") == ("n3",)
    assert len(found.named("healthy")) == count - 1
    (finding,) = (one for one in found.findings if one.node == "n3")
    assert len(finding.partners) == len(finding.worlds) == witnesses
    for number, partner in zip(finding.worlds, finding.partners, strict=True):
        assert set(board.results[number].world.nodes) == {"n3", partner}
        assert partner in found.named("healthy")
    assert found.rounds == rounds and found.open == "" and found.links == ()


def test_the_odd_one_of_three_is_not_convicted() -> None:
    for bad in ("n2", "n3", "n4"):
        found, board = concluded(cluster(5), ending(bad=[bad]))
        assert found.named("faulty") == (bad,) and len(found.named("healthy")) == 4
        assert any(len(result.world.nodes) == 3 for result in board.results.values())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_too_few_nodes_prove_nothing(count: int) -> None:
    found, _ = concluded(cluster(count), ending(bad=["n0"]))
    assert len(found.named("indeterminate")) == count
    assert found.open


def test_two_good_nodes() -> None:
    found, _ = concluded(cluster(2), ending())
    assert found.named("healthy") == ("n0", "n1")


def test_one_node_alone_is_not_called_healthy() -> None:
    found, _ = concluded(cluster(1), ending())
    assert found.named("indeterminate") == ("n0",) and "A single node proves nothing" in found.open


def test_a_link_between_two_good_nodes_is_no_node() -> None:
    for link in (("n0", "n1"), ("n2", "n3")):
        found, _ = concluded(cluster(8), ending(links=[link]))
        assert set(found.named("healthy")) == {f"n{number}" for number in range(8)}
        assert [one.ends for one in found.links] == [link] and found.links[0].between == "nodes"


def test_a_link_beside_a_faulty_node() -> None:
    found, _ = concluded(cluster(8), ending(links=[("n0", "n1")], bad=["n6"]))
    assert found.named("faulty") == ("n6",) and [one.ends for one in found.links] == [("n0", "n1")]


def test_a_cut_between_groups_is_a_link_and_no_node() -> None:
    nodes = cluster(8, groups=2)
    found, _ = concluded(nodes, ending(cut=[("g0", "g1")], nodes=nodes))
    assert len(found.named("healthy")) == 8
    assert [(one.ends, one.between) for one in found.links] == [(("g0", "g1"), "groups")]


def test_one_cut_of_many_groups() -> None:
    nodes = cluster(32, groups=4)
    found, _ = concluded(nodes, ending(cut=[("g0", "g2")], nodes=nodes, bad=["n9"]))
    assert found.named("faulty") == ("n9",)
    assert [one.ends for one in found.links] == [("g0", "g2")]


def test_a_node_that_fails_only_across_groups_is_no_faulty_node() -> None:
    nodes = cluster(8, groups=2)
    links = [("n1", other.name) for other in nodes[4:]]
    found, _ = concluded(nodes, ending(links=links, nodes=nodes))
    assert found.named("faulty") == ()
    assert found.links and all("n1" in one.ends for one in found.links)


def grouped(groups: str) -> list[Node]:
    """Nodes of the groups that the letters name."""
    return [Node(f"n{number}", group=group) for number, group in enumerate(groups)]


@pytest.mark.parametrize(
    ("groups", "cut", "bad"),
    [
        ("AABAB", "AB", ""),
        ("CBBA", "BC", ""),
        ("BCCBCAA", "AC", ""),
        ("AAAABB", "AB", "n4"),
        ("AAAABBBB", "AB", "n4 n6"),
        ("AAAAAAAABBBBBBBB", "AB", "n0 n9"),
    ],
)
def test_a_cut_between_groups_convicts_no_healthy_node(groups: str, cut: str, bad: str) -> None:
    nodes = grouped(groups)
    found, _ = concluded(nodes, ending(cut=[(cut[0], cut[1])], nodes=nodes, bad=bad.split()))
    assert set(found.named("faulty")) <= set(bad.split()), found
    if not bad:
        assert found.links or found.named("indeterminate")


@pytest.mark.parametrize("count", [6, 12, 16, 40])
def test_a_switch_that_nobody_named_convicts_nobody(count: int) -> None:
    for seed in range(30):
        side = set(Random(seed).sample(range(count), count // 2))

        def end(world: World, side: set[int] = side) -> Result:
            sides = {int(name[1:]) in side for name in world.nodes}
            return Result(world, "failed" if len(sides) > 1 else "passed", "no answer")

        found, _ = concluded(cluster(count), end)
        wrong = len(found.named("faulty"))
        assert wrong == 0 or (count == 16 and wrong <= 2), (seed, found)
        if found.named("indeterminate"):
            assert found.open


def test_nodes_that_work_with_each_other_are_parted_and_not_faulty() -> None:
    far = {"n5", "n11", "n17"}
    ends = ending(links=[(name, f"n{other}") for name in far for other in range(24) if f"n{other}" not in far])
    found, _ = concluded(cluster(24), ends)
    assert found.named("faulty") == () and far <= set(found.named("indeterminate"))
    assert "partitioned" in found.open


def test_near_nodes_are_tested_together_and_suspects_with_others() -> None:
    nodes = cluster(8, groups=2)
    _, board = concluded(nodes, ending(nodes=nodes), suspected=["n0", "n1", "n5"])
    first = [result.world.nodes for result in board.results.values() if result.world.round == 1]
    group = {node.name: node.group for node in nodes}
    assert all(group[a] == group[b] for a, b in first)
    assert not any({a, b} <= {"n0", "n1"} for a, b in first)
    across = [result.world.nodes for result in board.results.values() if result.world.round == 2]
    assert across and all(group[a] != group[b] for a, b in across)


def test_a_group_in_which_nobody_works_is_not_convicted_by_others() -> None:
    nodes = cluster(8, groups=2)
    found, _ = concluded(nodes, ending(bad=["n4", "n5", "n6", "n7"], nodes=nodes))
    assert found.named("faulty") == ()
    unclear = [one for one in found.findings if one.standing == "indeterminate"]
    assert [one.node for one in unclear] == ["n4", "n5", "n6", "n7"]
    assert all("the connection of g1 to the rest" in one.why for one in unclear)


def test_slow_nodes_by_the_median() -> None:
    found, _ = concluded(cluster(8), ending(slow={"n2": 20.0, "n7": 50.0}))
    assert found.named("slow") == ("n2", "n7")
    (one,) = (finding for finding in found.findings if finding.node == "n2")
    assert one.fault == "slow network" and "20 GB/s" in one.why


def test_a_slow_node_and_a_faulty_one() -> None:
    found, _ = concluded(cluster(9), ending(slow={"n2": 20.0}, bad=["n3"]))
    assert (found.named("slow"), found.named("faulty")) == (("n2",), ("n3",))


@pytest.mark.parametrize("count", [4, 5, 6, 7, 9, 64])
def test_one_slow_node_of_a_few(count: int) -> None:
    for slow in range(count):
        found, _ = concluded(cluster(count), ending(slow={f"n{slow}": 50.0}))
        assert found.named("slow") == (f"n{slow}",), (slow, found)
        assert len(found.named("healthy")) == count - 1


def test_slow_nodes_of_one_group_are_not_taken_for_usual() -> None:
    nodes = grouped("BBBAAAAA")
    found, _ = concluded(nodes, ending(slow={"n1": 50.0, "n2": 50.0}, nodes=nodes))
    assert set(found.named("slow")) <= {"n1", "n2"} and not {"n1", "n2"} & set(found.named("healthy"))


def test_two_types_of_gpus_are_not_compared() -> None:
    kinds = {f"n{number}": ("A", 300.0, 100.0) if number in (0, 2, 4) else ("H", 900.0, 300.0) for number in range(12)}

    def end(world: World) -> Result:
        speed = min(kinds[name][2] for name in world.nodes)
        readings = tuple(
            Reading(name, True, "done", gpus=8, gpu=kinds[name][0], tflops=kinds[name][1], bandwidth={"1": speed})
            for name in world.nodes
        )
        return Result(world, "passed", "", (), readings)

    found, _ = concluded(cluster(12), end)
    assert len(found.named("healthy")) == 12, found


def test_what_a_node_sends_wrong_is_told_by_its_partners() -> None:
    def end(world: World) -> Result:
        if "n3" not in world.nodes:
            return ending()(world)
        why = "wrong data: 1 of 8 values of rank 1 (n3) as rank 0 has them"
        readings = tuple(Reading(n, n == "n3", "gather", "" if n == "n3" else why) for n in world.nodes)
        return Result(world, "failed", why, (), readings)

    found, _ = concluded(cluster(20), end)
    assert found.named("faulty") == ("n3",) and found.findings[3].fault == "wrong data"


def test_slow_by_the_floor_of_the_type() -> None:
    everyone = {f"n{number}": 10.0 for number in range(4)}
    found, _ = concluded(cluster(4), ending(slow=everyone), NodeTestTerms(floors=(("X", 50.0),)))
    assert len(found.named("indeterminate")) == 4  # all are below it: no fast node says which one it is
    one = everyone | {"n0": 100.0, "n1": 100.0}
    found, _ = concluded(cluster(4), ending(slow=one), NodeTestTerms(floors=(("X", 50.0),), slow_share=0.01))
    assert found.named("slow") == ("n2", "n3")


def test_a_slow_gpu_is_told_from_a_slow_network() -> None:
    def end(world: World) -> Result:
        readings = tuple(
            Reading(name, True, "done", gpus=8, gpu="X", bandwidth={"1": 100.0}, tflops=90.0 if name == "n1" else 400.0)
            for name in world.nodes
        )
        return Result(world, "passed", "", (), readings)

    found, _ = concluded(cluster(6), end)
    assert found.named("slow") == ("n1",) and found.findings[1].fault == "slow GPU"


def test_what_cannot_be_launched_is_not_convicted() -> None:
    found, board = concluded(cluster(7), ending(down=["n2"]))
    assert found.named("indeterminate") == ("n2",) and len(found.named("healthy")) == 6
    assert "connection refused" in found.findings[2].why and found.open.startswith("Not reached: n2.")
    assert board.is_out(2)


def test_a_launcher_that_never_works_convicts_nobody() -> None:
    found, _ = concluded(cluster(6), lambda world: Result(world, "void", "no such partition"))
    assert len(found.named("indeterminate")) == 6
    assert all("no such partition" in finding.why for finding in found.findings)
    assert found.open.startswith("Nothing could be launched")


def test_a_fault_that_shows_once_is_doubtful() -> None:
    failed: list[int] = []

    def end(world: World) -> Result:
        if world.nodes == ("n0", "n1") and not failed:
            failed.append(world.number)
            return Result(world, "failed", "no answer")
        return ending()(world)

    found, _ = concluded(cluster(6), end)
    assert set(found.named("indeterminate")) == {"n0", "n1"} and "an intermittent fault" in found.findings[0].why


def test_a_node_that_fails_with_many_now_and_then_is_faulty() -> None:
    convicted = 0
    for seed in range(60):
        random = Random(seed)

        def end(world: World, random: Random = random) -> Result:
            return ending(bad=["n3"] if random.random() < 0.6 else [])(world)

        found, _ = concluded(cluster(12), end)
        assert set(found.named("faulty")) <= {"n3"}, seed
        convicted += found.named("faulty") == ("n3",)
    assert convicted > 15


def test_the_driver_warns() -> None:
    def end(world: World) -> Result:
        return Result(
            world, "passed", "", (), tuple(Reading(n, True, "done", state=(f"{n} hot",)) for n in world.nodes)
        )

    found, _ = concluded(cluster(2), end)
    assert [finding.warnings for finding in found.findings] == [("n0 hot",), ("n1 hot",)]


def test_the_bound_on_rounds_is_said() -> None:
    found, board = concluded(cluster(9), ending(bad=["n0", "n1", "n2", "n3"]), NodeTestTerms(rounds=2))
    assert board.round == 2 and found.named("indeterminate") and found.open


@given(st.integers(1, 14), st.integers(0, 3), st.randoms(use_true_random=False), st.integers(0, 2))
def test_whatever_worlds_do_tests_end_and_convict_with_proof_only(
    count: int, groups: int, random: Random, regroups: int
) -> None:
    nodes = cluster(count, groups)

    def end(world: World) -> Result:
        ended = random.choice(("passed", "failed", "void"))
        unreached = tuple(name for name in world.nodes if random.random() < 0.3) if ended == "void" else ()
        readings = tuple(
            Reading(name, random.random() < 0.5, "gather", bandwidth={"8": random.random()}, gpus=1)
            for name in world.nodes
            if random.random() < 0.8
        )
        return Result(world, ended, "", unreached, readings)  # type: ignore[arg-type]

    found, board = concluded(nodes, end, NodeTestTerms(regroups=regroups))
    assert [finding.node for finding in found.findings] == [node.name for node in nodes]
    passed = {name for result in board.results.values() if result.ended == "passed" for name in result.world.nodes}
    for finding in found.findings:
        worlds = [board.results[number] for number in finding.worlds]
        if finding.standing == "faulty":
            assert len(worlds) >= 2 and all(result.ended == "failed" for result in worlds)
            assert set(finding.partners) <= passed
        if finding.standing == "slow":
            assert len(worlds) >= 2 and all(result.ended == "passed" for result in worlds)
        if finding.standing == "healthy":
            assert any(result.ended == "passed" for result in worlds)
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found
