"""Each shard has one owner, who is shut out once another took it over, whatever its own clock says."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from logdoctor.store.database import Database
from logdoctor.store.jobs.records import Records
from logdoctor.store.log.archive import StreamPiece
from logdoctor.store.log.shards import Fenced, Leases, Owned, fenced, shard_of
from logdoctor.store.log.table import DoneRows
from logdoctor.store.schema import SHARDS, shards, workers
from tests import waiting
from tests.at_once import at_once
from tests.store.conftest import Clock, on_both
from tests.store.logs import KEY, Parts, of_all, opened, owner_of, sent
from tests.store.test_records import BASE


def numbers(owned: set[Owned]) -> set[int]:
    return {one.shard for one in owned}


def test_every_attempt_has_a_shard_for_ever() -> None:
    assert [shard_of(f"job-{n}", 1) for n in range(6)] == [shard_of(f"job-{n}", 1) for n in range(6)]
    assert (shard_of("job", 1), shard_of("job", 2), shard_of("größe", 999_999)) == (61, 7, 50)
    counts = [0] * SHARDS
    for n in range(6400):
        counts[shard_of(f"job-{n}", 1)] += 1
    assert min(counts) > 50 and max(counts) < 150


def test_a_lone_worker_owns_all(database: Database) -> None:
    leases = Leases(database, "a")
    first = leases.beat()
    assert numbers(first) == set(range(SHARDS)) and {one.epoch for one in first} == {1}
    assert leases.beat() == first


@pytest.mark.parametrize("count", [2, 3, 5])
def test_workers_share_and_no_shard_has_two_owners(database: Database, clock: Clock, count: int) -> None:
    leases = [Leases(database, f"w{n}") for n in range(count)]
    for _ in range(3):
        clock.now += 1
        owned = [lease.beat() for lease in leases]
    assert sorted(shard for of in owned for shard, _ in of) == list(range(SHARDS))
    assert max(map(len, owned)) <= -(-SHARDS // count)


def test_a_dead_ones_shards_go_to_others_after_its_lease_and_not_before(database: Database, clock: Clock) -> None:
    dead, heir = Leases(database, "dead", 10.0), Leases(database, "heir", 10.0)
    before = dead.beat()
    clock.now += 9.9
    assert heir.beat() == set()
    clock.now += 0.1
    after = heir.beat()
    assert numbers(after) >= numbers(before) and all(one.epoch == 2 for one in after)
    assert dead.beat() == set(), "it owns nothing of what it owned"
    clock.now += 1.0
    heir.beat()
    assert len(dead.beat()) == SHARDS // 2, "and takes a fair share as any other"


def test_epochs_grow_with_each_owner(database: Database, clock: Clock) -> None:
    for epoch in range(1, 5):
        assert {one.epoch for one in Leases(database, f"w{epoch}").beat()} == {epoch}
        clock.now += 11.0


def test_whoever_leaves_is_followed_at_once(database: Database, clock: Clock) -> None:
    Leases(database, "a").beat()
    Leases(database, "a").leave()
    assert len(Leases(database, "b").beat()) == SHARDS


def test_who_knows_that_nobody_lives_takes_all_at_once(database: Database, clock: Clock) -> None:
    Leases(database, "killed").beat()
    leases = Leases(database, "next")
    assert leases.beat() == set()
    leases.clear()
    assert len(leases.beat()) == SHARDS


@on_both
def test_the_clock_of_the_process_does_not_matter(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = Leases(database, "a", 600.0)
    begin = time.time()
    first = leases.beat()
    for wrong in (0.0, 1e10):
        monkeypatch.setattr(time, "time", lambda wrong=wrong: wrong)
        assert leases.beat() == first
    with database.reading() as connection:
        until = connection.scalar(sa.select(sa.func.min(shards.c.until)))
    monkeypatch.undo()
    assert begin - 1.0 < float(until or 0) - 600.0 < time.time() + 1.0


def test_the_clock_of_the_database_goes(database: Database) -> None:
    before = time.time()
    with database.reading() as connection:
        begin = database.now(connection)
    assert before - 1.0 < begin < time.time() + 1.0

    def now() -> float:
        with database.appending() as connection:
            return database.now(connection)

    waiting.until(lambda: now() > begin)


@on_both
def test_shards_of_another_rule_book_are_left_alone_while_a_peer_of_it_lives(database: Database, clock: Clock) -> None:
    old, new = Leases(database, "old", rulebook="old"), Leases(database, "new", rulebook="new")
    first = old.beat()
    for _ in range(3):
        clock.now += 1.0
        assert new.beat() == set()
        assert old.beat() == first, "it keeps what nobody else would take"
    peer = Leases(database, "peer", rulebook="old")
    peer.beat()
    assert len(old.beat()) == SHARDS // 2 and len(peer.beat()) == SHARDS // 2
    clock.now += 1.0
    old.leave()
    assert new.beat() == set()
    assert len(peer.beat()) == SHARDS, "what one of them leaves goes to the other"
    peer.leave()
    assert len(new.beat()) == SHARDS


@settings(max_examples=settings.default.max_examples // 3)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["beat", "beat", "beat", "leave", "wait"])), max_size=40))
def test_whatever_workers_do_no_shard_has_two_owners_and_none_stays_without(
    tmp_path: Path, steps: list[tuple[int, str]]
) -> None:
    clock, owned, epochs = Clock(), dict[int, set[Owned]](), [0] * SHARDS
    with pytest.MonkeyPatch.context() as patch, opened(f"sqlite:///{tmp_path}/db", tmp_path) as parts:
        patch.setattr(Database, "now", lambda self, connection: clock.now)
        leases = [Leases(parts.database, f"w{n}", 10.0, "even" if n % 2 else "odd") for n in range(5)]
        for lease in leases:
            lease.leave()
        with parts.database.appending() as connection:
            connection.execute(sa.update(shards).values(epoch=0, owner="", until=0.0, rulebook=""))
        until = [0.0] * 5
        for worker, what in steps:
            if what == "wait":
                clock.now += 4.0
            elif what == "leave":
                leases[worker].leave()
                owned[worker], until[worker] = set(), 0.0
            else:
                owned[worker], until[worker] = leases[worker].beat(), clock.now + 10.0
            living = [of for n, of in owned.items() if until[n] > clock.now]
            all_owned = [shard for of in living for shard, _ in of]
            if what == "beat":
                current = {shard for shard, _ in owned[worker]}
                others = {s for n, of in owned.items() if n != worker and until[n] > clock.now for s, _ in of}
                assert not current & others
                for shard, epoch in owned[worker]:
                    assert epoch >= epochs[shard]
                    epochs[shard] = epoch
            assert len(all_owned) == len(set(all_owned))
        clock.now += 11.0
        for _ in range(4):
            clock.now += 1.0
            last = [leases[worker].beat() for worker in (0, 1, 2)]
        assert sorted(shard for of in last for shard, _ in of) == list(range(SHARDS))


@on_both
def test_many_who_begin_at_once_share(url: str) -> None:
    databases = [Database(url) for _ in range(4)]
    leases = [Leases(database, f"w{n}", 30.0, "book") for n, database in enumerate(databases)]
    for _ in range(6):
        at_once(Leases.beat, leases)
    for _ in range(2):
        owned = [lease.beat() for lease in leases]
    assert sorted(shard for of in owned for shard, _ in of) == list(range(SHARDS))
    assert {len(of) for of in owned} == {SHARDS // 4}
    for database in databases:
        database.close()


@on_both
def test_those_that_are_long_dead_are_forgotten(database: Database, clock: Clock) -> None:
    for number in range(5):
        Leases(database, f"w{number}", 10.0).beat()
        clock.now += 2000.0
    with database.reading() as connection:
        assert list(connection.scalars(sa.select(workers.c.worker))) == ["w4"]


def test_what_a_worker_is_told_when_it_is_shut_out(database: Database) -> None:
    one = of_all(database)[3]
    with database.appending() as connection:
        fenced(connection, one)
    for wrong in (Owned(3, one.epoch - 1), Owned(3, one.epoch + 1)):
        with pytest.raises(Fenced) as raised, database.appending() as connection:
            fenced(connection, wrong)
        assert (raised.value.shard, raised.value.epoch) == wrong and "shard 3" in str(raised.value)


def _publish(parts: Parts, owned: Owned, url: str) -> None:
    records = Records(url)
    try:
        records.publish(KEY.job, KEY.attempt, BASE, True, 1.0, owned=owned)
    finally:
        records.close()


CHANGES: dict[str, Callable[[Parts, Owned, str], object]] = {
    "store": lambda p, o, _: p.archive.store(
        DoneRows(o, 1), KEY.job, KEY.attempt, [StreamPiece(KEY.stream, 0, 1, b"one\n")]
    ),
    "trim": lambda p, o, _: p.log.trim(DoneRows(o, 1)),
    "keep_state": lambda p, o, _: p.archive.keep_state(o, KEY, b"state"),
    "drop_states": lambda p, o, _: p.archive.drop_states(o, [KEY]),
    "delete": lambda p, o, _: p.archive.delete(o, KEY.job, KEY.attempt, 1.0),
    "publish": _publish,
}
"""What only the owner of a shard may do."""


@on_both
@pytest.mark.parametrize("what", CHANGES)
def test_an_owner_that_was_paused_changes_nothing(tmp_path: Path, url: str, what: str) -> None:
    with opened(url, tmp_path / "archive") as parts:
        sent(parts.log, KEY, b"one\n", b"two\n")
        paused = owner_of(parts.database, KEY, "paused")
        owner = owner_of(parts.database, KEY, "next")
        before = everything(parts)
        with pytest.raises(Fenced):
            CHANGES[what](parts, paused, url)
        assert everything(parts) == before
        CHANGES[what](parts, owner, url)


def everything(parts: Parts) -> bytes:
    """All that is in the database of a log, and what the archive shows."""
    standing = parts.log.standing(KEY)
    rows = [row for shard in range(SHARDS) for row in parts.log.read(shard, 0)]
    sizes = parts.archive.sizes()
    with parts.database.reading() as connection:
        tables = {
            table: [list(map(str, row)) for row in connection.exec_driver_sql(f"SELECT * FROM {table} ORDER BY 1, 2")]
            for table in ("attempts", "verdicts", "streams", "parts", "marks")
        }
    return msgspec.json.encode([standing, [(row.seq, len(row.chunks)) for row in rows], sizes, tables])
