"""What only a server can do to records: drop a connection, be set or filled otherwise."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from logdoctor.errors import InputError, StoreError
from logdoctor.store import migrations
from logdoctor.store.database import Database
from logdoctor.store.jobs.records import JobFacts, Records
from logdoctor.store.schema import metadata
from tests.at_once import at_once
from tests.databases import databases
from tests.postgres import Server
from tests.store.test_migrations import SECOND

SECRET = "hunter2"


@pytest.fixture
def server() -> Server:
    """The server of the session, whose other databases are none of ours."""
    return databases.server


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    """A new database with all tables."""
    name = f"t{uuid4().hex}"
    server.create(name)
    yield server.url(name, SECRET)
    server.drop(name)


@pytest.fixture
def bare(server: Server) -> Iterator[str]:
    """A new database without tables."""
    name = f"b{uuid4().hex}"
    server.execute(f"CREATE DATABASE {name}")
    yield server.url(name, SECRET)
    server.drop(name)


def cut(server: Server, records: Records) -> None:
    """End all connections to a database."""
    name = records.database._engine.url.database
    server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")


def test_a_lost_connection_is_a_store_error_and_the_next_call_works(server: Server, url: str) -> None:
    records = Records(url)
    for place in (records.database.writing, records.database.reading):
        with pytest.raises(StoreError, match=r"fails .*database server and its log") as caught, place() as connection:
            connection.execute(sa.select(sa.literal(1)))
            cut(server, records)
            connection.execute(sa.select(sa.literal(1)))
        name = records.database._engine.url.database
        assert name and name in str(caught.value) and SECRET not in str(caught.value)
        records.open_attempt("a", 1, 1.0)
    cut(server, records)  # those that nobody uses
    assert records.jobs().items and records.attempts("a")
    records.close()


def test_a_server_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="the database postgresql") as caught:
        Records(f"postgresql+psycopg://user:{SECRET}@/x?host={tmp_path}")
    assert SECRET not in str(caught.value)


def test_an_unreadable_encoding_is_refused(server: Server) -> None:
    name = f"b{uuid4().hex}"
    server.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0")
    with pytest.raises(StoreError, match=r"has the encoding LATIN1\. Create it with ENCODING 'UTF8'"):
        Records(server.url(name))
    server.drop(name)


def test_a_connection_is_as_it_should_be(server: Server, url: str) -> None:
    name = sa.make_url(url).database
    server.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    records = Records(url)
    wanted = {"synchronous_commit": "on", "lock_timeout": "30s", "idle_in_transaction_session_timeout": "10s"}
    levels = {"reading": "repeatable read", "writing": "read committed"}
    for place, level in levels.items():
        with getattr(records.database, place)() as connection:
            asked = wanted | {"transaction_isolation": level}
            assert {name: connection.exec_driver_sql(f"SHOW {name}").scalar() for name in asked} == asked
    records.close()
    server.execute(f"ALTER DATABASE {name} SET synchronous_commit = remote_write")
    records = Records(url)
    with records.database.writing() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "remote_write"
    records.close()


def test_a_number_beyond_64_bits_is_refused(url: str) -> None:
    records = Records(url)
    assert records.attempt("a", 2**40) is None and records.attempt("a", 2**63 - 1) is None
    with pytest.raises(InputError, match="64-bit numbers"):
        records.attempt("a", 2**63)
    records.close()


def test_a_new_database_has_the_schema(bare: str) -> None:
    Records(bare).close()
    engine = sa.create_engine(bare)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata) == []
        columns = connection.exec_driver_sql(
            "SELECT data_type, collation_name, count(*) FROM information_schema.columns "
            "WHERE table_schema = 'public' AND table_name <> 'alembic_version' GROUP BY 1, 2"
        )
        kinds = {(kind, collation) for kind, collation, _ in columns}
        assert connection.exec_driver_sql("SELECT count(*) FROM counters WHERE value = 0").scalar() == 3
    engine.dispose()
    others = {(kind, None) for kind in ("bigint", "boolean", "bytea", "double precision")}
    assert kinds == {("text", "C"), *others}


def test_a_later_step_brings_an_existing_database_to_the_newest_form(bare: str, tmp_path: Path) -> None:
    folder = tmp_path / "migrations"
    shutil.copytree(Path(migrations.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "r9000_notes.py").write_text(SECOND)
    records = Records(bare)
    records.put_job("a", JobFacts(user="user-17"), 1.0)
    records.close()
    engine = sa.create_engine(bare)
    with engine.begin() as connection:
        migrations.upgrade(connection, metadata, folder)
        assert "note" in {column["name"] for column in sa.inspect(connection).get_columns("tokens")}
    engine.dispose()
    with pytest.raises(StoreError, match=r"newer logdoctor \(revision r9000\)\. Upgrade logdoctor"):
        Records(bare)


def test_its_steps_are_those_of_sqlite(url: str) -> None:
    records = Records(url)
    forms = (
        "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = current_schema()",
        "SELECT table_name, column_name, data_type, collation_name, is_nullable, column_default FROM "
        "information_schema.columns WHERE table_schema = current_schema()",
    )
    with records.database.writing() as connection:
        before = [set(connection.exec_driver_sql(one).all()) for one in forms]
        for table in ("mutes", "runbooks", "rule_overrides", "scores"):
            connection.exec_driver_sql(f"DROP TABLE {table}")
        for table, names in (
            ("incidents", ("assignee", "snoozed_until", "snoozed_attempts", "woken")),
            ("incident_attempts", ("gpus", "seconds")),
        ):
            for name in names:
                connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {name}")
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'r0001'")
        assert [set(connection.exec_driver_sql(one).all()) for one in forms] != before
        migrations.upgrade(connection, metadata)
        assert [set(connection.exec_driver_sql(one).all()) for one in forms] == before
    records.close()


def test_a_database_that_cannot_be_created_is_left_alone(bare: str) -> None:
    engine = sa.create_engine(bare)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE tokens (mine TEXT)")
    with pytest.raises(StoreError, match='"tokens" already exists'):
        Records(bare)
    assert sa.inspect(engine).get_table_names() == ["tokens"]
    engine.dispose()


def test_many_open_a_new_database_at_once(bare: str) -> None:
    for one in at_once(Database, [bare] * 6):
        one.close()
