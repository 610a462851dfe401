"""Rows of a batch as CSV for spreadsheets and as JSON lines for programs. docs/batch.md describes the columns."""

import csv
import datetime
import io
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import msgspec

from logdoctor.batch.files import new_file
from logdoctor.batch.rows import COLUMNS, Row
from logdoctor.errors import InputError
from logdoctor.report import as_meant, inert
from logdoctor.text import harmless

LONGEST_LINE = 64 << 20
"""Bytes of a row."""

_AT_ONCE = 1000  # rows that are encoded before they are written
_LIST = " "  # between the nodes of a cell
_NONE = msgspec.Raw(b"null")
_NOT_COMPARED = "Compare tables as `logdoctor batch` wrote them."


class _Line(Row, frozen=True, kw_only=True):
    """A row as one line of JSON: the verdict is an object in it, not a text."""

    verdict: msgspec.Raw = _NONE  # type: ignore[assignment] # the same JSON, not quoted


_LISTS = frozenset(name for name, kind in get_type_hints(Row).items() if get_origin(kind) is tuple)
csv.field_size_limit(LONGEST_LINE)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Line).decode


def write_csv(place: Path, rows: Iterable[Row]) -> None:
    """Write rows as CSV (RFC 4180) with a header, whole or not at all; no text is one that a spreadsheet evaluates, or
    that steers a terminal.

    `StoreError` when it cannot be written.
    """
    with new_file(place) as file:
        file.write(_csv([COLUMNS]))
        for some in _portions(rows):
            file.write(_csv([_cell(getattr(row, name)) for name in COLUMNS] for row in some))


def read_csv(place: Path) -> Iterator[Row]:
    """Yield the rows of a CSV file, without the whole verdict, one at a time. `InputError` when they cannot be read or
    are none of ours."""
    reader: csv.DictReader[str] | None = None
    try:
        with place.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if "source" not in (reader.fieldnames or ()):
                raise InputError(str(place), "has no column `source`", _NOT_COMPARED)
            for cells in reader:
                yield msgspec.convert(_told(cells), Row, strict=False)
    except OSError as error:
        raise _unreadable(place, error) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, csv.Error) as error:
        raise _no_row(place, reader.line_num if reader else 1, error) from error


def write_lines(place: Path, rows: Iterable[Row]) -> None:
    """Write rows as JSON lines, whole or not at all. `StoreError` when it cannot be written."""
    with new_file(place) as file:
        for some in _portions(rows):
            file.write(b"".join(_line(row) + b"\n" for row in some))


def read_lines(place: Path) -> Iterator[Row]:
    """Yield the rows of JSON lines, one at a time. `InputError` when they cannot be read or are none of ours."""
    number = 0
    try:
        with place.open("rb") as file:
            while line := file.readline(LONGEST_LINE):
                number += 1
                yield _row(_decode(line))
    except OSError as error:
        raise _unreadable(place, error) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _no_row(place, number, error) from error


def _unreadable(place: Path, error: OSError) -> InputError:
    return InputError(str(place), f"cannot be read ({error.strerror})", "Check the path.")


def _no_row(place: Path, line: int, error: Exception) -> InputError:
    cause = f"line {line} is no row of `logdoctor batch` ({str(error)[:200]})"
    return InputError(str(place), cause, _NOT_COMPARED)


def _portions(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield rows, some at a time."""
    left = iter(rows)
    while some := list(islice(left, _AT_ONCE)):
        yield some


def _csv(rows: Iterable[Iterable[Any]]) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out).writerows(rows)
    return out.getvalue().encode("utf-8", "backslashreplace")


def _cell(value: Any) -> Any:
    if isinstance(value, tuple):
        return _cell(_LIST.join(value))
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
    if isinstance(value, str):
        return inert("\n".join(harmless(line, LONGEST_LINE) for line in value.split("\n")))
    return value


def _told(cells: dict[str, str]) -> dict[str, Any]:
    """Return what the cells of a row say; an empty one says nothing."""
    said = {name: as_meant(cell) for name in COLUMNS if (cell := cells.get(name))}
    return {name: cell.split(_LIST) if name in _LISTS else cell for name, cell in said.items()}


def _line(row: Row) -> bytes:
    verdict = _NONE if row.verdict is None else msgspec.Raw(row.verdict)
    return _encode(_Line(**(msgspec.structs.asdict(row) | {"verdict": verdict})))


def _row(line: _Line) -> Row:
    verdict = None if line.verdict == _NONE else bytes(line.verdict).decode()
    return Row(**(msgspec.structs.asdict(line) | {"verdict": verdict}))
