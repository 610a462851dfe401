"""The archive gives back every byte and line that it was given, and says so when it cannot."""

import itertools
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from logdoctor.errors import LimitReached, StoreDamaged, StoreError
from logdoctor.store import schema
from logdoctor.store.database import Database
from logdoctor.store.log.archive import FRAME, Archive, ArchivedLines, ArchivedStream, StreamPiece, lines_of
from logdoctor.store.log.objects import FolderObjects
from logdoctor.store.log.shards import Fenced, Owned, shard_of
from logdoctor.store.log.table import DoneRows, NewBytes
from logdoctor.store.names import IDENTITY, Key
from logdoctor.store.schema import parts
from tests.service.archives import filled as listed
from tests.service.disks import fill, small_disk
from tests.store.conftest import on_both
from tests.store.logs import KEY, Parts, held, of_all, opened, owner_of, sent

_UNLIMITED = 1 << 30
_LINES = st.lists(
    st.one_of(
        st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")),
        st.just(b""),
        st.integers(1, 60).map(lambda size: b"x" * size),
    ),
    max_size=30,
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream and the chunks in which it is appended: with empty and long lines, with or without a last newline."""
    content = b"\n".join(draw(_LINES)) + draw(st.sampled_from([b"\n", b"", b"\n\n"]))
    cuts = sorted(draw(st.lists(st.integers(0, len(content)), max_size=12)))
    bounds = [0, *cuts, len(content)]
    return content, [content[begin:end] for begin, end in itertools.pairwise(bounds)]


def split(content: bytes) -> list[bytes]:
    """The lines of a stream; the last may lack its newline."""
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def enter_attempt(database: Database, job: str, number: int, settled: bool) -> None:
    """Enter an attempt."""
    with database.writing() as connection:
        connection.execute(sa.insert(schema.jobs).values(job=job, facts="{}", created=1.0, updated=1.0))
        connection.execute(sa.insert(schema.attempts).values(job=job, number=number, started=1.0, settled=settled))


def store(here: Parts, owned: Owned, key: Key, data: bytes) -> str:
    """Send and archive bytes that continue a stream, the only one of its shard; the name of the object."""
    begin, newlines = here.archive.open(key).offset, here.archive.open(key).newlines
    sent(here.log, key, data)
    upto = here.log.heads()[owned.shard][0]
    here.archive.store(
        DoneRows(owned, upto), key.job, key.attempt, [StreamPiece(key.stream, begin, newlines + 1, data)]
    )
    with here.database.reading() as connection:
        query = sa.select(parts.c.object).where(parts.c.job == key.job, parts.c.attempt == key.attempt)
        return str(connection.scalars(query.order_by(parts.c.number.desc())).first())


@pytest.fixture
def here(tmp_path: Path, url: str) -> Iterator[Parts]:
    with opened(url, tmp_path / "archive") as found:
        yield found


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Lasting"]:
    """An archive to which each example adds a stream of its own."""
    folder = tmp_path_factory.mktemp("lasting")
    with opened(f"sqlite:///{folder}/db", folder / "archive") as found:
        yield Lasting(found)


class Lasting:
    """Archives, one for each stream."""

    def __init__(self, here: Parts) -> None:
        self._here, self._count = here, 0
        self._owned = of_all(here.database)

    def filled(self, chunks: list[bytes]) -> list[ArchivedStream]:
        """A new stream whose chunks were archived one by one: as its writer sees it, and as others do."""
        self._count += 1
        key = Key(f"job-{self._count}", 1, "rank 0")
        for chunk in chunks:
            if chunk:
                store(self._here, self._owned[shard_of(key.job, 1)], key, chunk)
        return [self._here.archive.open(key), Archive(self._here.database, self._here.objects).open(key)]


def lines(stream: ArchivedStream, first: int, last: int, limit: int = _UNLIMITED) -> ArchivedLines:
    number, chunks = stream.from_line(first, stream.offset)
    return lines_of(chunks, number, first, last, limit)


def whole(stream: ArchivedStream) -> bytes:
    return b"".join(stream.frames(0, len(stream.places(stream.offset)[0])))


@settings(max_examples=settings.default.max_examples // 2)
@given(streams())
def test_what_was_archived_comes_back_in_any_part(lasting: Lasting, stream: tuple[bytes, list[bytes]]) -> None:
    content, chunks = stream
    for found in lasting.filled(chunks):
        assert (found.offset, found.newlines) == (len(content), content.count(b"\n"))
        assert whole(found) == content
        for begin in range(0, len(content) + 1, max(len(content) // 9, 1)):
            for end in (begin, begin + 1, begin + 17, len(content), len(content) + 5):
                assert found.read(begin, end) == content[begin:end]


@settings(max_examples=settings.default.max_examples // 2)
@given(streams(), st.integers(1, 40), st.integers(0, 40))
def test_any_lines_come_back(lasting: Lasting, stream: tuple[bytes, list[bytes]], first: int, more: int) -> None:
    content, chunks = stream
    for found in lasting.filled(chunks):
        wanted = split(content)[first - 1 : first + more]
        assert lines(found, first, first + more) == ArchivedLines(first, wanted, True)


@settings(max_examples=settings.default.max_examples // 2)
@given(streams(), st.integers(1, 20), st.integers(0, 40), st.integers(0, 60))
def test_lines_are_shown_up_to_a_limit(
    lasting: Lasting, stream: tuple[bytes, list[bytes]], first: int, more: int, limit: int
) -> None:
    content, chunks = stream
    wanted = split(content)[first - 1 : first + more]
    found = lines(lasting.filled(chunks)[0], first, first + more, limit)
    whole = found.lines == wanted
    assert whole if found.complete else (not whole or len(b"\n".join(wanted)) >= limit)
    assert found.lines[:-1] == wanted[: max(len(found.lines) - 1, 0)]
    if found.lines:
        assert wanted[len(found.lines) - 1].startswith(found.lines[-1])
    assert sum(map(len, found.lines[:-1])) <= limit
    assert sum(map(len, found.lines)) <= 2 * limit + max(map(len, wanted), default=0)


def test_a_line_without_end_is_shown_up_to_the_limit() -> None:
    used = 0

    def chunks() -> Iterator[bytes]:
        nonlocal used
        while True:
            used += 1
            yield b"x" * 1000

    found = lines_of(chunks(), 1, 1, 1, 5000)
    assert found == ArchivedLines(1, [b"x" * 5000], False)
    assert used <= 8


def test_empty_lines_count_towards_the_limit() -> None:
    found = lines_of([b"\n" * 1000] * 1000, 1, 1, 10**9, 5000)
    assert not found.complete
    assert len(found.lines) <= 10_001


@on_both
def test_a_line_longer_than_many_frames(here: Parts) -> None:
    content = b"first\n" + b"x" * (3 * FRAME) + b"y\nlast\nno end"
    owned = owner_of(here.database, KEY)
    for begin, end in itertools.pairwise([0, 100, FRAME // 2, FRAME * 2, FRAME * 2 + 1, len(content)]):
        store(here, owned, KEY, content[begin:end])
    stream = here.archive.open(KEY)
    for number, line in enumerate(split(content), 1):
        assert lines(stream, number, number).lines == [line]
    assert lines(stream, 5, 9) == ArchivedLines(5, [], True)


def test_one_line_of_a_large_stream_unpacks_few_frames(here: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    block = b"".join(b"%07d some words of a training log that go on for a while\n" % n for n in range(FRAME // 60))
    block = block.ljust(FRAME - 1, b".") + b"\n"
    per_block, blocks = block.count(b"\n"), 60
    owned = owner_of(here.database, KEY)
    for _ in range(blocks // 20):
        store(here, owned, KEY, block * 20)
    read: list[int] = []
    get = FolderObjects.get

    def counted(self: FolderObjects, name: str, begin: int, end: int) -> bytes:
        read.append(end - begin)
        return get(self, name, begin, end)

    monkeypatch.setattr(FolderObjects, "get", counted)
    for line in (1, per_block * 30 + 7, per_block * blocks):
        assert lines(here.archive.open(KEY), line, line, 1 << 20).lines == [split(block)[(line - 1) % per_block]]
    assert len(read) <= 2 * 3


def test_an_object_holds_streams_of_one_attempt_for_every_zstandard_tool(here: Parts) -> None:
    owned = owner_of(here.database, KEY)
    other = KEY._replace(stream="rank 1")
    first, second = os.urandom(FRAME + 5), b"two\n" * 1000
    here.log.append([NewBytes(KEY, 0, first), NewBytes(other, 0, second)], 1.0)
    here.archive.store(
        DoneRows(owned, 1), "job", 1, [StreamPiece("rank 0", 0, 1, first), StreamPiece("rank 1", 0, 1, second)]
    )
    (name,) = [facts.name for facts in here.objects.walk() if facts.name != IDENTITY]
    assert here.archive.streams("job", 1) == ["rank 0", "rank 1"]
    assert (whole(here.archive.open(KEY)), whole(here.archive.open(other))) == (first, second)
    data = here.objects.get(name, 0, here.objects.size(name) or 0)
    unpacker = zstandard.ZstdDecompressor()
    with unpacker.stream_reader(data, read_across_frames=True) as reader:
        assert reader.read() == first + second
    try:
        read = subprocess.run(["zstdcat"], input=data, capture_output=True, check=True, timeout=90)
    except FileNotFoundError:
        pytest.skip("zstdcat is not installed")
    assert read.stdout == first + second


# What the log and the archive owe each other


def test_rows_go_with_the_commit_that_lists_their_bytes(here: Parts) -> None:
    owned = owner_of(here.database, KEY)
    sent(here.log, KEY, b"one\n", b"two\n", b"three\n")
    here.archive.store(DoneRows(owned, 2), "job", 1, [StreamPiece("rank 0", 0, 1, b"one\ntwo\nth")])
    standing = here.log.standing(KEY)
    assert (standing.archived, standing.next, standing.lines) == (10, 14, 3)
    assert [row.seq for row in here.log.read(owned.shard, 0)] == [3]
    assert held(here.database) == {owned.shard: (6, 6)}
    here.archive.store(DoneRows(owned, 3), "job", 1, [StreamPiece("rank 0", 10, 3, b"ree\n")])
    assert whole(here.archive.open(KEY)) == b"one\ntwo\nthree\n" and held(here.database) == {}


@pytest.mark.parametrize("offset", [0, 3, 5])
def test_pieces_that_do_not_continue_the_archive_are_refused(here: Parts, offset: int) -> None:
    owned = owner_of(here.database, KEY)
    store(here, owned, KEY, b"one\n")
    sent(here.log, KEY, b"two\n")
    with pytest.raises(Fenced):
        here.archive.store(DoneRows(owned, 9), "job", 1, [StreamPiece("rank 0", offset, 2, b"two\n")])
    assert whole(here.archive.open(KEY)) == b"one\n" and len(here.log.read(owned.shard, 0)) == 1


def test_a_commit_whose_answer_was_lost_archives_nothing_twice(here: Parts) -> None:
    owned = owner_of(here.database, KEY)
    sent(here.log, KEY, b"one\n")
    here.archive.store(DoneRows(owned, 1), "job", 1, [StreamPiece("rank 0", 0, 1, b"one\n")])
    sent(here.log, KEY, b"two\n")
    with pytest.raises(Fenced):  # what the owner does that heard nothing of the first
        here.archive.store(DoneRows(owned, 2), "job", 1, [StreamPiece("rank 0", 0, 1, b"one\ntwo\n")])
    here.archive.store(DoneRows(owned, 2), "job", 1, [StreamPiece("rank 0", 4, 2, b"two\n")])
    assert whole(here.archive.open(KEY)) == b"one\ntwo\n"


def test_who_dies_between_object_and_commit_leaves_an_orphan_and_no_damage(here: Parts) -> None:
    owned = owner_of(here.database, KEY)
    store(here, owned, KEY, b"one\n")
    sent(here.log, KEY, b"two\n")
    here.archive.objects.put("job/1/000002-1-0a1b2c3d.zst", b"of a worker that died")
    here.archive.objects.put("foreign/file.zst", b"of somebody else")
    later = max(facts.at for facts in here.objects.walk()) + 3500.0
    assert here.archive.sweep(later) == 0, "somebody may be about to list it"
    assert here.archive.sweep(later + 200.0) == 0, "the database may be an older one, which a repair adds it to"
    here.archive.store(DoneRows(owned, 2), "job", 1, [StreamPiece("rank 0", 4, 2, b"two\n")])
    assert here.archive.sweep(later + 200.0) == 1 and here.archive.sweep(later + 200.0) == 0
    assert whole(here.archive.open(KEY)) == b"one\ntwo\n"
    assert here.objects.size("job/1/000002-1-0a1b2c3d.zst") is None and here.objects.size("foreign/file.zst")


def test_snapshots_that_are_in_use_are_not_swept(here: Parts) -> None:
    owned = owner_of(here.database, KEY)
    sent(here.log, KEY, b"one\n")
    name = here.archive.keep_state(owned, KEY, b"state")
    assert here.archive.sweep(time.time() + 7200.0) == 0 and here.archive.state(name) == b"state"


def test_snapshots_replace_each_other(here: Parts) -> None:
    owned = owner_of(here.database, KEY)
    sent(here.log, KEY, b"one\n")
    assert here.log.standing(KEY).state == "" and here.archive.state("") is None
    first = here.archive.keep_state(owned, KEY, b"first")
    assert here.log.standing(KEY).state == first and here.archive.state(first) == b"first"
    second = here.archive.keep_state(owned, KEY, b"second")
    assert here.archive.state(first) is None and here.archive.state(second) == b"second"
    here.archive.drop_states(owned, [KEY])
    assert here.archive.state(second) is None and here.log.standing(KEY).state == ""
    assert [facts.name for facts in here.objects.walk()] == [IDENTITY]


# Damage


def damaged(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / "archive" / name).write_bytes(data)


def test_a_flipped_bit_of_any_byte_is_found(here: Parts, tmp_path: Path) -> None:
    owned = owner_of(here.database, KEY)
    name = store(here, owned, KEY, os.urandom(300))
    store(here, owned, KEY, b"last\n")
    good = (tmp_path / "archive" / name).read_bytes()
    for place in range(len(good)):
        damaged(tmp_path, name, good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1 :])
        with pytest.raises(StoreError, match="damaged") as raised:
            here.archive.open(KEY).read(0, 300)
        assert name in str(raised.value)
        assert here.archive.open(KEY).read(300, 305) == b"last\n", "the others can be read"


def test_an_object_that_is_missing_or_cut_is_said(here: Parts, tmp_path: Path) -> None:
    owned = owner_of(here.database, KEY)
    name = store(here, owned, KEY, b"one\n" * 100)
    good = (tmp_path / "archive" / name).read_bytes()
    for size in range(0, len(good), 7):
        damaged(tmp_path, name, good[:size])
        with pytest.raises(StoreError, match="ends at byte"):
            whole(here.archive.open(KEY))
    here.objects.delete(name)
    with pytest.raises(StoreError, match="missing"):
        lines(here.archive.open(KEY), 3, 3)


def test_an_object_in_the_place_of_another_is_found(here: Parts, tmp_path: Path) -> None:
    owned = owner_of(here.database, KEY)
    first, second = (store(here, owned, KEY, b"%d\n" % n) for n in (1, 2))
    damaged(tmp_path, second, (tmp_path / "archive" / first).read_bytes())
    with pytest.raises(StoreError, match="another one"):
        here.archive.open(KEY).read(2, 4)


def test_a_full_disk_changes_nothing(tmp_path: Path, url: str) -> None:
    with small_disk(tmp_path / "disk", 2 << 20) as disk, opened(url, disk / "archive") as here:
        owned = owner_of(here.database, KEY)
        store(here, owned, KEY, b"before\n")
        data = os.urandom(FRAME)
        sent(here.log, KEY, data)
        piece = StreamPiece("rank 0", 7, 2, data)
        ballast = fill(disk, 300_000)
        with pytest.raises(StoreError):
            here.archive.store(DoneRows(owned, 2), "job", 1, [piece])
        assert whole(here.archive.open(KEY)) == b"before\n" and len(here.log.read(owned.shard, 0)) == 1
        ballast.unlink()
        here.archive.store(DoneRows(owned, 2), "job", 1, [piece])
        assert whole(here.archive.open(KEY)) == b"before\n" + data


# Many attempts


@on_both
def test_reading_goes_on_while_another_thread_archives(here: Parts) -> None:
    owned, failures, done = owner_of(here.database, KEY), [], threading.Event()
    other = Archive(here.database, here.objects)

    def read() -> None:
        while not done.is_set():
            stream = other.open(KEY)
            if stream.read(0, size := stream.offset) != (b"%07d\n" * (size // 8)) % tuple(range(size // 8)):
                failures.append(size)

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(60):
        store(here, owned, KEY, b"%07d\n" % n)
    done.set()
    reader.join()
    assert not failures


@on_both
def test_the_streams_of_an_attempt_are_found_by_their_names(here: Parts) -> None:
    names = ["a", ".hidden", "a b", "..a", "é", "x.zst", "x.state", "%2E", "n" * 200]
    owned = of_all(here.database)
    for job in ("job", "..job", "job b", "é"):
        for name in names:
            key = Key(job, 3, name)
            store(here, owned[shard_of(job, 3)], key, name.encode() + b"\n")
            state = here.archive.keep_state(owned[shard_of(job, 3)], key, b"state of " + name.encode())
            assert here.archive.state(state) == b"state of " + name.encode()
        assert here.archive.streams(job, 3) == sorted(names)
        assert [whole(here.archive.open(Key(job, 3, name))) for name in names] == [f"{n}\n".encode() for n in names]
    assert here.archive.streams("job", 4) == here.archive.streams("other", 3) == []
    assert here.archive.open(Key("other", 3, "a")).offset == 0


@on_both
def test_attempts_are_measured_and_deleted(here: Parts) -> None:
    owned = of_all(here.database)
    begin = time.time()
    for job, attempt in (("a b", 1), ("a b", 2), ("c", 1)):
        for stream in ("x", "y"):
            store(here, owned[shard_of(job, attempt)], Key(job, attempt, stream), os.urandom(20_000))
    here.archive.keep_state(owned[shard_of("a b", 1)], Key("a b", 1, "x"), b"state")
    sizes = {(size.job, size.attempt): size for size in here.archive.sizes()}
    assert sizes.keys() == {("a b", 1), ("a b", 2), ("c", 1)}
    assert begin - 1.0 <= sizes["a b", 2].changed <= time.time() + 1.0 and 40_000 <= sizes["a b", 2].bytes < 100_000
    assert here.archive.size("a b", 2) == sizes["a b", 2].bytes and here.archive.size("none", 1) == 0
    reader = Archive(here.database, here.objects)
    assert reader.streams("a b", 1) == ["x", "y"]
    shard = owned[shard_of("a b", 1)]
    assert not here.archive.delete(shard, "a b", 1, 5.0), "it is not settled"
    enter_attempt(here.database, "a b", 1, settled=True)
    here.log.append([NewBytes(Key("a b", 1, "x"), None, b"late")], 1.0)
    assert not here.archive.delete(shard, "a b", 1, 5.0), "it has bytes that are not archived"
    with here.database.writing() as connection:
        connection.execute(sa.update(schema.streams).values(next=schema.streams.c.archived))
    assert all(here.archive.delete(shard, "a b", 1, 5.0) for _ in range(2))
    late = here.log.append([NewBytes(Key("a b", 1, "x"), 0, b"late")], 1.0)[0]
    assert isinstance(late, LimitReached) and "its log was deleted" in str(late)
    assert here.archive.streams("a b", 1) == reader.streams("a b", 1) == [] and len(reader.streams("a b", 2)) == 2
    assert not [facts for facts in here.objects.walk() if facts.name.startswith("a%20b/1/")]
    assert here.log.streams_of("a b", 1) == {} and len(here.log.streams_of("a b", 2)) == 2


def test_what_is_listed_is_read_once(here: Parts) -> None:
    owned = owner_of(here.database, KEY)
    for n in range(5):
        store(here, owned, KEY, b"%d\n" % n)
    reader = Archive(here.database, here.objects)
    stream = reader.open(KEY)
    assert reader.open(KEY) is stream and stream.newlines == 5
    store(here, owned, KEY, b"5\n")
    assert stream.newlines == 5, "it is as it was"
    assert reader.open(KEY) is stream and stream.newlines == 6
    assert whole(stream) == b"0\n1\n2\n3\n4\n5\n"


def test_a_damaged_frame_costs_nothing_of_the_one_before(tmp_path: Path) -> None:
    stream = listed(KEY, FolderObjects(tmp_path), [b"one\n", b"two\n"])
    path = tmp_path / "object.zst"
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert stream.read(0, 4) == b"one\n"
    with pytest.raises(StoreDamaged):
        stream.read(0, 5)
