"""A token opens what it was made for, until it ends; its secret is nowhere."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from logdoctor.errors import InputError
from logdoctor.store.jobs.records import Records
from logdoctor.store.keeping.tokens import SCOPES, Token, TokenError, Tokens, holds, may
from logdoctor.store.schema import metadata
from tests.store.conftest import on_both


class Clock:
    """A clock that the test turns."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(url: str, clock: Clock) -> Iterator[Tokens]:
    records = Records(url)
    yield Tokens(records.database, clock)
    records.close()


@on_both
def test_a_secret_finds_its_token(tokens: Tokens) -> None:
    token, secret = tokens.create("ci", ["read", "ingest", "read"], ["b-", "a-"], 2000.0)
    assert token == Token("ci", ("ingest", "read"), ("a-", "b-"), 1000.0, 2000.0)
    assert tokens.find(secret) == token
    assert tokens.list() == (token,)


def test_secrets_are_long_random_and_their_own(tokens: Tokens) -> None:
    secrets = {tokens.create(f"t{n}", ["read"])[1] for n in range(20)}
    assert len(secrets) == 20
    assert all(secret.startswith("ldr_") and len(secret) == 47 for secret in secrets)


@on_both
def test_the_secret_is_not_stored(tokens: Tokens, tmp_path: Path) -> None:
    _, secret = tokens.create("ci", ["read"])
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    with tokens._database.reading() as connection:
        rows = [str(row) for table in metadata.sorted_tables for row in connection.execute(sa.select(table))]
    stored += "".join(rows).encode()
    assert secret.encode() not in stored and secret.removeprefix("ldr_").encode() not in stored
    assert hashlib.sha256(secret.encode()).hexdigest().encode() in stored


@pytest.mark.parametrize("guess", ["", "ldr_", "ldr_x", "x", "ldr_é", "ldr_\0", "ldr_\ud800", "ldr_" + "A" * 10**6])
def test_another_secret_finds_nothing(tokens: Tokens, guess: str) -> None:
    _, secret = tokens.create("ci", ["read"])
    assert tokens.find(guess) is None
    assert tokens.find(secret + "=") is None and tokens.find(secret[:-1]) is None and tokens.find(secret[4:]) is None


def test_a_token_ends_at_its_time(tokens: Tokens, clock: Clock) -> None:
    _, secret = tokens.create("ci", ["read"], expires=1010.0)
    clock.now = 1009.9
    assert tokens.find(secret)
    clock.now = 1010.0
    assert tokens.find(secret) is None


def test_a_revoked_token_is_of_no_use(tokens: Tokens, clock: Clock) -> None:
    _, secret = tokens.create("ci", ["read"])
    _, other = tokens.create("other", ["read"])
    clock.now = 1001.0
    revoked = tokens.revoke("ci")
    clock.now = 1002.0
    assert revoked.revoked == 1001.0 and tokens.revoke("ci") == revoked
    assert tokens.find(secret) is None and tokens.find(other)
    assert [token.name for token in tokens.list()] == ["ci", "other"]


def test_a_name_is_given_once(tokens: Tokens) -> None:
    tokens.create("ci", ["read"])
    for _ in range(2):
        with pytest.raises(TokenError, match="exists already"):
            tokens.create("ci", ["admin"])
        tokens.revoke("ci")
    assert tokens.list()[0].scopes == ("read",)


def test_revoking_what_is_unknown_is_an_error(tokens: Tokens) -> None:
    with pytest.raises(TokenError, match="does not exist"):
        tokens.revoke("x")
    with pytest.raises(InputError):
        tokens.revoke("\ud800")


@pytest.mark.parametrize("name", ["", " ", "a\nb", "\0", "\ud800", "x" * 201], ids=lambda name: ascii(name)[:10])
def test_bad_names_are_refused(tokens: Tokens, name: str) -> None:
    with pytest.raises(TokenError, match="is not a name"):
        tokens.create(name, ["read"])


@pytest.mark.parametrize("scopes", [[], ["root"], ["read", "Admin"], "read"])
def test_bad_scopes_are_refused(tokens: Tokens, scopes: list[str]) -> None:
    with pytest.raises(TokenError, match="ingest, place, read, operate, admin"):
        tokens.create("ci", scopes)


@pytest.mark.parametrize("prefix", ["", "\0", "\ud800", "a\n"], ids=ascii)
def test_bad_prefixes_are_refused(tokens: Tokens, prefix: str) -> None:
    with pytest.raises(TokenError, match="the prefix"):
        tokens.create("ci", ["read"], ["ok", prefix])


@pytest.mark.parametrize("expires", [1000.0, -1.0, float("nan")])
def test_a_token_that_would_have_ended_is_refused(tokens: Tokens, expires: float) -> None:
    with pytest.raises(TokenError, match="already be expired"):
        tokens.create("ci", ["read"], expires=expires)
    assert tokens.list() == ()


def test_scopes_are_words_of_their_own_and_admin_has_all() -> None:
    for scope in SCOPES:
        token = Token("t", (scope,), (), 0.0)
        assert {s for s in SCOPES if may(token, s, "j")} == (set(SCOPES) if scope == "admin" else {scope})
        assert not holds(token, "root") and not may(token, "root", "j")


def test_words_about_a_job_may_stand_where_all_who_are_bound_and_read_there_read_of_it(
    tokens: Tokens, clock: Clock
) -> None:
    tokens.create("all", ["read"])
    tokens.create("nodes", ["ingest"], ["alpha-1"])
    assert tokens.telling("alpha-1")("beta-1"), "nobody is kept apart"
    assert tokens.prefixes() == ("alpha-1",)
    tokens.create("alpha", ["read"], ["alpha-"])
    tokens.create("guest", ["admin"], ["alpha-1"], expires=clock() + 60.0)
    assert [tokens.telling(job)("alpha-2") for job in ("alpha-2", "alpha-1", "beta-1")] == [True, False, True]
    assert not tokens.telling("alpha-2")("beta-1")
    clock.now += 61.0
    assert not tokens.telling("alpha-1")("alpha-2"), "another may take the place of one that expired"
    tokens.revoke("guest")
    assert tokens.telling("alpha-1")("alpha-2"), "the guest has gone"
    tokens.revoke("alpha")
    assert tokens.telling("alpha-1")("beta-1")


def test_prefixes_bind_to_jobs() -> None:
    token = Token("t", ("read", "admin"), ("team-a-", "x"), 0.0)
    assert [may(token, "read", job) for job in ("team-a-1", "x", "xy")] == [True] * 3
    assert [may(token, "read", job) for job in ("team-a", "Team-a-1", "ateam-a-", "")] == [False] * 4
    assert holds(token, "operate") and not may(token, "operate")
    assert may(Token("t", ("read",), (), 0.0), "read")
