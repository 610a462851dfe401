"""Rows as CSV and JSON lines."""

import csv
import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logdoctor.batch.as_text import read_lines, write_csv, write_lines
from logdoctor.batch.outputs import is_table, saved_rows
from logdoctor.batch.rows import COLUMNS, WITH_VERDICTS, Provenance, Row, diagnosed, table, write
from logdoctor.errors import InputError, StoreError
from logdoctor.types import Verdict
from tests.batch.test_summary import failure
from tests.store.test_records import BASE

RED = "\x1b[31m"
EVIL = f'=HYPERLINK("http://x"),\n<b>{RED}'


def whole() -> list[Row]:
    """A row with everything, one of a hostile log, one of a file that could not be read."""
    row = diagnosed(BASE, failure(nodes=("gpu-1", "gpu-2")))
    return [row, failure(quote=EVIL, source="@x"), Row(source="a.gz", error="a.gz: is damaged. Try again.")]


def test_json_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    place = tmp_path / "o.jsonl"
    write_lines(place, whole())
    assert list(read_lines(place)) == whole()
    first = json.loads(place.read_text().splitlines()[0])
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
    (back,) = saved_rows(place)
    assert back.quote == "g\ng" and back.source == "g"


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


@pytest.mark.parametrize("content", ["{", "[]", '{"source": 1}', '{"attempt": "1"}', "\xff"])
def test_lines_of_others_are_refused_by_number(tmp_path: Path, content: str) -> None:
    place = tmp_path / "o.jsonl"
    write_lines(place, whole()[:1])
    with place.open("ab") as file:
        file.write(content.encode("latin-1"))
    with pytest.raises(InputError, match="line 2 is no row"):
        list(read_lines(place))


def test_tables_are_read_in_each_form(tmp_path: Path) -> None:
    parquet, lines = tmp_path / "o.parquet", tmp_path / "o.jsonl"
    write(parquet, [table(whole(), Provenance())], Provenance())
    write_lines(lines, whole())
    assert list(saved_rows(parquet, WITH_VERDICTS)) == list(saved_rows(lines)) == whole()
    assert [row.verdict for row in saved_rows(parquet)] == [None] * 3
    with pytest.raises(InputError, match="does not exist"):
        list(saved_rows(tmp_path / "none.parquet"))


def test_csv_is_read_as_it_was_written_but_for_verdicts_and_colours(tmp_path: Path) -> None:
    place = tmp_path / "o.CSV"
    odd = failure(source="null", quote="'=1", job="-9", exit_code=-9, suspects=("gpu-1", "gpu-2"), error='a\nb,"c')
    some = [*whole(), odd, failure(quote="x" * (1 << 18))]
    write_csv(place, some)
    plain = [
        msgspec.structs.replace(row, verdict=None, quote=row.quote and row.quote.removesuffix(RED)) for row in some
    ]
    assert list(saved_rows(place)) == plain
    place.write_bytes(b"\xef\xbb\xbf" + place.read_bytes())  # as a spreadsheet saves it
    assert len(list(saved_rows(place))) == len(some)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no column `source`"),
        (b"step,loss\n1,2.0\n", "has no column `source`"),
        (b"source,bytes\na.log,1\nb.log,many\n", "line 3 is no row"),
        (b"source,bytes\n,1\n", "line 2 is no row"),
        (b"source\n\xff\xfe\n", "is no row"),
        (b"source,started\na.log,yesterday\n", "line 2 is no row"),
    ],
)
def test_csv_of_others_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    place = tmp_path / "o.csv"
    place.write_bytes(content)
    with pytest.raises(InputError, match=said):
        list(saved_rows(place))


def test_some_columns_are_read_alone(tmp_path: Path) -> None:
    place = tmp_path / "o.parquet"
    write(place, [table(whole(), Provenance())], Provenance())
    assert list(saved_rows(place, ("source", "reason"))) == [
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
            list(saved_rows(place))
    for other in (others, nameless):
        pq.write_table(other, place)
        with pytest.raises(InputError, match="cannot be read as a table"):
            list(saved_rows(place))
    pq.write_table(pa.table({"source": ["a"]}), place)
    with pytest.raises(InputError, match="was not written by"):
        list(saved_rows(place))


def test_a_table_is_told_from_a_log_by_what_is_in_it(tmp_path: Path) -> None:
    write_csv(tmp_path / "v.csv", whole())
    write_lines(tmp_path / "v.jsonl", whole())
    assert is_table(tmp_path / "v.csv") and is_table(tmp_path / "v.jsonl")
    for name, content in {
        "metrics.csv": b"step,loss\n1,2.0\n",
        "log.jsonl": b'{"level": "error", "source": "a"}\n',
        "list.jsonl": b"[1]\n",
        "bytes.jsonl": b"\xff\xfe\n",
        "empty.jsonl": b"",
        "deep.jsonl": b'{"source": "a", "x": ' + b"[" * 9000 + b"]" * 9000 + b"}",
    }.items():
        (tmp_path / name).write_bytes(content)
        assert not is_table(tmp_path / name), name
