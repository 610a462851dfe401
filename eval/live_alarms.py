"""False alarms of the live diagnosis (hang, bad loss) on healthy logs replayed with their own pauses.

    python -m eval.live_alarms [FOLDER ...]

Each healthy log of the folders (default: eval/corpus and eval/validation) is pushed line by line at its lines' times
(lines without one evenly between their neighbours), and judged every second; one without times is pushed at a line a
second. Then synthetic jobs, from seeds: steps of 0.5 to 20 seconds, with saves and evaluations of 60 times a step,
named in the log or not. An alarm is any verdict "failed" before the log ends. Patience is that of `run --end-on`: 20 s,
and 900 s where a job's pace is not known.
"""

import argparse
import random
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from rich.console import Console

from eval.labels import HealthyCase, read_corpus
from logdoctor.rules.scanner import Scanner
from logdoctor.service.live.log import LiveLog, Patience
from logdoctor.settings import read_settings
from logdoctor.text import decode, seconds_of
from logdoctor.wiring import scanner as build_scanner

PATIENCE = Patience(20.0, 900.0)
_DAY = 86_400.0
SEEDS = 30
FOLDERS = [Path(__file__).parent / "corpus", Path(__file__).parent / "validation"]
console = Console(highlight=False, width=140)

Timed = Iterable[tuple[float, bytes]]
"""Lines with the seconds since the line before."""


def alarms(lines: Timed, scanner: Scanner) -> list[str]:
    """Return the alarms while a log grows: the reason and the second of each."""
    now, said = 0.0, []
    log = LiveLog("main", scanner, PATIENCE, lambda: now)
    left = 0.0
    for gap, line in lines:
        left += gap
        while left >= 1.0:
            now, left = now + 1.0, left - 1.0
            if (verdict := log.look()) is not None and verdict.outcome == "failed":
                said.append(f"{verdict.reason} at {now:.0f} s: {verdict.why}")
        log.push(line)
    return said


def timed(text: bytes) -> Iterator[tuple[float, bytes]]:
    """Yield the lines of a log at their times, those without one evenly in between. Without any times it is a line a
    second."""
    lines = text.splitlines(keepends=True)
    stamps = {at: stamp for at, line in enumerate(lines) if (stamp := seconds_of(decode(line[:200]))) is not None}
    gaps = [0.0 if stamps else 1.0] * len(lines)
    for (before, begin), (at, end) in pairwise(stamps.items()):
        gap = end - begin
        if 0 < gap < _DAY:  # a larger gap is a stamp of another form, without a year
            gaps[before + 1 : at + 1] = [gap / (at - before)] * (at - before)
    return zip(gaps, lines, strict=True)


def synthetic(seed: int) -> Iterator[tuple[float, bytes]]:
    """Yield the lines of a job that saves and evaluates, each for 60 times a step."""
    chance = random.Random(seed)
    step_seconds, every = chance.choice((0.5, 1.0, 2.0, 5.0, 20.0)), chance.randrange(20, 60)
    named = chance.random() < 0.5
    pauses = ("saving checkpoint", "evaluating on the validation set")
    for step in range(1, 12 * every):
        yield step_seconds * chance.uniform(0.9, 1.2), b"step: %d | loss: %.4f\n" % (step, 9 / step + chance.random())
        if step % every == 0:
            said = f"{pauses[step // every % 2]}\n".encode() if named else b"\n"
            yield 0.0, said
            yield 60 * step_seconds * chance.uniform(0.9, 1.1), b"done\n" if named else b"\n"


def main() -> None:
    """Replay all logs and print the alarms."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, default=FOLDERS)
    given = parser.parse_args()
    scanner = build_scanner(read_settings())
    healthy = [log for folder in given.folders for log in read_corpus(folder) if isinstance(log.case, HealthyCase)]
    found, told = 0, 0
    for case in healthy:
        text = case.path.read_bytes()
        lines = list(timed(text))
        told += any(gap not in (0.0, 1.0) for gap, _ in lines)
        said = alarms(lines, scanner)
        found += bool(said)
        longest = max((gap for gap, _ in lines), default=0.0)
        if said:
            console.print(f"{case.path.name}: longest pause {longest:.0f} s: {said}")
    console.print(f"healthy logs: {found} of {len(healthy)} with an alarm; {told} tell times")
    wrong = {seed: said for seed in range(SEEDS) if (said := alarms(synthetic(seed), scanner))}
    for seed, said in wrong.items():
        console.print(f"synthetic {seed}: {said}")
    console.print(f"saves and evaluations of 60 steps: {len(wrong)} of {SEEDS} with an alarm")


if __name__ == "__main__":
    main()
