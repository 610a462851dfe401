"""The index of a stream's frames spares reading their headers, and is never believed against the stream."""

import os
from pathlib import Path

import numpy as np
import pytest

from logdoctor.errors import StoreError
from logdoctor.rules.scanner import Scanner
from logdoctor.store import archive, frame_index
from logdoctor.store.archive import Archive, StreamFile
from logdoctor.store.frames import Packer
from logdoctor.store.names import Key
from tests.service.services import serving

KEY = Key("job", 1, "rank 0")
LINES = [b"line %d\n" % number for number in range(1, 1001)]


@pytest.fixture
def folder(tmp_path: Path) -> Archive:
    """An archive with one stream of 1,000 frames, of a line each."""
    kept, packer = Archive(tmp_path), Packer()
    file = kept.open(KEY)
    for line in LINES:
        file.append(line, packer)
    return kept


def index(folder: Archive) -> Path:
    return folder.open(KEY).path.with_suffix(".index")


def headers_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The places of the headers that are read from now on."""
    read: list[int] = []
    walk = archive.walk

    def counted(descriptor: int, begin: int = 0) -> object:
        for frame in walk(descriptor, begin):
            read.append(frame.begin)
            yield frame

    monkeypatch.setattr(archive, "walk", counted)
    return read


def test_the_second_time_few_headers_are_read(folder: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(StreamFile(folder.open(KEY).path).places(1 << 60)[0]) == 1000
    first = folder.open_to_read(KEY)
    again = Archive(first.path.parents[2])
    read = headers_read(monkeypatch)
    file = again.open_to_read(KEY)
    assert len(read) <= 2 and again.open_to_read(KEY) is file
    assert (file.offset, file.newlines) == (first.offset, 1000)
    assert file.places(1 << 60) == first.places(1 << 60) == StreamFile(first.path).places(1 << 60)
    assert b"".join(file.frames(0, 1000)) == b"".join(LINES) == file.read(0, 1 << 30)


def test_a_stream_that_grew_is_seen_with_what_came(folder: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.open_to_read(KEY)
    writer, packer = folder.open(KEY), Packer()
    writer.append(b"more\nand no end", packer)
    read = headers_read(monkeypatch)
    file = folder.open_to_read(KEY)
    assert file.newlines == 1001 and len(read) <= 3
    assert b"".join(file.frames(1000, 1001)) == b"more\nand no end"


def test_the_writer_keeps_the_index_up_to_date(tmp_path: Path) -> None:
    file, packer = StreamFile(tmp_path / "j" / "1" / "s.zst"), Packer()
    for count, line in enumerate(LINES, 1):
        file.append(line, packer)
        file.keep_index()
        beside = tmp_path / "j" / "1" / "s.index"
        known = beside.stat().st_size // 24 if beside.exists() else 0
        assert count - frame_index.EVERY < known <= count
    assert beside.stat().st_mtime_ns <= file.path.stat().st_mtime_ns


def broken(kept: bytes) -> dict[str, bytes]:
    """What may stand in an index that is not true."""
    rows = np.frombuffer(kept, "<i8").reshape(-1, 3)
    shifted, swapped, foreign = rows.copy(), rows.copy(), rows.copy()
    shifted[:, 0] += 1
    swapped[[100, 200]] = swapped[[200, 100]]
    foreign[-1, 2] += 1
    return {
        "empty": b"",
        "torn": kept[:-5],
        "zeros": bytes(len(kept)),
        "noise": bytes(range(256)) * 50,
        "zeros within": kept[:2400] + bytes(240) + kept[2640:],
        "huge": b"\xff\xff\xff\xff\xff\xff\xff\x7f" * 30,
        "another file's": shifted.tobytes(),
        "out of order": swapped.tobytes(),
        "another end": foreign.tobytes(),
        "too long": kept + rows[-1:].tobytes() * 3,
    }


@pytest.mark.parametrize("what", broken(bytes(np.arange(3000, dtype="<i8").tobytes())))
def test_a_broken_index_is_no_error(folder: Archive, what: str) -> None:
    true = folder.open_to_read(KEY).places(1 << 60)
    index(folder).write_bytes(broken(index(folder).read_bytes())[what])
    file = Archive(index(folder).parents[2]).open_to_read(KEY)
    assert file.places(1 << 60) == true and file.newlines == 1000
    assert b"".join(file.frames(0, 1000)) == b"".join(LINES)


@pytest.mark.parametrize("what", ["shifted", "left out"])
def test_an_index_that_lies_within_is_found_out_when_it_is_used(folder: Archive, what: str) -> None:
    folder.open_to_read(KEY)
    rows = np.frombuffer(index(folder).read_bytes(), "<i8").reshape(-1, 3).copy()
    rows[500, 1] += 1
    index(folder).write_bytes((rows if what == "shifted" else np.delete(rows, 500, axis=0)).tobytes())
    file = Archive(index(folder).parents[2]).open_to_read(KEY)
    with pytest.raises(StoreError, match="index"):
        list(file.frames(498, 502))
    assert list(file.frames(100, 101)) == LINES[100:101]


def test_what_is_written_anew_after_damage_is_not_read_by_the_old_index(folder: Archive) -> None:
    path = folder.open_to_read(KEY).path
    begin, offset = np.frombuffer(index(folder).read_bytes(), "<i8").reshape(-1, 3)[900, :2].tolist()
    with path.open("r+b") as file:
        file.truncate(begin + 20)
    mended = folder.open(KEY, to_mend=True)
    mended.mend(offset)
    for number in range(901, 1201):
        mended.append(b"another %d\n" % number, Packer())
    found = Archive(path.parents[2]).open_to_read(KEY)
    assert found.newlines == 1200 and list(found.frames(900, 901)) == [b"another 901\n"]


def test_an_index_that_cannot_be_written_is_no_error(folder: Archive) -> None:
    index(folder).mkdir()
    assert folder.open_to_read(KEY).newlines == 1000


def test_reading_makes_no_log_younger_and_its_index_is_deleted_with_it(folder: Archive) -> None:
    path = folder.open(KEY).path
    os.utime(path, (1e9, 1e9))
    folder.open_to_read(KEY)
    assert folder.age("job", 1) > 1e8 and index(folder).exists()
    assert folder.streams("job", 1) == ["rank 0"]
    folder.delete("job", 1)
    assert not path.parent.exists()


def test_the_service_indexes_what_it_archives(tmp_path: Path, scanner: Scanner) -> None:
    with serving(tmp_path / "data", scanner) as service, service.intake.opened(KEY) as stream:
        for number in range(frame_index.EVERY + 1):
            service.intake.take(stream, stream.accepted, b"%d\n" % number).result(9)
            service.intake.archive(stream.attempt)
        assert stream.file.path.with_suffix(".index").exists()
