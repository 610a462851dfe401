"""What is damaged is found and stays as it is; what the database does not know of the archive is listed."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from logdoctor.errors import StoreError
from logdoctor.store.jobs.records import Records
from logdoctor.store.keeping import identity
from logdoctor.store.keeping.checks import Check, of_archive, of_clock, of_database, of_identity, of_stored
from logdoctor.store.keeping.repair import Repair
from logdoctor.store.log.archive import StreamPiece
from logdoctor.store.log.shards import Leases, shard_of
from logdoctor.store.log.table import DoneRows
from logdoctor.store.names import IDENTITY, Key
from logdoctor.store.schema import attempts, jobs, log_rows, marks, shards, streams
from logdoctor.store.schema import parts as table
from tests.store.conftest import on_both
from tests.store.logs import KEY, Parts, data_of, opened, owner_of, sent

OTHER = KEY._replace(stream="rank 1")
SIZE = 6000


class Site:
    """A log and an archive with three objects of two streams, and a part in the log."""

    def __init__(self, parts: Parts, url: str) -> None:
        self.parts, self.records, self.steps = parts, Records(url), list[str]()
        self.records.open_attempt(KEY.job, KEY.attempt, time.time())
        for number in range(4):
            for key in (KEY, OTHER):
                sent(parts.log, key, data_of(key, number * SIZE, (number + 1) * SIZE))
            if number < 3:
                self.archive((number + 1) * SIZE)
        Leases(parts.database, "", 1).clear()

    def archive(self, upto: int) -> None:
        """Archive both streams, as one object."""
        pieces, owned = [], owner_of(self.parts.database, KEY)
        for key in (KEY, OTHER):
            begin = self.parts.log.standing(key).archived
            line = data_of(key, 0, begin).count(b"\n") + 1
            pieces.append(StreamPiece(key.stream, begin, line, data_of(key, begin, upto)))
        last = self.parts.log.heads()[owned.shard].row
        self.parts.archive.store(DoneRows(owned, last), KEY.job, KEY.attempt, pieces)

    def names(self) -> list[str]:
        """The listed objects, in order."""
        with self.parts.database.reading() as connection:
            return list(connection.scalars(sa.select(table.c.object).order_by(table.c.number)))

    def execute(self, statement: sa.Executable) -> None:
        with self.parts.database.writing() as connection:
            connection.execute(statement)

    def repair(self, dry: bool = False) -> list[str]:
        self.steps = []
        Repair(self.records, self.parts.objects, self.steps.append, dry).run()
        return self.steps

    def checks(self, deep: bool = False) -> dict[str, Check]:
        return {check.name: check for check in of_stored(self.parts.database, self.parts.objects, deep)}

    def wrong(self, deep: bool = False) -> set[str]:
        return {name for name, check in self.checks(deep).items() if check.state != "ok"}

    def content(self, key: Key) -> bytes:
        """A stream, from the archive and behind it from the log, by another who knows nothing yet."""
        with opened_again(self.parts) as archive:
            standing = self.parts.log.standing(key)
            data = archive.open(key).read(0, 1 << 40)
        assert len(data) == standing.archived
        for chunk in self.parts.log.tail(key, standing.archived):
            data += chunk.data[len(data) - chunk.offset :]
        assert len(data) == standing.next and data.count(b"\n") == standing.lines
        return data


class opened_again:
    """The same archive, of which nothing is known yet."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def __enter__(self):  # type: ignore[no-untyped-def]
        return type(self._parts.archive)(self._parts.database, self._parts.objects)

    def __exit__(self, *_error: object) -> None:
        pass


@pytest.fixture
def site(url: str, tmp_path: Path) -> Iterator[Site]:
    with opened(url, tmp_path / "archive") as parts:
        site = Site(parts, url)
        yield site
        site.records.close()


def _whole(site: Site, *keys: Key) -> None:
    for key in keys:
        assert site.content(key) == data_of(key, 0, 4 * SIZE)


def _path(site: Site, name: str) -> Path:
    return Path(str(site.parts.objects)) / name


def test_what_is_sound_stays_as_it_is(site: Site, url: str) -> None:
    names = site.names()
    assert site.wrong(deep=True) == set()
    assert site.repair() == []
    assert site.names() == names
    _whole(site, KEY, OTHER)
    assert [check.state for check in (of_database(url), of_archive(site.parts.objects))] == ["ok", "ok"]
    assert of_clock(site.parts.database).state == of_identity(site.parts.database, site.parts.objects).state == "ok"
    assert not [facts.name for facts in site.parts.objects.walk("doctor/")]


@on_both
@pytest.mark.parametrize("harm", ["missing", "cut off", "damaged"])
def test_an_object_that_is_not_what_it_was_stays_so(site: Site, harm: str) -> None:
    """A backup may have it; what else there is of the streams can be read."""
    names = site.names()
    path = _path(site, names[1])
    data = bytearray(path.read_bytes())
    data[-20] ^= 1  # of the last frame
    path.chmod(0o600)
    path.unlink() if harm == "missing" else path.write_bytes(data if harm == "damaged" else data[:-20])
    assert site.wrong() == (set() if harm == "damaged" else {"objects"}), "the size is right"
    for _ in range(2):
        assert site.wrong(deep=True) == {"objects"}
        assert names[1] in site.checks(deep=True)["objects"].found
        assert "backup" in site.checks(deep=True)["objects"].next_step
        assert site.repair() == [] and site.names() == names
    with opened_again(site.parts) as archive:
        for key in (KEY, OTHER):
            stream = archive.open(key)
            assert stream.read(0, SIZE) == data_of(key, 0, SIZE)
            assert stream.read(2 * SIZE, 3 * SIZE) == data_of(key, 2 * SIZE, 3 * SIZE)
        with pytest.raises(StoreError):
            archive.open(OTHER).read(0, 3 * SIZE)


@on_both
def test_a_database_that_was_lost_is_filled_from_the_archive(site: Site) -> None:
    for lost in (table, streams, log_rows, attempts, jobs, marks):
        site.execute(sa.delete(lost))
    site.execute(sa.update(shards).values(head=0, asked=0, bytes=0, epoch=0))
    site.execute(sa.update(identity.identity).values(id="another"))
    assert of_identity(site.parts.database, site.parts.objects).state == "problem"
    assert "newer objects" in site.wrong()
    before = {facts.name for facts in site.parts.objects.walk()}
    assert any("list the object" in step for step in site.repair(dry=True))
    assert site.names() == []
    site.repair()
    assert {facts.name for facts in site.parts.objects.walk()} == before
    assert site.wrong(deep=True) == set() and of_identity(site.parts.database, site.parts.objects).state == "ok"
    for key in (KEY, OTHER):
        assert site.content(key) == data_of(key, 0, 3 * SIZE)
    kept = site.records.attempt(KEY.job, KEY.attempt)
    assert kept is not None and not kept.settled
    for key in (KEY, OTHER):
        sent(site.parts.log, key, data_of(key, 3 * SIZE, 4 * SIZE))
    site.parts = site.parts._replace(archive=type(site.parts.archive)(site.parts.database, site.parts.objects))
    site.archive(4 * SIZE)
    _whole(site, KEY, OTHER)


@on_both
def test_an_older_database_takes_what_was_archived_since(site: Site) -> None:
    """And what its log still has is not entered twice."""
    first = site.names()[0]
    site.execute(sa.delete(table).where(table.c.object != first))
    site.execute(sa.update(streams).values(archived=SIZE, next=SIZE, lines=data_of(KEY, 0, SIZE).count(b"\n")))
    site.execute(sa.delete(log_rows))
    site.execute(sa.update(shards).values(bytes=0))
    assert site.checks()["streams"].state == "ok"
    assert site.names() == [first]
    assert site.wrong() == {"newer objects"}
    leases = Leases(site.parts.database, "worker", 60)
    leases.beat()
    assert site.wrong() == set(), "a worker may be about to list them"
    leases.leave()
    site.repair()
    assert site.wrong(deep=True) == set()
    for key in (KEY, OTHER):
        assert site.content(key) == data_of(key, 0, 3 * SIZE)


def test_an_object_that_was_never_listed_is_deleted_and_one_whose_bytes_only_it_has_is_used(site: Site) -> None:
    """A worker died between the object and its listing; another one archived the same bytes, and more."""
    pieces = [
        StreamPiece(
            KEY.stream, 2 * SIZE, data_of(KEY, 0, 2 * SIZE).count(b"\n") + 1, data_of(KEY, 2 * SIZE, 3 * SIZE - 100)
        )
    ]
    data, _ = site.parts.archive.packed(pieces)
    site.parts.objects.put("job/1/000003-1-00000000.zst", data)
    site.parts.objects.put("job/1/rank.00000000.state", b"a snapshot")
    steps = site.repair()
    assert steps == [
        "delete the object job/1/000003-1-00000000.zst, which nobody lists",
        "delete the object job/1/rank.00000000.state, which nobody lists",
    ]
    _whole(site, KEY, OTHER)

    site.parts.objects.put("job/1/000003-1-00000000.zst", data)
    for lost in (table, streams, log_rows):
        site.execute(sa.delete(lost))
    site.repair()
    assert site.wrong(deep=True) == set()
    for key in (KEY, OTHER):
        assert site.content(key) == data_of(key, 0, 3 * SIZE), "the one that holds all of them was taken"


def test_a_hole_among_objects_that_nobody_lists_is_an_object_that_is_missing(site: Site) -> None:
    """The database was lost, and one of the objects."""
    first, lost, behind = site.names()
    site.parts.objects.delete(lost)
    for _ in range(2):  # as often as that happens
        for table_ in (table, streams, log_rows):
            site.execute(sa.delete(table_))
        steps = site.repair()
        where = f"{SIZE} bytes of stream rank 0 from byte {SIZE} on, {SIZE} bytes of stream rank 1 from byte {SIZE} on"
        assert steps[:3] == [
            f"job/1: list the object {first}",
            f"job/1: list as missing: {where}",
            f"job/1: list the object {behind}",
        ]
        assert site.names()[::2] == [first, behind]
        assert site.wrong(deep=True) == {"objects"} and "lost-before-" in site.checks()["objects"].found
        with opened_again(site.parts) as archive:
            for key in (KEY, OTHER):
                stream = archive.open(key)
                assert stream.read(0, SIZE) == data_of(key, 0, SIZE)
                assert stream.read(2 * SIZE, 3 * SIZE) == data_of(key, 2 * SIZE, 3 * SIZE)
                assert stream.newlines == site.parts.log.standing(key).lines == data_of(key, 0, 3 * SIZE).count(b"\n")
                with pytest.raises(StoreError, match="is missing"):
                    stream.read(0, 3 * SIZE)


@on_both
def test_a_damaged_row_of_the_log_is_deleted_once_the_service_has_said_what_is_lost(site: Site) -> None:
    shard = shard_of(KEY.job, KEY.attempt)
    seq = site.parts.log.read(shard, 0, 100)[0].seq
    site.execute(sa.update(log_rows).where(log_rows.c.seq == seq).values(frame=b"damaged"))
    site.execute(sa.update(shards).where(shards.c.shard == shard).values(bytes=1))
    assert site.wrong() == {"log", "log size"}
    assert site.repair()[0].startswith(f"leave row {seq} of shard {shard} of the log")
    assert site.wrong() == {"log"}
    site.archive(4 * SIZE)
    Leases(site.parts.database, "", 1).clear()
    site.execute(sa.insert(log_rows).values(shard=shard, seq=seq, bytes=9, frame=b"damaged"))
    assert site.repair()[0].startswith(f"delete row {seq} of shard {shard} of the log")
    assert site.wrong() == set()


@on_both
def test_an_attempt_all_of_whose_objects_are_gone_was_deleted(site: Site) -> None:
    site.execute(sa.update(attempts).values(settled=True))
    for name in site.names():
        site.parts.objects.delete(name)
    site.repair()
    kept = site.records.attempt(KEY.job, KEY.attempt)
    assert kept is not None and kept.deleted is not None
    assert site.names() == [] and site.parts.log.streams_of(KEY.job, KEY.attempt) == {}


def test_nothing_is_repaired_while_a_worker_lives(site: Site) -> None:
    leases = Leases(site.parts.database, "worker", 60)
    leases.beat()
    with pytest.raises(StoreError, match="is in use"):
        site.repair()
    leases.leave()
    site.repair()
    assert len(Leases(site.parts.database, "worker", 60).beat()) == 64, "the shards are free again"


def test_an_archive_that_has_nothing_of_what_is_listed_is_left_alone(site: Site, tmp_path: Path) -> None:
    for facts in list(site.parts.objects.walk()):
        site.parts.objects.delete(facts.name)
    site.parts.objects.put("elsewhere/1/000001-1-00000000.zst", b"of others")
    with pytest.raises(StoreError, match="has none of the 3 objects"):
        site.repair()
    assert [facts.name for facts in site.parts.objects.walk()] == ["elsewhere/1/000001-1-00000000.zst"]


def test_a_dry_run_changes_nothing(site: Site) -> None:
    site.parts.objects.delete(site.names()[1])
    site.parts.objects.put("job/1/rank.00000000.state", b"a snapshot")
    with site.parts.database.reading() as connection:
        before = [connection.execute(sa.select(one)).all() for one in (table, streams, shards, log_rows)]
    objects = set(site.parts.objects.walk())
    assert len(site.repair(dry=True)) == 1
    with site.parts.database.reading() as connection:
        assert [connection.execute(sa.select(one)).all() for one in (table, streams, shards, log_rows)] == before
    assert set(site.parts.objects.walk()) == objects
    assert IDENTITY in {facts.name for facts in objects}


def test_a_database_that_is_not_there_is_not_created(tmp_path: Path) -> None:
    check = of_database(f"sqlite:///{tmp_path}/none.db")
    assert check.state == "problem" and "does not exist" in check.found
    assert not (tmp_path / "none.db").exists()
