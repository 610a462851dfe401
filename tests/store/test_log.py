"""The log takes each byte once and in order, whoever appends at the same time and whatever happens to the database."""

import random
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from logdoctor.errors import Busy, LimitReached, LogdoctorError, OffsetMismatch
from logdoctor.store.database import Database, sqlite_file
from logdoctor.store.log.archive import Archive, StreamPiece
from logdoctor.store.log.objects import FolderObjects
from logdoctor.store.log.shards import Fenced, Owned, shard_of
from logdoctor.store.log.table import DoneRows, Head, LogTable, NewBytes, Row, Standing, StreamBytes
from logdoctor.store.names import Key
from logdoctor.store.schema import log_rows, marks
from tests.at_once import at_once
from tests.soak import SOAKING
from tests.store.conftest import on_both
from tests.store.logs import (
    KEY,
    LIMITS,
    Parts,
    appended,
    chunks_of,
    data_of,
    held,
    joined,
    of_all,
    opened,
    owner_of,
    sent,
)

OTHER = KEY._replace(stream="rank 1")
FAR = Key("far", 1, "rank 0")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def log(database: Database) -> LogTable:
    return LogTable(database, LIMITS)


def shard(key: Key) -> int:
    return shard_of(key.job, key.attempt)


def whole(log: LogTable, key: Key) -> bytes:
    return joined(chunks_of(log, key), key)


# What is taken


@on_both
def test_entries_of_a_group_continue_each_other(log: LogTable) -> None:
    group = [
        NewBytes(KEY, 0, b"one\n"),
        NewBytes(FAR, 0, b"far\n"),
        NewBytes(KEY, 4, b"two\n"),
        NewBytes(OTHER, None, b"x"),
        NewBytes(KEY, None, b"three\n"),
        NewBytes(KEY, 14, b""),
    ]
    assert appended(log, group, 7.0) == [4, 4, 8, 1, 14, 14]
    assert whole(log, KEY) == b"one\ntwo\nthree\n" and whole(log, FAR) == b"far\n"
    assert log.standing(KEY) == Standing(next=14, lines=3, changed=7.0)
    assert log.streams_of("job", 1) == {"rank 0": log.standing(KEY), "rank 1": Standing(next=1, changed=7.0)}
    assert log.changed("job", 1) == 7.0 and log.changed("job", 9) == 0.0


def test_one_group_is_one_row_of_each_shard(log: LogTable) -> None:
    appended(log, [NewBytes(KEY, None, b"one\n"), NewBytes(OTHER, None, b"two\n"), NewBytes(FAR, None, b"far\n")], 1.0)
    appended(log, [NewBytes(KEY, None, b"more\n")], 1.0)
    assert log.read(shard(KEY), 0) == [
        Row(1, [StreamBytes(KEY, 0, b"one\n"), StreamBytes(OTHER, 0, b"two\n")]),
        Row(2, [StreamBytes(KEY, 4, b"more\n")]),
    ]
    assert log.read(shard(KEY), 1) == [Row(2, [StreamBytes(KEY, 4, b"more\n")])] and log.read(shard(KEY), 2) == []
    assert log.read(shard(FAR), 0) == [Row(1, [StreamBytes(FAR, 0, b"far\n")])]
    assert {number: head for number, head in log.heads().items() if head != (0, 0, 0)} == {
        shard(KEY): (2, 0, 13),
        shard(FAR): (1, 0, 4),
    }
    appended(log, [NewBytes(FAR._replace(stream=""), None, b"ended")], 1.0)
    appended(log, [NewBytes(FAR, None, b"late\n")], 1.0)
    assert log.heads()[shard(FAR)] == Head(row=3, asked=2, bytes=14)


@pytest.mark.parametrize("wrong", [0, 3, 5, 1 << 40])
def test_bytes_that_do_not_continue_their_stream_are_refused_and_cost_the_others_nothing(
    log: LogTable, wrong: int
) -> None:
    sent(log, KEY, b"1234")
    first, refused, chained, pushed = appended(
        log,
        [NewBytes(OTHER, 0, b"a"), NewBytes(KEY, wrong, b"no"), NewBytes(OTHER, 1, b"b"), NewBytes(KEY, None, b"56")],
        1.0,
    )
    assert (first, chained, pushed) == (1, 2, 6)
    assert isinstance(refused, OffsetMismatch) and refused.next_offset == 4 and str(KEY) in str(refused)
    assert whole(log, KEY) == b"123456" and whole(log, OTHER) == b"ab"
    assert held(log._database) == {shard(KEY): (8, 8)}


@on_both
def test_what_is_refused_alone_leaves_no_trace(log: LogTable) -> None:
    (refused,) = appended(log, [NewBytes(KEY, 4, b"no")], 1.0)
    assert isinstance(refused, OffsetMismatch)
    assert appended(log, [NewBytes(OTHER, None, b"")], 1.0) == [0]
    assert log.streams_of("job", 1) == {} and log.read(shard(KEY), 0) == [] and appended(log, [], 1.0) == []


def test_empty_entries_count_as_no_stream(database: Database) -> None:
    log = LogTable(database, LIMITS._replace(streams=1))
    empty = [NewBytes(KEY._replace(stream=f"s{n}"), 0, b"") for n in range(5)]
    assert appended(log, [*empty, NewBytes(KEY, 0, b"x")], 1.0) == [0, 0, 0, 0, 0, 1]


def test_a_push_is_taken_once_for_its_mark(log: LogTable) -> None:
    push = NewBytes(KEY, None, b"line\n", "mark")
    assert appended(log, [push, push], 1.0) == [5, 5]
    assert appended(log, [push], 2.0) == [5]
    assert appended(log, [push._replace(mark="next"), push], 3.0) == [10, 10]
    assert appended(log, [push._replace(key=OTHER)], 4.0) == [5], "the mark is of its stream"
    assert appended(log, [push._replace(mark="")] * 2, 5.0) == [15, 20], "without a mark each counts"
    assert whole(log, KEY) == b"line\n" * 4


def test_a_mark_is_not_spent_on_a_push_that_was_refused(database: Database) -> None:
    small, large = (LogTable(database, LIMITS._replace(stream_bytes=size)) for size in (3, 9))
    push = NewBytes(KEY, None, b"line\n", "mark")
    assert isinstance(appended(small, [push], 1.0)[0], LimitReached)
    assert appended(large, [push], 1.0) == [5]


@on_both
def test_old_marks_are_forgotten(log: LogTable) -> None:
    for at in (1.0, 2.0, 3.0):
        appended(log, [NewBytes(KEY, None, b"x", f"m{at}")], at)
    log.forget_marks(2.5)
    with log._database.reading() as connection:
        assert list(connection.scalars(sa.select(marks.c.mark))) == ["m3.0"]


def test_wishes_come_to_the_owner_after_what_was_sent_before(database: Database) -> None:
    log = LogTable(database, LIMITS._replace(shard_bytes=4))
    sent(log, KEY, b"12345")
    wish = NewBytes(Key("job", 1, ""), None, b"ended")
    assert appended(log, [wish], 1.0) == [0], "too much that waits is no reason to forget how it ended"
    assert chunks_of(log, KEY) == [StreamBytes(KEY, 0, b"12345"), StreamBytes(wish.key, 0, b"ended")]
    assert log.streams_of("job", 1).keys() == {"rank 0"}


# Limits


def test_a_stream_ends_at_its_limit(database: Database) -> None:
    log = LogTable(database, LIMITS._replace(stream_bytes=10))
    full, over, fits = appended(
        log, [NewBytes(KEY, 0, b"x" * 10), NewBytes(KEY, 10, b"y"), NewBytes(OTHER, 0, b"z")], 1.0
    )
    assert (full, fits) == (10, 1) and isinstance(over, LimitReached) and "rank 0" in str(over)
    assert whole(log, KEY) == b"x" * 10


def test_an_attempt_has_so_many_streams(database: Database) -> None:
    log = LogTable(database, LIMITS._replace(streams=3))
    keys = [KEY._replace(stream=f"s{n}") for n in range(5)]
    results = appended(log, [NewBytes(key, 0, b"x") for key in keys[:2]], 1.0)
    results += appended(log, [NewBytes(key, 0, b"x") for key in keys[2:]], 1.0)
    assert results[:3] == [1, 1, 1] and all(isinstance(result, LimitReached) for result in results[3:])
    assert appended(log, [NewBytes(keys[0], 1, b"y"), NewBytes(FAR, 0, b"z")], 1.0) == [2, 1], (
        "those that are there go on"
    )


def test_a_shard_over_its_budget_takes_no_more_and_costs_other_shards_nothing(tmp_path: Path, url: str) -> None:
    with opened(url, tmp_path / "archive", LIMITS._replace(shard_bytes=10)) as parts:
        sent(parts.log, KEY, b"x" * 11)
        busy, far = appended(parts.log, [NewBytes(KEY, 11, b"y"), NewBytes(FAR, 0, b"z" * 11)], 1.0)
        assert isinstance(busy, Busy) and far == 11
        wrong, _ = appended(parts.log, [NewBytes(KEY, 0, b"y"), NewBytes(KEY, 11, b"y")], 1.0)
        assert isinstance(wrong, OffsetMismatch), "who is wrong learns it, however much waits"
        owned = owner_of(parts.database, KEY)
        parts.archive.store(DoneRows(owned, 1), "job", 1, [StreamPiece("rank 0", 0, 1, b"x" * 11)])
        assert appended(parts.log, [NewBytes(KEY, 11, b"y")], 1.0) == [12]


# Many at once


@on_both
def test_two_threads_push_the_same_marks(log: LogTable) -> None:
    pushes = [NewBytes(KEY, None, b"%04d\n" % n, str(n)) for n in range(60)]
    results: dict[int, list[int | LogdoctorError]] = {0: [], 1: []}

    def push(place: int) -> None:
        for begin in range(0, len(pushes), 3):
            results[place] += appended(log, pushes[begin : begin + 3], 1.0)

    at_once(push, range(2))
    assert whole(log, KEY) == b"".join(push.data for push in pushes)
    assert all(isinstance(result, int) for of in results.values() for result in of)


@on_both
def test_many_threads_append_to_the_same_streams(log: LogTable) -> None:
    keys = [Key(f"job-{n % 5}", 1, f"s{n % 2}") for n in range(10)]

    def append(place: int) -> None:
        chance, at = random.Random(place), dict.fromkeys(keys, 0)
        while any(reached < 4000 for reached in at.values()):
            chosen = chance.sample([key for key in keys if at[key] < 4000], 1)
            chosen += chance.sample(keys, 3)
            group = [NewBytes(key, at[key], data_of(key, at[key], at[key] + chance.randint(1, 900))) for key in chosen]
            for entry, result in zip(group, appended(log, group, 1.0), strict=True):
                assert isinstance(result, int | OffsetMismatch), result
                at[entry.key] = result if isinstance(result, int) else result.next_offset

    at_once(append, range(4))
    for key in keys:
        found = whole(log, key)
        assert len(found) >= 4000 and found == data_of(key, 0, len(found))
        assert log.standing(key).next == len(found) and log.standing(key).lines == found.count(b"\n")
    assert all(said == rows for said, rows in held(log._database).values())


# Damage


def spoil(database: Database, key: Key, seq: int, frame: bytes) -> None:
    with database.appending() as connection:
        where = (log_rows.c.shard == shard(key), log_rows.c.seq == seq)
        connection.execute(sa.update(log_rows).where(*where).values(frame=frame))


def frame_of(database: Database, key: Key, seq: int) -> bytes:
    with database.reading() as connection:
        query = sa.select(log_rows.c.frame).where(log_rows.c.shard == shard(key), log_rows.c.seq == seq)
        return bytes(connection.scalar(query) or b"")


@on_both
def test_a_damaged_row_says_so_and_costs_the_others_nothing(log: LogTable) -> None:
    sent(log, KEY, b"one\n", b"two\n" * 50, b"three\n")
    good = frame_of(log._database, KEY, 2)
    chance = random.Random(1)
    flipped = [bytearray(good) for _ in range(30)]
    for frame in flipped:
        frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
    for bad in (b"", good[:-1], good[:30], good + b"x", bytes(len(good)), b"not a frame", *map(bytes, flipped)):
        spoil(log._database, KEY, 2, bad)
        first, damaged, third = log.read(shard(KEY), 0)
        assert (first, third) == (Row(1, [StreamBytes(KEY, 0, b"one\n")]), Row(3, [StreamBytes(KEY, 204, b"three\n")]))
        assert damaged.seq == 2 and damaged.chunks == [] and f"row 2 of shard {shard(KEY)}" in damaged.damage
    assert [chunk.offset for chunk in log.tail(KEY, 0)] == [0, 204]
    spoil(log._database, KEY, 2, good)
    assert whole(log, KEY) == b"one\n" + b"two\n" * 50 + b"three\n"


def test_what_was_lost_is_said_for_good(log: LogTable) -> None:
    sent(log, KEY, b"one\n")
    log.lost(owner_of(log._database, KEY), KEY, "5 bytes are lost")
    sent(log, KEY, b"two\n")
    assert log.standing(KEY).problem == "5 bytes are lost" and log.standing(KEY).next == 8


@on_both
def test_how_far_a_stream_was_scanned_is_kept(log: LogTable) -> None:
    sent(log, KEY, b"one\n")
    sent(log, OTHER, b"two\n")
    assert log.say({owner_of(log._database, KEY): {KEY: (10, 3), OTHER: (5, 0)}}) == set()
    assert log.say({}) == set()
    sent(log, KEY, b"more\n")
    standings = log.streams_of("job", 1)
    assert (standings["rank 0"].scanned, standings["rank 0"].kept) == (10, 3)
    assert (standings["rank 1"].scanned, standings["rank 1"].kept) == (5, 0)


@on_both
def test_an_owner_that_was_paused_says_nothing_of_what_it_scanned(log: LogTable) -> None:
    for key in (KEY, FAR):
        sent(log, key, b"one\n")
    paused, kept = owner_of(log._database, KEY, "paused"), of_all(log._database, "owner")[shard(FAR)]
    assert paused.shard != kept.shard
    assert log.say({paused: {KEY: (10, 3)}, kept: {FAR: (7, 2)}}) == {paused}
    assert log.standing(KEY).scanned == log.standing(KEY).kept == 0
    assert (log.standing(FAR).scanned, log.standing(FAR).kept) == (7, 2)


# Reading and deleting


def test_the_tail_of_a_stream(log: LogTable) -> None:
    for number in range(40):
        sent(log, KEY, b"%03d\n" % number)
        sent(log, OTHER, b"x")
    sent(log, FAR, b"far")
    assert joined(log.tail(KEY, 0), KEY) == b"".join(b"%03d\n" % n for n in range(40))
    assert [chunk.offset for chunk in log.tail(KEY, 150)] == [148, 152, 156]
    assert [chunk.offset for chunk in log.tail(KEY, 152)] == [152, 156]
    assert log.tail(KEY, 160) == [] == log.tail(KEY._replace(stream="none"), 0)


@on_both
def test_rows_are_deleted_up_to_a_number_but_for_some(log: LogTable) -> None:
    owned = owner_of(log._database, KEY)
    sent(log, KEY, *(b"x" * n for n in range(1, 7)))
    sent(log, FAR, b"far")
    log.trim(DoneRows(owned, 4, frozenset({2})))
    assert [row.seq for row in log.read(shard(KEY), 0)] == [2, 5, 6]
    assert held(log._database) == {shard(KEY): (2 + 5 + 6, 2 + 5 + 6), shard(FAR): (3, 3)}
    log.trim(DoneRows(owned, 4, frozenset({2})))
    log.trim(DoneRows(owned, 0))
    assert held(log._database)[shard(KEY)] == (13, 13)
    log.trim(DoneRows(owned, 99))
    assert held(log._database) == {shard(FAR): (3, 3)}
    sent(log, KEY, b"more")
    assert [row.seq for row in log.read(shard(KEY), 0)] == [7], "numbers are not used again"


# Whatever happens, in any order


_BACK = st.sampled_from([0, 0, 0, 0, 1, 2])
"""Which worker: the owner, or one that was it before."""


class Machine(RuleBasedStateMachine):
    """Senders, and workers that own the one shard of two attempts' streams by turns; some do not know that they lost
    it."""

    url = ""
    folder = Path()
    keys = (KEY, OTHER)

    @initialize()
    def begin(self) -> None:
        database = Database(self.url)
        with database.appending() as connection:
            for table in ("log", "streams", "marks", "parts"):
                connection.exec_driver_sql(f"DELETE FROM {table}")
            connection.exec_driver_sql("UPDATE shards SET head = 0, asked = 0, bytes = 0")
        objects = FolderObjects(self.folder)
        self.parts = Parts(database, LogTable(database, LIMITS), Archive(database, objects), objects)
        self.sent: dict[Key, bytes] = dict.fromkeys(self.keys, b"")
        self.workers: list[_Worker] = []

    @rule(key=st.sampled_from(keys), size=st.integers(0, 300), wrong=st.sampled_from([0, 0, 0, -1, 7]))
    def send(self, key: Key, size: int, wrong: int) -> None:
        at = len(self.sent[key])
        data = data_of(key, at, at + size)
        (result,) = appended(self.parts.log, [NewBytes(key, at + wrong, data)], 1.0)
        if wrong:
            assert isinstance(result, OffsetMismatch) and result.next_offset == at
        else:
            self.sent[key] += data
            assert result == len(self.sent[key])

    @rule(mark=st.integers(0, 5), times=st.integers(1, 2))
    def push(self, mark: int, times: int) -> None:
        before = len(self.sent[OTHER])
        data = data_of(OTHER, before, before + 64)
        entry = NewBytes(OTHER, None, data, f"{mark}")
        results = appended(self.parts.log, [entry] * times, 1.0)
        assert len(set(results)) == 1 and results[0] in (before, before + 64)
        if results[0] == before + 64:
            self.sent[OTHER] += data

    @rule()
    def take_over(self) -> None:
        owned = owner_of(self.parts.database, KEY, f"w{len(self.workers)}")
        self.workers = [*self.workers[-2:], _Worker(self.parts, owned, self.keys)]

    @rule(back=_BACK, most=st.integers(1, 5))
    def read(self, back: int, most: int) -> None:
        if back < len(self.workers):
            assert self.workers[-1 - back].read(most) or back, "a row is missing"

    @rule(back=_BACK, keys=st.sets(st.sampled_from(keys), min_size=1), is_answered=st.booleans())
    def archive(self, back: int, keys: set[Key], is_answered: bool) -> None:
        if back < len(self.workers):
            changed = self.workers[-1 - back].archive(keys, is_answered)
            assert not back or not changed, "who lost the shard changed something"

    @rule(back=_BACK)
    def trim(self, back: int) -> None:
        if back < len(self.workers):
            assert self.workers[-1 - back].trim() <= (not back), "who lost the shard changed something"

    @invariant()
    def nothing_is_lost_doubled_or_reordered(self) -> None:
        if not hasattr(self, "parts"):
            return
        archive = Archive(self.parts.database, FolderObjects(self.folder))
        for key, wanted in self.sent.items():
            standing = self.parts.log.standing(key)
            assert standing.next == len(wanted) and standing.lines == wanted.count(b"\n")
            stream = archive.open(key)
            assert stream.offset == standing.archived and stream.newlines == wanted[: stream.offset].count(b"\n")
            found = stream.read(0, stream.offset)
            for chunk in self.parts.log.tail(key, stream.offset):
                assert chunk.offset <= len(found)
                found += chunk.data[len(found) - chunk.offset :]
            assert found == wanted
        assert all(said == rows for said, rows in held(self.parts.database).values())

    def teardown(self) -> None:
        if hasattr(self, "parts"):
            self.parts.database.close()


class _Worker:
    """Remembers what it read, as an owner does."""

    def __init__(self, parts: Parts, owned: Owned, keys: tuple[Key, ...]) -> None:
        self._parts, self._owned, self._last = parts, owned, 0
        standings = {key: parts.log.standing(key) for key in keys}
        self._archived = {key: standing.archived for key, standing in standings.items()}
        self._lines = {key: parts.archive.open(key).newlines for key in keys}
        self._have = {key: b"" for key in keys}
        self._rows: list[tuple[int, dict[Key, int]]] = []

    def read(self, most: int) -> bool:
        """Read on; False when that is not possible, because this worker owns the shard no more."""
        for row in self._parts.log.read(self._owned.shard, self._last, most):
            ends = {}
            for chunk in row.chunks:
                reached = self._archived[chunk.key] + len(self._have[chunk.key])
                if chunk.offset > reached:  # the owner has archived what is between, and deleted its rows
                    return False
                self._have[chunk.key] += chunk.data[reached - chunk.offset :]
                ends[chunk.key] = max(chunk.offset + len(chunk.data), ends.get(chunk.key, 0))
            self._rows.append((row.seq, ends))
            self._last = row.seq
        return True

    def archive(self, keys: set[Key], is_answered: bool) -> bool:
        """Whether something was archived; without an answer to the commit the worker does not know it."""
        pieces = [
            StreamPiece(key.stream, self._archived[key], self._lines[key] + 1, self._have[key])
            for key in sorted(keys)
            if self._have[key]
        ]
        after = self._archived | {key: self._archived[key] + len(self._have[key]) for key in keys}
        if not pieces:
            return False
        try:
            self._parts.archive.store(DoneRows(self._owned, self._upto(after)), KEY.job, KEY.attempt, pieces)
        except Fenced:
            return False
        if not is_answered:
            return True
        for key in keys:
            self._lines[key] += self._have[key].count(b"\n")
            self._have[key] = b""
        self._archived = after
        return True

    def trim(self) -> bool:
        try:
            self._parts.log.trim(DoneRows(self._owned, self._upto(self._archived)))
        except Fenced:
            return False
        return True

    def _upto(self, archived: dict[Key, int]) -> int:
        upto = 0
        for seq, ends in self._rows:
            if any(archived[key] < end for key, end in ends.items()):
                break
            upto = seq
        return upto


def test_what_a_process_appended_itself_reads_as_what_is_stored(database: Database) -> None:
    near, far = LogTable(database, LIMITS, recent=1000), LogTable(database, LIMITS)
    for turn in range(30):
        group = [NewBytes(key, None, f"{turn} of {key.stream}\n".encode() * (turn + 1)) for key in (KEY, OTHER)]
        (near if turn % 7 else far).append(group, turn)
    place = shard(KEY)

    def rows_of(log: LogTable, most: int) -> list[Row]:
        found: list[Row] = []
        while rows := log.read(place, found[-1].seq if found else 0, most):
            found += rows
        return found

    stored = rows_of(far, 16)
    assert len(stored) == 30 and rows_of(near, 4) == stored
    assert [near.read(place, after) for after in (0, 20, 30)] == [stored[:16], stored[20:], []], "once more"


@on_both
@pytest.mark.more_in_soak
def test_any_interleaving_loses_doubles_and_reorders_nothing(tmp_path: Path, url: str) -> None:
    Machine.url, Machine.folder = url, tmp_path / "archive"
    most = settings.default.max_examples // 4 if SOAKING or sqlite_file(url) else 4
    few = settings(max_examples=most, stateful_step_count=40)
    run_state_machine_as_test(Machine, settings=settings(few, phases=[Phase.generate]))
