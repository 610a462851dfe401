"""What a worker holds of the log: each byte once, only while the shard is its own, and nothing said of it after."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
import sqlalchemy as sa

from logdoctor.service.holding import Holding, HoldingBounds
from logdoctor.store.jobs.records import End, Records
from logdoctor.store.log.archive import Archive
from logdoctor.store.log.objects import FolderObjects
from logdoctor.store.log.shards import Fenced, Leases, Owned, shard_of
from logdoctor.store.log.table import DoneRows, Head, LogLimits, LogTable, NewBytes, Row
from logdoctor.store.names import Key
from logdoctor.store.schema import attempts, parts, shards
from tests.databases import url_in
from tests.store.logs import appended

on_each = pytest.mark.usefixtures("each_database")

KEY = Key("job", 1, "rank 0")
SHARD = shard_of(KEY.job, KEY.attempt)


class Stored(NamedTuple):
    """What workers share."""

    records: Records
    log: LogTable
    archive: Archive

    def holding(self, worker: str) -> Holding:
        """What a worker holds that has all shards now, whoever had them; nothing is read until it pulls."""
        holding = Holding(self.log, self.archive, self.records, lambda verdict: None, HoldingBounds(1 << 30, 1 << 30))
        leases = Leases(self.records.database, worker)
        leases.clear()
        holding.own(leases.beat())
        return holding

    def append(self, data: bytes, key: Key = KEY) -> int:
        """Bytes that continue a stream."""
        (end,) = appended(self.log, [NewBytes(key, None, data)], time.time())
        assert isinstance(end, int)
        return end


@pytest.fixture
def stored(folder: Path) -> Iterator[Stored]:
    with closing(Records(url_in(folder / "logdoctor.db"))) as records:
        log = LogTable(records.database, LogLimits(1 << 40, 1000, 1 << 30))
        yield Stored(records, log, Archive(records.database, FolderObjects(folder / "archive")))


def held(holding: Holding, key: Key = KEY) -> bytes:
    """What waits in memory to be archived."""
    return b"".join(holding.attempts[key.job, key.attempt].streams[key.stream].unarchived)


def rows(stored: Stored) -> list[int]:
    return [row.seq for row in stored.log.read(SHARD, 0, 100)]


def pull(holding: Holding) -> None:
    while holding.pull():
        pass


@on_each
def test_rows_that_are_read_again_double_nothing(stored: Stored) -> None:
    holding = stored.holding("one")
    for part in (b"one\n", b"two\n"):
        stored.append(part)
    pull(holding)
    leases = Leases(stored.records.database, "one")
    (owned,) = (one for one in leases.beat() if one.shard == SHARD)

    def again(owned: Owned) -> Owned:
        """Lose the shard, and own it in a new epoch: what was begun in the old one must not be done any more."""
        holding.lose(owned)
        assert holding.own([owned]) == [] and holding.lost([owned]) == {owned}
        leases.give_back([owned])
        (new,) = (one for one in leases.beat() if one.shard == SHARD)
        assert new.epoch == owned.epoch + 1 and holding.own([new]) == [new]
        return new

    for turn in range(3):
        assert held(holding) == b"one\ntwo\n" + b"more\n" * turn
        owned = again(owned)
        stored.append(b"more\n")
        pull(holding)
    holding.archive_all()
    assert held(holding) == b"" and rows(stored) == []
    again(owned)
    assert stored.append(b"last\n") == 28
    pull(holding)
    assert held(holding) == b"last\n" and not stored.log.standing(KEY).problem


def test_a_shard_that_is_lost_takes_its_attempts_along(stored: Stored) -> None:
    holding, other = stored.holding("one"), Key("other", 7, "s")
    assert shard_of(*other[:2]) != SHARD
    for key in (KEY, other):
        stored.append(b"some bytes\n" * 100, key)
    pull(holding)
    owned = holding.attempts["job", 1].owned
    holding.lose(owned._replace(epoch=owned.epoch + 1))
    assert len(holding.attempts) == 2, "that was another epoch"
    holding.lose(owned)
    holding.lose(owned)
    assert list(holding.attempts) == [("other", 7)]
    assert [stream.key for stream in holding.unscanned] == [other]
    figures = holding.figures()
    assert (figures.shards, figures.attempts, figures.unscanned, figures.unarchived) == (63, 1, 1100, 1100)
    assert not holding.owns("job", 1) and holding.owns("other", 7)
    with pytest.raises(Fenced):
        holding.load("job", 1)


@on_each
def test_one_who_was_stopped_past_its_lease_archives_nothing(stored: Stored) -> None:
    late = stored.holding("late")
    stored.append(b"one\n")
    pull(late)
    new = stored.holding("new")
    late.archive(late.attempts["job", 1])
    assert late.attempts == {} and stored.archive.sizes() == []
    assert rows(stored) == [1] and stored.log.standing(KEY).archived == 0
    pull(new)
    new.archive_all()
    assert stored.archive.open(KEY).read(0, 99) == b"one\n"
    assert stored.archive.sweep(time.time() + 7200) == 1


@on_each
def test_one_who_was_stopped_past_its_lease_takes_nothing_for_lost(stored: Stored) -> None:
    """The rows that it did not read are archived by another; what follows them looks like a gap to it."""
    late = stored.holding("late")
    stored.append(b"one\n")
    pull(late)
    new = stored.holding("new")
    stored.append(b"two\n")
    pull(new)
    new.archive_all()
    stored.append(b"three\n")
    assert rows(stored) == [3]
    pull(late)
    assert not late.owns("job", 1) and late.attempts == {}
    assert stored.log.standing(KEY).problem == ""
    pull(new)
    assert held(new) == b"three\n"
    assert not new.attempts["job", 1].streams["rank 0"].problem


@on_each
def test_one_who_was_stopped_past_its_lease_reopens_nothing(stored: Stored) -> None:
    late = stored.holding("late")
    stored.append(b"one\n")
    pull(late)
    late.attempts["job", 1].settled = True
    stored.append(b"two\n")
    pull(late)
    assert late.attempts["job", 1].reopened
    with stored.records.database.writing() as connection:
        connection.execute(sa.text("UPDATE attempts SET settled = :yes"), {"yes": True})
    stored.holding("new")
    late.reopen_changed()
    assert late.attempts == {}
    kept = stored.records.attempt("job", 1)
    assert kept is not None and kept.settled


def test_bytes_after_the_verdict_are_told_before_their_rows_go(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that come while the archive is about to be written."""
    holding = stored.holding("one")
    stored.append(b"one\n")
    pull(holding)
    attempt = holding.attempts["job", 1]
    with stored.records.database.writing() as connection:
        connection.execute(sa.text("UPDATE attempts SET settled = :yes"), {"yes": True})
    attempt.settled = True
    reopen = holding.reopen_changed

    def reopened() -> None:
        reopen()
        monkeypatch.setattr(holding, "reopen_changed", reopen)
        stored.append(b"late\n")
        pull(holding)

    monkeypatch.setattr(holding, "reopen_changed", reopened)
    while rows(stored):
        holding.archive(attempt)
        kept = stored.records.attempt("job", 1)
        assert kept is not None and (not kept.settled or rows(stored))


@on_each
def test_a_shard_that_is_lost_and_owned_again_while_it_is_read_is_read_from_the_start(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    holding = stored.holding("one")
    stored.append(b"one\n")
    pull(holding)
    owned = holding.attempts["job", 1].owned
    stored.append(b"two\n")
    read = stored.log.read_each

    def moved(after: Mapping[int, int], enough: int) -> dict[int, list[Row]]:
        found = read(after, enough)
        monkeypatch.setattr(stored.log, "read_each", read)
        with stored.records.database.appending() as connection:
            mine = shards.c.shard == SHARD
            connection.execute(sa.update(shards).where(mine).values(epoch=owned.epoch + 1))
        holding.own([Owned(SHARD, owned.epoch + 1)])
        return found

    monkeypatch.setattr(stored.log, "read_each", moved)
    assert not holding.pull(), "what was read is of the old epoch"
    pull(holding)
    assert holding.attempts["job", 1].owned.epoch == owned.epoch + 1
    assert held(holding) == b"one\ntwo\n" and not stored.log.standing(KEY).problem


@on_each
def test_attempts_are_lost_and_read_again_at_any_moment(stored: Stored) -> None:
    """Nothing is counted that is not there, and in the end all of it is in the archive, once."""
    holding, done, sent = stored.holding("one"), threading.Event(), b""
    epochs = {owned.shard: owned.epoch for owned in Leases(stored.records.database, "one").beat()}

    def move() -> None:
        while not done.is_set():
            epochs[SHARD] += 1
            with stored.records.database.appending() as connection:
                mine = shards.c.shard == SHARD
                connection.execute(sa.update(shards).where(mine).values(epoch=epochs[SHARD]))
            holding.own([Owned(*one) for one in epochs.items()])
            done.wait(0.01)

    def archive() -> None:
        while not done.is_set():
            for attempt in list(holding.attempts.values()):
                holding.archive(attempt)
            done.wait(0.002)

    threads = [threading.Thread(target=one) for one in (move, archive)]
    for thread in threads:
        thread.start()
    for number in range(60):
        sent += b"%d\n" % number
        stored.append(b"%d\n" % number)
        holding.pull()
    done.set()
    for thread in threads:
        thread.join()
    holding.own([Owned(*one) for one in epochs.items()])
    pull(holding)
    holding.archive_all()
    assert stored.archive.open(KEY).read(0, 1 << 30) == sent
    assert stored.log.standing(KEY).problem == "" and rows(stored) == []
    figures = holding.figures()
    assert (figures.unarchived, holding._held_bytes) == (0, 0)
    assert figures.unscanned == sum(stream.unscanned_bytes for stream in holding.unscanned)


@on_each
def test_hundreds_that_begin_at_once_are_loaded_with_one_statement_for_each_table(stored: Stored) -> None:
    keys = [Key(f"job-{number}", 1, "rank 0") for number in range(200)]
    keys += [Key("wide", 1, f"rank {number}") for number in range(200)]
    stored.records.end("job-7", 1, End("rank 0", 0, None, None, 1.0))
    stored.records.open_attempts([key[:2] for key in keys], 1.0)
    appended(stored.log, [NewBytes(key, 0, b"%d\n" % place) for place, key in enumerate(keys)], time.time())
    holding, read = stored.holding("one"), Counter[str]()

    def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT"):
            read[statement.split()[1].partition(".")[0]] += 1

    engine = stored.records.database._engine
    sa.event.listen(engine, "before_cursor_execute", count)
    try:
        assert holding.pull()
    finally:
        sa.event.remove(engine, "before_cursor_execute", count)
    assert [held(holding, key) for key in keys] == [b"%d\n" % place for place in range(400)]
    assert len(holding.attempts) == 201 and holding.attempts["job-7", 1].over and not holding.attempts["wide", 1].over
    assert read.pop("log") == len({shard_of(*key[:2]) for key in keys})
    assert read == {"shards": 2, "attempts": 1, "ends": 1, "streams": 1, "parts": 1, "verdicts": 1}


@on_each
def test_attempts_are_loaded_together_as_each_by_itself(stored: Stored) -> None:
    """Archived ones, one whose archive is listed wrongly, one whose log was deleted, one that others own, and new
    ones."""
    names = [("one", 1), ("damaged", 1), ("deleted", 1), ("new", 1)]
    holding = stored.holding("first")
    for job, number in names[:3]:
        for name in ("a", "b"):
            stored.append(b"some\nlines\n", Key(job, number, name))
    pull(holding)
    holding.archive_all()
    stored.append(b"more\n", Key("one", 1, "a"))
    with stored.records.database.writing() as connection:
        connection.execute(sa.update(parts).where(parts.c.job == "damaged").values(index=b"?"))
        connection.execute(sa.update(attempts).where(attempts.c.job == "deleted").values(deleted=1.0))
    holding = stored.holding("next")
    lost = shard_of("lost", 1)
    assert lost not in {shard_of(*name) for name in names}
    holding.lose(Owned(lost, holding._shards[lost].owned.epoch))
    found = holding.load_all([*names, ("lost", 1)])
    assert found.keys() == set(names) and found["deleted", 1] is None
    one, damaged, new = found["one", 1], found["damaged", 1], found["new", 1]
    assert one and damaged and new and holding.attempts == {("one", 1): one, ("damaged", 1): damaged, ("new", 1): new}
    assert [(s.durable, s.archived_lines, s.stood) for _, s in sorted(one.streams.items())] == [
        (11, 2, 16),
        (11, 2, 11),
    ]
    assert not damaged.streams and damaged.problems.keys() == {"a", "b"} and "damaged" in damaged.problems["a"]
    assert new.streams == {} and stored.records.attempt("new", 1)
    assert holding.load_all(names) == found and holding.load("one", 1) is one


def test_the_row_of_a_wish_goes_and_is_not_heard_twice(stored: Stored) -> None:
    holding, asked = stored.holding("one"), []
    holding.asked = asked.append
    stored.append(b"one\n")
    stored.records.end("job", 1, End("", 0, None, None, 1.0))
    stored.log.append([NewBytes(Key("job", 1, ""), None, b"ended")], time.time())
    pull(holding)
    attempt = holding.attempts["job", 1]
    assert asked == [attempt] and attempt.over
    holding.archive_all()
    assert rows(stored) == []
    stored.log.append([NewBytes(Key("job", 1, ""), None, b"described")], time.time())
    pull(holding)
    assert asked == [attempt] and rows(stored) == [3]
    holding._archive_what_is_due()
    assert rows(stored) == [] and stored.log.heads()[SHARD] == (3, 3, 0)


@on_each
def test_only_the_owner_trims_a_log(stored: Stored) -> None:
    late = stored.holding("late")
    stored.append(b"one\n")
    pull(late)
    owned = late.attempts["job", 1].owned
    stored.holding("new")
    with pytest.raises(Fenced):
        stored.log.trim(DoneRows(owned, 1))
    with pytest.raises(Fenced):
        stored.log.lost(owned, KEY, "all of it")
    assert rows(stored) == [1] and stored.log.standing(KEY).problem == ""


def test_what_has_ended_is_read_although_too_much_waits(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    holding, other = stored.holding("a"), Key("other", 1, "rank 0")
    assert shard_of(other.job, other.attempt) != SHARD
    stored.append(b"x" * 5000 + b"\n")
    pull(holding)
    monkeypatch.setattr(holding, "_bounds", holding._bounds._replace(unscanned=2000))
    assert holding.is_behind
    stored.append(b"of one that goes on\n")
    for number in range(40):  # more than is read at once
        stored.append(b"%d of one that has ended\n" % number, other)
    assert not holding.pull() and (other.job, 1) not in holding.attempts
    stored.records.end(other.job, other.attempt, End("", 1, None, "", time.time()))
    stored.log.append([NewBytes(other._replace(stream=""), None, b"ended")], time.time())
    stored.append(b"its last words\n", other)
    heads = stored.log.heads

    def appended_meanwhile() -> dict[int, Head]:
        found = heads()
        monkeypatch.setattr(stored.log, "heads", heads)
        stored.append(b"of a child that lives on\n", other)
        return found

    monkeypatch.setattr(stored.log, "heads", appended_meanwhile)
    assert holding.pull()
    attempt = holding.attempts[other.job, 1]
    holding.pull()
    assert holding.is_read(attempt) and held(holding, other).endswith(b"its last words\nof a child that lives on\n")
    assert held(holding, other).count(b"\n") == 42
    assert b"goes on" not in held(holding)


def test_memory_does_not_grow_with_what_is_asked(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, each end of a job had all of its shard read, however little of that was compressed."""
    holding, at_once = stored.holding("a"), 20_000
    for _ in range(200):
        stored.append(b"x" * 999 + b"\n")
    stored.records.end(KEY.job, KEY.attempt, End("", 1, None, "", time.time()))
    stored.log.append([NewBytes(KEY._replace(stream=""), None, b"ended")], time.time())
    monkeypatch.setattr(holding, "_bounds", holding._bounds._replace(unscanned=1000))
    monkeypatch.setattr("logdoctor.service.holding._AHEAD", at_once)
    assert holding.pull()
    (attempt,), most = holding.attempts.values(), holding.figures().unscanned
    while not holding.is_read(attempt):
        holding.scanned(attempt.streams[KEY.stream], 1000)
        holding.pull()
        most = max(most, holding.figures().unscanned)
    assert len(held(holding)) == 200_000 and 4000 < most < 5000 + at_once


def test_a_shard_that_is_far_behind_does_not_keep_others_waiting(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both wait for verdicts, one behind a long backlog that grows as fast as it is compressed."""
    holding, other = stored.holding("a"), Key("other", 1, "rank 0")
    for key in (KEY, other):
        stored.append(b"first\n", key)
    pull(holding)
    monkeypatch.setattr(holding, "_bounds", holding._bounds._replace(unscanned=1000))
    monkeypatch.setattr("logdoctor.service.holding._AHEAD", 20_000)

    def ended(key: Key) -> None:
        stored.records.end(key.job, key.attempt, End("", 1, None, "", time.time()))
        stored.log.append([NewBytes(key._replace(stream=""), None, b"ended")], time.time())

    for _ in range(300):
        stored.append(b"x" * 999 + b"\n")
    ended(KEY)
    holding.pull()
    stored.append(b"last words\n", other)
    ended(other)
    turns = 0
    while not held(holding, other).endswith(b"last words\n"):
        stored.append(b"x" * 1999 + b"\n")
        for stream in list(holding.unscanned):
            holding.scanned(stream, 2000)
        holding.pull()
        turns += 1
    assert turns < 30 and holding._shards[SHARD].last < stored.log.heads()[SHARD].row


@pytest.mark.parametrize("is_over", [True, False])
def test_nothing_waits_for_an_attempt_with_a_verdict(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    """Else to look at old attempts would have their shards read, however much waits."""
    holding = stored.holding("a")
    stored.append(b"x" * 5000 + b"\n")
    pull(holding)
    monkeypatch.setattr(holding, "_bounds", holding._bounds._replace(unscanned=2000))
    number = next(number for number in range(1, 100_000) if shard_of("old", number) == SHARD)
    stored.records.end("old", number, End("", 1, None, "", time.time()))
    stored.records.settle("old", number, is_over)
    stored.append(b"of one that goes on\n")
    assert holding.is_behind and not holding.pull()
    holding.load("old", number)
    assert holding.pull() is not is_over
