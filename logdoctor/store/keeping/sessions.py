"""Browser sessions: the browser has a random id, which stands for a token."""

import hashlib
import secrets
import time
from collections.abc import Callable

import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.keeping.tokens import Token, Tokens
from logdoctor.store.schema import sessions

LASTING = 14 * 86_400.0
"""Seconds after which a session expires."""
_ID_BYTES = 32
_MAX_ID = 200


class Sessions:
    """The sessions of one database, shared by all serving processes; thread-safe. `StoreError` when the database
    fails."""

    def __init__(self, database: Database, tokens: Tokens, clock: Callable[[], float] = time.time) -> None:
        self._database, self._tokens, self._clock = database, tokens, clock

    def begin(self, token: Token) -> str:
        """Begin a session with a token and return its id; delete expired ones. Only a digest of the id is stored."""
        id, now = secrets.token_urlsafe(_ID_BYTES), self._clock()
        with self._database.writing() as connection:
            connection.execute(sa.delete(sessions).where(sessions.c.expires <= now))
            row = {"digest": _digest(id), "token": token.name, "expires": now + LASTING}
            connection.execute(sa.insert(sessions).values(row))
        return id

    def token(self, id: str) -> Token | None:
        """Return the token of a session; None when the session is over, or its token expired or revoked."""
        if not id or len(id) > _MAX_ID or not id.isascii():
            return None
        query = sa.select(sessions.c.token).where(sessions.c.digest == _digest(id), sessions.c.expires > self._clock())
        with self._database.reading() as connection:
            name = connection.scalar(query)
        return self._tokens.named(name) if name is not None else None

    def end(self, id: str) -> None:
        """End a session, wherever its id was copied to."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(sessions).where(sessions.c.digest == _digest(id)))


def _digest(id: str) -> str:
    return hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()
