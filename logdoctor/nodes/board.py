"""The state of a node test: its nodes, and the results of its worlds so far."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from statistics import median_high
from typing import NamedTuple

from logdoctor.nodes.evidence import Members, WorldOutcome, WorldProof, weigh
from logdoctor.types.nodes import Node, Result

_FEW = 16  # nodes up to which a node must fail with one more partner


class NodeTestTerms(NamedTuple):
    """The parameters of a node test.

    `repeats` of the gather in each world, and `longer` times as many when something is tried again. `witnesses`: sound
    partners with which a node must fail to be found faulty (0: two, and three in small tests, where chance plays a
    larger part). `rounds` limits the rounds (0: the nodes + 8). `regroups`: how often all nodes are paired again while
    no world has passed. `tries`: launches that may fail because of one node, `misfires` in its worlds for the
    launcher's own reasons. A world is slow below `slow_share` of the median of the best speeds of nodes of its kind
    (`slow_share_cpu` without GPUs, where speeds scatter), or below the GB/s in `floors` for its type of GPU.
    """

    repeats: int = 1
    longer: int = 2
    witnesses: int = 0
    rounds: int = 0
    regroups: int = 0
    tries: int = 2
    misfires: int = 6
    slow_share: float = 0.7
    slow_share_cpu: float = 0.1
    floors: tuple[tuple[str, float], ...] = ()


class Speed(NamedTuple):
    """The speed of a world that passed: its bus bandwidth in GB/s, its type of GPU ("" without GPUs), and whether it
    crosses groups."""

    number: int
    members: Members
    gpu: str
    on_gpus: bool
    crosses: bool
    gathered: float


class Board:
    """The results of a test, by each node's index in the list."""

    def __init__(self, nodes: Sequence[Node], terms: NodeTestTerms, suspected: Sequence[str] = ()) -> None:
        self.nodes, self.terms = tuple(nodes), terms
        self.place = {node.name: place for place, node in enumerate(self.nodes)}
        named = [node.group for node in self.nodes]
        several = any(count > 1 for group, count in Counter(named).items() if group)
        self.groups = tuple(
            named if several else [""] * len(named)
        )  # groups of one node say nothing about the links between nodes
        self.suspected = frozenset(self.place[name] for name in suspected if name in self.place)
        self.results: dict[int, Result] = {}
        self.worlds_of: list[list[int]] = [[] for _ in self.nodes]
        self.round = 0
        self._voids, self._misfires = [0] * len(self.nodes), [0] * len(self.nodes)
        self.tried = [False] * len(self.nodes)
        self._ran: list[WorldOutcome] = []
        self._speeds: list[Speed] = []
        self._products: dict[int, tuple[str, float]] = {}
        self.pairs: set[Members] = set()

    def add(self, result: Result) -> None:
        """Add the result of a world; a second one of the same world is ignored."""
        world = result.world
        if world.number in self.results:
            return
        self.results[world.number] = result
        self.round = max(self.round, world.round)
        members = tuple(sorted(self.place[name] for name in world.nodes))
        for node in members:
            self.worlds_of[node].append(world.number)
        if result.ended == "void":
            failures = self._voids if result.unreached else self._misfires
            for name in result.unreached or world.nodes:
                failures[self.place[name]] += 1
        else:
            for node in members:
                self.tried[node] = True
            if len(members) > 1:  # a node alone proves nothing
                self._ran.append(WorldOutcome(world.number, members, result.ended == "passed"))
            if len(members) == 2:
                self.pairs.add(members)
            if result.ended == "passed":
                self._measure(result, members)
        for name in ("works", "fast", "slow_worlds", "slow_gpus", "_paced"):
            self.__dict__.pop(name, None)

    @property
    def last_number(self) -> int:
        """Return the number of the last world, 0 before the first."""
        return max(self.results, default=0)

    @property
    def has_passed(self) -> bool:
        """Return whether any world of several nodes has passed; until then nothing is known about any node."""
        return any(world.good for world in self._ran)

    def is_out(self, node: int) -> bool:
        """Return whether too many launches failed at a node."""
        return self._voids[node] >= self.terms.tries or self._misfires[node] >= self.terms.misfires

    def met_others(self, node: int, across: bool) -> bool:
        """Return whether a node was in a second world that was not void; with `across`, in one that spans groups."""
        worlds = [self.results[number] for number in self.worlds_of[node] if self.results[number].ended != "void"]
        if not across or not self.groups[node]:
            return len(worlds) > 1
        return any(len({self.groups[self.place[name]] for name in result.world.nodes}) > 1 for result in worlds)

    def was_paired(self, node: int) -> bool:
        """Return whether a node was tested alone with one partner."""
        return any(len(self.results[number].world.nodes) == 2 for number in self.worlds_of[node])

    @cached_property
    def works(self) -> WorldProof:
        """Return what the worlds prove about working and failing nodes."""
        return weigh(self._ran, self.groups, self._witnesses, self._out)

    @cached_property
    def slow_worlds(self) -> frozenset[int]:
        """Return the numbers of worlds that passed but were slow."""
        return frozenset(world.number for world in self._paced if not world.good)

    @cached_property
    def fast(self) -> WorldProof:
        """Return what the worlds that passed prove about fast and slow nodes."""
        return weigh(self._paced, self.groups, self._witnesses, self._out)

    @cached_property
    def slow_gpus(self) -> dict[int, str]:
        """Return the nodes whose slowest GPU is slow for its type, with figures; other nodes do not affect that
        speed."""
        usual: dict[str, list[float]] = {}
        for gpu, product in self._products.values():
            usual.setdefault(gpu, []).append(product)
        middle = {gpu: median_high(products) for gpu, products in usual.items()}
        return {
            node: f"{product:.4g} of {middle[gpu]:.4g} TFLOP/s"
            for node, (gpu, product) in self._products.items()
            if product < self.terms.slow_share * middle[gpu]
        }

    @property
    def _witnesses(self) -> int:
        return self.terms.witnesses or (3 if len(self.nodes) <= _FEW else 2)

    @property
    def _out(self) -> frozenset[int]:
        return frozenset(node for node in range(len(self.nodes)) if self.is_out(node))

    @cached_property
    def _paced(self) -> list[WorldOutcome]:
        """Return the worlds that passed: good when fast, bad when slow.

        A world across groups may be slower because of the links between them. It is slow only if other worlds across
        groups are faster; one that is just slower than worlds within groups proves nothing.
        """
        usual, across = self._usual(self._speeds), self._usual([speed for speed in self._speeds if speed.crosses])
        floors, paced = dict(self.terms.floors), []
        for speed in self._speeds:
            kind, floor = (speed.gpu, speed.on_gpus), floors.get(speed.gpu, 0.0)
            if speed.gathered >= max(usual[kind], floor):
                paced.append(WorldOutcome(speed.number, speed.members, True))
            elif not speed.crosses or speed.gathered < max(across[kind], floor):
                paced.append(WorldOutcome(speed.number, speed.members, False))
        return paced

    def _usual(self, speeds: Sequence[Speed]) -> dict[tuple[str, bool], float]:
        """Return the speed that a world must reach, by type of GPU: a share of the median of the nodes' best speeds."""
        best: dict[tuple[str, bool], dict[int, float]] = {}
        for speed in speeds:
            of_kind = best.setdefault((speed.gpu, speed.on_gpus), {})
            for node in speed.members:  # a slow node is tried more often than others
                of_kind[node] = max(speed.gathered, of_kind.get(node, 0.0))
        shares = {True: self.terms.slow_share, False: self.terms.slow_share_cpu}
        return {kind: shares[kind[1]] * median_high(bests.values()) for kind, bests in best.items()}

    def _measure(self, result: Result, members: Members) -> None:
        """Add the speeds of a world and of its GPUs."""
        readings = result.readings
        on_gpus = bool(readings) and all(reading.gpus for reading in readings)
        for reading in readings:
            if reading.gpus and reading.tflops is not None and reading.node in self.place:
                known = self._products.get(self.place[reading.node], ("", 0.0))[1]
                self._products[self.place[reading.node]] = (reading.gpu, max(known, reading.tflops))
        types = {reading.gpu for reading in readings}
        sizes = set.intersection(*(set(reading.bandwidth) for reading in readings)) if readings else set()
        if len(members) > 1 and sizes and len(types) == 1:  # different GPUs are not compared
            gathered = min(reading.bandwidth[max(sizes, key=int)] for reading in readings)
            gpu = types.pop()
            crosses = len({self.groups[node] for node in members}) > 1
            self._speeds.append(Speed(result.world.number, members, gpu, on_gpus, crosses, gathered))
