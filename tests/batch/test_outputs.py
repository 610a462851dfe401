"""Rows as CSV and JSON lines."""

import csv
import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logdoctor.errors import InputError, StoreError
from logdoctor.pipeline.batch.outputs import is_table, write_csv, write_lines
from logdoctor.pipeline.batch.rows import COLUMNS, Provenance, Row, diagnosed, read_rows, table, write
from logdoctor.types import Verdict
from tests.batch.test_summary import failure
from tests.store.test_records import BASE

RED = "\x1b[31m"
EVIL = f'=HYPERLINK("http://x"),\n<b>{RED}'


def whole() -> list[Row]:
    """A row with everything, one of a hostile log, one of a file that could not be read."""
    row = diagnosed(BASE, failure(nodes=("gpu-1", "gpu-2")))
    return [row, failure(quote=EVIL, source="@x"), Row(source="a.gz", error="a.gz: is damaged. Try again.")]


def test_json_lines_hold_what_rows_do(tmp_path: Path) -> None:
    place = tmp_path / "o.jsonl"
    write_lines(place, whole())
    first, *others = map(json.loads, place.read_text().splitlines())
    assert [msgspec.convert(other, Row) for other in others] == whole()[1:]
    assert msgspec.convert(first["verdict"], Verdict) == BASE  # an object, not a text
    assert first["ended"].endswith("Z")


def test_csv_is_for_spreadsheets(tmp_path: Path) -> None:
    place = tmp_path / "o.csv"
    write_csv(place, whole())
    with place.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS and "verdict" not in COLUMNS
    assert (rows[0]["reason"], rows[0]["nodes"], rows[0]["started"]) == (
        "ECC Error",
        "gpu-1 gpu-2",
        "2026-03-01T00:00:00.000Z",
    )
    assert rows[1]["quote"] == f"'{EVIL.removesuffix(RED)}" and rows[1]["source"] == "'@x"
    assert rows[2]["error"] == "a.gz: is damaged. Try again." and rows[2]["outcome"] == ""


def test_nothing_in_a_csv_steers_a_terminal(tmp_path: Path) -> None:
    place = tmp_path / "o.csv"
    evil = f"a\x1b]0;title\x07b\x9b2Jc\x85d\u202ee{RED}f\rg"
    row = Row(source=evil, detail=evil, quote=f"{RED}={evil}\n{evil}", error=evil, problems=(evil,))
    write_csv(place, [row])
    text = place.read_bytes().decode()
    assert not [char for char in text if not char.isprintable() and char not in "\r\n"]
    assert text.count("\r") == text.count("\r\n") == 2, "the ends of the rows"
    (back,) = csv.DictReader(text.splitlines(keepends=True))
    assert back["quote"] == "g\ng" and back["source"] == "g"


def test_what_stood_there_stays_when_writing_fails(tmp_path: Path) -> None:
    place = tmp_path / "o.csv"
    place.write_text("before")

    def broken() -> object:
        yield failure()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_csv(place, broken())  # type: ignore[arg-type]
    assert place.read_text() == "before" and list(tmp_path.iterdir()) == [place]
    with pytest.raises(StoreError, match="cannot be written"):
        write_lines(tmp_path / "none" / "o.jsonl", whole())


def test_some_columns_are_read_alone(tmp_path: Path) -> None:
    place = tmp_path / "o.parquet"
    write(place, [table(whole(), Provenance())], Provenance())
    assert list(read_rows(place, ("source", "reason"))) == [
        Row(source=row.source, reason=row.reason) for row in whole()
    ]


def test_tables_that_are_damaged_or_not_ours_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "o.parquet"
    write(place, [table(whole(), Provenance())], Provenance())
    content = place.read_bytes()
    metadata = pq.read_schema(place).metadata
    others = pa.table({"source": [1]}).replace_schema_metadata(metadata)
    nameless = pa.table({"attempt": ["1"]}).replace_schema_metadata(metadata)
    for damage in (b"", b"PAR1 and nothing more", content[: len(content) // 2], content[:100] + content[200:]):
        place.write_bytes(damage)
        with pytest.raises(InputError, match="cannot be read as a table"):
            list(read_rows(place))
    for other in (others, nameless):
        pq.write_table(other, place)
        with pytest.raises(InputError, match="cannot be read as a table"):
            list(read_rows(place))
    pq.write_table(pa.table({"source": ["a"]}), place)
    with pytest.raises(InputError, match="was not written by"):
        list(read_rows(place))


def test_a_table_is_told_from_a_log_by_its_name(tmp_path: Path) -> None:
    for name in ("v.parquet", "v.csv"):
        (tmp_path / name).touch()
    assert is_table(tmp_path / "v.parquet") and not is_table(tmp_path / "v.csv")
    assert not is_table(tmp_path / "none.parquet")
