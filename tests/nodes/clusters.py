"""Clusters that exist on paper: worlds on them end as their faults make them."""

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations

import msgspec

from logdoctor.errors import LaunchError
from logdoctor.nodes.board import Board, NodeTestTerms
from logdoctor.nodes.judge import judge
from logdoctor.nodes.launching import STARTED, LaunchTask, ProbeAnswer
from logdoctor.nodes.plan import next_round
from logdoctor.types.nodes import Conclusion, Node, Reading, Result, World

USUAL = NodeTestTerms()
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
    nodes: Sequence[Node], end: Ends, terms: NodeTestTerms = USUAL, suspected: Sequence[str] = ()
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


class PaperLauncher:
    """A launcher of nodes on paper. `asked` are the worlds it was asked to run; a world of a node in `hanging` runs
    until it is cancelled, which is counted in `ended`."""

    name = "paper"

    def __init__(self, nodes: Sequence[Node], end: Ends, hanging: Collection[str] = ()) -> None:
        self._nodes, self._end, self._hanging = nodes, end, hanging
        self.asked: list[World] = []
        self.tests: set[str] = set()
        self.swept: list[str] = []
        self.ended = 0
        self.known = threading.Event()
        """Is set, unless a test wants that it cannot yet say which nodes there are."""
        self.known.set()

    async def inventory(self, names: Sequence[str]) -> list[Node]:
        if not self.known.is_set():
            await asyncio.to_thread(self.known.wait)
        known = {node.name: node for node in self._nodes}
        if unknown := set(names) - known.keys():
            raise LaunchError(f"node {unknown.pop()!r}", "is not on paper", "Draw it.")
        return [known[name] for name in names] or list(self._nodes)

    async def run(self, task: LaunchTask) -> list[ProbeAnswer]:
        self.asked.append(task.world)
        self.tests.add(task.test)
        try:
            if set(task.world.nodes) & set(self._hanging):
                await asyncio.Event().wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.ended += 1
            raise
        result = self._end(task.world)
        return [self._answer(name, result) for name in task.world.nodes]

    async def sweep(self, test: str) -> int:
        self.swept.append(test)
        return 0

    async def close(self) -> None:
        self.known.set()

    def _answer(self, name: str, result: Result) -> ProbeAnswer:
        if result.ended == "void":
            return ProbeAnswer(name, name not in result.unreached, launch_error=result.why)
        reading = next((reading for reading in result.readings if reading.node == name), None)
        line = b"" if reading is None else msgspec.json.encode(reading)
        return ProbeAnswer(name, True, line, STARTED + name.encode(), 0)
