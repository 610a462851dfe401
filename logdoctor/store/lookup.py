"""Rows that have one of many keys: one statement for hundreds, which finds each by its index.

A list of pairs in `IN` does not: SQLite then reads the whole table.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

_ARRAYS: dict[type, sa.types.TypeEngine[Any]] = {str: postgresql.ARRAY(sa.Text), int: postgresql.ARRAY(sa.BigInteger)}


def of_keys(
    connection: sa.Connection,
    query: sa.Select[Any],
    columns: Iterable[sa.ColumnElement[Any]],
    keys: Iterable[tuple[str | int, ...]],
) -> Iterable[Any]:
    """Return a query's rows with these keys in these columns, which begin an index."""
    wanted = list(dict.fromkeys(keys))
    if not wanted:
        return ()
    source, found = _of_sqlite(wanted) if connection.dialect.name == "sqlite" else _of_postgresql(wanted)
    where = [column == one for column, one in zip(columns, found, strict=True)]
    return connection.execute(query.select_from(source).where(*where))


def _of_sqlite(keys: list[tuple[str | int, ...]]) -> tuple[sa.FromClause, list[sa.ColumnElement[Any]]]:
    source = sa.func.json_each(msgspec.json.encode(keys).decode()).table_valued("value")
    return source, [sa.func.json_extract(source.c.value, f"$[{place}]") for place in range(len(keys[0]))]


def _of_postgresql(keys: list[tuple[str | int, ...]]) -> tuple[sa.FromClause, list[sa.ColumnElement[Any]]]:
    arrays: list[sa.BindParameter[Any]] = [
        sa.bindparam(None, list(of), _ARRAYS[type(of[0])]) for of in zip(*keys, strict=True)
    ]
    source = sa.func.unnest(*arrays).table_valued(*(f"of_{place}" for place in range(len(arrays)))).render_derived()
    return source, list(source.c)
