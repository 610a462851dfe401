"""Accuracy of node tests, simulated with the real planner and judge, beside DLRover's two rounds.

    python eval/bench_nodes.py [--quick] [--seed S] [--write]

Three tables: every set of one and two faulty nodes for 3 to 64 nodes, and random clusters of up to 588 nodes with up to
a quarter faulty; single cases that are common; and intermittent faults, by repeats. `--write` puts them into
`node-tests.json` and `node-tests.md` beside this file. Nothing is asserted.
"""

import argparse
import json
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

from eval.simulate_nodes import SimulatedTest, dlrover, failing, run, simulate
from logdoctor.nodes.board import Board, NodeTestTerms
from logdoctor.nodes.judge import judge
from logdoctor.nodes.plan import next_round
from logdoctor.types.nodes import Node, Result

HERE = Path(__file__).resolve().parent
MOST, CASES, PART = 588, 100_000, 500
SCHEMES = ("logdoctor", "DLRover")
SINGLE = ((4, 1), (4, 2), (5, 1), (8, 2), (16, 4), (64, 4), (64, 16), (128, 8), (588, 1), (588, 147))
REPEATS = (1, 2, 4, 8, 16, 32, 64)
CHANCES = (0.5, 0.2, 0.1, 0.05)

Row = dict[str, Any]


def main() -> None:
    """Measure, print and, if asked, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    cases = CASES // 50 if given.quick else CASES
    trials = 200 if given.quick else 2000
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        sizes = range(3, 65, 3 if given.quick else 1)
        exhaustive = _summed(pool.map(partial(_exhaustive, seed=given.seed), sizes))
        parts = (given.seed * 1_000_000 + part for part in range(cases // PART))
        at_random = _summed(pool.map(_at_random, parts))
        single = list(pool.map(partial(_single, trials=trials // 10, seed=given.seed), SINGLE))
        unsteady = list(pool.map(partial(_unsteady, trials=trials // 4, seed=given.seed), CHANCES))
    found = {
        "seed": given.seed,
        "all_sets_of_1_and_2_of_3_to_64": exhaustive,
        "random_up_to_588_a_quarter_faulty": at_random,
        "single": single,
        "come_and_go": unsteady,
        "milliseconds_for_588_nodes": _milliseconds(),
    }
    text = _page(found)
    print(text)
    if given.write:
        (HERE / "node-tests.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        (HERE / "node-tests.md").write_text(text, encoding="utf-8")


def _exhaustive(nodes: int, seed: int) -> dict[str, Counter[str]]:
    """Count the outcomes of every set of one and two faulty nodes."""
    random, counts = Random(seed), {scheme: Counter[str]() for scheme in SCHEMES}
    for count in (1, 2):
        for bad in combinations(range(nodes), count):
            _count(counts, nodes, frozenset(bad), random)
    return counts


def _at_random(seed: int) -> dict[str, Counter[str]]:
    """Count the outcomes of random clusters with up to a quarter of their nodes faulty."""
    random, counts = Random(seed), {scheme: Counter[str]() for scheme in SCHEMES}
    for _ in range(PART):
        nodes = random.randint(3, MOST)
        bad = random.sample(range(nodes), random.randint(1, max(1, nodes // 4)))
        _count(counts, nodes, frozenset(bad), random)
    return counts


def _count(counts: dict[str, Counter[str]], nodes: int, bad: frozenset[int], random: Random) -> None:
    fails = failing(bad, None, random)
    ours = run(nodes, NodeTestTerms(), fails)
    for scheme, outcome in zip(SCHEMES, (ours, dlrover(nodes, fails, 1, random)), strict=True):
        counts[scheme].update(_words(bad, outcome, ours.provable))
    counts["logdoctor"]["most rounds"] = max(counts["logdoctor"]["most rounds"], ours.rounds)


def _words(bad: frozenset[int], outcome: SimulatedTest, provable: bool) -> list[str]:
    """Return what an outcome counts as."""
    words = {
        "cases": True,
        "exact": outcome.convicted == bad and not outcome.undecided,
        "healthy convicted": not outcome.convicted <= bad,
        "missed": not bad <= outcome.convicted | outcome.undecided,
        "indeterminate": bool(outcome.undecided),
        "provable": provable,
        "provable and not exact": provable and (outcome.convicted != bad or bool(outcome.undecided)),
    }
    return [word for word, counts in words.items() if counts]


def _summed(parts: Any) -> dict[str, Row]:
    """Sum the counts of many parts; of rounds the maximum."""
    whole: dict[str, Counter[str]] = {scheme: Counter() for scheme in SCHEMES}
    rounds = 0
    for part in parts:
        rounds = max(rounds, part["logdoctor"].pop("most rounds"))
        for scheme, counts in part.items():
            whole[scheme].update(counts)
    whole["logdoctor"]["most rounds"] = rounds
    return {scheme: dict(counts) for scheme, counts in whole.items()}


def _single(case: tuple[int, int], trials: int, seed: int) -> Row:
    nodes, faulty = case
    report = simulate(nodes, faulty, max(trials, 50), seed=seed)
    ours, theirs = report.ours, report.dlrover
    return {
        "nodes": nodes,
        "faulty": faulty,
        "exact": ours.exact,
        "healthy_convicted": ours.healthy_convicted,
        "missed": ours.missed,
        "indeterminate": ours.indeterminate,
        "rounds": round(ours.rounds, 2),
        "dlrover_exact": theirs.exact,
        "dlrover_healthy_convicted": theirs.healthy_convicted,
    }


def _unsteady(chance: float, trials: int, seed: int) -> Row:
    """Return the shares of tests of 64 nodes that call the one faulty node healthy."""
    missed = {}
    for repeats in REPEATS:
        report = simulate(64, 1, trials, chance, repeats, seed)
        missed[repeats] = (report.ours.missed, report.ours.healthy_convicted, report.dlrover.missed)
    return {"chance": chance, "missed": {str(repeats): figures for repeats, figures in missed.items()}}


def _milliseconds() -> float:
    """Return the CPU milliseconds to plan and judge 588 nodes, a quarter of them faulty."""
    best, bad = 1e9, set(range(0, 588, 4))
    for _ in range(5):
        begin = time.process_time()
        board = Board([Node(f"n{number}") for number in range(588)], NodeTestTerms())
        while worlds := next_round(board):
            for world in worlds:
                failed = any(int(name[1:]) in bad for name in world.nodes)
                board.add(Result(world, "failed" if failed else "passed"))
        judge(board)
        best = min(best, time.process_time() - begin)
    return round(best * 1000, 1)


def _page(found: Row) -> str:
    """Return the tables as Markdown."""
    lines = [
        "# How exact tests of nodes are",
        "",
        f"Written by `python eval/bench_nodes.py --write`, seed {found['seed']}. Simulated clusters; the planner and",
        "the judge are the real ones. DLRover: its two rounds (neighbours, then the fastest with the slowest; who",
        "fails twice is faulty), from its grouping code. Provable: some world of the first round can pass. Of the rest",
        "logdoctor says that it does not know (with `--regroup` it pairs anew, and finds most of them, too).",
        "",
        "| faults that always show | scheme | cases | exact | healthy convicted | missed | indeterminate "
        "| provable, not exact |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, key in (
        ("all sets of 1 and 2 of 3 to 64 nodes", "all_sets_of_1_and_2_of_3_to_64"),
        ("random, up to 588 nodes, up to a quarter faulty", "random_up_to_588_a_quarter_faulty"),
    ):
        for scheme, counts in found[key].items():
            cells = ("cases", "exact", "healthy convicted", "missed", "indeterminate", "provable and not exact")
            lines.append(f"| {name} | {scheme} | " + " | ".join(f"{counts.get(cell, 0):,}" for cell in cells) + " |")
    rounds = found["random_up_to_588_a_quarter_faulty"]["logdoctor"]["most rounds"]
    lines += [
        "",
        f"At most {rounds} rounds in the random cases. Planning and judging a test of 588 nodes, 147 of them faulty,",
        f"takes {found['milliseconds_for_588_nodes']} ms of CPU time.",
        "",
        "| nodes | faulty | exact | healthy convicted | indeterminate | rounds | DLRover exact "
        "| DLRover healthy convicted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found["single"]:
        shares = [f"{row[key]:.1%}" for key in ("exact", "healthy_convicted", "indeterminate")]
        theirs = [f"{row[key]:.1%}" for key in ("dlrover_exact", "dlrover_healthy_convicted")]
        lines.append(f"| {row['nodes']} | {row['faulty']} | {' | '.join([*shares, str(row['rounds']), *theirs])} |")
    lines += [
        "",
        "Faults that come and go: one faulty node of 64 that shows its fault in one gather with the chance given; the",
        "share of tests that call it healthy (logdoctor / DLRover), by how often each world repeats the gather.",
        "",
        "| chance | " + " | ".join(f"{repeats} repeat{'s' * (repeats > 1)}" for repeats in REPEATS) + " |",
        "|---|" + "---|" * len(REPEATS),
    ]
    for row in found["come_and_go"]:
        cells = [f"{ours:.1%} / {theirs:.1%}" for ours, _, theirs in row["missed"].values()]
        lines.append(f"| {row['chance']:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
