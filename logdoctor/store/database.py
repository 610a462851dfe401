"""A database, SQLite or PostgreSQL: opening it, transactions, and the differences between both."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from logdoctor.errors import InputError, StorageFull, StoreError
from logdoctor.extras import missing
from logdoctor.store.migrations import UnknownRevision, standing, upgrade
from logdoctor.store.schema import metadata

if TYPE_CHECKING:
    import psycopg

BUSY_MS = 30_000
"""Milliseconds that a writer waits for one of another process."""

_STANDING_STILL_MS = 10_000  # ms a process may idle in a transaction: a frozen worker holds up appends

_NOTICING = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""How a dead connection to a server is noticed, in seconds; the URL overrides it."""

_URLS = "Use sqlite:////path/of/the/file or postgresql+psycopg://user:password@host/database."

READERS = 40
"""Connections at most, as many as the web server has threads."""

_NOW = {
    "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
}

_WRITER = 0x6C6F67646F63  # "logdoc": the advisory lock of PostgreSQL for the only writer


def sqlite_file(url: str) -> Path | None:
    """Return the file of an SQLite database; None for PostgreSQL."""
    engine = _engine(url)
    engine.dispose()
    return Path(engine.url.database or "") if engine.dialect.name == "sqlite" else None


class Revision(NamedTuple):
    """The database's name in messages, its revision ("" without tables), and the newest revision."""

    thing: str
    current: str
    newest: str


def revision(url: str) -> Revision:
    """Return the revision of a database without creating or changing it; `StoreError` when it cannot be reached."""
    engine = _engine(url)
    thing = f"the database {engine.url.render_as_string()}"
    try:
        file = engine.url.database if engine.dialect.name == "sqlite" else None
        if file and not os.path.exists(file):
            raise StoreError(thing, "does not exist", "Start `logdoctor serve`, or restore it from a backup.")
        with engine.connect() as connection:
            return Revision(thing, *standing(connection))
    except (DBAPIError, PoolTimeout) as error:
        cause = f"cannot be opened ({_words(getattr(error, 'orig', error))})"
        raise StoreError(thing, cause, "Check the URL, the server and the permissions.") from error
    finally:
        engine.dispose()


class Database:
    """An open database of the newest revision; thread-safe. `StoreError` when it cannot be opened.

    `url` is SQLAlchemy's, such as `sqlite:////var/lib/logdoctor/records.sqlite`.
    """

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        self._is_sqlite = self._engine.dialect.name == "sqlite"
        self._writes: dict[str, Any] = {"logdoctor_writes": True}
        if not self._is_sqlite:  # a writer must see what those before it wrote
            self._writes["isolation_level"] = "READ COMMITTED"
        self.thing = f"the database {self._engine.url.render_as_string()}"
        """Its name in messages, without its password."""
        # SQLite's own wait for a writer is a series of naps in which the unlucky starve; among the threads of this
        # process a lock is fair enough, and quicker.
        self._writer = threading.Lock()
        if self._is_sqlite and not (self._engine.url.database or "").startswith("file:"):
            _keep_private(Path(self._engine.url.database or ""))
        try:
            with self.writing() as connection:
                if not self._is_sqlite:
                    _check_encoding(connection, self.thing)
                upgrade(connection, metadata)
        except UnknownRevision as error:
            self.close()
            raise _unknown(self.thing, error) from error
        except BaseException:
            self.close()
            raise

    @property
    def is_file(self) -> bool:
        """Whether it is a file of this machine, used only along with the data folder."""
        return self._is_sqlite

    def close(self) -> None:
        """Close idle connections."""
        self._engine.dispose()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Yield a connection to one snapshot of the database. `StoreError` when the database fails."""
        with self._store_errors(), self._engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Yield a connection in an exclusive write transaction; durable when the block is left.

        `StoreError` when the database fails; then nothing was written.
        """
        with self._store_errors(), self._writer, self._engine.connect() as connection:
            connection = connection.execution_options(**self._writes)
            with connection.begin():
                yield connection

    @contextlib.contextmanager
    def appending(self) -> Iterator[sa.Connection]:
        """Yield a connection in a transaction that blocks only users of the same rows; on SQLite it is `writing`.
        Durable when the block is left; `StoreError` when the database fails."""
        if self._is_sqlite:
            with self.writing() as connection:
                yield connection
            return
        with self._store_errors(), self._engine.connect() as connection:
            connection = connection.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                yield connection

    def now(self, connection: sa.Connection) -> float:
        """Return the database's time, which all processes share, in seconds since the epoch."""
        return float(connection.scalar(sa.text(_NOW[connection.dialect.name])) or 0.0)

    @contextlib.contextmanager
    def _store_errors(self) -> Iterator[None]:
        """Turn errors of the database into `StoreError`."""
        try:
            yield
        except (DBAPIError, PoolTimeout) as error:
            cause = getattr(error, "orig", error)
            if _is_full(cause):
                raise StorageFull(self.thing, f"it cannot grow ({_words(cause)})", "Free some space.") from error
            if isinstance(error, DataError) and not self._is_sqlite:
                raise _unstorable(cause) from error
            checked = "disk's space, the file and its permissions" if self._is_sqlite else "database server and its log"
            raise StoreError(self.thing, f"fails ({_words(cause)})", f"Check the {checked}.") from error
        except (UnicodeEncodeError, OverflowError) as error:
            raise _unstorable(error) from error


def _keep_private(file: Path) -> None:
    """Make a database readable by us only, whatever umask and folder allow: SQLite gives its side files the same mode.
    Access for a group is left alone: it was given on purpose."""
    with contextlib.suppress(OSError):  # SQLite reports what is wrong with the path
        # an existing one must not be opened: closing it would release this process's locks on it
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    for name in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
        with contextlib.suppress(OSError):  # it is missing, or belongs to another user, who must see to it
            if name.stat().st_mode & 0o007:
                name.chmod(0o600)


def _unknown(thing: str, error: UnknownRevision) -> StoreError:
    if error.is_older:
        cause = f"was written by a development version, before the first release (revision {error.revision})"
        return StoreError(thing, cause, "Use a new data folder or database; this one is left as it is.")
    cause = f"was written by a newer logdoctor (revision {error.revision})"
    return StoreError(thing, cause, "Upgrade logdoctor, or use another database.")


def _check_encoding(connection: sa.Connection, thing: str) -> None:
    """Raise `StoreError` for a database that cannot hold every text."""
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
    if encoding != "UTF8":
        next_step = "Create it with ENCODING 'UTF8' TEMPLATE template0."
        raise StoreError(thing, f"has the encoding {encoding}", next_step)


def _words(cause: object) -> str:
    """Return what a database says, on one line: libpq indents."""
    return " ".join(str(cause).split())


def _is_full(cause: object) -> bool:
    """Return whether an error of SQLite or PostgreSQL means a full disk."""
    return getattr(cause, "sqlite_errorname", "") == "SQLITE_FULL" or getattr(cause, "sqlstate", "") == "53100"


def _unstorable(cause: object) -> InputError:
    return InputError("a value", f"cannot be stored ({cause})", "Send valid UTF-8 and 64-bit numbers.")


def _engine(url: str) -> sa.Engine:
    try:
        parsed = sa.make_url(url)
        pool: dict[str, Any] = {"pool_size": 5, "max_overflow": READERS - 5}
        if parsed.get_backend_name() != "sqlite":  # readers see one snapshot, as in SQLite
            given = {name: value for name, value in _NOTICING.items() if name not in parsed.query}
            engine = sa.create_engine(
                parsed, isolation_level="REPEATABLE READ", pool_pre_ping=True, connect_args=given, **pool
            )
            sa.event.listen(engine, "connect", _prepare_postgresql)
        elif parsed.database in (None, "", ":memory:"):
            raise StoreError("the database URL", "names no file", _URLS)
        else:  # we send BEGIN ourselves, see _begin
            engine = sa.create_engine(parsed, connect_args={"isolation_level": None, "timeout": BUSY_MS / 1000}, **pool)
            sa.event.listen(engine, "connect", _prepare)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        if extra := missing(error):
            raise extra from error
        raise StoreError("the database URL", f"cannot be used ({error})", _URLS) from error
    sa.event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: Any, _record: object) -> None:
    for pragma in (f"busy_timeout={BUSY_MS}", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _prepare_postgresql(connection: "psycopg.Connection[Any]", _record: object) -> None:
    """Make commits durable whatever the server's settings, and bound all waits: for the writer's lock, and for a peer
    that is gone or frozen."""
    names = ("keepalives_idle", "keepalives_interval", "keepalives_count")
    settings = {"lock_timeout": BUSY_MS, "idle_in_transaction_session_timeout": _STANDING_STILL_MS}
    settings |= {f"tcp_{name}": _NOTICING[name] for name in names}
    chosen = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())
    durable = "current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', false)"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {chosen}, CASE WHEN {durable} END".encode())
    connection.commit()  # or the settings are lost with the transaction


def _begin(connection: sa.Connection) -> None:
    """Begin as the only writer: a transaction that reads first and then finds the database changed cannot wait."""
    writes = connection.get_execution_options().get("logdoctor_writes")
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
    elif writes and connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITER})")
