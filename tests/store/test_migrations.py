"""An empty database and an old one come to the same form; a newer one is left alone."""

import re
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext

from logdoctor.store import migrations
from logdoctor.store.learned import LearnedRules
from logdoctor.store.model_calls import ModelCalls
from logdoctor.store.records import JobFacts, Records
from logdoctor.store.schema import StoreError, metadata


def form(connection: sa.Connection) -> set[tuple[str, ...]]:
    """The database's form: each thing and the SQL that made it, without the order of its parts: a column that
    was added stands last."""
    rows = connection.exec_driver_sql("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master")
    return {
        (*row[:3], *sorted(part.strip(" ()\t") for part in re.split(r"[,\n]", row[3]) if part.strip(" ()\t")))
        for row in rows
        if "alembic_version" not in row[2]
    }


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/records.sqlite"


def test_the_steps_lead_to_the_schema(url: str, tmp_path: Path) -> None:
    Records(url).close()
    straight = sa.create_engine(f"sqlite:///{tmp_path}/straight.sqlite")
    metadata.create_all(straight)
    stepped = sa.create_engine(url)
    with stepped.connect() as ours, straight.connect() as wanted:
        assert compare_metadata(MigrationContext.configure(ours, opts={"compare_type": True}), metadata) == []
        assert form(ours) == form(wanted)
        assert any(name == "ix_verdicts_newest" for _, name, *_ in form(ours))
    straight.dispose()
    stepped.dispose()


def test_opening_again_changes_nothing(url: str) -> None:
    records = Records(url)
    records.put_job("a", JobFacts(user="user-17"), 1.0)
    with records.database.reading() as connection:
        before = form(connection)
    records.close()
    again = Records(url)
    with again.database.reading() as connection:
        assert form(connection) == before
    assert [job.job for job in again.jobs().items] == ["a"]
    again.close()


def test_the_first_form_comes_to_the_newest_with_its_data(url: str, tmp_path: Path) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.exec_driver_sql("INSERT INTO jobs VALUES ('a', '{\"user\":\"user-17\"}', 1.0, 2.0)")
        connection.exec_driver_sql("INSERT INTO attempts VALUES ('a', 1, 'key', 1.0, NULL, 0, NULL)")
        connection.exec_driver_sql("UPDATE counters SET value = 41")
        assert "learned_rules" not in sa.inspect(connection).get_table_names()
    engine.dispose()
    upgraded, fresh = Records(url), Records(f"sqlite:///{tmp_path}/fresh.sqlite")
    with upgraded.database.reading() as ours, fresh.database.reading() as wanted:
        assert form(ours) == form(wanted)
    job, attempt = upgraded.job("a"), upgraded.attempt("a", 1)
    assert job and job.facts == JobFacts(user="user-17") and attempt and attempt.started == 1.0
    assert upgraded.allot_attempt("a", "key", 3.0) == 1 and upgraded.last_event() == 41
    learned = LearnedRules(upgraded.database)
    assert learned.version() == 0 and learned.list() == []
    assert ModelCalls(upgraded.database).spent(None, 0.0).calls == 0
    upgraded.close()
    fresh.close()


def test_a_newer_database_is_refused_and_left_alone(url: str, tmp_path: Path) -> None:
    records = Records(url)
    with records.database.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    records.close()
    before = (tmp_path / "records.sqlite").read_bytes()
    with pytest.raises(StoreError, match=r"newer logdoctor \(revision 9999\)\. Upgrade logdoctor"):
        Records(url)
    assert (tmp_path / "records.sqlite").read_bytes() == before


def test_a_step_that_fails_leaves_nothing(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE tokens (mine TEXT)")
    with pytest.raises(StoreError, match="tokens already exists"):
        Records(url)
    assert sa.inspect(engine).get_table_names() == ["tokens"]
    engine.dispose()


def test_the_folder_of_the_steps_is_a_part_of_the_package() -> None:
    folder = Path(migrations.__file__).parent
    assert (folder / "env.py").is_file() and all(
        list((folder / "versions").glob(f"{step}_*.py")) for step in ("0001", "0002")
    )


def test_a_database_is_opened_as_it_should_be(url: str) -> None:
    records = Records(url)
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}
    for place in (records.database.reading, records.database.writing):
        with place() as connection:
            assert {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in wanted} == wanted
    records.close()
