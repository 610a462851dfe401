"""The table of a batch: its columns, and what is read back."""

import datetime
import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logdoctor.errors import InputError
from logdoctor.pipeline.batch.rows import (
    SCHEMA,
    Provenance,
    Row,
    packed,
    provenance,
    read,
    rows,
    shown,
    table,
    unread,
    write,
)
from logdoctor.types import as_json
from tests.store.test_records import BASE

ROOT = Path(__file__).parents[2]
MADE = Provenance(rules="abcd")
ROW = Row(
    source="a.log",
    nodes=("n1", "n2"),
    started=datetime.datetime(2026, 3, 1, 4, 5, 6, tzinfo=datetime.UTC),
    outcome="failed",
    confidence=0.5,
)


def test_every_field_is_a_column_of_its_type() -> None:
    assert [field.name for field in msgspec.structs.fields(Row)] == SCHEMA.names
    assert [str(SCHEMA.field(name).type) for name in ("gpus", "confidence", "nodes", "started")] == [
        *("int64", "double", "list<item: string>", "timestamp[ms, tz=UTC]"),
    ]


def test_every_column_is_documented() -> None:
    section = (ROOT / "docs" / "batch.md").read_text().split("## Columns")[1].split("## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == set(SCHEMA.names)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "one.parquet", [table([ROW], MADE), table([Row(source="b.log")], MADE)], MADE)
    found = read(tmp_path / "one.parquet")
    assert rows(found) == [ROW, Row(source="b.log")]
    assert provenance(found) == MADE
    assert [path.name for path in tmp_path.iterdir()] == ["one.parquet"]


def test_parts_of_a_folder_are_one_table(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"part-{name}.parquet").write_bytes(packed(table([Row(source=name)], MADE)))
    (tmp_path / ".part-c.parquet").write_bytes(b"half")
    assert [row.source for row in rows(read(tmp_path))] == ["a", "b"]


def test_a_column_that_was_added_since_is_null(tmp_path: Path) -> None:
    old = table([ROW], MADE).drop_columns(["gpus"])
    pq.write_table(old, tmp_path / "old.parquet")
    assert rows(read(tmp_path / "old.parquet")) == [ROW]


def test_tables_are_read_and_written_without_threads(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from logdoctor.pipeline.batch.rows import Provenance, Row, packed, read, table, write\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "place = Path(sys.argv[1])\n"
        "made = table([Row(source=str(number)) for number in range(5000)], Provenance())\n"
        "write(place, [made, made], Provenance())\n"
        "assert len(read(place)) == 10000 and packed(made)\n"
        "print(len(os.listdir('/proc/self/task')) - before)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "v.parquet")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0\n"


def test_tables_of_others_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    (tmp_path / "y.parquet").write_bytes(b"PAR1 no")
    newer = table([ROW], Provenance(rows=99))
    pq.write_table(newer, tmp_path / "z.parquet")
    (tmp_path / "empty").mkdir()
    for name, cause in (
        ("x.parquet", "was not written by"),
        ("y.parquet", "cannot be read as a table"),
        ("z.parquet", "another version"),
        ("none.parquet", "cannot be read"),
        ("empty", "holds no table"),
    ):
        with pytest.raises(InputError, match=cause):
            read(tmp_path / name)


def test_names_that_are_not_utf8_are_stored_as_escapes(tmp_path: Path) -> None:
    row = unread(InputError("b\udcff.log", "is bad", "Look."), Row(source="b"))
    assert rows(table([row], MADE)) == [row]
    assert row.error == "b\\udcff.log is bad. Look."
    name = "b\udcff.log"
    verdict = json.loads(as_json(msgspec.structs.replace(BASE, file=name)))
    assert verdict["file"] == shown(name) == "b\\udcff.log", "one name, shown in one way"
