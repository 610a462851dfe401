"""Shared by the tests of what is stored: its database, and the clock of that as a test sets it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from logdoctor.store.database import Database
from logdoctor.store.jobs.records import Records

on_both = pytest.mark.usefixtures("database_url")
"""Marks what runs on PostgreSQL, too: an operation whose SQL differs, many at once, the order of texts, odd values."""


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new database: of SQLite, in tests `on_both` once of each kind."""
    if "database_url" in request.fixturenames:
        found: str = request.getfixturevalue("database_url")
        return found
    return f"sqlite:///{tmp_path}/records.sqlite"


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """A new database, open."""
    opened = Database(url)
    yield opened
    opened.close()


@pytest.fixture
def records(url: str) -> Iterator[Records]:
    """The records of a new database."""
    opened = Records(url)
    yield opened
    opened.close()


class Clock:
    """The clock of the database, which stands still unless told."""

    now = 1_000_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(Database, "now", lambda self, connection: clock.now)
    return clock
