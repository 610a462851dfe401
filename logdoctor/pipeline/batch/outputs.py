"""The formats of a batch table, chosen by file name.

Parquet, the only one that is read again, CSV for spreadsheets, JSON lines for programs. docs/batch.md describes the
columns.
"""

import csv
import datetime
import io
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from logdoctor.jobs.report import inert
from logdoctor.pipeline.batch.files import new_file
from logdoctor.pipeline.batch.rows import COLUMNS, WITH_VERDICTS, Row, read_rows
from logdoctor.text import harmless

_AT_ONCE = 1000  # rows encoded before they are written
_LONGEST_LINE = 64 << 20  # bytes of a cell
_NONE = msgspec.Raw(b"null")
_encode = msgspec.json.Encoder().encode


class _Line(Row, frozen=True, kw_only=True):
    """A row as one line of JSON; the verdict is an object in it, not a text."""

    verdict: msgspec.Raw = _NONE  # type: ignore[assignment] # the same JSON, not quoted


def is_parquet(place: Path) -> bool:
    """Return whether a table is written as Parquet, the default for unknown suffixes."""
    return place.suffix.lower() not in _WRITERS


def is_table(place: Path) -> bool:
    """Return whether a path is an existing table, rather than logs."""
    return place.suffix.lower() == ".parquet" and place.is_file()


def convert(table: Path, place: Path) -> None:
    """Convert a Parquet table into CSV or JSON lines, by the name of `place`, atomically."""
    write = _WRITERS[place.suffix.lower()]
    write(place, read_rows(table, WITH_VERDICTS if write is write_lines else COLUMNS))


def write_csv(place: Path, rows: Iterable[Row]) -> None:
    """Write rows as CSV (RFC 4180) with a header, atomically.

    No text is one that a spreadsheet would evaluate or that steers a terminal. `StoreError` when it cannot be written.
    """
    with new_file(place) as file:
        file.write(_csv([COLUMNS]))
        for some in _portions(rows):
            file.write(_csv([_cell(getattr(row, name)) for name in COLUMNS] for row in some))


def write_lines(place: Path, rows: Iterable[Row]) -> None:
    """Write rows as JSON lines, atomically; `StoreError` when they cannot be written."""
    with new_file(place) as file:
        for some in _portions(rows):
            file.write(b"".join(_line(row) + b"\n" for row in some))


def _portions(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield rows in batches."""
    left = iter(rows)
    while some := list(islice(left, _AT_ONCE)):
        yield some


def _csv(rows: Iterable[Iterable[Any]]) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out).writerows(rows)
    return out.getvalue().encode("utf-8", "backslashreplace")


def _cell(value: Any) -> Any:
    if isinstance(value, tuple):
        return _cell(" ".join(value))
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
    if isinstance(value, str):
        return inert("\n".join(harmless(line, _LONGEST_LINE) for line in value.split("\n")))
    return value


def _line(row: Row) -> bytes:
    verdict = _NONE if row.verdict is None else msgspec.Raw(row.verdict)
    return _encode(_Line(**(msgspec.structs.asdict(row) | {"verdict": verdict})))


_WRITERS = {".csv": write_csv, ".jsonl": write_lines, ".ndjson": write_lines}
