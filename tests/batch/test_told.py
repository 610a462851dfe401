"""Tables of jobs as others write them."""

import datetime
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logdoctor.errors import InputError
from logdoctor.pipeline.batch import told as told_module
from logdoctor.pipeline.batch.told import Table, Told


def table(folder: Path, **columns: list[Any]) -> Table:
    """The table with such columns as Parquet."""
    pq.write_table(pa.table({"path": ["a.log"], **columns}), folder / "jobs.parquet")
    return Table(folder / "jobs.parquet")


@pytest.mark.parametrize(
    ("nodes", "told"), [(Decimal("4.00"), 4), (4.0, 4), (4, 4), (["a", "b"], ("a", "b")), ("a, b", ("a", "b"))]
)
def test_nodes_are_a_number_or_names_in_any_form(tmp_path: Path, nodes: object, told: object) -> None:
    assert table(tmp_path, nodes=[nodes]).of(str(tmp_path / "a.log")) == Told(nodes=told)  # type: ignore[arg-type] # any form


@pytest.mark.parametrize("column", ["nodes", "gpus", "exit_code", "job", "start"])
@pytest.mark.parametrize("value", [b"\xff", {"a": 1}, datetime.time(4), Decimal("4.5"), [b"x"]])
def test_a_value_of_another_type_is_named_with_its_row(tmp_path: Path, column: str, value: object) -> None:
    if column == "start" and isinstance(value, Decimal):
        value = "soon"
    with pytest.raises(InputError, match=f"row 1 has .* as {column}"):
        table(tmp_path, **{column: [value]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path,start\nx.log,yesterday\n", "row 2 has 'yesterday' as start"),
        ("log,gpus\nx.log,8\n", "has no column `path`"),
        ('path\n""\n', "has no path"),
        ("", "has no column `path`"),
    ],
)
def test_a_table_that_is_wrong_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "jobs.csv").write_text(text)
    with pytest.raises(InputError, match=said):
        Table(tmp_path / "jobs.csv")


def repeated(text: str, times: int) -> pa.Array:
    """The same text many times, which Parquet writes once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * times, pa.int32()), pa.array([text])).cast(pa.string())


NULLS = pa.nulls(5_000_000, pa.string())
BOMBS = {
    "a text in many rows": lambda: {"path": repeated("x" * 16_000, 16_384)},
    "many rows": lambda: {"path": repeated("x", 1_000_000)},
    "a large text": lambda: {"path": ["x" * (64 << 20)]},
    "many values in a row": lambda: {"path": ["a"], "nodes": pa.ListArray.from_arrays([0, len(NULLS)], NULLS)},
    "a text in a list": lambda: {
        "path": ["a"],
        "nodes": pa.ListArray.from_arrays([0, 16_384], repeated("x" * 16_000, 16_384)),
    },
    "a text in a mapping": lambda: {
        "path": repeated("a", 16_384),
        "user": pa.StructArray.from_arrays([repeated("x" * 16_000, 16_384)], ["a"]),
    },
    "bytes of one length": lambda: {
        "path": repeated("a", 16_384),
        "user": pa.DictionaryArray.from_arrays(
            pa.array([0] * 16_384, pa.int32()), pa.array([b"x" * 16_000], pa.binary(16_000))
        ).cast(pa.binary(16_000)),
    },
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_would_fill_the_memory_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "jobs.parquet"
    pq.write_table(pa.table(BOMBS[name]()), place, compression="zstd")
    assert place.stat().st_size < 20_000
    made = Counter[str]()

    def told(*_: Any) -> Told:
        made["rows"] += 1
        return Told()

    monkeypatch.setattr(told_module, "_told", told)
    with pytest.raises(InputError, match="would fill more than"):
        Table(place)
    assert made["rows"] < 200_000


def number(value: int) -> bytes:
    """A number of Parquet's headers, with the type of its field before it."""
    digits = [2 * value >> shift & 0x7F for shift in range(0, (2 * value).bit_length(), 7)]
    return b"\x15" + bytes([one | 0x80 for one in digits[:-1]] + digits[-1:])


def test_a_page_that_unpacks_to_more_than_the_end_of_the_file_says_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "jobs.parquet"
    never_null = pa.schema([pa.field("path", pa.string(), nullable=False)])
    pq.write_table(pa.table([["x" * 4000] * 9], never_null), place, compression="zstd", use_dictionary=False)
    about, content = pq.read_metadata(place).row_group(0).column(0), place.read_bytes()
    true, false = (number(size) for size in (9 * 4004, 1_200_000_000))
    sizes = [b"\x16" + number(about.total_compressed_size + more)[1:] for more in (0, len(false) - len(true))]
    assert true in content
    place.write_bytes(content.replace(true, false, 1).replace(*sizes))
    told = pq.read_metadata(place).row_group(0).column(0)
    assert (told.total_uncompressed_size, len(sizes[0])) == (about.total_uncompressed_size, len(sizes[1]))
    with pytest.raises(InputError, match="would fill more than 1,024 MiB of memory"):
        Table(place)


def test_a_large_table_of_jobs_that_are_alike_is_read(tmp_path: Path) -> None:
    rows = 20_000
    columns = {
        "path": [f"/archive/{number:06}/train.log" for number in range(rows)],
        "user": ["anna"] * rows,
        "nodes": [[f"gpu-{node}" for node in range(64)]] * rows,
        "framework": pa.array(["megatron"] * rows).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), tmp_path / "jobs.parquet", row_group_size=rows // 3)
    read = Table(tmp_path / "jobs.parquet")
    assert len(read) == rows
    last = read.of("/archive/019999/train.log")
    assert last is not None and (last.user, last.framework, len(last.nodes or ())) == ("anna", "megatron", 64)  # type: ignore[arg-type] # names
