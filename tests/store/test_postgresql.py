"""What only a server can do to records: be killed in the middle, drop a connection, be set or filled otherwise."""

import shutil
import threading
import time
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
from logdoctor.store.records import JobFacts, Records
from logdoctor.store.schema import metadata
from tests.databases import databases
from tests.postgres import Server, own_server
from tests.store.test_migrations import SECOND
from tests.store.test_records import BASE, verdict

SECRET = "hunter2"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A durable server of these tests alone."""
    with own_server() as server:
        yield server


@pytest.fixture
def url(server: Server) -> str:
    """A new database with all tables."""
    name = f"t{uuid4().hex}"
    server.create(name)
    return server.url(name, SECRET)


@pytest.fixture
def bare(server: Server) -> str:
    """A new database without tables."""
    name = f"b{uuid4().hex}"
    server.execute(f"CREATE DATABASE {name}")
    return server.url(name, SECRET)


def cut(server: Server, records: Records) -> None:
    """End all connections to a database."""
    name = records.database._engine.url.database
    server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")


def test_what_was_acknowledged_is_there_after_the_server_was_killed(server: Server, url: str) -> None:
    records, said, failed = Records(url), [[], [], []], []  # type: list[list[int]], list[StoreError]
    goes_on = threading.Event()

    def write(me: int) -> None:
        for turn in range(100_000):
            try:
                records.publish(f"j{me}", turn, verdict(fingerprint=f"{me}.{turn}"), True, float(turn))
            except StoreError as error:
                failed.append(error)
                return
            said[me].append(turn)
            if goes_on.is_set():
                return

    threads = [threading.Thread(target=write, args=(me,)) for me in range(3)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while min(map(len, said)) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    server.stop("immediate")
    for thread in threads:
        thread.join(60)
    assert len(failed) == 3 and all(SECRET not in str(error) for error in failed)
    server.start()
    for me, turns in enumerate(said):
        kept = [attempt.number for attempt in records.attempts(f"j{me}")]
        assert kept[: len(turns)] == turns != []
        assert kept[len(turns) :] in ([], [len(turns)]), "at most the one whose answer was lost"
        assert all(records.current(f"j{me}", number) for number in kept), "an attempt and its verdict are one"
    events = [stored.event for stored in records.newer(0, 500)]
    assert events == list(range(1, len(events) + 1))
    goes_on.set()
    write(0)
    records.close()


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
    server.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0")
    with pytest.raises(StoreError, match=r"has the encoding LATIN1\. Create it with ENCODING 'UTF8'"):
        Records(server.url("latin"))


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


def test_a_database_that_cannot_be_created_is_left_alone(bare: str) -> None:
    engine = sa.create_engine(bare)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE tokens (mine TEXT)")
    with pytest.raises(StoreError, match='"tokens" already exists'):
        Records(bare)
    assert sa.inspect(engine).get_table_names() == ["tokens"]
    engine.dispose()


def test_many_open_a_new_database_at_once(bare: str) -> None:
    opened: list[Database] = []
    threads = [threading.Thread(target=lambda: opened.append(Database(bare))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(opened) == 6
    for one in opened:
        one.close()


@pytest.mark.usefixtures("each_database")
def test_lists_are_in_the_order_of_code_points(tmp_path: Path) -> None:
    records = Records(databases.url(tmp_path / "x.db"))
    names = ["a b", "B", "a", "_", "\u00e4", "A", "a-b", "\U0001f600", "\uffee", "ab"]
    for name in names:
        records.publish(name, 1, BASE, False, 1.0)
    assert [job.job for job in records.jobs().items] == sorted(names, reverse=True)
    assert [attempt.job for attempt in records.unsettled()] == sorted(names)
    found, cursor = [], None
    while True:
        page = records.jobs(cursor, 3)
        found += [job.job for job in page.items]
        if (cursor := page.next) is None:
            break
    assert found == sorted(names, reverse=True)
    records.close()
