"""Rebuilds records from stored lines, for judging a failure whose log is gone."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from logdoctor.compress.cut import newlines_of
from logdoctor.compress.filter import compress
from logdoctor.rules.scanner import Scanner
from logdoctor.store.learning.confirmed import Kept
from logdoctor.text import decode
from logdoctor.types import Line, Record, Segment, Verdict


def cited(verdict: Verdict) -> list[Kept]:
    """Return the lines in a verdict: what it quotes, with the lines around."""
    found: dict[tuple[str, int], Kept] = {}
    for one in verdict.evidence:
        lines = (*one.before, one.quote, *one.after)
        for number, text in enumerate(lines, one.line - len(one.before)):
            if number > 0:
                found.setdefault((one.stream, number), Kept(one.stream, number, text))
    return list(found.values())


def rebuilt(lines: Iterable[Kept], scanner: Scanner, file: str = "") -> list[Record]:
    """Return a record per stream of these lines: rules and marks are matched again; progress and counts are missing."""
    return [
        _revived(stream, list(some), scanner, file)
        for stream, some in groupby(sorted(lines, key=lambda one: (one.stream, one.line)), lambda one: one.stream)
    ]


def _revived(stream: str, lines: Sequence[Kept], scanner: Scanner, file: str) -> Record:
    data = b"\n".join(one.text.replace("\n", " ").encode("utf-8", "replace") for one in lines) + b"\n"
    residual = compress(Segment(stream, data, 0, 1, newlines_of(data)), scanner)
    scan = residual.scan
    rules: dict[int, list[int]] = {}
    for place, rule in scan.evidence.tolist():
        rules.setdefault(place, []).append(rule)
    found = []
    for place, one in enumerate(lines):
        weak = bool(scan.weak[place]) and bool(scan.owner[place] < 0)
        text = decode(residual.raw(place))
        found.append(Line(one.line, text, tuple(rules.get(place, ())), bool(scan.strong[place]), weak))
    return Record(stream, file or stream, lines=found, last=found[-1:])
