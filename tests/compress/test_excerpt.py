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
from logdoctor.compress.excerpt import AFTER, BEFORE, LEAD, Recorder, excerpt
from logdoctor.compress.filter import compress
from logdoctor.pipeline import ReadLimits
from logdoctor.rules.scanner import Scanner
from tests.compress.records import Write, content, record_of, recorded
from tests.compress.test_filter import ERROR, STEP, mixed
from tests.rules.learned import KIND, learned_rule

SURE, WEAK = 6, 4


@pytest.fixture
def small_floods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood begins after a dozen remarkable lines."""
    monkeypatch.setattr(module, "_HELD", {True: SURE, False: WEAK})


def test_remarkable_lines_come_with_their_neighbours(scanner: Scanner) -> None:
    lines = [b"odd %d" % i for i in range(1, 201)]
    lines[79] = lines[99] = lines[159] = ERROR
    for block in (100, 1 << 20):
        record = recorded([b"\n".join(lines)], scanner, block)
        near = [
            range(1, AFTER + 1),
            range(80 - LEAD, 80),
            range(80, 80 + AFTER + 1),
            range(100 - BEFORE, 100 + AFTER + 1),
        ]
        near.append(range(160 - LEAD, 160 + AFTER + 1))
        assert [line.number for line in record.lines] == [at for some in near for at in some], (
            "more before a new one, and the first"
        )
    hit, *_ = [line for line in record.lines if line.rules or line.strong or line.weak]
    assert (hit.number, hit.text) == (80, ERROR.decode())
    assert hit.rules and hit.strong
    assert "diagnosis/infrastructure/cuda-illegal-access" in {scanner.book.diagnoses[i].id for i in hit.rules}


def test_what_is_kept_does_not_depend_on_how_a_stream_is_cut(scanner: Scanner) -> None:
    """First lines, those before an error, and neighbours, also where many lines were thinned out before the first
    error."""
    lines = [b"odd %d" % i for i in range(1, 901)]
    for place in (700, 703, 740, 741, 800, 899):
        lines[place] = ERROR
    log = b"\n".join(lines) + b"\n"
    whole = recorded([log], scanner, 1 << 20)
    assert [line.number for line in whole.lines[:AFTER]] == list(range(1, AFTER + 1))
    for block in (20, 64, 1000):
        record = recorded([log], scanner, block)
        assert (record.lines, record.last) == (whole.lines, whole.last), block


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
    scanner: Scanner, book_lines: list[bytes], write_log: Write, limits: ReadLimits
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


def test_an_endless_flood_is_held_in_bounded_memory(scanner: Scanner, small_floods: None) -> None:
    flood = (ERROR + b"\n") * 2000
    most = 2 * sum(module._HELD.values()) * (1 + BEFORE + AFTER)
    record = recorded([flood] * 10, scanner, 1 << 18)
    assert len(record.lines) <= most
    assert record.lines[0].number == 1
    assert record.lines[-1].number == 20_000
    sure = [line.number for line in record.lines if line.rules]
    assert len(sure) == 2 * module._HELD[True]
    assert (sure[0], sure[-1]) == (1, 20_000)


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
def test_hardly_a_log_has_a_record(scanner: Scanner, lines: bytes, write_log: Write, limits: ReadLimits) -> None:
    path = write_log(lines)
    record = record_of(path, scanner, limits)
    assert (record.compression.lines_in, record.compression.bytes_in) == (len(lines), len(lines))
    assert record.lines == [] and record.problems == []


def test_a_truncated_archive_is_recorded_as_far_as_it_goes(
    scanner: Scanner, write_log: Write, limits: ReadLimits
) -> None:
    packed = zstandard.ZstdCompressor().compress(b"".join(STEP % (i * 7919) + b"\n" for i in range(50_000)))
    path = write_log(packed[: len(packed) // 2], "a.zst")
    record = record_of(path, scanner, limits)
    assert 0 < record.compression.lines_in < 50_000
    assert len(record.problems) == 1 and "ends in the middle" in record.problems[0]


def test_the_file_is_named(scanner: Scanner, write_log: Write, limits: ReadLimits) -> None:
    path: Path = write_log(b"odd\n")
    record = record_of(path, scanner, limits)
    assert (record.stream, record.file) == ("main", str(path))


# learned rules


ODD = [b"the gizmo number %d turns, loss 3.5" % number for number in range(40)]
GIZMO = r"^the gizmo number \d+ turns, loss [0-9.]+$"
METRICS = (r"number (?P<step>\d+)", r"loss (?P<loss>[\d.]+)")


def books(scanner: Scanner) -> list[Scanner]:
    """The book of a kind as it grows: nothing, a rule in shadow, the rule active, another, the first one retired."""
    steps = (
        (),
        (learned_rule(GIZMO, status="shadow", metrics=METRICS),),
        (learned_rule(GIZMO, metrics=METRICS),),
        (learned_rule(GIZMO, metrics=METRICS), learned_rule("^odd one$", "two")),
        (learned_rule(GIZMO, status="retired", metrics=METRICS), learned_rule("^odd one$", "two", "shadow")),
    )
    return [scanner.learning(KIND, rules) if rules else scanner for rules in steps]


@pytest.fixture(scope="module")
def growing(scanner: Scanner) -> list[Scanner]:
    return books(scanner)


@given(data=st.data(), size=st.integers(1, 600))
def test_property_a_book_that_changes_in_mid_stream_loses_nothing(
    growing: list[Scanner], book_lines: list[bytes], data: st.DataObject, size: int
) -> None:
    """Each line is taken or left by the book that stood when it was read, and counted once (law 1)."""
    lines = data.draw(st.lists(st.sampled_from([*book_lines, *ODD * 30, *[b"odd one"] * 300]), max_size=25))
    log = b"\n".join(lines)
    cutter, recorder = cutting.Cutter("main"), Recorder("main", "a.log", growing[0])
    wanted: dict[str, int] = {}
    watched, stage = 0, 0
    parts = [log[at : at + size] for at in range(0, len(log), size)]
    for part in [*parts, None]:
        if stage + 1 < len(growing) and data.draw(st.booleans()):
            stage += 1
            recorder.adopt(growing[stage])
        for segment in cutter.finish() if part is None else cutter.push(part):
            residual = compress(segment, growing[stage])
            for owner in residual.scan.owner[: len(residual.ends)].tolist():
                if owner >= 0:
                    rule = growing[stage].book.filters[owner].id
                    wanted[rule] = wanted.get(rule, 0) + 1
            watched += int((residual.scan.shadow[: len(residual.ends)] >= 0).sum())
            recorder.add(excerpt(residual, growing[stage]), 0)
    record = recorder.record()
    assert {rule: count.lines for rule, count in record.compression.rules.items()} == wanted
    assert record.compression.lines_in == (len(log.split(b"\n")) if log else 0)
    assert record.compression.lines_kept + sum(wanted.values()) == record.compression.lines_in
    hits = recorder.hits()
    assert sum(matched for matched, _ in hits.values()) == watched + sum(
        count for rule, count in wanted.items() if rule.startswith("learned/")
    )
    assert {rule: took for rule, (_, took) in hits.items() if took} == {
        rule: count for rule, count in wanted.items() if rule.startswith("learned/")
    }


def test_hits_tell_what_rules_matched_and_what_they_took(growing: list[Scanner]) -> None:
    recorder = Recorder("main", "a.log", growing[0])
    assert recorder.hits() == {}
    log = b"\n".join([*ODD[:5], b"odd one", ERROR]) + b"\n"
    for scanner in growing:
        recorder.adopt(scanner)
        (segment,) = cutting.cut("main", [log], 1 << 20)
        recorder.add(excerpt(compress(segment, scanner), scanner), recorder.line - 1)
    assert recorder.hits() == {f"learned/{KIND}/one": (15, 10), f"learned/{KIND}/two": (2, 1)}
    account = recorder.record().compression
    assert (account.lines_in, account.lines_kept) == (35, 24)


@pytest.mark.parametrize("block", [30, 1 << 20])
def test_metrics_of_a_learned_rule_can_be_quoted_though_its_lines_are_taken(growing: list[Scanner], block: int) -> None:
    record = recorded([b"\n".join(ODD)], growing[2], block)
    assert record.compression.lines_kept == 0
    assert not record.progress and record.total is None  # nothing is judged by them
    assert dict(content(record)["texts"]) == {number: line for number, line in enumerate(ODD, 1)}
    assert record.spans[f"learned/{KIND}/one"][1].text == ODD[-1].decode()
    assert not recorded([b"\n".join(ODD)], growing[1], block).texts


def test_a_noticed_line_stays_where_it_would_have_gone(scanner: Scanner) -> None:
    lines = [b"odd %d" % number for number in range(1, 101)]
    recorder = Recorder("main", "a.log", scanner)
    for segment in cutting.cut("main", [b"\n".join(lines)], 1 << 20):
        recorder.add(excerpt(compress(segment, scanner), scanner), 0)
    recorder.notice(50, "odd 50")
    recorder.notice(50, "odd 50")
    (line,) = [line for line in recorder.record().lines if line.weak]
    assert (line.number, line.text, line.strong, line.rules) == (50, "odd 50", False, ())


def test_a_noticed_line_keeps_the_text_that_stands_in_the_log(scanner: Scanner) -> None:
    """What an agent was shown has neither colours nor secrets; a quote must stand in the log (law 3)."""
    raw = b"\x1b[33mthe door of vault-3 is open, password=hunter22\x1b[0m"
    recorder = Recorder("main", "a.log", scanner)
    for segment in cutting.cut("main", [raw + b"\n" + ERROR + b"\n"], 1 << 20):
        recorder.add(excerpt(compress(segment, scanner), scanner), 0)
    recorder.notice(1, "the door of vault-3 is open, password=<secret>")
    first, second = recorder.record().lines
    assert (first.text, first.weak) == (raw.decode(), True) and second.rules


def test_noticing_changes_nothing_of_a_line_that_is_evidence(scanner: Scanner) -> None:
    recorder = Recorder("main", "a.log", scanner)
    for segment in cutting.cut("main", [ERROR + b"\n"], 1 << 20):
        recorder.add(excerpt(compress(segment, scanner), scanner), 0)
    (before,) = recorder.record().lines
    recorder.notice(1, "something else")
    (after,) = recorder.record().lines
    assert (after.text, after.rules, after.strong) == (before.text, before.rules, before.strong)
