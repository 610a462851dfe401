"""Accuracy of node tests on simulated clusters: the real planner and judge beside DLRover's scheme.

DLRover tests pairs of neighbours first, then the fastest with the slowest; a node that fails twice is faulty.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random

import msgspec
from rich.console import RenderableType

from eval.report import EvalReport, Grid
from logdoctor.nodes.board import Board, NodeTestTerms
from logdoctor.nodes.judge import judge
from logdoctor.nodes.plan import next_round
from logdoctor.types.nodes import Node, Result, World

Fails = Callable[[Sequence[int], int], bool]
"""Whether a world of these nodes fails, at this number of repeats of the gather."""


class SchemeScore(msgspec.Struct, frozen=True):
    """Results of simulated tests, as shares: `exact` (all faulty nodes and no other were named), with a healthy node
    convicted, with a faulty node called healthy (`missed`), with a node left indeterminate. `rounds` is the mean number
    of rounds, `most_rounds` the largest."""

    trials: int
    exact: float
    healthy_convicted: float
    missed: float
    indeterminate: float
    rounds: float
    most_rounds: int


class SimulationReport(EvalReport, frozen=True):
    """Our scheme and DLRover's over the same faults. `provable` is the share of tests in which a world of the first
    round can pass; in the others ours says indeterminate."""

    nodes: int
    faulty: int
    trials: int
    intermittent: float | None
    repeats: int
    seed: int
    provable: float
    ours: SchemeScore
    dlrover: SchemeScore

    @property
    def name(self) -> str:
        return "simulate-nodes"

    def json(self) -> str:
        """Return one JSON object, our scheme's figures beside those of the simulation."""
        figures = msgspec.to_builtins(self)
        ours, dlrover = figures.pop("ours"), figures.pop("dlrover")
        return msgspec.json.encode({**figures, **ours, "dlrover": dlrover}).decode()

    def parts(self, details: bool = False) -> Iterator[RenderableType]:
        """Yield the accuracy of tests, ours beside DLRover's."""
        shows = "always" if self.intermittent is None else f"shows in {self.intermittent:.0%} of gathers"
        title = f"{self.nodes} nodes, {self.faulty} faulty ({shows}), {self.trials:,} tests, repeats {self.repeats}"
        rows = []
        for name, one in (("logdoctor", self.ours), ("DLRover", self.dlrover)):
            shares = (one.exact, one.healthy_convicted, one.missed, one.indeterminate)
            rows.append([name, *(f"{share:.2%}" for share in shares), f"{one.rounds:.2f}", str(one.most_rounds)])
        head = ["scheme", "exact", "healthy convicted", "missed", "indeterminate", "rounds", "most"]
        yield Grid(head, rows, title).printed()
        yield f"in {self.provable:.2%} of the tests some pair of the first round can pass"


class SimulatedTest(msgspec.Struct, frozen=True):
    """A simulated test's result: convicted and undecided nodes, rounds, and whether a world of its first round
    passed."""

    convicted: frozenset[int]
    undecided: frozenset[int]
    rounds: int
    provable: bool


def simulate(
    nodes: int,
    faulty: int,
    trials: int,
    intermittent: float | None = None,
    repeats: int = 1,
    seed: int = 0,
    regroups: int = 0,
) -> SimulationReport:
    """Return the accuracy of tests of clusters with randomly placed faulty nodes.

    `intermittent` is the chance that a faulty node shows its fault in one gather (None: it always does).
    """
    random = Random(seed)
    terms = NodeTestTerms(repeats=repeats, regroups=regroups)
    ours, theirs, provable = _ScoreCounter(), _ScoreCounter(), 0
    for _ in range(trials):
        bad = frozenset(random.sample(range(nodes), faulty))
        outcome = run(nodes, terms, failing(bad, intermittent, random))
        provable += outcome.provable
        ours.add(bad, outcome)
        theirs.add(bad, dlrover(nodes, failing(bad, intermittent, random), repeats, random))
    share = provable / trials if trials else 0.0
    return SimulationReport(nodes, faulty, trials, intermittent, repeats, seed, share, ours.score(), theirs.score())


def failing(bad: frozenset[int], intermittent: float | None, random: Random) -> Fails:
    """Return a function that tells which worlds fail because of these nodes."""
    if intermittent is None:
        return lambda members, repeats: not bad.isdisjoint(members)

    def fails(members: Sequence[int], repeats: int) -> bool:
        count = sum(member in bad for member in members)
        return random.random() >= (1 - intermittent) ** (count * repeats)

    return fails


def run(nodes: int, terms: NodeTestTerms, fails: Fails) -> SimulatedTest:
    """Run one test of nodes 0, 1, ... with the real planner and judge; `fails` decides worlds."""
    board = Board([Node(str(number)) for number in range(nodes)], terms)
    provable = False
    while worlds := next_round(board):
        for world in worlds:
            failed = fails([int(name) for name in world.nodes], world.repeats)
            board.add(_ended(world, failed))
            provable = provable or (world.round == 1 and not failed and len(world.nodes) > 1)
    conclusion = judge(board)
    named = {standing: frozenset(map(int, conclusion.named(standing))) for standing in ("faulty", "indeterminate")}
    return SimulatedTest(named["faulty"], named["indeterminate"], board.round, provable)


def dlrover(nodes: int, fails: Fails, repeats: int, random: Random) -> SimulatedTest:
    """Run DLRover's two rounds on the same; they never leave a node undecided."""
    worlds = [list(range(nodes))[place : place + 2] for place in range(0, nodes, 2)]
    if len(worlds) > 1 and len(worlds[-1]) == 1:
        odd = worlds.pop()
        worlds[-1] += odd
    seconds, passed = [0.0] * nodes, [False] * nodes
    for world in worlds:
        failed = fails(world, repeats)
        for node in world:
            seconds[node] = 1000.0 if failed else random.random()
            passed[node] = not failed
    order = random.sample(range(nodes), nodes)  # in the order of reports: those that failed have one time
    order.sort(key=seconds.__getitem__)
    again = [[order[place], order[-1 - place]] for place in range(nodes // 2)]
    if nodes % 2:
        middle = order[nodes // 2]
        again = [*again[:-1], [*again[-1], middle]] if again else [[middle]]
    for world in again:
        if not fails(world, repeats):
            for node in world:
                passed[node] = True
    return SimulatedTest(frozenset(node for node in range(nodes) if not passed[node]), frozenset(), 2, True)


def _ended(world: World, failed: bool) -> Result:
    return Result(world, "failed" if failed else "passed")


class _ScoreCounter:
    """Counts the results of tests."""

    def __init__(self) -> None:
        self.trials = self.exact = self.convicted = self.missed = self.undecided = self.rounds = self.most = 0

    def add(self, bad: frozenset[int], outcome: SimulatedTest) -> None:
        """Count one test."""
        self.trials += 1
        self.exact += outcome.convicted == bad and not outcome.undecided
        self.convicted += not outcome.convicted <= bad
        self.missed += not bad <= outcome.convicted | outcome.undecided
        self.undecided += bool(outcome.undecided)
        self.rounds += outcome.rounds
        self.most = max(self.most, outcome.rounds)

    def score(self) -> SchemeScore:
        """Return the shares so far."""
        of = max(self.trials, 1)
        shares = (self.exact / of, self.convicted / of, self.missed / of, self.undecided / of, self.rounds / of)
        return SchemeScore(self.trials, *shares, self.most)
