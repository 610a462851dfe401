"""The forms that a table of a batch is written in, by the name of its file: Parquet, CSV, JSON lines."""

from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from logdoctor.batch.as_text import LONGEST_LINE, read_csv, read_lines, write_csv, write_lines
from logdoctor.batch.rows import COLUMNS, WITH_VERDICTS, Row, read_rows
from logdoctor.errors import InputError

_WRITERS = {".csv": write_csv, ".jsonl": write_lines, ".ndjson": write_lines}
_READERS = {".csv": read_csv, ".jsonl": read_lines, ".ndjson": read_lines}

_CSV = ",".join(COLUMNS[:3]).encode()


def is_parquet(place: Path) -> bool:
    """Return whether a table is written as Parquet: unless its name says otherwise."""
    return place.suffix.lower() not in _WRITERS


class _Ours(msgspec.Struct):
    """What the rows of a table have, and lines of a log that are JSON do not."""

    source: str
    logdoctor: str


def is_table(place: Path) -> bool:
    """Return whether a path is that of a table which was written before, not of logs: CSV and JSON lines are by what
    they begin with."""
    form = place.suffix.lower()
    if not place.is_file() or form not in (".parquet", *_WRITERS):
        return False
    if form == ".parquet":
        return True
    try:
        with place.open("rb") as file:
            first = file.readline(LONGEST_LINE)
        return first.startswith(_CSV) if form == ".csv" else bool(msgspec.json.decode(first, type=_Ours))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def convert(table: Path, place: Path) -> None:
    """Write a table that stands in a Parquet file as CSV or JSON lines, as the name says; whole or not at all."""
    write = _WRITERS[place.suffix.lower()]
    write(place, read_rows(table, WITH_VERDICTS if write is write_lines else COLUMNS))


def saved_rows(place: Path, columns: Collection[str] = COLUMNS) -> Iterator[Row]:
    """Yield the rows of a table that was written before: a Parquet file, CSV, JSON lines, or the folder of parts of a
    run that was broken off; at least with some of its columns. `InputError` for any other."""
    if not place.exists():
        raise InputError(str(place), "does not exist", "Name the file given to --out.")
    read = _READERS.get(place.suffix.lower())
    return read(place) if read else read_rows(place, columns)
