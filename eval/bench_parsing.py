"""How the Log Agent's miner groups lines of logs that it was not made for, beside Drain3.

    python eval/bench_parsing.py FOLDER [--write]

FOLDER is a checkout of logpai/loghub: 16 logs of 2,000 labelled lines each (`*/*_2k.log_structured.csv`). Both see the
message of each line without its header, and have the same settings for all logs: Drain3 its own, the miner those of the
service. Grouping accuracy is the share of lines whose group holds exactly the lines with the same label (Zhu et al.,
"Tools and Benchmarks for Automated Log Parsing", ICSE-SEIP '19). The miner's group of a line is the pattern that most
of five runs agreed on, else its shape. Without the folder nothing is done.
"""

import argparse
import csv
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import NamedTuple

from drain3 import TemplateMiner
from drain3.template_miner_config import TemplateMinerConfig
from rich.console import Console
from rich.table import Table

from logdoctor.compress.leftovers import shape
from logdoctor.learning.filters.miner import Miner
from logdoctor.learning.filters.proposal import Sample
from logdoctor.learning.filters.vote import poll

HERE = Path(__file__).resolve().parent
RUNS = 5


class Result(NamedTuple):
    """Grouping accuracy and lines per second of both on one log."""

    log: str
    lines: int
    miner: float
    drain3: float
    miner_speed: float
    drain3_speed: float


def by_miner(lines: Sequence[str]) -> list[Hashable]:
    """Return the group of each line by the miner."""
    shapes = [shape(line.encode()) for line in lines]
    counts = Counter(shapes).most_common()
    number = {one: at for at, (one, _) in enumerate(counts)}
    places = tuple(("main", at) for at in range(1, len(lines) + 1))
    groups = tuple(number[one] for one in shapes)
    sample = Sample("loghub", "loghub", 1, tuple(lines), places, groups, tuple(count for _, count in counts))
    found: list[Hashable] = [("shape", one) for one in shapes]
    for candidate in reversed(poll(Miner(), sample, RUNS).candidates):
        for at in candidate.takes:
            found[at] = candidate.proposal.pattern
    return found


def by_drain3(lines: Sequence[str]) -> list[Hashable]:
    """Return the group of each line by Drain3 with its own settings."""
    miner = TemplateMiner(config=TemplateMinerConfig())
    return [miner.add_log_message(line)["cluster_id"] for line in lines]


def accuracy(found: Sequence[Hashable], labels: Sequence[str]) -> float:
    """Return the share of lines in groups that hold exactly the lines of one label."""
    groups: dict[Hashable, set[int]] = defaultdict(set)
    wanted: dict[str, set[int]] = defaultdict(set)
    for at, (group, label) in enumerate(zip(found, labels, strict=True)):
        groups[group].add(at)
        wanted[label].add(at)
    right = (group for group in groups.values() if wanted[labels[min(group)]] == group)
    return sum(map(len, right)) / len(labels)


def timed(parse: Callable[[Sequence[str]], list[Hashable]], lines: Sequence[str]) -> tuple[list[Hashable], float]:
    """Return a parser's groups, and its lines per second."""
    begin = time.perf_counter()
    found = parse(lines)
    return found, len(lines) / (time.perf_counter() - begin)


def measured(path: Path) -> Result:
    """Measure both on one labelled log."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = list(csv.DictReader(file))
    lines, labels = [row["Content"] for row in rows], [row["EventId"] for row in rows]
    (ours, speed), (theirs, their_speed) = (timed(parse, lines) for parse in (by_miner, by_drain3))
    return Result(path.parent.name, len(lines), accuracy(ours, labels), accuracy(theirs, labels), speed, their_speed)


def main() -> None:
    """Measure all logs of the folder, print a table, and write the figures if asked."""
    parser = argparse.ArgumentParser(description="Grouping accuracy of the miner and of Drain3.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="write eval/parsing.json")
    given = parser.parse_args()
    logs = sorted(given.folder.glob("*/*_structured.csv"))
    if not logs:
        print(f"{given.folder}: no labelled logs of loghub there; nothing is measured", file=sys.stderr)
        return
    csv.field_size_limit(1 << 24)
    results = [measured(path) for path in logs]
    table = Table("log", "miner", "Drain3", "lines/s, miner", "lines/s, Drain3", title="grouping accuracy")
    for one in results:
        table.add_row(
            one.log, f"{one.miner:.3f}", f"{one.drain3:.3f}", f"{one.miner_speed:,.0f}", f"{one.drain3_speed:,.0f}"
        )
    Console().print(table)
    print(f"the miner is at or above Drain3 on {sum(one.miner >= one.drain3 for one in results)} of {len(results)}")
    if given.write:
        rows = ({"log": one.log, "miner": round(one.miner, 4), "drain3": round(one.drain3, 4)} for one in results)
        (HERE / "parsing.json").write_text(json.dumps(list(rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
