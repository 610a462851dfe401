"""Hundreds of keys are looked up at once, each by the index."""

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.lookup import of_keys
from logdoctor.store.schema import marks, streams
from tests.store.conftest import on_both

NAMES = ("a", "größe", "it's", '"', "\\", "a b", "日本", "\x01", "%s", "$[0]", "1", "null", "😀")
COLUMNS = streams.c["job", "attempt", "stream"]
KEYS = [(job, attempt, stream) for job in NAMES for attempt in (0, 1, 999_999) for stream in NAMES]


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = Database(url)
    with opened.appending() as connection:
        rest = dict.fromkeys(("shard", "next", "lines", "archived", "changed", "scanned", "kept"), 0)
        names = ("job", "attempt", "stream")
        rows = [dict(zip(names, key, strict=True)) | rest | {"state": "", "problem": ""} for key in KEYS]
        connection.execute(sa.insert(streams), rows)
    yield opened
    opened.close()


@on_both
def test_rows_come_once_each_of_those_keys_alone(database: Database) -> None:
    wanted = KEYS[::2]
    with database.reading() as connection:
        asked = [*wanted, *wanted[:5], ("nobody", 1, "a"), ("a", 2, "a")]
        found = [tuple(row) for row in of_keys(connection, sa.select(*COLUMNS), COLUMNS, asked)]
        counts = sa.select(streams.c.job, sa.func.count()).group_by(streams.c.job)
        counted = list(of_keys(connection, counts, streams.c["job", "attempt"], [("a", 1), ("\\", 0), ("a", 1)]))
        assert list(of_keys(connection, sa.select(*COLUMNS), COLUMNS, [])) == []
    assert sorted(found) == sorted(wanted)
    assert sorted(map(tuple, counted)) == [("\\", len(NAMES)), ("a", len(NAMES))]


@on_both
def test_no_table_is_read_as_a_whole(database: Database) -> None:
    """Not even by a database that knows nothing of their sizes."""
    asked: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, text: str, given: object, *_: object) -> None:
        if text.startswith("SELECT"):
            asked.append((text, given))

    names = marks.c["job", "attempt", "stream", "mark"]
    with database.reading() as connection:
        sa.event.listen(connection, "before_cursor_execute", note)
        list(of_keys(connection, sa.select(*COLUMNS), COLUMNS, KEYS))
        list(of_keys(connection, sa.select(streams.c.next), streams.c["job", "attempt"], {key[:2] for key in KEYS}))
        list(of_keys(connection, sa.select(*names), names, [(*key, "a mark") for key in KEYS]))
        of_sqlite = connection.dialect.name == "sqlite"
        if not of_sqlite:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # a few rows would be read as a whole
        for text, given in asked[:3]:
            plan = connection.exec_driver_sql(f"EXPLAIN {'QUERY PLAN ' * of_sqlite}{text}", given)
            steps = [str(row[-1]) for row in plan]
            assert any("SEARCH" in step or "Index" in step for step in steps), steps
            assert not any(step.startswith(("SCAN streams", "SCAN marks")) or "Seq Scan" in step for step in steps), (
                steps
            )
