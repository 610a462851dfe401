"""New databases of tests: what the migrations make, made once in each process and written again in one go."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import sqlalchemy as sa

from logdoctor.store import migrations, schema

_VERSION = "SELECT version_num FROM alembic_version"


@cache
def _template() -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The statements that make an empty database of the newest form, and its revision, as the migrations make them."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "template.sqlite"
        engine = sa.create_engine(f"sqlite:///{path}")
        with engine.begin() as connection:
            migrations.upgrade(connection)
        engine.dispose()
        with closing(sqlite3.connect(path)) as made:
            statements = tuple(row for row in made.iterdump() if row not in ("BEGIN TRANSACTION;", "COMMIT;"))
            return statements, made.execute(_VERSION).fetchall()


def _copied(connection: sa.Connection) -> None:
    """Bring a database to the newest form: an empty one from the template, any other by the migrations."""
    if connection.dialect.name == "sqlite":
        statements, revision = _template()
        tables = set(connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars())
        if not tables:
            for statement in statements:
                connection.exec_driver_sql(statement)
            return
        if "alembic_version" in tables and [tuple(row) for row in connection.exec_driver_sql(_VERSION)] == revision:
            return
    migrations.upgrade(connection)


@contextmanager
def template() -> Iterator[None]:
    """Within the block new databases are written from the template."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "upgrade", _copied)
        yield
