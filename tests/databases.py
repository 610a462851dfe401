"""Which database tests work on, and where the one of a data folder is.

`LOGDOCTOR_TEST_DATABASE=postgresql` lets all tests of the service and of its pages work on PostgreSQL.
"""

from collections.abc import Iterable
from pathlib import Path

import sqlalchemy as sa

from logdoctor.store import schema
from logdoctor.store.database import Database
from tests.postgres import Pool, Server, SharedServer
from tests.soak import SOAKING

KINDS = ("sqlite", "postgresql")


class Databases:
    """The databases of one process of a test session. `kind` is what those of data folders are."""

    def __init__(self) -> None:
        self.kind = "sqlite"
        self.shared: SharedServer | None = None
        self.lent: dict[Path, str] = {}
        self._pool: Pool | None = None

    @property
    def of_postgresql(self) -> bool:
        """Whether data folders have their database in PostgreSQL."""
        return self.kind == "postgresql"

    def url(self, path: Path) -> str:
        """Return the URL of the database that belongs to a path: the file itself, or one in PostgreSQL, lent when it
        has none."""
        return self.server.url(self._name(path)) if self.of_postgresql else f"sqlite:///{path}"

    def copy(self, path: Path, to: Path) -> None:
        """Let the new database of a path hold what that of another one holds at this moment."""
        self.server.copy(self._name(path), self._name(to))

    def forget(self, paths: Iterable[Path]) -> None:
        """Take back the databases that belong to paths."""
        for path in paths:
            self.pool.take_back(self.lent.pop(path))

    @property
    def server(self) -> Server:
        """The PostgreSQL of the session, which runs."""
        assert self.shared is not None
        return self.shared.server

    @property
    def pool(self) -> Pool:
        """The databases of this process in it."""
        assert self.shared is not None
        self._pool = self._pool or Pool(self.shared)
        return self._pool

    def _name(self, path: Path) -> str:
        if path not in self.lent:
            self.lent[path] = self.pool.lend()
        return self.lent[path]


databases = Databases()


def url_in(path: Path) -> str:
    """Return the URL of the database that belongs to a path such as `data/logdoctor.db`."""
    return databases.url(path)


def empty(connection: sa.Connection, *tables: str) -> None:
    """Delete all rows of tables; those that follow are numbered from 1 again."""
    for table in tables:
        connection.exec_driver_sql(f"DELETE FROM {table}")
        if connection.dialect.name == "postgresql" and "id" in schema.metadata.tables[table].c:
            connection.exec_driver_sql(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), 1, false)")


def tries_of(database: Database, most: int) -> int:
    """Return how often a long test tries something: on PostgreSQL a quarter of that on SQLite, or all in a soak."""
    return most if SOAKING or database._is_sqlite else most // 4


def walks_indexes(connection: sa.Connection, query: str, sorts: bool = False) -> bool:
    """Whether PostgreSQL can answer a query by its indexes, without reading a whole table; without sorting, too, unless
    it `sorts`."""
    for way in ("seqscan", "sort", "bitmapscan"):  # it takes these only where there is no other
        connection.exec_driver_sql(f"SET LOCAL enable_{way} = off")
    plan = [row[0] for row in connection.exec_driver_sql(f"EXPLAIN {query}")]
    return not any("Seq Scan" in step or ("Sort" in step and not sorts) for step in plan)
