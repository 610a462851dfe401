"""How often jobs fail for which reason, and the order in which failures arrive.

The counts are those of Table 3 in *Characterization of Large Language Model Development in the Datacenter* (NSDI '24,
Hu et al.), column `Num`, for the two clusters together. They were entered by hand from the paper; no copy of the table
was at hand to check them by a program.
"""

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from logdoctor.errors import InputError

FREQUENCIES = {
    "NVLink Error": 54,
    "CUDA Error": 21,
    "Node Failure": 16,
    "ECC Error": 12,
    "Network Error": 12,
    "Connection Error": 147,
    "S3 Storage Error": 10,
    "NCCL Timeout Error": 6,
    "NCCL Remote Error": 3,
    "Dataloader Killed": 6,
    "Attribute Error": 67,
    "Out of Memory Error": 14,
    "Runtime Error": 65,
    "Assertion Error": 105,
    "Value Error": 33,
    "Zero Division Error": 5,
    "Model Loading Error": 104,
    "Dataset Loading Error": 5,
    "File Not Found Error": 568,
    "OS Error": 266,
    "Type Error": 620,
    "Name Error": 18,
    "Permission Error": 7,
    "Import Error": 111,
    "Key Error": 260,
    "Syntax Error": 10,
    "Argument Error": 3,
    "Called Process Error": 4,
    "Index Error": 23,
}
"""Failures of each reason in the paper."""

NEW = 0.1
"""Share of arrivals of a new kind."""


class Turn(NamedTuple):
    """One arrival: its kind, and whether it is the first of it."""

    kind: str
    new: bool


def apportioned(total: int, weights: Mapping[str, float], least: int = 0) -> dict[str, int]:
    """Return whole numbers proportional to the weights that sum to `total` (largest remainders)."""
    whole = sum(weights.values())
    exact = {name: total * weight / whole for name, weight in weights.items()}
    parts = {name: max(least, int(share)) for name, share in exact.items()}
    order = sorted(exact, key=lambda name: (parts[name] - exact[name], name))
    place = 0
    while (left := total - sum(parts.values())) > 0:
        parts[order[place % len(order)]] += 1
        place += 1
    while left < 0:  # the minimum of the rare ones comes off the frequent ones
        most = max(parts, key=lambda name: (parts[name], name))
        parts[most] -= 1
        left += 1
    return parts


def turns(failures: int, kinds: Mapping[str, Sequence[str]], seed: int) -> list[Turn]:
    """Return the arrivals in order, with reasons as often as in Table 3.

    `NEW` of them are of kinds not seen before. `kinds` are the names of each reason's kinds. Which arrivals of a reason
    bring a new kind is drawn evenly over the whole run, so that the end is no easier than the beginning; the others are
    of any kind seen before. Raises `InputError` when there are too few kinds.
    """
    rng = random.Random(f"turns {seed}")
    counts = {reason: count for reason, count in apportioned(failures, FREQUENCIES).items() if count}
    news = apportioned(max(round(failures * NEW), len(counts)), counts, least=1)
    order = [reason for reason, count in counts.items() for _ in range(count)]
    rng.shuffle(order)
    fresh: dict[str, list[str]] = {}
    firsts: dict[str, set[int]] = {}
    for reason, count in counts.items():
        known = list(kinds.get(reason, ()))
        if len(known) < news[reason]:
            cause = f"{failures:,} failures need {news[reason]} kinds of {reason}, there are {len(known)}"
            raise InputError("the replay", cause, "Replay fewer failures.")
        fresh[reason] = rng.sample(known, len(known))
        firsts[reason] = {0, *rng.sample(range(1, count), news[reason] - 1)}
    seen: dict[str, list[str]] = {reason: [] for reason in counts}
    passed = dict.fromkeys(counts, 0)
    result: list[Turn] = []
    for reason in order:
        new = passed[reason] in firsts[reason]
        passed[reason] += 1
        if new:
            seen[reason].append(fresh[reason].pop())
        result.append(Turn(seen[reason][-1] if new else rng.choice(seen[reason]), new))
    return result
