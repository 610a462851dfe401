"""Shared by the tests of what is stored: the clock of the database, as a test sets it."""

import pytest

from logdoctor.store.database import Database


class Clock:
    """The clock of the database, which stands still unless told."""

    now = 1_000_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(Database, "now", lambda self, connection: clock.now)
    return clock
