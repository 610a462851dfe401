"""How exact the test of nodes is: simulated clusters with faulty nodes, judged by the real planner and judge, and the
same by DLRover's scheme (its grouping: neighbours first, then the fastest with the slowest; bad is who fails twice)."""

from collections.abc import Callable, Sequence
from random import Random

import msgspec
from rich.console import Console
from rich.table import Table

from logdoctor.node_types import Node, Result, World
from logdoctor.nodes.board import Board, NodeTestTerms
from logdoctor.nodes.judge import judge
from logdoctor.nodes.plan import next_round

Fails = Callable[[Sequence[int], int], bool]
"""Whether a world of these nodes fails, with so many repeats of the gather."""


class Tally(msgspec.Struct, frozen=True):
    """What came of many simulated tests, as shares of them: `exact`, all faulty nodes were named and no other; with
    some healthy node convicted; with some faulty node called healthy (`missed`); with some node left indeterminate.
    `rounds` is the mean number of rounds, `most_rounds` the largest."""

    trials: int
    exact: float
    healthy_convicted: float
    missed: float
    indeterminate: float
    rounds: float
    most_rounds: int


class Report(msgspec.Struct, frozen=True):
    """Our scheme and DLRover's over the same faults. `provable` is the share of tests in which some world of the first
    round can pass; of the others ours says indeterminate."""

    nodes: int
    faulty: int
    trials: int
    intermittent: float | None
    repeats: int
    seed: int
    provable: float
    ours: Tally
    dlrover: Tally


class Outcome(msgspec.Struct, frozen=True):
    """What one simulated test said: convicted nodes, undecided ones, rounds, and whether its first round passed any."""

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
) -> Report:
    """Tests of clusters with randomly placed faulty nodes. `intermittent` is the chance that a faulty node shows its
    fault in one gather (None: it always does)."""
    random = Random(seed)
    terms = NodeTestTerms(repeats=repeats, regroups=regroups)
    ours, theirs, provable = _Count(), _Count(), 0
    for _ in range(trials):
        bad = frozenset(random.sample(range(nodes), faulty))
        outcome = run(nodes, terms, failing(bad, intermittent, random))
        provable += outcome.provable
        ours.add(bad, outcome)
        theirs.add(bad, dlrover(nodes, failing(bad, intermittent, random), repeats, random))
    share = provable / trials if trials else 0.0
    return Report(nodes, faulty, trials, intermittent, repeats, seed, share, ours.tally(), theirs.tally())


def failing(bad: frozenset[int], intermittent: float | None, random: Random) -> Fails:
    """Worlds that fail by these nodes."""
    if intermittent is None:
        return lambda members, repeats: not bad.isdisjoint(members)

    def fails(members: Sequence[int], repeats: int) -> bool:
        count = sum(member in bad for member in members)
        return random.random() >= (1 - intermittent) ** (count * repeats)

    return fails


def run(nodes: int, terms: NodeTestTerms, fails: Fails) -> Outcome:
    """One test of nodes 0, 1, ... by the real planner and judge, with worlds that end as told."""
    board = Board([Node(str(number)) for number in range(nodes)], terms)
    provable = False
    while worlds := next_round(board):
        for world in worlds:
            failed = fails([int(name) for name in world.nodes], world.repeats)
            board.add(_ended(world, failed))
            provable = provable or (world.round == 1 and not failed and len(world.nodes) > 1)
    conclusion = judge(board)
    named = {standing: frozenset(map(int, conclusion.named(standing))) for standing in ("faulty", "indeterminate")}
    return Outcome(named["faulty"], named["indeterminate"], board.round, provable)


def dlrover(nodes: int, fails: Fails, repeats: int, random: Random) -> Outcome:
    """The same by DLRover's two rounds; it has no word for what it does not know."""
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
    order = random.sample(range(nodes), nodes)  # as their reports arrive: those that failed have one time
    order.sort(key=seconds.__getitem__)
    again = [[order[place], order[-1 - place]] for place in range(nodes // 2)]
    if nodes % 2:
        middle = order[nodes // 2]
        again = [*again[:-1], [*again[-1], middle]] if again else [[middle]]
    for world in again:
        if not fails(world, repeats):
            for node in world:
                passed[node] = True
    return Outcome(frozenset(node for node in range(nodes) if not passed[node]), frozenset(), 2, True)


def _ended(world: World, failed: bool) -> Result:
    return Result(world, "failed" if failed else "passed")


class _Count:
    """Counts what tests said."""

    def __init__(self) -> None:
        self.trials = self.exact = self.convicted = self.missed = self.undecided = self.rounds = self.most = 0

    def add(self, bad: frozenset[int], outcome: Outcome) -> None:
        """Count one test."""
        self.trials += 1
        self.exact += outcome.convicted == bad and not outcome.undecided
        self.convicted += not outcome.convicted <= bad
        self.missed += not bad <= outcome.convicted | outcome.undecided
        self.undecided += bool(outcome.undecided)
        self.rounds += outcome.rounds
        self.most = max(self.most, outcome.rounds)

    def tally(self) -> Tally:
        """The shares."""
        of = max(self.trials, 1)
        shares = (self.exact / of, self.convicted / of, self.missed / of, self.undecided / of, self.rounds / of)
        return Tally(self.trials, *shares, self.most)


def render(report: Report, console: Console) -> None:
    """Print how exact tests were, ours beside DLRover's."""
    shows = "always" if report.intermittent is None else f"shows in {report.intermittent:.0%} of gathers"
    title = f"{report.nodes} nodes, {report.faulty} faulty ({shows}), {report.trials:,} tests, repeats {report.repeats}"
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), title=title, title_justify="left")
    table.add_column("scheme")
    for name in ("exact", "healthy convicted", "missed", "indeterminate", "rounds", "most"):
        table.add_column(name, justify="right")
    for name, one in (("logdoctor", report.ours), ("DLRover", report.dlrover)):
        shares = (one.exact, one.healthy_convicted, one.missed, one.indeterminate)
        table.add_row(name, *(f"{share:.2%}" for share in shares), f"{one.rounds:.2f}", str(one.most_rounds))
    console.print(table)
    console.print(f"in {report.provable:.2%} of the tests some pair of the first round can pass", style="dim")
