"""A backup is of one moment, whatever is written meanwhile, and comes back whole."""

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from logdoctor.errors import StoreError
from logdoctor.store.database import Database
from logdoctor.store.keeping import backup
from logdoctor.store.keeping.checks import of_identity, of_stored
from logdoctor.store.log.archive import Archive, StreamPiece
from logdoctor.store.log.objects import FolderObjects
from logdoctor.store.log.table import DoneRows
from logdoctor.store.names import IDENTITY
from logdoctor.store.schema import parts as table
from tests.databases import databases
from tests.postgres import program
from tests.store.logs import KEY, Parts, archived, data_of, opened, owner_of, sent

SIZE = 3000


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    folder = tmp_path / "data"
    folder.mkdir()
    with opened(f"sqlite:///{folder}/logdoctor.db", folder / "archive") as parts:
        for number in range(3):
            sent(parts.log, KEY, data_of(KEY, number * SIZE, (number + 1) * SIZE))
            if number < 2:
                archived(parts, owner_of(parts.database, KEY), KEY, number + 1)
        yield parts


def _made(parts: Parts, to: Path) -> backup.Copied:
    return backup.of_sqlite(Path(str(parts.objects)).with_name("logdoctor.db"), parts.objects, to)


def _restored(source: Path, folder: Path) -> tuple[Database, FolderObjects]:
    objects = FolderObjects(folder / "archive")
    backup.put_back(source, folder, objects)
    return Database(f"sqlite:///{folder}/logdoctor.db"), objects


def _wrong(database: Database, objects: FolderObjects) -> list[str]:
    checks = [*of_stored(database, objects, deep=True), of_identity(database, objects)]
    return [f"{check.name}: {check.found}" for check in checks if check.state != "ok"]


def test_what_was_backed_up_comes_back(parts: Parts, tmp_path: Path) -> None:
    owned = owner_of(parts.database, KEY)
    state = parts.archive.keep_state(owned, KEY, b"a snapshot")
    copied = _made(parts, tmp_path / "backup")
    assert (copied.objects, copied.gone) == (3, [])
    assert sorted(path.name for path in (tmp_path / "backup").iterdir()) == ["archive", "logdoctor.db"]
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "backup" / "logdoctor.db").stat().st_mode & 0o777 == 0o600
    linked = tmp_path / "backup" / "archive" / state
    assert linked.stat().st_nlink == 2, "a hard link takes no room"
    database, objects = _restored(tmp_path / "backup", tmp_path / "new")
    assert (tmp_path / "new" / "archive" / state).stat().st_nlink == 1, "what is restored stands alone"
    assert _wrong(database, objects) == []
    archive = Archive(database, objects)
    archive.meet()
    assert archive.open(KEY).read(0, 1 << 30) == data_of(KEY, 0, 2 * SIZE)
    assert archive.state(state) == b"a snapshot"
    with opened(f"sqlite:///{tmp_path}/new/logdoctor.db", tmp_path / "new" / "archive") as again:
        assert [chunk.data for chunk in again.log.tail(KEY, 2 * SIZE)] == [data_of(KEY, 2 * SIZE, 3 * SIZE)]
        assert again.log.standing(KEY).next == 3 * SIZE
    database.close()


@pytest.mark.parametrize("link", ["object", "folder", "archive", "logdoctor.db"])
def test_a_link_in_a_backup_brings_no_file_from_elsewhere(parts: Parts, tmp_path: Path, link: str) -> None:
    """Whoever wrote the backup may not read what the restorer may."""
    source = tmp_path / "backup"
    _made(parts, source)
    one = next(path for path in (source / "archive").rglob("*.zst"))
    moved = {"object": one, "folder": one.parent}.get(link, source / link)
    moved.rename(tmp_path / "elsewhere")
    moved.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="is a link to another place") as raised:
        _restored(source, tmp_path / "restored")
    assert str(moved) in str(raised.value) and raised.value.next_step
    assert not (tmp_path / "restored" / "logdoctor.db").exists()


def test_a_backup_of_what_is_in_use_is_of_one_moment(parts: Parts, tmp_path: Path) -> None:
    owned = owner_of(parts.database, KEY)
    ended = threading.Event()

    def work() -> None:
        begin, line = 2 * SIZE, data_of(KEY, 0, 2 * SIZE).count(b"\n") + 1
        while not ended.is_set():
            sent(parts.log, KEY, data_of(KEY, begin + SIZE, begin + 2 * SIZE))
            piece = StreamPiece(KEY.stream, begin, line, data_of(KEY, begin, begin + SIZE))
            head = parts.log.heads()[owned.shard].row
            parts.archive.store(DoneRows(owned, head - 1), KEY.job, KEY.attempt, [piece])
            begin, line = begin + SIZE, line + piece.data.count(b"\n")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for number in range(5):
            assert _made(parts, tmp_path / f"backup {number}").gone == []
    finally:
        ended.set()
        thread.join()
    for number in range(5):
        database, objects = _restored(tmp_path / f"backup {number}", tmp_path / f"new {number}")
        assert _wrong(database, objects) == []
        database.close()


def test_what_retention_deleted_meanwhile_is_named_and_left_out(parts: Parts, tmp_path: Path) -> None:
    with parts.database.reading() as connection:
        name = connection.scalars(sa.select(table.c.object)).first()
    assert name is not None
    parts.objects.delete(name)
    assert _made(parts, tmp_path / "backup").gone == [name]
    database, objects = _restored(tmp_path / "backup", tmp_path / "new")
    assert any(name in problem for problem in _wrong(database, objects))
    database.close()


def test_where_no_links_can_be_made_files_are_copied(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderObjects, "link", lambda *_: False)
    assert _made(parts, tmp_path / "backup").objects == 2
    database, objects = _restored(tmp_path / "backup", tmp_path / "new")
    assert _wrong(database, objects) == []
    database.close()


def test_only_an_empty_folder_is_written(parts: Parts, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(StoreError, match="is not empty"):
        _made(parts, tmp_path / "full")
    _made(parts, tmp_path / "backup")
    with pytest.raises(StoreError, match="is not empty"):
        _restored(tmp_path / "backup", tmp_path / "full")
    with pytest.raises(StoreError, match=r"holds no logdoctor\.db"):
        _restored(tmp_path / "full", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_nothing_is_restored_over_the_archive_of_another_database(parts: Parts, tmp_path: Path) -> None:
    _made(parts, tmp_path / "backup")
    other = FolderObjects(tmp_path / "other")
    other.put(IDENTITY, b"another\n")
    with pytest.raises(StoreError, match="belongs to another database"):
        backup.put_back(tmp_path / "backup", tmp_path / "new", other)
    assert not any((tmp_path / "new").iterdir()), "nothing can be started, and it can be tried again"


def test_an_archive_that_went_on_after_the_backup_is_taken_over_when_it_is_said_so(
    parts: Parts, tmp_path: Path
) -> None:
    _made(parts, tmp_path / "backup")
    backup.put_back(tmp_path / "backup", tmp_path / "same", parts.objects)
    archived(parts, owner_of(parts.database, KEY), KEY, 3)  # a service is running over it
    with pytest.raises(StoreError, match="written after the backup"):
        backup.put_back(tmp_path / "backup", tmp_path / "new", parts.objects)
    assert not any((tmp_path / "new").iterdir())
    backup.put_back(tmp_path / "backup", tmp_path / "new", parts.objects, newer=True)
    assert (tmp_path / "new" / "logdoctor.db").exists()


@pytest.mark.parametrize("with_dump", [True, False])
def test_of_postgresql_pg_dump_writes_the_database_of_the_moment_of_the_list(tmp_path: Path, with_dump: bool) -> None:
    name = databases.pool.lend()
    url = databases.server.url(name, password="a secret")
    with opened(url, tmp_path / "archive") as parts:
        sent(parts.log, KEY, data_of(KEY, 0, SIZE))
        archived(parts, owner_of(parts.database, KEY), KEY, 1)
        to = tmp_path / "backup"
        used = program("pg_dump") if with_dump else ""
        assert backup.of_postgresql(parts.database, url, to, used, dict(os.environ)) == 1
        listed = (to / "objects.txt").read_text(encoding="utf-8").splitlines()
        assert [parts.objects.size(one) is not None for one in listed] == [True]
        if with_dump:
            told = subprocess.run(
                [program("pg_restore"), "--list", to / "logdoctor.dump"], capture_output=True, text=True
            )
            assert " parts " in told.stdout and "identity" in told.stdout
            with pytest.raises(StoreError, match="pg_restore"):
                backup.put_back(to, tmp_path / "new", FolderObjects(tmp_path / "new" / "archive"))
            assert b"a secret" not in (to / "logdoctor.dump").read_bytes()
            with pytest.raises(StoreError, match="pg_dump fails"):
                backup.of_postgresql(parts.database, url + "&sslmode=nonsense", tmp_path / "none", used, {})
        else:
            assert not (to / "logdoctor.dump").exists()
    databases.pool.take_back(name)


def test_what_is_planted_in_the_folder_of_a_backup_is_neither_written_nor_read(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (victim := tmp_path / "victim").write_bytes(b"precious")
    make = backup._make

    def planted(folder: Path) -> Any:
        made = make(folder)
        (folder / "logdoctor.db").symlink_to(victim)
        return made

    with monkeypatch.context() as patched:
        patched.setattr(backup, "_make", planted)
        with pytest.raises(StoreError, match="cannot be written"):
            _made(parts, tmp_path / "backup")
    assert victim.read_bytes() == b"precious"
    (open_to_all := tmp_path / "open").mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(StoreError, match="can be written by others"):
        _made(parts, open_to_all)
    (readable := tmp_path / "readable").mkdir(mode=0o755)
    _made(parts, readable)
    assert readable.stat().st_mode & 0o777 == 0o700
