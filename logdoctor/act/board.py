"""What a test knows so far: its nodes, and the results of its worlds, taken in one by one."""

from collections.abc import Sequence
from functools import cached_property
from statistics import median_high
from typing import NamedTuple

from logdoctor.act.evidence import Members, Ran, Weighed, weigh
from logdoctor.nodes import Node, Result

Kind = tuple[str, bool, bool]
"""What speeds are compared by: the type of GPU, whether there are GPUs, and whether the world crosses groups."""


class Terms(NamedTuple):
    """How a test is made and judged.

    `repeats` of the gather in each world, and `longer` times as many where something is asked again. `witnesses`: sound
    partners with which a node must fail. `rounds` bounds the rounds (0: the nodes + 8, which is never reached while
    worlds end as their nodes make them). `regroups`: how often all are paired anew while no world has passed. `tries`:
    launches that may go wrong at one node. A world is slow below `slow_share` of the median of the best speeds of the
    nodes of its kind (`slow_share_cpu` without GPUs, where speeds scatter), or below the GB/s that `floors` give for
    its type of GPU.
    """

    repeats: int = 1
    longer: int = 2
    witnesses: int = 2
    rounds: int = 0
    regroups: int = 0
    tries: int = 2
    slow_share: float = 0.7
    slow_share_cpu: float = 0.1
    floors: tuple[tuple[str, float], ...] = ()


class Speed(NamedTuple):
    """How fast a world that passed was: its bus bandwidth in GB/s, the slowest product of its GPUs in TFLOP/s (None:
    not measured), and what it may be compared with."""

    number: int
    members: Members
    kind: Kind
    gathered: float | None
    product: float | None


class Board:
    """The results of a test, by the places of its nodes. `InputError` is for those who name the nodes."""

    def __init__(self, nodes: Sequence[Node], terms: Terms, suspected: Sequence[str] = ()) -> None:
        self.nodes, self.terms = tuple(nodes), terms
        self.place = {node.name: place for place, node in enumerate(self.nodes)}
        self.groups = tuple(node.group for node in self.nodes)
        self.suspected = frozenset(self.place[name] for name in suspected if name in self.place)
        self.results: dict[int, Result] = {}
        self.worlds_of: list[list[int]] = [[] for _ in self.nodes]
        self.round = 0
        self.voids = [0] * len(self.nodes)
        self.tried = [False] * len(self.nodes)
        self._ran: list[Ran] = []
        self._speeds: list[Speed] = []

    def add(self, result: Result) -> None:
        """Take in the result of a world; a second one of the same world changes nothing."""
        world = result.world
        if world.number in self.results:
            return
        self.results[world.number] = result
        self.round = max(self.round, world.round)
        members = tuple(sorted(self.place[name] for name in world.nodes))
        for node in members:
            self.worlds_of[node].append(world.number)
        if result.ended == "void":
            for name in result.unreached or world.nodes:
                self.voids[self.place[name]] += 1
        else:
            for node in members:
                self.tried[node] = True
            if len(members) > 1:  # a node alone has nobody to prove anything
                self._ran.append(Ran(world.number, members, result.ended == "passed"))
            if result.ended == "passed" and len(members) > 1:
                self._speeds.append(self._speed(result, members))
        for name in ("works", "fast", "slow_worlds"):
            self.__dict__.pop(name, None)

    @property
    def last_number(self) -> int:
        """The number of the last world, 0 before the first."""
        return max(self.results, default=0)

    @property
    def has_passed(self) -> bool:
        """Whether some world of several nodes has passed: else nothing can be said of any node."""
        return any(world.good for world in self._ran)

    @cached_property
    def works(self) -> Weighed:
        """What is proved of nodes that work or do not."""
        return weigh(self._ran, self.groups, self.terms.witnesses)

    @cached_property
    def slow_worlds(self) -> frozenset[int]:
        """The numbers of worlds that passed and were slow."""
        best: dict[tuple[Kind, bool], dict[int, float]] = {}  # of each node: a slow one is tried more often than others
        for speed in self._speeds:
            for value, is_product in ((speed.gathered, False), (speed.product, True)):
                of_kind = best.setdefault((speed.kind, is_product), {})
                for node in speed.members if value is not None else ():
                    of_kind[node] = max(value or 0.0, of_kind.get(node, 0.0))
        least = {key: self._share(key[0]) * median_high(bests.values()) for key, bests in best.items() if bests}
        floors = dict(self.terms.floors)

        def is_slow(speed: Speed) -> bool:
            floor = floors.get(speed.kind[0], 0.0)
            gathered = speed.gathered is not None and speed.gathered < max(least[speed.kind, False], floor)
            return gathered or (speed.product is not None and speed.product < least[speed.kind, True])

        return frozenset(speed.number for speed in self._speeds if is_slow(speed))

    @cached_property
    def fast(self) -> Weighed:
        """What is proved of nodes that are fast or not; worlds that failed do not count."""
        slow = self.slow_worlds
        ran = [Ran(speed.number, speed.members, speed.number not in slow) for speed in self._speeds]
        return weigh(ran, self.groups, self.terms.witnesses)

    def _speed(self, result: Result, members: Members) -> Speed:
        """The speed of a world. What crosses groups, or is of another type, is not compared with the rest."""
        readings = result.readings
        gpu = max((reading.gpu for reading in readings), default="")
        sizes = [max(map(int, reading.bandwidth), default=0) for reading in readings]
        size = min(sizes, default=0)
        gathered = min((r.bandwidth.get(str(size), 0.0) for r in readings), default=0.0) if size else None
        on_gpus = bool(readings) and all(reading.gpus for reading in readings)
        products = [reading.tflops for reading in readings if reading.tflops is not None]
        product = min(products) if on_gpus and len(products) == len(readings) else None
        crosses = len({self.groups[node] for node in members}) > 1
        return Speed(result.world.number, members, (gpu, on_gpus, crosses), gathered, product)

    def _share(self, kind: Kind) -> float:
        return self.terms.slow_share if kind[1] else self.terms.slow_share_cpu
