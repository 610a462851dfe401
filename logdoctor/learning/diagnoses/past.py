"""What is kept of an attempt for rules learned later, and records rebuilt from it."""

from collections.abc import Iterable

from logdoctor.diagnose.taught import LONGEST, nameable
from logdoctor.store.learning.confirmed import READ, Kept
from logdoctor.text import shown
from logdoctor.types import Line, Record, Verdict


def kept(records: Iterable[Record]) -> list[Kept]:
    """Return the lines of records that learned rules look at; suspicious ones have the greatest weight."""
    return [
        Kept(record.stream, line.number, shown(line.text)[:LONGEST], 2 * line.strong + line.weak + bool(line.rules))
        for record in records
        for line in nameable(record)
    ]


def decided(verdict: Verdict) -> str:
    """Return what made a verdict, as it is kept: its kind, marked where a model read what the rules said."""
    by = verdict.decided_by
    return f"{by.kind}{READ}" if by.model and by.kind in ("rule", "structure") else by.kind


def as_records(lines: Iterable[Kept]) -> list[Record]:
    """Return kept lines as records, for trying learned rules."""
    streams: dict[str, list[Line]] = {}
    for one in lines:
        streams.setdefault(one.stream, []).append(Line(one.line, one.text))
    return [Record(stream, "", lines) for stream, lines in streams.items()]
