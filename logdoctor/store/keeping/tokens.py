"""Who may do what: tokens, their scopes, and the jobs they are bound to."""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import sqlalchemy as sa

from logdoctor.errors import TokenError
from logdoctor.store.database import Database
from logdoctor.store.schema import tokens

SCOPES = ("ingest", "place", "read", "operate", "admin")
"""Scopes do not include each other, except that `admin` includes all: operating and reading needs both. `place` is the
right to say on which nodes a job ran, which tests and cordons rely on."""

PREFIX = "ldr_"
"""Prefix of secrets, known to scanners for leaked secrets."""

_SECRET_BYTES = 32
_MAX_SECRET = 200
_MAX_NAME = 200


class Token(msgspec.Struct, frozen=True):
    """A token without its secret. `prefixes` bind it to the jobs whose names begin so; without any it is for all jobs.

    `created`, `expires` and `revoked` are seconds since the epoch.
    """

    name: str
    scopes: tuple[str, ...]
    prefixes: tuple[str, ...]
    created: float
    expires: float | None = None
    revoked: float | None = None


class Tokens:
    """The tokens of one database; thread-safe. `StoreError` when the database fails."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def create(
        self, name: str, scopes: Iterable[str], prefixes: Iterable[str] = (), expires: float | None = None
    ) -> tuple[Token, str]:
        """Create a token and return it with its secret, which cannot be read again.

        `TokenError` when the name is taken (also by a revoked token: names are in the records of who did what), or a
        scope or prefix is invalid.
        """
        token = Token(name, _scopes(scopes), _prefixes(prefixes), self._clock(), expires)
        if not name.isprintable() or not name.strip() or len(name) > _MAX_NAME:
            raise TokenError(
                f"the token name {ascii(name)[:100]}", "is not a name", "Use 1 to 200 printable characters."
            )
        if expires is not None and not expires > token.created:
            raise TokenError(f"the token {name!r}", "would already be expired", "Give a time in the future.")
        secret = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        with self._database.writing() as connection:
            if connection.execute(sa.select(tokens.c.name).where(tokens.c.name == name)).first():
                raise TokenError(f"the token {name!r}", "exists already", "Choose another name.")
            connection.execute(sa.insert(tokens).values(digest=_digest(secret), **_row(token)))
        return token, secret

    def find(self, secret: str) -> Token | None:
        """Return the token with this secret; None for one that is unknown, expired or revoked."""
        if not secret.startswith(PREFIX) or len(secret) > _MAX_SECRET or not secret.isascii():
            return None
        return self._living(tokens.c.digest == _digest(secret))

    def named(self, name: str) -> Token | None:
        """Return the token with this name; None for one that is unknown, expired or revoked."""
        return self._living(tokens.c.name == name)

    def revoke(self, name: str) -> Token:
        """Revoke a token and return it; a repetition keeps the first time. `TokenError` when there is none."""
        with self._database.writing() as connection:
            query = sa.update(tokens).where(tokens.c.name == name, tokens.c.revoked.is_(None))
            connection.execute(query.values(revoked=self._clock()))
            row = connection.execute(sa.select(tokens).where(tokens.c.name == name)).first()
        if row is None:
            raise TokenError(f"the token {ascii(name)[:100]}", "does not exist", "List the tokens.")
        return _token(row)

    def prefixes(self) -> tuple[str, ...]:
        """Return the prefixes of all active tokens."""
        return tuple({prefix for token in self._bound() if self._lives(token) for prefix in token.prefixes})

    def telling(self, job: str) -> Callable[[str], bool]:
        """Return a test whether a job's readers may see notes about another. Every bound token that reads this job must
        read the other, too. Without such tokens all may.

        Expired tokens count until they are revoked: their successors will read what is recorded meanwhile.
        """
        readers = [token for token in self._bound() if token.revoked is None and may(token, "read", job)]
        return lambda other: all(may(token, "read", other) for token in readers)

    def list(self) -> tuple[Token, ...]:
        """Return all tokens by name, including expired and revoked ones."""
        with self._database.reading() as connection:
            return tuple(_token(row) for row in connection.execute(sa.select(tokens).order_by(tokens.c.name)))

    def _bound(self) -> tuple[Token, ...]:
        """Return the tokens that are bound to jobs, including expired and revoked ones."""
        with self._database.reading() as connection:
            return tuple(map(_token, connection.execute(sa.select(tokens).where(tokens.c.prefixes != "[]"))))

    def _living(self, which: sa.ColumnElement[bool]) -> Token | None:
        with self._database.reading() as connection:
            row = connection.execute(sa.select(tokens).where(which)).first()
        token = row and _token(row)
        return token if token and self._lives(token) else None

    def _lives(self, token: Token) -> bool:
        return token.revoked is None and (token.expires is None or self._clock() < token.expires)


def holds(token: Token, scope: str) -> bool:
    """Return whether the token has a scope; `admin` has all. Its job prefixes are not checked."""
    return scope in token.scopes or ("admin" in token.scopes and scope in SCOPES)


def may(token: Token, scope: str, job: str = "") -> bool:
    """Return whether the token has a scope for a job; without a job, for what belongs to no job or to all.

    A list is open to everybody who `holds` the scope, narrowed to the token's prefixes.
    """
    return holds(token, scope) and (not token.prefixes or any(job.startswith(prefix) for prefix in token.prefixes))


def _digest(secret: str) -> str:
    # A fast hash will do: the secret is 256 random bits, so there is nothing to guess that a slow one would guard, and
    # every request pays for it.
    return hashlib.sha256(secret.encode("utf-8")).hexdigest()


def _scopes(given: Iterable[str]) -> tuple[str, ...]:
    chosen = set(given)
    if not chosen or not chosen <= set(SCOPES):
        unknown = ", ".join(sorted(ascii(scope)[:50] for scope in chosen - set(SCOPES)))
        raise TokenError("the scopes", f"hold {unknown or 'nothing'}", f"Use some of {', '.join(SCOPES)}.")
    return tuple(scope for scope in SCOPES if scope in chosen)


def _prefixes(given: Iterable[str]) -> tuple[str, ...]:
    chosen = tuple(sorted(set(given)))
    if bad := [prefix for prefix in chosen if not prefix or not prefix.isprintable()]:
        raise TokenError(
            f"the prefix {ascii(bad[0])[:100]}", "matches no job, or all jobs", "Leave it out to allow all jobs."
        )
    return chosen


def _row(token: Token) -> dict[str, Any]:
    lists = {name: msgspec.json.encode(getattr(token, name)).decode() for name in ("scopes", "prefixes")}
    return msgspec.structs.asdict(token) | lists


def _token(row: sa.Row[Any]) -> Token:
    texts = {name: msgspec.json.decode(getattr(row, name), type=tuple[str, ...]) for name in ("scopes", "prefixes")}
    return Token(row.name, **texts, created=row.created, expires=row.expires, revoked=row.revoked)
