"""Pages of a log: what stands around a line, what filter rules take folded exactly as compression takes it."""

from pathlib import Path

import pytest

from logdoctor.compress.cut import MAX_LINE, cut
from logdoctor.compress.filter import compress
from logdoctor.rules.scanner import Scanner
from logdoctor.service import log_page
from logdoctor.service.log_page import BESIDE, LEAD, ROWS, LogPage, PageRow, folded, raw
from logdoctor.service.view import RawLine, StreamView
from tests.service.archives import stream
from tests.service.services import CORPUS

LOGS = sorted(CORPUS.glob("*/*.log"))[::11]


def view_of(path: Path, content: bytes, frame: int = 1 << 20) -> StreamView:
    file = stream(path, [content[begin : begin + frame] for begin in range(0, len(content), frame)])
    return StreamView(file, file.offset, file.newlines, [])


def texts(page: LogPage) -> list[bytes]:
    return [row.line.head for row in page.rows if row.line]


def taken_line(scanner: Scanner) -> bytes:
    """A line that a filter rule takes."""
    rule = next(rule for rule in scanner.book.filters if rule.id == "filter/megatron/iteration")
    return str(rule.must_match[0]).encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def numbered(path: Path) -> StreamView:
    return view_of(path, b"".join(b"line %d\n" % n for n in range(1, 20_001)), 1000)


@pytest.mark.parametrize("line", [1, 2, 50, 10_000, 19_999, 20_000])
def test_a_line_stands_on_its_page_with_lines_before_and_after(numbered: StreamView, line: int) -> None:
    page = raw(numbered, line)
    assert page.first == max(line - LEAD, 1) and page.last == min(line + ROWS - 1, 20_000)
    assert texts(page) == [b"line %d" % n for n in range(page.first, page.last + 1)]
    assert page.full == (page.last < 20_000)


def test_pages_on_from_each_other_and_back_show_every_line_once(numbered: StreamView) -> None:
    seen, at = [], 1
    while at <= 20_000:
        page = raw(numbered, at, before=0)
        seen += texts(page)
        at = page.last + 1
    assert seen == [b"line %d" % n for n in range(1, 20_001)]
    back: list[bytes] = []
    at = 20_001
    while at > 1:
        page = raw(numbered, at, before=ROWS, after=0)
        assert page.last == at - 1
        back = texts(page) + back
        at = page.first
    assert back == seen


def test_a_page_holds_so_many_bytes_whatever_the_lines_are_like(path: Path) -> None:
    content = b"".join(b"%04d" % n + b"x" * 6000 + b"\n" for n in range(3000))
    view = view_of(path, content + b"y" * (30 << 20) + b"\nlast\n")
    for page in (raw(view, 1500), raw(view, 1500, before=ROWS, after=0), raw(view, 3001), raw(view, 3003, ROWS, 0)):
        assert sum(min(len(text), BESIDE) for text in texts(page)) < 130_000
        assert [row.first for row in page.rows] == list(range(page.first, page.last + 1))
    assert 1500 in [row.first for row in raw(view, 1500).rows]
    long = next(row.line for row in raw(view, 3001).rows if row.first == 3001)
    assert long is not None and long.size == 30 << 20
    assert texts(raw(view, 3003, ROWS, 0))[-1] == b"last"


def test_few_lines_stand_before_the_one_that_is_asked_for_and_fewer_when_they_are_long(path: Path) -> None:
    for width, before in ((20, LEAD), (100, 3), (300, 1), (3000, 0)):
        view = view_of(path, (b"x" * width + b"\n") * 50)
        for page in (raw(view, 30), raw(view, 30, after=1)):
            assert page.first == 30 - before, "the line is on the screen of a phone, too"
        assert raw(view, 30, before=ROWS, after=0).first == 1


def test_a_row_weighs_what_it_makes_as_html() -> None:
    plain, hostile = (RawLine(1, 0, 200, text * 200) for text in (b"a", b"<"))
    assert PageRow(1, 1, hostile).weight - PageRow(1, 1, plain).weight == 200 * len("&lt;") == 800
    assert PageRow(1, 9, None, (("a", 4), ("b", 5))).weight > PageRow(1, 9, None, (("a", 9),)).weight


def test_pages_of_folds_go_back_from_each_other(path: Path, scanner: Scanner) -> None:
    taken = taken_line(scanner)
    view = view_of(path, b"".join(b"own %d\n" % n if n % 50 == 0 else taken + b"\n" for n in range(1, 40_001)))
    at, seen = 40_001, []
    while at > 1:
        page = folded(view, scanner, at, before=ROWS, after=0)
        assert page.last == at - 1 and 0 < len(page.rows) <= ROWS
        assert all(one.last + 1 == two.first for one, two in zip(page.rows, page.rows[1:], strict=False))
        seen = [row.first for row in page.rows if row.line] + seen
        at = page.first
    assert seen == list(range(50, 40_001, 50))


def test_nothing_is_shown_of_an_empty_stream(path: Path) -> None:
    view = StreamView(stream(path, []), 0, 0, [])
    assert raw(view, 1) == LogPage([], False) and raw(view, 1).last == 0


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_folded_is_what_compression_takes(path: Path, scanner: Scanner, log: Path) -> None:
    content = log.read_bytes()
    kept, taken = set(), {}
    for segment in cut("main", [content], 1 << 20):
        residual = compress(segment, scanner)
        kept |= {segment.line + int(place) for place in residual.kept}
        for owner in residual.scan.owner[: len(residual.ends)].tolist():
            if owner >= 0:
                rule = scanner.book.filters[owner].id
                taken[rule] = taken.get(rule, 0) + 1
    view = view_of(path, content, 5000)
    shown, folds, at = set(), {}, 1
    while at <= view.count():
        page = folded(view, scanner, at, before=0)
        assert page.first == at
        for row in page.rows:
            if row.line:
                shown.add(row.first)
            assert row.line or sum(lines for _, lines in row.rules) == row.lines
            for rule, lines in row.rules:
                folds[rule] = folds.get(rule, 0) + lines
        at = page.last + 1
    assert (shown, folds) == (kept, taken)
    first = min((row for row in folded(view, scanner, 1).rows if not row.line), key=lambda row: row.first)
    opened = folded(view, scanner, 1, opened=(first.first, first.last))
    again = [row for row in opened.rows if first.first <= row.first <= first.last]
    assert [row.first for row in again] == list(range(first.first, first.last + 1))
    assert all(row.line and row.rules and row.rules[0][0] in dict(first.rules) for row in again)


def test_folding_stops_when_enough_was_read(path: Path, scanner: Scanner) -> None:
    view = view_of(path, (taken_line(scanner) + b"\n") * 50_000)
    page = folded(view, scanner, 30_000)
    assert not page.full and len(page.rows) <= 2 and page.last < 50_000
    assert page.first < 30_000 <= page.last
    after = folded(view, scanner, 30_000, before=0)
    assert after.rows[0].lines == after.last - 29_999 <= log_page.FOLDED_LINES and after.last < 50_000


def test_a_line_that_is_too_long_is_never_folded(path: Path, scanner: Scanner) -> None:
    one = taken_line(scanner)
    for size in (MAX_LINE, MAX_LINE + 1, 3 * MAX_LINE):
        view = view_of(path, one + b"\n" + one.ljust(size, b" ") + b"\n" + one + b"\n")
        residuals = [compress(segment, scanner) for segment in cut("m", view.chunks(), 1 << 20)]
        kept = {residual.segment.line + int(place) for residual in residuals for place in residual.kept}
        assert {row.first for row in folded(view, scanner, 1).rows if row.line} == kept
