"""Frames: whatever is packed comes back, and what is damaged is not taken for something else."""

import os
import subprocess
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import StoreError
from logdoctor.store.log.frames import MAX_RAW, Frame, Packed, Packer, framed, unframed, walk

_PARTS = st.lists(st.tuples(st.binary(max_size=5000), st.binary(max_size=3000)), max_size=8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "frames.zst"


def frames_of(path: Path) -> list[tuple[bytes, bytes]]:
    """(note, data) of the whole frames of a file."""
    content = path.read_bytes()
    return [(frame.note, unpack(content, frame)) for frame in walk(content)]


def unpack(content: bytes, frame: Frame) -> bytes:
    """What a frame of a file holds."""
    note, data = unframed(content[frame.begin : frame.end], "file")
    assert note == frame.note
    return data


def packed(parts: list[tuple[bytes, bytes]]) -> list[bytes]:
    packer = Packer()
    return [packer.pack(note, data) for note, data in parts]


@given(_PARTS)
def test_frames_come_back_and_every_zstandard_tool_reads_them(path: Path, parts: list[tuple[bytes, bytes]]) -> None:
    path.write_bytes(b"".join(packed(parts)))
    assert frames_of(path) == parts
    with path.open("rb") as file:
        whole = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).readall()
    assert whole == b"".join(data for _, data in parts)


def test_zstdcat_reads_them(path: Path) -> None:
    path.write_bytes(b"".join(packed([(b"note", b"one\n"), (b"", b""), (b"x" * 5000, b"two\n" * 100_000)])))
    read = subprocess.run(["zstdcat", str(path)], capture_output=True, check=True, timeout=90)
    assert read.stdout == b"one\n" + b"two\n" * 100_000


def test_a_tail_of_any_length_is_not_a_frame(path: Path) -> None:
    first, second = packed([(b"1", b"first " * 9), (b"2" * 40, os.urandom(60))])
    for length in range(len(second)):
        path.write_bytes(first + second[:length])
        assert [note for note, _ in frames_of(path)] == [b"1"]
        path.write_bytes(first + second[:length] + bytes(len(second) - length))  # a page that was not written
        assert _outcome(path, [(b"1", b"first " * 9)])


def _outcome(path: Path, wanted: list[tuple[bytes, bytes]]) -> bool:
    """Whether only what is wanted can be read, or the damage is told."""
    try:
        return frames_of(path) == wanted
    except StoreError as error:
        return "damaged" in error.cause


@given(st.data())
def test_no_flipped_bit_gives_other_bytes(path: Path, data: st.DataObject) -> None:
    parts = [(b"one", b"first " * 9), (b"two", os.urandom(100)), (b"three", b"last\n" * 30)]
    content = bytearray(b"".join(packed(parts)))
    place = data.draw(st.integers(0, len(content) * 8 - 1))
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)
    try:
        found = frames_of(path)
    except StoreError:
        return
    assert found == parts[: len(found)] and len(found) < len(parts)


@given(st.data())
def test_no_flipped_bit_in_a_header_lies_about_the_size(data: st.DataObject) -> None:
    """An owner counts by `raw` what it never unpacks."""
    content = bytearray(b"".join(packed([(b"n", b"first " * 9)])))
    place = data.draw(st.integers(0, 24 * 8 - 1))
    content[place // 8] ^= 1 << place % 8
    for frame in walk(bytes(content)):
        with pytest.raises(StoreError):
            unpack(bytes(content), frame)


@given(st.binary(max_size=300))
def test_garbage_holds_no_frames_and_ends(path: Path, garbage: bytes) -> None:
    path.write_bytes(garbage)
    assert frames_of(path) == []


@given(st.binary(max_size=100))
def test_garbage_behind_a_true_prefix_ends(path: Path, garbage: bytes) -> None:
    path.write_bytes(packed([(b"", b"x")])[0][:12] + garbage)
    assert _outcome(path, [])


@pytest.mark.parametrize(("note", "size"), [(0, MAX_RAW + 1), ((16 << 20) + 1, 0)])
def test_what_could_not_be_read_is_not_packed(path: Path, note: int, size: int) -> None:
    try:
        frame = Packer().pack(bytes(note), bytes(size))
    except (StoreError, ValueError):
        return
    path.write_bytes(frame)
    assert [(len(note), len(data)) for note, data in frames_of(path)] == [(note, size)]


def test_a_bomb_unpacks_to_no_more_than_a_frame_may_hold() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(MAX_RAW * 4))
    with pytest.raises(StoreError, match="damaged"):
        unframed(framed(b"", Packed(MAX_RAW, bomb)), "file")
