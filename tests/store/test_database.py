"""The file of a database is for its user alone."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from logdoctor.errors import StoreError
from logdoctor.store.database import Database, revision
from tests.ports import free_port


@pytest.fixture(autouse=True)
def careless() -> Iterator[None]:
    """A process that lets everybody read what it writes."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def opened(file: Path) -> dict[str, int]:
    """The modes of a database and of the files beside it, while somebody writes into it."""
    database = Database(f"sqlite:///{file}")
    with database.writing() as connection:
        connection.execute(sa.text("CREATE TABLE IF NOT EXISTS some (thing TEXT)"))
        connection.execute(sa.text("INSERT INTO some VALUES ('a secret')"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in file.parent.iterdir()}
    database.close()
    return modes


def test_a_new_database_is_private(tmp_path: Path) -> None:
    assert opened(tmp_path / "a.db") == {"a.db": 0o600, "a.db-wal": 0o600, "a.db-shm": 0o600}


def test_one_that_is_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    opened(tmp_path / "a.db")
    (tmp_path / "a.db").chmod(0o644)
    assert set(opened(tmp_path / "a.db").values()) == {0o600}


def test_one_that_was_opened_to_a_group_stays_so(tmp_path: Path) -> None:
    opened(tmp_path / "a.db")
    (tmp_path / "a.db").chmod(0o660)
    assert set(opened(tmp_path / "a.db").values()) == {0o660}


def test_what_libpq_says_stands_on_one_line() -> None:
    with pytest.raises(StoreError) as refused:
        revision(f"postgresql+psycopg://u@127.0.0.1:{free_port()}/records")
    assert "refused Is the server running" in str(refused.value) and str(refused.value).isprintable()
