"""What an operator is told of the log and of the workers is what the tables say."""

import time
from pathlib import Path

import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.log.shard_state import MOST, state_of
from logdoctor.store.log.shards import Leases, shard_of
from logdoctor.store.schema import SHARDS
from tests.store.conftest import Clock, on_both
from tests.store.logs import KEY, opened, sent


def test_a_new_database_has_shards_that_nobody_owned(database: Database) -> None:
    state = state_of(database)
    assert [one.shard for one in state.shards] == list(range(SHARDS)) and state.workers == ()
    assert {(one.owner, one.owners, one.unowned, one.bytes) for one in state.shards} == {("", 0, 0.0, 0)}


def test_workers_say_what_they_do_until_they_are_not_heard_of(database: Database, clock: Clock) -> None:
    one, two = Leases(database, "one", 10.0), Leases(database, "two", 10.0)
    one.beat('{"verdicts":1}')
    two.beat()
    one.beat('{"verdicts":2}')
    two.beat('{"verdicts":7}')
    clock.now += 4.0
    one.beat('{"verdicts":3}')
    said = {each.worker: (each.lasts, each.figures) for each in state_of(database).workers}
    assert said == {"one": (10.0, '{"verdicts":3}'), "two": (6.0, '{"verdicts":7}')}
    assert [each.owner for each in state_of(database).shards].count("two") == SHARDS // 2
    clock.now += 8.0
    (left,) = state_of(database).workers
    assert left.worker == "one"
    unowned = [each for each in state_of(database).shards if not each.owner]
    assert len(unowned) == SHARDS // 2 and {each.unowned for each in unowned} == {2.0}
    before = sum(each.owners for each in state_of(database).shards)
    one.beat()
    state = state_of(database)
    assert {each.owner for each in state.shards} == {"one"}
    assert sum(each.owners for each in state.shards) == before + SHARDS // 2


@on_both
def test_shards_that_are_left_wait_from_then_on(database: Database, clock: Clock) -> None:
    one = Leases(database, "one", 10.0)
    owned = one.beat()
    clock.now += 1.0
    one.give_back(sorted(owned)[:5])
    clock.now += 1.0
    assert sorted(each.unowned for each in state_of(database).shards)[-6:] == [0.0, *[1.0] * 5]
    one.leave()
    clock.now += 1.0
    assert {each.unowned for each in state_of(database).shards} == {1.0, 2.0}
    Leases(database, "two", 10.0).beat()
    clock.now += 2.0
    Leases(database, "three").clear()
    clock.now += 3.0
    assert {each.unowned for each in state_of(database).shards} == {3.0} and not state_of(database).workers


def test_the_bytes_of_each_shard_are_those_that_no_archive_has(tmp_path: Path, url: str) -> None:
    with opened(url, tmp_path / "archive") as parts:
        sent(parts.log, KEY, b"one\n", b"two\n")
        held = {one.shard: one.bytes for one in state_of(parts.database).shards if one.bytes}
        assert held == {shard_of(KEY.job, KEY.attempt): 8}


def test_no_more_workers_are_told_of_than_may_be(database: Database) -> None:
    for number in range(MOST + 20):
        Leases(database, f"worker-{number}", 600.0).beat("{}")
    assert len(state_of(database).workers) == MOST


def test_it_costs_the_same_however_much_waits(url: str, tmp_path: Path) -> None:
    """The rows of the log are not touched: not even when they are large and many."""
    with opened(url, tmp_path / "archive") as parts:
        for _ in range(20):
            sent(parts.log, KEY._replace(stream=f"s{time.monotonic_ns()}"), *[b"x" * 100_000 + b"\n"] * 5)
        with parts.database.reading() as connection:
            statements: list[str] = []
            sa.event.listen(connection.engine, "before_cursor_execute", lambda *of: statements.append(str(of[2])))
        state_of(parts.database)
    wanted = [one for one in statements if "FROM shards" in one or "FROM workers" in one]
    assert len(wanted) == 2 and not any("FROM log" in one for one in statements)
