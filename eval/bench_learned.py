"""Cost of learned rules: the speed of the filter stage with 200 and with 2,000 of them, in one run.

    python eval/bench_learned.py [--mb N] [--json [FILE]]

The offline agent mines the rules from logs of all frameworks of biglog.py; to reach 2,000, their words are exchanged,
which gives rules of real form that match nothing. The log is one framework's, read with the shipped diagnosis rules and
an empty filter book, which leaves every line to the learned rules. Shorter and longer sets take turns, and the best of
each counts. MB are 10^6 bytes.
"""

import argparse
import datetime
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import regex
from rich.console import Console
from rich.table import Table

from logdoctor import wiring
from logdoctor.compress.cut import cut
from logdoctor.compress.filter import compress
from logdoctor.compress.leftovers import Leftovers
from logdoctor.learning.filters.miner import Miner
from logdoctor.learning.filters.sample import sample
from logdoctor.learning.filters.vote import poll
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import FilterRule, Origin
from logdoctor.settings import Settings
from logdoctor.types import Segment

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "bench_learned.json"
BIGLOG = HERE / "corpus" / "biglog.py"
FRAMEWORKS = "megatron megatron_deepspeed deepspeed internevo torchtitan nemo composer nanotron olmo metaseq".split()
SIZES = (200, 2000)
REPEATS = 5
WORDS = "alpha bravo gamma delta omega sigma theta kappa lambda zeta vector plasma copper granite cedar".split()


def segments(framework: str, megabytes: int, seed: int) -> list[Segment]:
    """Return a framework's log, cut into segments as in the service."""
    command = [sys.executable, str(BIGLOG), "--framework", framework, "--mb", str(megabytes), "--seed", str(seed)]
    log = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
    return list(cut("main", (log[at : at + (1 << 20)] for at in range(0, len(log), 1 << 20)), 1 << 20))


def mined(scanner: Scanner, log: Sequence[Segment], name: str) -> list[str]:
    """Return the patterns of the offline agent for a log that most of its runs agree on."""
    left = Leftovers(set())
    for segment in log:
        left.add(compress(segment, scanner))
    shown, _ = sample(name, name, 1, left.groups(), Miner.room, Miner.groups)
    return [one.proposal.pattern for one in poll(Miner(), shown, 5).candidates]


def strangers(patterns: Sequence[str], count: int) -> list[str]:
    """Return patterns of the same form with other words."""
    chance = random.Random(7)
    made: dict[str, None] = {}
    while len(made) < count:
        pattern = chance.choice(patterns)
        made[
            regex.sub(
                r"(?<![\\\w\[-])[A-Za-z]{4,}(?![\w-]*\])",
                lambda _: f"{chance.choice(WORDS)}{chance.choice(WORDS)}",
                pattern,
            )
        ] = None
    return [pattern for pattern in made if pattern not in patterns][:count]


def learned(scanner: Scanner, patterns: Sequence[str]) -> Scanner:
    """Return the scanner with the patterns as active learned rules."""
    origin = Origin("bench", datetime.date(2026, 11, 21), "bench")
    rules = [FilterRule(f"learned/bench/{n}", "active", "", (p,), (p,), origin) for n, p in enumerate(patterns)]
    return scanner.learning("bench", tuple(rules))


def seconds(scanner: Scanner, log: Sequence[Segment]) -> tuple[float, int]:
    """Return the seconds to read the log, and the lines left."""
    begin = time.perf_counter()
    kept = sum(len(compress(segment, scanner).kept) for segment in log)
    return time.perf_counter() - begin, kept


def main() -> None:
    """Measure and show; with --json also write."""
    parser = argparse.ArgumentParser(description="Measure what learned rules cost.")
    parser.add_argument("--mb", type=int, default=40)
    parser.add_argument("--json", nargs="?", const=RESULTS, type=Path, metavar="FILE")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        book = wiring.rule_book(Settings())
        empty = Scanner(book.without_filters(), Path(folder))
        found = {name: mined(empty, segments(name, 8, 7), name) for name in FRAMEWORKS}
        own = found[FRAMEWORKS[0]]
        others = [pattern for name in FRAMEWORKS[1:] for pattern in found[name] if pattern not in own]
        every = [*own, *dict.fromkeys(others)]
        every += strangers(every, max(SIZES) - len(every))
        scanners = {size: learned(empty, every[:size]) for size in SIZES}
        log = segments(FRAMEWORKS[0], given.mb, 8)
        size = sum(len(segment.data) for segment in log) / 1e6
        runs = [{rules: seconds(scanner, log) for rules, scanner in scanners.items()} for _ in range(REPEATS)]
    lines = sum(segment.lines for segment in log)
    rows = [
        {
            "rules": rules,
            "mb_per_s": round(size / min(run[rules][0] for run in runs), 1),
            "removed": round(1 - runs[0][rules][1] / lines, 4),
        }
        for rules in SIZES
    ]
    ratio = round(rows[1]["mb_per_s"] / rows[0]["mb_per_s"], 3)
    table = Table(
        "learned rules", "MB/s", "lines removed", title="filter stage, one process, empty shipped filter book"
    )
    for row in rows:
        table.add_row(str(row["rules"]), str(row["mb_per_s"]), f"{row['removed']:.2%}")
    console = Console(highlight=False)
    console.print(table)
    console.print(f"2,000 rules: {ratio:.2f} of the speed with 200 ({len(own)} rules match; {len(every)} in all)")
    if given.json:
        given.json.write_text(json.dumps({"rows": rows, "ratio": ratio, "mb": given.mb}, indent=2) + "\n")


if __name__ == "__main__":
    main()
