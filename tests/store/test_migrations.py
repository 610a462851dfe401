"""A new database and an existing one come to the same form; one of an unknown revision is left alone."""

import inspect
import re
import shutil
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from logdoctor.errors import StoreError
from logdoctor.store import database, migrations
from logdoctor.store.incidents.table import Incidents, WantedIncidents
from logdoctor.store.jobs.records import JobFacts, Records
from logdoctor.store.schema import FACETS, metadata

PARTIAL = {
    *(f"ix_verdicts_{facet}" for facet in ("newest", *FACETS)),
    "uq_confirmations_live",
    "uq_node_cordons_open",
    "uq_node_actions_open",
    "ix_incidents_facets",
    "uq_incidents_open",
}
SECOND = """
import sqlalchemy as sa
from alembic import op

revision = "r9000"
down_revision = "r0005"


def upgrade() -> None:
    op.add_column("tokens", sa.Column("note", sa.Text(), nullable=False, server_default=""))
    op.create_index("ix_tokens_note", "tokens", ["note"], sqlite_where=sa.text("note != ''"))
"""


def sqlite_rows(connection: sa.Connection) -> list[tuple[str, str, str, str]]:
    rows = connection.exec_driver_sql("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master")
    return [(kind, name, table, sql) for kind, name, table, sql in rows if "alembic_version" not in table]


def forms(connection: sa.Connection, *kinds: str) -> set[tuple[str, ...]]:
    """Each thing in the database and the SQL that made it, without the order of its parts: a column that was added
    stands last."""
    return {
        (*row[:3], *sorted(part.strip(" ()\t") for part in re.split(r"[,\n]", row[3]) if part.strip(" ()\t")))
        for row in sqlite_rows(connection)
        if not kinds or row[0] in kinds
    }


def partial(indices: Iterable[str]) -> set[str]:
    """The names of the partial ones among statements that create indices."""
    return {found[1] for one in indices if (found := re.search(r"INDEX (\w+) ON .* WHERE ", one, re.DOTALL))}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/records.sqlite"


def test_a_new_database_has_the_schema_with_its_partial_indices(url: str) -> None:
    Records(url).close()
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata) == []
        kept = {name: sql for kind, name, _, sql in sqlite_rows(connection) if kind == "index" and sql}
        assert connection.exec_driver_sql("SELECT name, value FROM counters ORDER BY name").all() == [
            ("confirmed", 0),
            ("event", 0),
            ("learned", 0),
        ]
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "r0005"
    assert partial(kept.values()) == PARTIAL
    engine.dispose()


def test_a_new_database_of_postgresql_has_the_same_indices() -> None:
    statements: list[str] = []

    def keep(statement: sa.schema.ExecutableDDLElement, *_: object, **__: object) -> None:
        statements.append(str(statement.compile(dialect=engine.dialect)))

    engine = sa.create_mock_engine("postgresql://", keep)
    metadata.create_all(engine, checkfirst=False)
    made = [" ".join(one.split()) for one in statements]
    assert partial(one for one in made if " INDEX " in one) == PARTIAL
    assert sum(one.startswith("CREATE TABLE") for one in made) == len(metadata.tables)
    assert {one.split()[2] for one in made if one.startswith("CREATE TRIGGER")} == {"tr_node_audit_kept"}


def test_a_later_step_brings_an_existing_database_to_the_form_of_a_new_one(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "migrations"
    shutil.copytree(Path(migrations.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "r9000_notes.py").write_text(SECOND)
    later = sa.MetaData(naming_convention=metadata.naming_convention)
    for table in metadata.tables.values():
        table.to_metadata(later)
    note = sa.Column("note", sa.Text, nullable=False, server_default="")
    later.tables["tokens"].append_column(note)
    sa.Index("ix_tokens_note", note, sqlite_where=note != sa.literal_column("''"))
    records = Records(url)
    records.put_job("a", JobFacts(user="user-17"), 1.0)
    records.close()
    ours, fresh = sa.create_engine(url), sa.create_engine(f"sqlite:///{tmp_path}/fresh.sqlite")
    for engine in (ours, fresh):
        with engine.begin() as connection:
            migrations.upgrade(connection, later, folder)
    with ours.connect() as upgraded, fresh.connect() as new:
        assert compare_metadata(MigrationContext.configure(upgraded, opts={"compare_type": True}), later) == []
        assert forms(upgraded, "table", "index") == forms(new, "table", "index")
        assert upgraded.exec_driver_sql("SELECT job FROM jobs").scalar() == "a"
        for connection in (upgraded, new):
            assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "r9000"
    ours.dispose()
    fresh.dispose()


FIRST = Path(__file__).parent / "r0001.sql"
"""A database of the first release, with three incidents of jobs of 1,024, 32 and unknown GPUs."""


def test_a_database_of_the_first_release_comes_to_the_form_of_a_new_one(url: str, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "records.sqlite") as old:
        old.executescript(FIRST.read_text())
    old.close()
    records = Records(url)
    Records(f"sqlite:///{tmp_path}/fresh.sqlite").close()
    fresh = sa.create_engine(f"sqlite:///{tmp_path}/fresh.sqlite")
    with records.database.reading() as upgraded, fresh.connect() as new:
        assert forms(upgraded) == forms(new)
        sizes = upgraded.exec_driver_sql("SELECT job, gpus, seconds FROM incident_attempts ORDER BY job").all()
    assert sizes == [("bert", 32, 1800), ("llama-7b", 1024, 3600), ("plain", None, 60)]
    incidents = Incidents(records.database)
    found = incidents.search(WantedIncidents(order="severity")).items
    assert [(one.id, one.assignee, one.gpu_hours, one.snoozed) for one in found] == [
        (1, "", 1024.0, False),
        (2, "", 16.0, False),
        (3, "", 0.0, False),
    ]
    assert incidents.assign(1, "anna", "ops", "", 5000.0).assignee == "anna"
    records.close()
    fresh.dispose()


def test_opening_again_changes_nothing(url: str) -> None:
    records = Records(url)
    records.put_job("a", JobFacts(user="user-17"), 1.0)
    with records.database.reading() as connection:
        before = forms(connection)
    records.close()
    again = Records(url)
    with again.database.reading() as connection:
        assert forms(connection) == before
    assert [job.job for job in again.jobs().items] == ["a"]
    again.close()


@pytest.mark.parametrize(
    ("revision", "said"),
    [
        ("r9999", r"newer logdoctor \(revision r9999\)\. Upgrade logdoctor"),
        ("0007", r"development version, before the first release \(revision 0007\)\. Use a new data folder"),
    ],
)
def test_a_database_of_an_unknown_revision_is_refused_and_left_alone(
    revision: str, said: str, url: str, tmp_path: Path
) -> None:
    records = Records(url)
    with records.database.writing() as connection:
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{revision}'")
    records.close()
    before = (tmp_path / "records.sqlite").read_bytes()
    with pytest.raises(StoreError, match=said):
        Records(url)
    assert (tmp_path / "records.sqlite").read_bytes() == before


def test_a_database_that_cannot_be_created_is_left_alone(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE tokens (mine TEXT)")
    with pytest.raises(StoreError, match="tokens already exists"):
        Records(url)
    assert sa.inspect(engine).get_table_names() == ["tokens"]
    engine.dispose()


def test_the_folder_of_the_steps_is_a_part_of_the_package() -> None:
    folder = Path(migrations.__file__).parent
    assert (folder / "env.py").is_file() and list((folder / "versions").glob("r0001_*.py"))


def test_the_newest_step_is_told_by_its_file(url: str) -> None:
    Records(url).close()
    engine, config = sa.create_engine(url), Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    with engine.connect() as connection:
        found, newest = migrations.standing(connection)
    engine.dispose()
    assert [found] == [newest] == list(ScriptDirectory.from_config(config).get_heads())


def test_a_database_is_opened_as_it_should_be(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_prepare", inspect.unwrap(database._prepare))  # as where a machine may stop
    records = Records(url)
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}
    for place in (records.database.reading, records.database.writing):
        with place() as connection:
            assert {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in wanted} == wanted
    records.close()
