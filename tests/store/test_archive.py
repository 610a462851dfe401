"""The archive gives back every byte and line that it was given, and says so when it cannot."""

import itertools
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import StoreError
from logdoctor.store.archive import FRAME, Archive, ArchivedLines, StreamFile, lines_of
from logdoctor.store.frames import Packer, walk
from logdoctor.store.names import Key
from tests.service.disks import fill, small_disk

KEY = Key("job", 1, "rank 0")
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


def filled(path: Path, chunks: list[bytes]) -> StreamFile:
    path.unlink(missing_ok=True)
    file, packer = StreamFile(path), Packer()
    for chunk in chunks:
        file.append(chunk, packer)
    file.sync()
    return file


def lines(file: StreamFile, first: int, last: int, limit: int = _UNLIMITED) -> ArchivedLines:
    number, chunks = file.from_line(first, file.offset)
    return lines_of(chunks, number, first, last, limit)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job" / "1" / "rank%200.zst"


@given(streams())
def test_what_was_appended_comes_back_in_any_part(path: Path, stream: tuple[bytes, list[bytes]]) -> None:
    content, chunks = stream
    for file in (filled(path, chunks), StreamFile(path)):
        assert (file.offset, file.newlines) == (len(content), content.count(b"\n"))
        for begin in range(0, len(content) + 1, max(len(content) // 9, 1)):
            for end in (begin, begin + 1, begin + 17, len(content), len(content) + 5):
                assert file.read(begin, end) == content[begin:end]


@given(streams(), st.integers(1, 40), st.integers(0, 40))
def test_any_lines_come_back(path: Path, stream: tuple[bytes, list[bytes]], first: int, more: int) -> None:
    content, chunks = stream
    for file in (filled(path, chunks), StreamFile(path)):
        wanted = split(content)[first - 1 : first + more]
        assert lines(file, first, first + more) == ArchivedLines(first, wanted, True)


@given(streams(), st.integers(1, 20), st.integers(0, 40), st.integers(0, 60))
def test_lines_are_shown_up_to_a_limit(
    path: Path, stream: tuple[bytes, list[bytes]], first: int, more: int, limit: int
) -> None:
    content, chunks = stream
    wanted = split(content)[first - 1 : first + more]
    found = lines(filled(path, chunks), first, first + more, limit)
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


def test_a_line_longer_than_many_frames(path: Path) -> None:
    content = b"first\n" + b"x" * (3 * FRAME) + b"y\nlast\nno end"
    cuts = [0, 100, FRAME // 2, FRAME * 2, FRAME * 2 + 1, len(content)]
    file = filled(path, [content[a:b] for a, b in itertools.pairwise(cuts)])
    for number, line in enumerate(split(content), 1):
        assert lines(file, number, number).lines == [line]
    assert lines(file, 5, 9) == ArchivedLines(5, [], True)


def test_one_line_of_a_large_stream_unpacks_few_frames(path: Path) -> None:
    block = b"".join(b"%07d some words of a training log that go on for a while\n" % n for n in range(FRAME // 60))
    block = block.ljust(FRAME - 1, b".") + b"\n"
    per_block, blocks = block.count(b"\n"), 200
    file, packer = StreamFile(path), Packer()
    for _ in range(blocks):
        file.append(block, packer)
    assert file.offset == blocks * FRAME
    used = 0
    for reader in (file, StreamFile(path)):
        for line in (1, per_block * 100 + 7, per_block * blocks):
            number, chunks = reader.from_line(line, reader.offset)

            def counted(chunks: Iterator[bytes] = chunks) -> Iterator[bytes]:
                nonlocal used
                for chunk in chunks:
                    used += 1
                    yield chunk

            found = lines_of(counted(), number, line, line, 1 << 20)
            assert found.lines == [split(block)[(line - 1) % per_block]]
    assert used <= 2 * 3 * 2


@pytest.mark.parametrize("size", [1, FRAME - 1, FRAME, FRAME + 1, 3 * FRAME + 5])
def test_every_zstandard_tool_reads_the_file(path: Path, size: int) -> None:
    content = (os.urandom(1000) + b"\n") * (size // 1001 + 1)
    content = content[:size]
    filled(path, [content[:100], content[100:]])
    with path.open("rb") as file:
        assert zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).readall() == content
    try:
        read = subprocess.run(["zstdcat", str(path)], capture_output=True, check=True, timeout=90)
    except FileNotFoundError:
        pytest.skip("zstdcat is not installed")
    assert read.stdout == content


def test_a_torn_tail_of_any_length_is_written_over(path: Path) -> None:
    chunks = [b"one\n" * 20, b"two\n" * 20, os.urandom(40)]
    filled(path, chunks)
    whole = path.read_bytes()
    with path.open("rb") as file:
        ends = [frame.end for frame in walk(file.fileno())]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        kept = sum(end <= length for end in ends)
        file_again = StreamFile(path)
        assert file_again.offset == sum(map(len, chunks[:kept]))
        for chunk in chunks[kept:]:
            file_again.append(chunk, Packer())
        assert path.read_bytes() == whole


def damage(path: Path, content: bytes, place: int) -> None:
    changed = bytearray(content)
    changed[place // 8] ^= 1 << place % 8
    path.write_bytes(changed)


def read_again(path: Path, size: int) -> bytes:
    file = StreamFile(path)
    assert file.offset == size, "the end of the stream is lost"
    return file.read(0, size)


@given(st.data())
def test_a_flipped_bit_is_found(path: Path, data: st.DataObject) -> None:
    chunks = [b"one\n" * 20, os.urandom(50), b"last\n" * 20]
    filled(path, chunks)
    whole = path.read_bytes()
    with path.open("rb") as file:
        before_last = [frame.end for frame in walk(file.fileno())][1]
    damage(path, whole, data.draw(st.integers(0, before_last * 8 - 1)))
    with pytest.raises(StoreError) as found:
        read_again(path, sum(map(len, chunks)))
    assert str(path) in str(found.value)


@given(st.data())
def test_a_flipped_bit_in_the_last_frame_is_found_or_its_bytes_are_not_there(path: Path, data: st.DataObject) -> None:
    """A header that is none may be the rest of a write that the machine did not finish."""
    chunks = [b"one\n" * 20, os.urandom(50)]
    filled(path, chunks)
    whole = path.read_bytes()
    with path.open("rb") as file:
        begin = next(frame.end for frame in walk(file.fileno()))
    damage(path, whole, data.draw(st.integers(begin * 8, len(whole) * 8 - 1)))
    try:
        found = (file_again := StreamFile(path)).read(0, 1000)
    except StoreError:
        return
    assert (found, file_again.offset) == (chunks[0], len(chunks[0]))


def test_a_frame_that_belongs_elsewhere_is_found(path: Path) -> None:
    filled(path, [b"one\n", b"other\n", b"last\n"])
    whole = path.read_bytes()
    with path.open("rb") as file:
        frames = list(walk(file.fileno()))
    path.write_bytes(whole[: frames[0].end] + whole[frames[1].end :])
    with pytest.raises(StoreError):
        StreamFile(path)


_CHUNKS = [b"%04d\n" % n * 40 for n in range(5)]


def broken(path: Path, number: int) -> StreamFile:
    """A file that was opened before the data of a frame were lost."""
    file = filled(path, _CHUNKS)
    content = bytearray(path.read_bytes())
    with path.open("rb") as opened:
        frame = list(walk(opened.fileno()))[number]
    content[frame.data : frame.end] = bytes(frame.end - frame.data)
    path.write_bytes(content)
    return file


@pytest.mark.parametrize("number", range(5))
def test_a_damaged_end_is_mended_when_it_is_known_from_where(path: Path, number: int) -> None:
    file = broken(path, number)
    offset = sum(map(len, _CHUNKS[:number]))
    file.mend(offset + 3)
    assert (file.offset, file.newlines) == (offset, 40 * number)
    for chunk in _CHUNKS[number:]:
        file.append(chunk, Packer())
    assert StreamFile(path).read(0, 10**6) == b"".join(_CHUNKS)
    assert lines(StreamFile(path), 41, 41).lines == [b"0001"]


def test_mending_looks_only_where_it_is_told(path: Path) -> None:
    file = broken(path, 1)
    file.mend(sum(map(len, _CHUNKS[:3])))
    assert file.offset == sum(map(len, _CHUNKS))
    with pytest.raises(StoreError):
        file.read(0, 10**6)
    assert file.read(file.offset - 5, file.offset) == b"0004\n"


def test_mending_a_whole_file_or_none_changes_nothing(path: Path, tmp_path: Path) -> None:
    file = filled(path, _CHUNKS)
    file.mend(0)
    assert file.read(0, 10**6) == b"".join(_CHUNKS)
    StreamFile(tmp_path / "none").mend(0)
    assert not (tmp_path / "none").exists()


def test_the_last_marks_are_kept_with_the_bytes(path: Path) -> None:
    file, packer = StreamFile(path), Packer()
    for n in range(300):
        file.append(b"x\n", packer, [f"mark{n}"])
    assert StreamFile(path).marks == file.marks == [f"mark{n}" for n in range(44, 300)]


def test_reading_goes_on_while_another_thread_appends(path: Path) -> None:
    file, failures, done = StreamFile(path), [], threading.Event()

    def read() -> None:
        while not done.is_set():
            size = file.offset
            if file.read(0, size) != (b"%07d\n" * (size // 8)) % tuple(range(size // 8)):
                failures.append(size)

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(300):
        file.append(b"%07d\n" % n, Packer())
    done.set()
    reader.join(10)
    assert not failures and not reader.is_alive()


def test_the_streams_of_an_attempt_are_found_by_their_names(tmp_path: Path) -> None:
    archive, packer = Archive(tmp_path / "archive"), Packer()
    names = ["a", ".hidden", "a b", "..a", "é/".removesuffix("/"), "x.zst", "x.state", "%2E"]
    for name in names:
        archive.open(Key("job", 3, name)).append(b"x", packer)
        archive.keep_state(Key("job", 3, name), b"state of " + name.encode())
    assert sorted(archive.streams("job", 3)) == sorted(names)
    assert archive.streams("job", 4) == archive.streams("other", 3) == []
    assert archive.state(Key("job", 3, "x")) is None
    for name in names:
        assert archive.state(Key("job", 3, name)) == b"state of " + name.encode()
        archive.drop_state(Key("job", 3, name))
        assert archive.state(Key("job", 3, name)) is None
    assert sorted(archive.streams("job", 3)) == sorted(names)


def test_attempts_are_measured_and_deleted(tmp_path: Path) -> None:
    archive, packer = Archive(tmp_path / "archive"), Packer()
    for job, attempt in (("a b", 1), ("a b", 2), ("c", 1)):
        for stream in ("x", "y"):
            file = archive.open(Key(job, attempt, stream))
            file.append(os.urandom(20_000), packer)
            file.sync()
            os.utime(file.path, (1000 * attempt, 1000 * attempt))
    (tmp_path / "archive" / "c" / "not a number").mkdir()
    sizes = {(size.job, size.attempt): size for size in archive.sizes()}
    assert sizes.keys() == {("a b", 1), ("a b", 2), ("c", 1)}
    assert sizes["a b", 2].changed == 2000 and 40_000 <= sizes["a b", 2].bytes < 100_000
    archive.delete("a b", 1)
    archive.delete("a b", 1)
    assert archive.streams("a b", 1) == [] and len(archive.streams("a b", 2)) == 2
    archive.delete("a b", 2)
    assert not (tmp_path / "archive" / "a%20b").exists()


def test_an_append_without_room_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2 << 20) as folder:
        file, packer = StreamFile(folder / "s.zst"), Packer()
        file.append(b"before\n", packer)
        ballast = fill(folder, 300_000)
        with pytest.raises(OSError):
            file.append(os.urandom(2 * FRAME), packer)
        assert (file.offset, file.newlines) == (7, 1)
        assert StreamFile(folder / "s.zst").read(0, 10**7) == b"before\n"
        ballast.unlink()
        file.append(b"after\n", packer)
        assert StreamFile(folder / "s.zst").read(0, 10**7) == b"before\nafter\n"
