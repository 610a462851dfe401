"""Sessions of browsers: what they stand for, and when they are over."""

from pathlib import Path

import pytest

from logdoctor.store.database import Database
from logdoctor.store.keeping.sessions import LASTING, Sessions
from logdoctor.store.keeping.tokens import Tokens
from tests.store.conftest import on_both


@on_both
def test_a_session_stands_for_its_token_in_every_process(database: Database, url: str) -> None:
    tokens = Tokens(database)
    token, _ = tokens.create("mine", ["read"])
    ours, other = Sessions(database, tokens), Database(url)
    theirs = Sessions(other, Tokens(other))
    id = ours.begin(token)
    assert ours.begin(token) != id
    assert theirs.token(id) == token
    theirs.end(id)
    assert ours.token(id) is None
    other.close()


@on_both
def test_a_session_is_over_with_its_time_or_its_token(database: Database) -> None:
    now = 1_000_000.0
    tokens = Tokens(database, lambda: now)
    sessions = Sessions(database, tokens, lambda: now)
    long, _ = tokens.create("long", ["read"])
    short, _ = tokens.create("short", ["read"], expires=now + 60)
    of_long, of_short = sessions.begin(long), sessions.begin(short)
    now += 61
    assert sessions.token(of_short) is None and sessions.token(of_long) == long
    now += LASTING
    assert sessions.token(of_long) is None
    again = sessions.begin(long)
    tokens.revoke("long")
    assert sessions.token(again) is None


@pytest.mark.parametrize("id", ["", "x", "\0", "\ud800", "é", "x" * 10_000])
def test_what_is_no_session_is_none(database: Database, id: str) -> None:
    sessions = Sessions(database, Tokens(database))
    assert sessions.token(id) is None
    sessions.end(id)


def test_no_id_is_kept(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'a.db'}")
    tokens = Tokens(database)
    id = Sessions(database, tokens).begin(tokens.create("mine", ["read"])[0])
    database.close()
    assert all(id.encode() not in path.read_bytes() for path in tmp_path.iterdir())
