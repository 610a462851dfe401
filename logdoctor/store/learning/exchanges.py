"""Exchanges with models, stored for inspection and so that nothing is asked twice."""

from typing import Any

import msgspec
import sqlalchemy as sa
import zstandard

from logdoctor.store.database import Database
from logdoctor.store.fit import fit, plain
from logdoctor.store.schema import model_exchanges
from logdoctor.types.models import Answered, Exchange

MAX_TEXT = 200_000
"""Characters kept of what an exchange sent, and of what came back."""
MAX_EXCHANGES = 100_000
"""Exchanges that are kept; the oldest are deleted."""

_MAX_NAME = 200
_MAX_CAUSE = 2000
_MAX_COUNT = 2**48
_MAX_BODY = 16 << 20  # more than two texts of the greatest length take as JSON


class StoredExchange(msgspec.Struct, frozen=True):
    """A request to a model and its reply, for an attempt (None: for none).

    `at` is when it was sent (seconds since the epoch), `seconds` how long it took; a `cached` one was not sent at all
    and cost nothing. `sent` are the messages as they were sent, (role, text), and `request` (JSON) the other
    parameters; `got` is the text that came back, `calls` (a JSON list) the tools that were called. `prompt` is the
    digest of the prompt's file. `failure` is "" for a good answer, else `unavailable` or `nonsense`, and `cause` says
    more. `cut` if a text was too long to be kept whole.
    """

    id: int
    at: float
    job: str
    attempt: int | None
    purpose: str
    model: str
    prompt: str
    request: str
    sent: tuple[tuple[str, str], ...]
    got: str
    calls: str
    tokens_in: int
    tokens_out: int
    dollars: float
    seconds: float
    cached: bool
    failure: str
    cause: str
    cut: bool


class _Body(msgspec.Struct, frozen=True):
    """The texts of an exchange."""

    request: str
    sent: tuple[tuple[str, str], ...]
    got: str
    calls: str
    cause: str
    cut: bool


class Exchanges:
    """The exchanges of one database; usable from any thread and process. Changes are durable on return.

    All calls raise `StoreError` when the database fails.
    """

    def __init__(self, database: Database, most: int = MAX_EXCHANGES) -> None:
        self._database = database
        self._most = most

    def enter(self, exchange: Exchange) -> None:
        """Store an exchange, and delete the oldest. Long texts are cut; nothing is refused."""
        body = _body(exchange)
        values = {
            "at": exchange.at,
            "job": fit(exchange.job, _MAX_NAME),
            "attempt": exchange.attempt,
            "purpose": fit(exchange.purpose, _MAX_NAME),
            "model": fit(exchange.model, _MAX_NAME),
            "prompt": fit(exchange.prompt, _MAX_NAME),
            "key": exchange.key,
            "tokens_in": min(max(exchange.tokens_in, 0), _MAX_COUNT),
            "tokens_out": min(max(exchange.tokens_out, 0), _MAX_COUNT),
            "dollars": exchange.dollars,
            "seconds": exchange.seconds,
            "cached": exchange.cached,
            "failure": fit(exchange.failure, _MAX_NAME),
            "usable": bool(exchange.key) and not exchange.failure and not body.cut,
            "body": zstandard.ZstdCompressor().compress(_encode(body)),
        }
        table = model_exchanges
        with self._database.writing() as connection:
            number = int(connection.execute(sa.insert(table).values(values).returning(table.c.id)).scalar_one())
            connection.execute(sa.delete(table).where(table.c.id <= number - self._most))

    def of(self, job: str, attempt: int, limit: int = 100) -> list[StoredExchange]:
        """Return the last `limit` exchanges about an attempt, oldest first."""
        columns = model_exchanges.c
        query = sa.select(model_exchanges).where(columns.job == plain(job), columns.attempt == attempt)
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(columns.id.desc()).limit(limit)).all()
        return [_stored(row) for row in reversed(rows)]

    def cached(self, key: str) -> Answered | None:
        """Return the last good answer to a request with this key; None when none is kept whole."""
        columns = model_exchanges.c
        query = sa.select(columns.body).where(columns.key == key, columns.usable).order_by(columns.id.desc()).limit(1)
        with self._database.reading() as connection:
            kept = connection.scalar(query)
        if kept is None:
            return None
        body = _read(kept)
        return None if body.cut else Answered(body.got, body.calls)


def _body(exchange: Exchange) -> _Body:
    """Return the texts as they will be stored."""
    left, sent = MAX_TEXT, []
    for role, text in exchange.sent:
        sent.append((role, plain(text[:left])))
        left -= len(text)
    came = len(exchange.got) + len(exchange.calls)
    fits = left >= 0 and came <= MAX_TEXT and len(exchange.request) <= MAX_TEXT
    return _Body(
        fit(exchange.request, MAX_TEXT),
        tuple(sent),
        fit(exchange.got, MAX_TEXT),
        plain(exchange.calls) if came <= MAX_TEXT else "[]",
        fit(exchange.cause, _MAX_CAUSE),
        not fits,
    )


def _stored(row: sa.Row[Any]) -> StoredExchange:
    values = {**row._mapping}
    body = _read(values.pop("body"))
    for name in ("key", "usable"):
        del values[name]
    return StoredExchange(**values, **msgspec.structs.asdict(body))


def _read(kept: bytes) -> _Body:
    """Return the texts of a row; a damaged one says so and is no answer."""
    try:
        return _decode(zstandard.ZstdDecompressor().decompress(kept, max_output_size=_MAX_BODY))
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        return _Body("", (), "", "[]", f"cannot be read ({str(error)[:200]})", True)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Body).decode
