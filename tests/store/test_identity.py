"""A database and an archive that do not belong together are not used together."""

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from logdoctor.errors import StoreDamaged
from logdoctor.store.database import Database
from logdoctor.store.keeping import identity
from logdoctor.store.log.objects import FolderObjects
from logdoctor.store.names import IDENTITY, file_name, named
from logdoctor.store.schema import identity as table
from tests.store.conftest import on_both
from tests.store.logs import KEY, Parts, archived, opened, owner_of, sent


def _another(database: Database) -> None:
    """Let a database be another one: those of tests are copies of one."""
    with database.writing() as connection:
        connection.execute(sa.update(table).values(id="another"))


def _fill(parts: Parts) -> None:
    sent(parts.log, KEY, b"a line\n")
    archived(parts, owner_of(parts.database, KEY), KEY, 1)


def test_a_new_archive_gets_the_id_of_its_database(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "archive") as parts:
        parts.archive.meet()
        assert identity.of_archive(parts.objects) == identity.of_database(parts.database)
        assert len(identity.of_database(parts.database)) == 32
    with opened(url, tmp_path / "archive") as again:
        again.archive.meet()


@on_both
def test_what_stores_first_gives_the_id(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "archive") as parts:
        _fill(parts)
        assert identity.of_archive(parts.objects) == identity.of_database(parts.database)
        assert parts.archive.sweep(1e12) == 0, "the id is no orphan"
        assert identity.of_archive(parts.objects)


def test_the_archive_of_another_database_is_refused(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "archive") as parts:
        parts.archive.meet()
        _another(parts.database)
        with opened(url, tmp_path / "archive") as other, pytest.raises(StoreDamaged) as error:
            other.archive.meet()
        for word in ("the database ", str(tmp_path / "archive"), "another database", "doctor --repair"):
            assert word in str(error.value)


def test_an_empty_database_beside_a_full_archive_is_refused(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "archive") as parts:
        parts.objects.put("job/1/000001-1-00000000.zst", b"bytes")
        with pytest.raises(StoreDamaged, match="another database"):
            parts.archive.meet()
        with pytest.raises(StoreDamaged):
            _fill(parts)
        assert [facts.name for facts in parts.objects.walk()] == ["job/1/000001-1-00000000.zst"]


def test_an_archive_that_is_not_mounted_is_refused(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "archive") as parts:
        _fill(parts)
    with (
        opened(url, tmp_path / "elsewhere") as parts,
        pytest.raises(StoreDamaged, match="the archive is empty"),
    ):
        parts.archive.meet()


def test_a_full_archive_whose_id_was_deleted_gets_it_again(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "archive") as parts:
        _fill(parts)
        parts.objects.delete(IDENTITY)
    with opened(url, tmp_path / "archive") as parts:
        parts.archive.meet()
        assert identity.of_archive(parts.objects) == identity.of_database(parts.database)


def test_workers_that_archive_for_themselves_are_refused(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "archive") as parts:
        parts.archive.meet()
    for place in ("of-another-machine", "archive"):
        with opened(url, tmp_path / place) as other:
            if place == "archive":
                other.archive.meet()
                continue
            with pytest.raises(StoreDamaged, match="LOGDOCTOR_ARCHIVE_URL"):
                other.archive.meet()
            assert next(iter(other.objects.walk()), None) is None


def test_of_workers_with_places_of_their_own_that_begin_at_once_one_goes_on(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = identity._put
    with opened(url, tmp_path / "one") as one, opened(url, tmp_path / "other") as other:

        def while_the_other_begins(*of: Any) -> None:
            monkeypatch.setattr(identity, "_put", put)
            other.archive.meet()
            put(*of)

        monkeypatch.setattr(identity, "_put", while_the_other_begins)
        with pytest.raises(StoreDamaged, match="the database has another archive"):
            one.archive.meet()
        other.archive.meet()


def test_no_job_has_the_file_name_of_the_id() -> None:
    for name in (IDENTITY, "job", ".hidden", "a b/c%2E", "é~"):
        assert file_name(name) != IDENTITY
        assert named(file_name(name)) == name


def test_processes_that_begin_at_once_agree(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one writes the id, and an object, after this one has looked for the id."""
    looked = identity._ids
    with opened(url, tmp_path / "archive") as parts:

        def before_the_other(objects: FolderObjects) -> tuple[str, str]:
            monkeypatch.setattr(identity, "_ids", looked)
            found = looked(objects)
            identity.unite(parts.database, objects)
            objects.put("job/1/000001-1-00000000.zst", b"bytes")
            return found

        monkeypatch.setattr(identity, "_ids", before_the_other)
        parts.archive.meet()
