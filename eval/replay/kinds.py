"""All kinds of failures that are replayed, and the arrivals drawn from them."""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from eval.replay.catalogue import specimens
from eval.replay.compose import Composed
from eval.replay.heads import heads
from eval.replay.label import FailureKind, ReplayLog
from eval.replay.reenact import reenacted
from eval.replay.table3 import turns


class Arrival(NamedTuple):
    """One failure: its number from 1, its kind, whether it is the kind's first, its log."""

    number: int
    kind: FailureKind
    new: bool
    log: ReplayLog


def kinds(corpora: Sequence[Path], folder: Path) -> dict[str, FailureKind]:
    """Return the kinds by id: those of labelled logs, and the composed ones.

    The first corpus is the one with `biglog.py`; `folder` is for temporary logs. Raises `InputError` when a corpus is
    incomplete.
    """
    healthy = heads(corpora[0], folder)
    found: list[FailureKind] = [*reenacted(corpora), *(Composed(one, healthy) for one in specimens())]
    return {kind.id: kind for kind in found}


def arrivals(known: Mapping[str, FailureKind], failures: int, seed: int) -> Iterator[Arrival]:
    """Yield the failures in order; the same seed gives the same bytes.

    Raises `InputError` for more failures than the kinds allow.
    """
    by_reason: dict[str, list[str]] = {}
    for kind in known.values():
        by_reason.setdefault(kind.label.reason, []).append(kind.id)
    for number, turn in enumerate(turns(failures, by_reason, seed), 1):
        kind = known[turn.kind]
        yield Arrival(number, kind, turn.new, kind.log(random.Random(f"{seed} {number} {kind.id}")))
