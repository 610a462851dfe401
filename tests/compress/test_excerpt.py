"""The record of a stream: the same for any chunking, bounded for any flood, and able to quote."""

import sys
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.compress import cut as cutting
from logdoctor.compress import excerpt as module
from logdoctor.compress import progress
from logdoctor.compress.excerpt import AFTER, BEFORE
from logdoctor.pipeline import Limits
from logdoctor.rules.scanner import Scanner
from tests.compress.records import Write, content, record_of, recorded
from tests.compress.test_filter import ERROR, STEP, mixed

SURE, WEAK = 6, 4


@pytest.fixture
def small_floods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood begins after a dozen remarkable lines."""
    monkeypatch.setattr(module, "_HELD", {True: SURE, False: WEAK})


def test_remarkable_lines_come_with_their_neighbours(scanner: Scanner) -> None:
    lines = [b"odd %d" % i for i in range(1, 41)]
    lines[19] = ERROR
    record = recorded([b"\n".join(lines)], scanner, 1 << 20)
    assert [line.number for line in record.lines] == list(range(20 - BEFORE, 20 + AFTER + 1))
    (hit,) = [line for line in record.lines if line.rules or line.strong or line.weak]
    assert (hit.number, hit.text) == (20, ERROR.decode())
    assert hit.rules and hit.strong
    assert "diagnosis/infrastructure/cuda-illegal-access" in {scanner.book.diagnoses[i].id for i in hit.rules}


def test_the_last_lines_are_kept_whatever_they_are(scanner: Scanner) -> None:
    log = b"".join(STEP % i + b"\n" for i in range(1, 101))
    for block in (100, 1 << 20):
        record = recorded([log], scanner, block)
        assert record.lines == []
        assert [line.number for line in record.last] == list(range(61, 101))
        assert record.last[-1].text.encode() == STEP % 100


def test_text_is_the_raw_line(scanner: Scanner) -> None:
    raw = b"\x1b[31mValueError: bad\x00 \xff\x1b[0m\r"
    record = recorded([raw + b"\n"], scanner, 10)
    assert [line.text for line in record.lines] == [raw.decode("utf-8", "replace")]


def test_of_a_long_line_the_part_that_tells_is_kept(scanner: Scanner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "MAX_LINE", 20_000)
    log = b"a" * 50_000 + b" ValueError: in the middle " + b"b" * 3000 + b"\nodd\n"
    for block in (1000, 1 << 20):
        record = recorded([log[i : i + 999] for i in range(0, len(log), 999)], scanner, block)
        (line,) = [line for line in record.lines if line.strong]
        assert line.number == 1
        assert "ValueError: in the middle" in line.text
        assert len(line.text) <= module._TEXT


def test_the_kept_part_of_a_long_line_has_whole_characters(scanner: Scanner) -> None:
    log = "ü".encode() * 10_000 + b"x ValueError: bad\n"
    (line,) = [line for line in recorded([log], scanner, 100).lines if line.strong]
    assert "\ufffd" not in line.text
    assert line.text.endswith("ValueError: bad")


@given(data=st.data(), block=st.integers(1, 5000), longest=st.sampled_from([50, 1 << 20]))
def test_property_any_chunking_gives_the_same_record(
    scanner: Scanner, book_lines: list[bytes], data: st.DataObject, block: int, longest: int
) -> None:
    log = mixed(data, book_lines)
    size = data.draw(st.integers(1, 700))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "MAX_LINE", longest)
        patch.setattr(module, "_HELD", {True: SURE, False: WEAK})
        patch.setattr(progress, "_DENSE_BYTES", 600)
        patch.setattr(progress, "_GRID", 64)
        whole = recorded([log], scanner, len(log) + 1)
        cut_up = recorded((log[i : i + size] for i in range(0, len(log), size)), scanner, block)
    assert content(cut_up) == content(whole)


def busy_log(book_lines: list[bytes], size: int) -> bytes:
    """A log of about `size` bytes with progress, every known line, long lines and stamps, unevenly mixed."""
    parts: list[bytes] = []
    total = step = 0
    while total < size:
        for i, line in enumerate(book_lines):
            step += 1
            parts.append(STEP % step)
            if (step * 7919) % 101 < 12:
                parts.append(line)
            if (step * 104729) % 9973 == 0:
                parts.append(b"long " * 300_000 + line)
            if i % 97 == 0:
                parts.append(b"2024-03-02 11:%02d:%02d " % (step // 60 % 60, step % 60) + line + b"\r" + line)
            total += len(parts[-1]) + 120
    return b"\n".join(parts)


def test_files_pipes_blocks_and_workers_give_the_same_record(
    scanner: Scanner, book_lines: list[bytes], write_log: Write, limits: Limits
) -> None:
    """More than 12 MB, so that several processes share the work when they may."""
    log = busy_log(book_lines, 14 << 20)
    plain = write_log(log)
    packed = write_log(zstandard.ZstdCompressor(level=1).compress(log), "train.log.zst")
    wanted = content(record_of(plain, scanner, limits._replace(block=len(log) + 1)))
    assert wanted["compression"].lines_in == log.count(b"\n") + 1
    assert wanted["lines"] and wanted["progress"] and wanted["texts"] and wanted["spans"]
    for path, block, workers in ((plain, 4 << 20, 2), (plain, 777_777, 1), (packed, 1 << 20, 2), (packed, 65_536, 1)):
        found = content(record_of(path, scanner, limits._replace(block=block, workers=workers)))
        assert found.pop("file") == str(path)
        for field, value in found.items():
            assert value == wanted[field], field


def test_a_flood_keeps_its_first_and_last_lines(scanner: Scanner, small_floods: None) -> None:
    lines = [b"odd"] * 30 + [ERROR] * 200 + [b"odd"] * 30 + [b"something failed"] * 100 + [b"odd"] * 30
    log = b"\n".join(lines)
    for block in (1, 500, 4000, 1 << 20):
        record = recorded([log], scanner, block)
        sure = [line.number for line in record.lines if line.rules]
        weak = [line.number for line in record.lines if line.weak and not line.rules]
        assert sure == [*range(31, 31 + SURE), *range(231 - SURE, 231)]
        assert weak == [*range(261, 261 + WEAK), *range(361 - WEAK, 361)]
        assert record.compression.lines_in == len(lines)


def test_an_endless_flood_is_held_in_bounded_memory(scanner: Scanner) -> None:
    flood = (ERROR + b"\n") * 2000
    most = 2 * sum(module._HELD.values()) * (1 + BEFORE + AFTER)
    record = recorded([flood] * 100, scanner, 1 << 18)
    assert len(record.lines) <= most
    assert record.lines[0].number == 1
    assert record.lines[-1].number == 200_000
    sure = [line.number for line in record.lines if line.rules]
    assert len(sure) == 2 * module._HELD[True]
    assert (sure[0], sure[-1]) == (1, 200_000)


def test_the_record_of_a_healthy_log_grows_with_its_logarithm(
    scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_DENSE_BYTES", 1 << 16)

    def size(steps: int) -> int:
        record = recorded((STEP % i + b"\n" for i in range(steps)), scanner, 1 << 14)
        read = sum(column.nbytes for readings in record.progress.values() for column in readings)
        texts = sum(len(part.frame) + part.lines.nbytes for part in record.texts)
        return read + texts + sum(sys.getsizeof(line.text) for line in (*record.lines, *record.last))

    small, large = size(4_000), size(32_000)
    assert large < 3 * small


@pytest.mark.parametrize("lines", [b"", b"\n", b"\n\n\n"])
def test_hardly_a_log_has_a_record(scanner: Scanner, lines: bytes, write_log: Write, limits: Limits) -> None:
    path = write_log(lines)
    record = record_of(path, scanner, limits)
    assert (record.compression.lines_in, record.compression.bytes_in) == (len(lines), len(lines))
    assert record.lines == [] and record.problems == []


def test_a_truncated_archive_is_recorded_as_far_as_it_goes(scanner: Scanner, write_log: Write, limits: Limits) -> None:
    packed = zstandard.ZstdCompressor().compress(b"".join(STEP % (i * 7919) + b"\n" for i in range(50_000)))
    path = write_log(packed[: len(packed) // 2], "a.zst")
    record = record_of(path, scanner, limits)
    assert 0 < record.compression.lines_in < 50_000
    assert len(record.problems) == 1 and "ends in the middle" in record.problems[0]


def test_the_file_is_named(scanner: Scanner, write_log: Write, limits: Limits) -> None:
    path: Path = write_log(b"odd\n")
    record = record_of(path, scanner, limits)
    assert (record.stream, record.file) == ("main", str(path))
