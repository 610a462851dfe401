"""Bytes to lines: numbers, offsets and contents are exact, however the bytes arrive."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from logdoctor.compress import cut as module
from logdoctor.compress.cut import cut, cut_range, is_packed, newlines_of, unpack
from logdoctor.errors import InputError
from logdoctor.types import Segment
from tests.unpacking import fed_to_zlib

ODD = b"\x1b[31mred\x1b[0m\nbar 1\rbar 2\r\n\x00\x00nul\n\xff\xfe\xc3(\n\n\n\xe2\x82\xac euro\nlast"


def lines_of(segments: Iterable[Segment], data: bytes, first: int = 1) -> list[tuple[int, bytes]]:
    """(number, bytes) of every line, put together from segments, which must follow each other without a gap."""
    found: list[tuple[int, bytes]] = []
    line, at, piece = first, None, 0
    for segment in segments:
        assert segment.data, "a segment is never empty"
        assert at is None or segment.offset == at, "segments follow each other"
        assert data[segment.offset : segment.offset + len(segment.data)] == segment.data, "offsets are exact"
        at = segment.offset + len(segment.data)
        assert segment.newlines.tolist() == [i for i, byte in enumerate(segment.data) if byte == 10]
        assert segment.line == line
        if segment.piece is None:
            assert not piece, "a long line is not left open"
            parts = segment.data.splitlines(keepends=True) if b"\r" not in segment.data else _split(segment.data)
            found += [(line + i, part) for i, part in enumerate(parts)]
            assert segment.lines == len(parts)
            assert max(len(part.removesuffix(b"\n")) for part in parts) <= module.MAX_LINE
            line += len(parts)
        else:
            assert segment.piece == piece
            assert segment.lines == (piece == 0)
            assert len(segment.data.removesuffix(b"\n")) <= module.MAX_LINE
            found[len(found) if piece == 0 else -1 :] = [(line, (b"" if piece == 0 else found[-1][1]) + segment.data)]
            ended = segment.data.endswith(b"\n")
            line, piece = (line + 1, 0) if ended else (line, piece + 1)
    return found


def _split(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def expected(data: bytes) -> list[tuple[int, bytes]]:
    return list(enumerate(_split(data), 1))


def pieces_of(segments: Iterable[Segment]) -> list[tuple[int, int, bytes]]:
    """The pieces of long lines: where they lie and what they hold."""
    return [(s.line, s.piece, s.data) for s in segments if s.piece is not None]


def chunked(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    """`data` in chunks of these sizes, again and again."""
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        yield data[at : at + size]
        at, turn = at + size, turn + 1


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> int:
    """Lines of more than 7 bytes are long."""
    monkeypatch.setattr(module, "MAX_LINE", 7)
    return 7


LOGS = st.one_of(
    st.lists(
        st.one_of(
            st.sampled_from([b"\n", b"\n\n", b"\r", b"\r\n", b"\x00", b"\xff", b"\x1b[0m", b"x" * 7, b"y" * 8]),
            st.binary(max_size=30),
        ),
        max_size=12,
    ).map(b"".join),
    st.text(alphabet="ab\n", max_size=60).map(str.encode),
)
SIZES = st.lists(st.integers(1, 25), min_size=1, max_size=5)


@pytest.mark.parametrize("block", [1, 5, 1 << 20])
def test_odd_bytes_survive_with_exact_offsets(block: int) -> None:
    assert lines_of(cut("main", [ODD], block), ODD) == expected(ODD)
    assert len(expected(ODD)) == 8


def test_only_newlines_count() -> None:
    data = b"a\rb\x0bc\x0cd\x85e\xe2\x80\xa8f\x1cg\n"
    assert [(s.line, s.lines) for s in cut("main", [data], 4)] == [(1, 1)]


def test_nothing_in_nothing_out() -> None:
    assert list(cut("main", [], 10)) == []
    assert list(cut("main", [b"", b""], 10)) == []


def test_a_missing_final_newline_still_makes_a_line() -> None:
    (segment,) = cut("main", [b"one\ntwo"], 100)
    assert (segment.lines, segment.newlines.tolist(), segment.stream) == (2, [3], "main")
    assert segment.newlines.dtype == np.int64


def test_segments_are_about_a_block() -> None:
    data = b"0123456789\n" * 1000
    sizes = [len(s.data) for s in cut("main", chunked(data, [100]), 1000)]
    assert len(sizes) == 11
    assert max(sizes) <= 1100


def test_a_line_longer_than_the_limit_comes_in_pieces() -> None:
    data = b"before\n" + b"z" * (3 * module.MAX_LINE + 5) + b"\nafter\n"
    segments = list(cut("main", chunked(data, [100_000]), 1 << 18))
    assert lines_of(segments, data) == expected(data)
    assert [len(part) for _, _, part in pieces_of(segments)] == [module.MAX_LINE] * 3 + [6]


def test_a_line_of_just_the_limit_is_whole() -> None:
    data = b"z" * module.MAX_LINE + b"\n"
    assert [s.piece for s in cut("main", [data], 10)] == [None]
    assert [s.piece for s in cut("main", [data[:-1]], 10)] == [None]


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("block", [1, 8, 100])
def test_a_line_of_one_byte_more_is_long_with_or_without_a_newline(short_lines: int, end: bytes, block: int) -> None:
    data = b"12345678" + end
    assert pieces_of(cut("main", chunked(data, [3]), block)) == [(1, 0, b"1234567"), (1, 1, b"8" + end)]


@given(data=LOGS, sizes=SIZES, block=st.integers(1, 60))
def test_property_any_chunking_gives_the_same_lines(
    short_lines: int, data: bytes, sizes: list[int], block: int
) -> None:
    segments = list(cut("main", chunked(data, sizes), block))
    assert lines_of(segments, data) == expected(data)
    assert pieces_of(segments) == pieces_of(cut("main", [data], len(data) + 1))


@given(data=LOGS, marks=st.sets(st.integers(0, 200), max_size=6))
@example(data=b"one\n\ntwo\nthree", marks={2, 4, 5, 9, 11})  # inside of lines, and where they begin
def test_property_any_ranges_give_the_same_lines(
    short_lines: int, tmp_path: Path, data: bytes, marks: set[int]
) -> None:
    path = tmp_path / "log"
    path.write_bytes(data)
    bounds = sorted({0, len(data), *(mark for mark in marks if mark < len(data))})
    found: list[tuple[int, bytes]] = []
    pieces: list[tuple[int, int, bytes]] = []
    with path.open("rb", buffering=0) as file:
        for begin, end in pairwise(bounds):
            segments = list(cut_range("main", file, begin, end, len(data)))
            done = len(found)
            found += [(number + done, line) for number, line in lines_of(segments, data)]
            pieces += [(number + done, piece, part) for number, piece, part in pieces_of(segments)]
    assert found == expected(data)
    assert pieces == pieces_of(cut("main", [data], len(data) + 1))


def test_a_long_line_across_ranges_is_read_by_the_range_where_it_begins(tmp_path: Path) -> None:
    data = b"first\n" + b"long " * 700_000 + b"\nlast"
    path = tmp_path / "log"
    path.write_bytes(data)
    step = 1_000_000
    with path.open("rb", buffering=0) as file:
        parts = [
            lines_of(cut_range("main", file, begin, min(begin + step, len(data)), len(data)), data)
            for begin in range(0, len(data), step)
        ]
    assert parts == [[(1, b"first\n"), (2, b"long " * 700_000 + b"\n")], [], [], [(1, b"last")]]


def test_a_file_that_shrank_while_it_is_read_gives_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    with path.open("rb", buffering=0) as file:
        segments = list(cut_range("main", file, 0, 50, 100))
    assert lines_of(segments, b"one\ntw") == [(1, b"one\n"), (2, b"tw")]


def test_newlines_of() -> None:
    assert newlines_of(b"\na\n\n").tolist() == [0, 2, 3]
    assert newlines_of(b"").tolist() == []


LOG = b"".join(b"step %d loss 2.5\n" % i for i in range(20_000))


def read(packed: bytes, block: int = 1 << 16, limit: int = 1 << 40, expansion: int = 2000) -> tuple[bytes, list[str]]:
    """(what comes out of `unpack`, what it warned of)."""
    warnings: list[str] = []
    chunks = unpack("a.log", io.BytesIO(packed), block, limit, expansion, warnings.append)
    return b"".join(chunks), warnings


PACKERS: list[Callable[[bytes], bytes]] = [gzip.compress, zstandard.ZstdCompressor().compress]


@pytest.mark.parametrize("pack", [*PACKERS, bytes])
@pytest.mark.parametrize("block", [1, 1000, 1 << 20])
def test_unpack_gives_the_log(pack: Callable[[bytes], bytes], block: int) -> None:
    log = LOG if block > 1 else LOG[:300]
    assert read(pack(log), block) == (log, [])


@pytest.mark.parametrize("pack", PACKERS)
def test_unpack_reads_members_and_frames_that_follow_each_other(pack: Callable[[bytes], bytes]) -> None:
    packed = pack(LOG[:1000]) + pack(b"") + pack(LOG[1000:])
    for block in (7, 1 << 20):
        assert read(packed, block) == (LOG, [])


@pytest.mark.parametrize("pack", PACKERS)
def test_unpack_of_a_truncated_archive_warns_and_gives_what_could_be_read(pack: Callable[[bytes], bytes]) -> None:
    noisy = np.random.default_rng(1).integers(32, 127, 400_000, np.uint8).tobytes()
    packed = pack(noisy)
    out, warnings = read(packed[: len(packed) // 2])
    assert len(out) > len(noisy) // 4
    assert noisy.startswith(out)
    assert len(warnings) == 1
    assert "a.log" in warnings[0] and "ends in the middle" in warnings[0]


@pytest.mark.parametrize("pack", PACKERS)
def test_unpack_of_an_archive_cut_at_every_byte_never_invents(pack: Callable[[bytes], bytes]) -> None:
    log = b"epoch 1 step 7\n" * 9
    packed = pack(log)
    for length in range(9, len(packed)):
        out, warnings = read(packed[:length])
        assert log.startswith(out)
        assert len(warnings) == 1


@pytest.mark.parametrize("pack", PACKERS)
def test_unpack_of_a_damaged_archive_warns_and_keeps_what_came_before(pack: Callable[[bytes], bytes]) -> None:
    noisy = np.random.default_rng(2).integers(32, 127, 3_000_000, np.uint8).tobytes()
    packed = bytearray(pack(noisy[:1_500_000]) + pack(noisy[1_500_000:]))
    middle = len(pack(noisy[:1_500_000]))
    packed[middle : middle + 200] = b"\xaa" * 200
    out, warnings = read(bytes(packed))
    assert out == noisy[:1_500_000]
    assert len(warnings) == 1 and "damaged" in warnings[0]


@pytest.mark.parametrize("pack", PACKERS)
def test_unpack_gives_up_on_members_that_hold_nothing(pack: Callable[[bytes], bytes]) -> None:
    assert read(pack(b"a") + (pack(b"") * 4000 + pack(b"b")) * 3) == (b"abbb", [])
    out, (warning,) = read(pack(b"a") + pack(b"") * 5000 + pack(b"b"))
    assert out == b"a" and "hold nothing" in warning


def test_unpack_of_many_members_does_not_copy_what_follows_each(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(b"x") * 4000
    fed = fed_to_zlib(monkeypatch, module)
    assert read(packed, 1 << 20) == (b"x" * 4000, [])
    assert len(packed) <= sum(fed) < 50 * len(packed)


def test_unpack_of_a_gzip_with_a_wrong_check_sum_warns() -> None:
    packed = bytearray(gzip.compress(LOG))
    packed[-5] ^= 0xFF
    out, warnings = read(bytes(packed))
    assert LOG.startswith(out)
    assert len(warnings) == 1 and "damaged" in warnings[0]


@pytest.mark.parametrize("padding", [1, 511, 3_000_000])
def test_unpack_ignores_zeros_behind_a_gzip(padding: int) -> None:
    assert read(gzip.compress(LOG) + b"\0" * padding) == (LOG, [])


@pytest.mark.parametrize("magic", [b"BZh91AY&SY", b"\xfd7zXZ\x00\x00\x04", b"PK\x03\x04zip", b"7z\xbc\xaf\x27\x1c00"])
def test_unpack_refuses_foreign_compressions(magic: bytes, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(magic + b"\x00" * 50)
    assert "a.log" in str(caught.value)
    assert "not supported" in str(caught.value)
    assert "gzip or zstd" in caught.value.next_step
    path = tmp_path / "a.log"
    path.write_bytes(magic)
    assert is_packed(path)


@pytest.mark.parametrize("pack", PACKERS)
def test_unpack_stops_at_the_limit(pack: Callable[[bytes], bytes]) -> None:
    assert read(pack(LOG), limit=len(LOG)) == (LOG, [])
    with pytest.raises(InputError, match=r"a\.log unpacks to more than 1000 bytes.*MAX_DECOMPRESSED_BYTES"):
        read(pack(LOG), limit=1000)


@pytest.mark.parametrize("pack", PACKERS)
def test_unpack_stops_a_bomb(pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = pack(b"\0" * (8 << 20))
    assert len(read(bomb, expansion=10)[0]) == 8 << 20  # small ones are free
    monkeypatch.setattr(module, "_FREE_EXPANSION", 1 << 20)
    with pytest.raises(InputError, match=r"more than 10 times its size.*MAX_EXPANSION"):
        read(bomb, expansion=10)


def test_unpack_gives_a_bomb_out_in_bounded_chunks() -> None:
    bomb = gzip.compress(b"\0" * (32 << 20))
    sizes = [len(c) for c in unpack("a", io.BytesIO(bomb), 1 << 16, 1 << 40, 10**9, lambda _: None)]
    assert max(sizes) <= 1 << 16
    assert sum(sizes) == 32 << 20


def test_only_a_plain_file_is_not_packed(tmp_path: Path) -> None:
    plain, zipped, frames = (tmp_path / name for name in ("plain", "zipped", "frames"))
    plain.write_bytes(LOG)
    zipped.write_bytes(zlib.compress(LOG, wbits=31))
    frames.write_bytes(zstandard.ZstdCompressor().compress(LOG))
    assert [is_packed(path) for path in (plain, zipped, frames, Path("/dev/null"))] == [False, True, True, True]


def test_a_log_shorter_than_any_magic_is_plain() -> None:
    for log in (b"", b"a", b"\x1f", b"\n"):
        assert read(log) == (log, [])
