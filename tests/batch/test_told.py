"""Tables of jobs as others write them."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logdoctor.batch.told import Table, Told
from logdoctor.errors import InputError


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
