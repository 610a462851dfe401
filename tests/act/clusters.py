"""Clusters that exist on paper: worlds on them end as their faults make them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations

from logdoctor.act.board import Board, Terms
from logdoctor.act.judge import judge
from logdoctor.act.plan import next_round
from logdoctor.nodes import Conclusion, Node, Reading, Result, World

USUAL = Terms()
Ends = Callable[[World], Result]


def cluster(count: int, groups: int = 0) -> list[Node]:
    """Nodes n0, n1, ...; with groups, as many of each as there can be, named g0, g1, ..."""
    size = -(-count // groups) if groups else 0
    return [Node(f"n{number}", group=f"g{number // size}" if size else "") for number in range(count)]


def ending(
    bad: Collection[str] = (),
    links: Collection[tuple[str, str]] = (),
    cut: Collection[tuple[str, str]] = (),
    nodes: Sequence[Node] = (),
    slow: Mapping[str, float] | None = None,
    down: Collection[str] = (),
) -> Ends:
    """How worlds end: `bad` nodes fail all of theirs, `links` fail between two nodes and `cut` between two groups,
    `slow` nodes have such a bandwidth in GB/s (others 100), `down` ones cannot be launched on."""
    group = {node.name: node.group for node in nodes}
    broken = {frozenset(link) for link in links}
    apart = {frozenset(pair) for pair in cut}

    def end(world: World) -> Result:
        if gone := tuple(name for name in world.nodes if name in down):
            return Result(world, "void", f"{gone[0]}: not started: connection refused", gone)
        pairs = [frozenset(pair) for pair in combinations(world.nodes, 2)]
        crosses = {frozenset(group.get(name, "") for name in pair) for pair in pairs}
        if set(world.nodes) & set(bad) or broken & set(pairs) or apart & crosses:
            return Result(
                world, "failed", "no answer", (), tuple(Reading(name, False, "gather") for name in world.nodes)
            )
        speed = min((slow or {}).get(name, 100.0) for name in world.nodes)
        readings = (Reading(name, True, "done", gpus=8, gpu="X", bandwidth={"1048576": speed}) for name in world.nodes)
        return Result(world, "passed", "", (), tuple(readings))

    return end


def concluded(
    nodes: Sequence[Node], end: Ends, terms: Terms = USUAL, suspected: Sequence[str] = ()
) -> tuple[Conclusion, Board]:
    """What a whole test concludes, and its board. Each round is checked to be of worlds that share no node."""
    board = Board(nodes, terms, suspected)
    while worlds := next_round(board):
        assert worlds == next_round(board)
        members = [name for world in worlds for name in world.nodes]
        assert len(members) == len(set(members)), worlds
        assert board.round < 2 * len(nodes) + 20
        for world in worlds:
            board.add(end(world))
    return judge(board), board
