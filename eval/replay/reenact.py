"""Kinds of failures from labelled logs: each arrival is such a log with all replaced that may differ."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from eval.labels import FailureCase, read_corpus
from eval.replay.label import FailureLabel, ReplayLog, label_of
from eval.replay.table3 import FREQUENCIES
from eval.replay.vary import Traits, Variation, traits
from logdoctor.compress.leftovers import shape
from logdoctor.rules import marks
from logdoctor.text import decode, origin

MOST_BYTES = 200_000
_OFTEN = 8  # fewest lines of a shape that count as regular
_STAYS = 400  # characters of a line that are searched for its writer
_ECHO = 0.35  # chance that a rank which only echoes the error is silent
_SWAP = 0.3  # chance that two lines of different writers swap


class Reenacted:
    """The kind of one labelled log."""

    def __init__(
        self, id: str, label: FailureLabel, lines: list[bytes], evidence: Sequence[int], nodes: Sequence[str]
    ) -> None:
        self.id, self.label = id, label
        places = sorted({number - 1 for number in evidence if number <= len(lines)})
        self._lines, self._places = _shortened(lines, places)
        self._text = [line.decode("latin-1") for line in self._lines]
        self._regular = _regular(self._lines, self._places)
        self._writers = [_writer(line) for line in self._lines]
        self._traits: Traits = traits("\n".join(self._text), nodes)
        self._keeps_ranks = label.reason.startswith("NCCL")  # the label depends on which ranks report it

    @property
    def bytes(self) -> int:
        """The bytes of this kind's longest log."""
        return sum(map(len, self._lines)) + len(self._lines)

    def log(self, rng: random.Random) -> ReplayLog:
        """Return the log with other hosts, ranks, times, numbers and echoes, and less healthy training."""
        order = self._order(rng, self._chosen(rng))
        proof = set(self._places)
        text = Variation(rng, self._traits).text("\n".join([self._text[place] for place in order]))
        evidence = tuple(number for number, place in enumerate(order, 1) if place in proof)
        return ReplayLog(text.encode("latin-1") + b"\n", evidence)

    def _chosen(self, rng: random.Random) -> list[int]:
        """Return the indexes of the lines that are printed this time."""
        gone = set(self._regular[: rng.randint(0, len(self._regular))])
        if self._places and not self._keeps_ranks:
            last = self._places[-1]
            proving = {self._writers[place] for place in self._places}
            behind = {writer for writer in self._writers[last + 1 :] if writer and writer not in proving}
            silent = {writer for writer in sorted(behind) if rng.random() < _ECHO}
            gone.update(n for n in range(last + 1, len(self._lines)) if self._writers[n] in silent)
        return [place for place in range(len(self._lines)) if place not in gone]

    def _order(self, rng: random.Random, places: list[int]) -> list[int]:
        """Return the indexes with some neighbours of different writers swapped; evidence stays."""
        proof, writers, turn = set(self._places), self._writers, 1
        while turn < len(places):
            one, other = places[turn - 1], places[turn]
            apart = writers[one] and writers[other] and writers[one] != writers[other]
            if apart and one not in proof and other not in proof and rng.random() < _SWAP:
                places[turn - 1], places[turn] = other, one
                turn += 1
            turn += 1
        return places


def _writer(line: bytes) -> str:
    """Return a line's channel if it names a rank or task, else ""."""
    found = origin(decode(line[:_STAYS]))
    return found.channel if found.rank is not None or found.local_rank is not None or found.task is not None else ""


def _regular(lines: Sequence[bytes], places: Sequence[int]) -> list[int]:
    """Return the indexes of lines of healthy training before the evidence."""
    first = places[0] - 2 if places else 0
    shapes = [shape(line) for line in lines[: max(first, 0)]]
    often = Counter(shapes)
    return [n for n, key in enumerate(shapes) if often[key] >= _OFTEN and not marks.is_error_like(decode(lines[n]))]


def _shortened(lines: list[bytes], places: list[int]) -> tuple[list[bytes], list[int]]:
    """Return the lines within `MOST_BYTES`, and the evidence's new indexes. Regular lines before the evidence go first,
    then frequent ones far from it."""
    over = sum(map(len, lines)) + len(lines) - MOST_BYTES
    if over <= 0:
        return lines, places
    gone: set[int] = set()
    seen: Counter[int] = Counter()
    repeated: list[int] = []
    near = {n + d for n in places for d in range(-30, 31)}
    for place, line in enumerate(lines):
        key = shape(line)
        seen[key] += 1
        if seen[key] > _OFTEN and place not in near:
            repeated.append(place)
    for place in (*_regular(lines, places), *repeated):
        if over <= 0:
            break
        if place not in gone:
            gone.add(place)
            over -= len(lines[place]) + 1
    kept = [place for place in range(len(lines)) if place not in gone]
    number = {place: n for n, place in enumerate(kept)}
    return [lines[place] for place in kept], [number[place] for place in places]


def reenacted(corpora: Sequence[Path]) -> list[Reenacted]:
    """Return the kinds of labelled failures whose reasons Table 3 counts, except for too long logs."""
    kinds: list[Reenacted] = []
    for corpus in corpora:
        for path, case in read_corpus(corpus / "failures"):
            if isinstance(case, FailureCase) and case.reason in FREQUENCIES:
                lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
                name = f"{corpus.name}/{case.id}"
                kinds.append(Reenacted(name, label_of(case), lines, case.evidence_lines, case.faulty_nodes))
    return [kind for kind in kinds if kind.bytes <= 2 * MOST_BYTES]
