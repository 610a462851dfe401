"""A table about the jobs behind logs: CSV or Parquet, one row per log."""

import csv
import datetime
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from logdoctor.errors import InputError


class Told(NamedTuple):
    """What is told about the job behind a log; None for unknown fields. `kind` follows from it, and is not a column."""

    job: str | None = None
    framework: str | None = None
    exit_code: int | None = None
    nodes: tuple[str, ...] | int | None = None
    user: str | None = None
    start: datetime.datetime | None = None
    end: datetime.datetime | None = None
    gpus: int | None = None
    kind: str = ""


class Table:
    """The rows of a table by the path of their log, as given or relative to the table's folder."""

    def __init__(self, place: Path) -> None:
        self._folder = os.path.abspath(place.parent)
        self._rows: dict[str, Told] = {}
        try:
            for number, row in _rows(place):
                self._rows[_key(_path(place, number, row))] = _told(place, number, row)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(str(place), f"cannot be read ({reason})", "Give it a table as CSV or Parquet.") from error

    def __len__(self) -> int:
        return len(self._rows)

    def of(self, name: str) -> Told | None:
        """Return what is told about a log; None when the table does not have it."""
        if "://" in name:
            return self._rows.get(name)
        whole = os.path.abspath(name)
        keys = (os.path.normpath(name), whole, os.path.relpath(whole, self._folder))
        return next((row for key in keys if (row := self._rows.get(key)) is not None), None)


def _rows(place: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a table with their numbers; the first line of CSV has the column names."""
    with place.open("rb") as file:
        is_parquet = file.read(4) == b"PAR1"
    if is_parquet:
        from logdoctor.pipeline.batch.rows import records

        yield from enumerate(records(place, ("path", *_COLUMNS)), 1)
        return
    with place.open(encoding="utf-8-sig", newline="") as text:
        reader = csv.DictReader(text, skipinitialspace=True)
        if "path" not in (reader.fieldnames or ()):
            cause = f"has no column `path` (it has {', '.join(reader.fieldnames or ())[:200] or 'nothing'})"
            raise InputError(str(place), cause, "Name the log of each row in it.")
        for row in reader:
            yield reader.line_num, row


def _key(path: str) -> str:
    return path if "://" in path else os.path.normpath(path)


def _path(place: Path, number: int, row: dict[str, Any]) -> str:
    path = row.get("path")
    if not isinstance(path, str) or not path:
        raise InputError(f"{place}, row {number}", "has no path", "Name the log that it tells of.")
    return path


def _told(place: Path, number: int, row: dict[str, Any]) -> Told:
    known: dict[str, Any] = {}
    for column, (read, form) in _COLUMNS.items():
        value = row.get(column)
        if value is None or value == "":
            continue
        try:
            known[column] = read(value)
        except (ValueError, TypeError, OverflowError, OSError) as error:
            cause = f"has {str(value)[:60]!r} as {column}"
            raise InputError(f"{place}, row {number}", cause, f"Give {form}, or leave it empty.") from error
    return Told(**known)


def _text(value: Any) -> str:
    if not isinstance(value, (str, int)):
        raise TypeError
    return str(value)


def _whole(value: Any) -> int:
    number = int(value)
    if number != float(value) or abs(number) >= 1 << 63:
        raise ValueError
    return number


def _count(value: Any) -> int:
    if (number := _whole(value)) < 0:
        raise ValueError
    return number


def _nodes(value: Any) -> tuple[str, ...] | int:
    if isinstance(value, (list, tuple)):
        return tuple(map(_text, value))
    if not isinstance(value, str) or value.strip().isdecimal():
        return _count(value)
    return (value,) if "[" in value else tuple(value.replace(",", " ").split())


def _time(value: Any) -> datetime.datetime:
    """Parse a time: ISO 8601 (UTC without a zone), or seconds since the epoch."""
    time = value
    if isinstance(value, str):
        try:
            time = float(value)
        except ValueError:
            time = datetime.datetime.fromisoformat(value.strip())
    if not isinstance(time, datetime.datetime):
        return datetime.datetime.fromtimestamp(time, datetime.UTC)
    return time.replace(tzinfo=time.tzinfo or datetime.UTC).astimezone(datetime.UTC)


_COLUMNS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "job": (_text, "a name"),
    "framework": (_text, "a name"),
    "exit_code": (_whole, "a whole number"),
    "nodes": (_nodes, "how many, or their names with commas"),
    "user": (_text, "a name"),
    "start": (_time, "a time as 2026-03-01T04:05:06Z, or seconds since the epoch"),
    "end": (_time, "a time as 2026-03-01T04:05:06Z, or seconds since the epoch"),
    "gpus": (_count, "a number"),
}
