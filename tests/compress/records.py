"""What a record says, in a form that can be compared."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import zstandard

from logdoctor.compress.cut import cut
from logdoctor.compress.excerpt import Recorder, excerpt
from logdoctor.compress.filter import compress
from logdoctor.pipeline import LogFile, ReadLimits, records
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Record


def content(record: Record) -> dict[str, Any]:
    """Every field of a record; arrays as lists, NaN as text, packed metric lines unpacked."""
    fields: dict[str, Any] = {name: getattr(record, name) for name in Record.__struct_fields__}
    fields["progress"] = [
        (rule, readings.lines.tolist(), *(list(map(str, column.tolist())) for column in readings[1:]))
        for rule, readings in record.progress.items()
    ]
    fields["texts"] = sorted(
        (number, text)
        for part in record.texts
        for number, text in zip(
            part.lines.tolist(), zstandard.ZstdDecompressor().decompress(part.frame).split(b"\n"), strict=True
        )
    )
    return fields


def recorded(chunks: Iterable[bytes], scanner: Scanner, block: int) -> Record:
    """The record of a stream that arrives in chunks."""
    recorder = Recorder("main", "a.log", scanner)
    for segment in cut("main", chunks, block):
        recorder.add(excerpt(compress(segment, scanner), scanner), 0)
    return recorder.record()


def record_of(path: Path, scanner: Scanner, limits: ReadLimits) -> Record:
    """The record of one file, as `diagnose` makes it."""
    (record,) = records([LogFile("main", path)], scanner, limits)
    return record


Write = Callable[..., Path]
