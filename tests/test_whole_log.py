"""A whole log, looked into: right lines whatever the chunks, and never more than is allowed."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logdoctor.compress.whole_log import LookLimits, WholeLog
from logdoctor.errors import RuleError


def cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def log(data: bytes, size: int = 7, **limits: float) -> WholeLog:
    return WholeLog({"main": lambda: cut(data, size)}, LookLimits(**limits))  # type: ignore[arg-type]


@given(
    st.lists(st.text(st.characters(exclude_characters="\n\x1b", codec="utf-8"), max_size=30), max_size=30),
    st.integers(1, 50),
)
def test_windows_are_the_lines(lines: list[str], size: int) -> None:
    data = "\n".join(lines).encode()
    rows = data.decode().split("\n")
    rows = rows[:-1] if not rows[-1] else rows
    assert log(data, size).window("main", 1, 400) == list(enumerate(rows, 1))
    assert log(data, size).window("main", 3, 5) == list(enumerate(rows, 1))[2:5]


@given(st.integers(1, 60))
@settings(max_examples=settings.default.max_examples // 4)
def test_matching_lines_are_found(size: int) -> None:
    data = b"".join(b"[rank%d]: boom %d\n" % (n % 3, n) if n % 5 == 0 else b"quiet %d\n" % n for n in range(100))
    found = log(data, size).grep(r"^boom \d+$", None, 50)
    hits = [("main", n + 1, f"[rank{n % 3}]: boom {n}") for n in range(0, 100, 5)]
    assert found == (hits, 20, True)
    for most in range(1, 22):
        half = most // 2
        few = hits if most >= 20 else [*hits[:half], *hits[half - most :]]
        assert log(data, size).grep("boom", "main", most) == (few, 20, True)
    assert log(data, size).grep("boom", "other", 2) == ([], 0, True)


def test_a_pattern_that_may_take_for_ever_is_refused() -> None:
    with pytest.raises(RuleError):
        log(b"x\n").grep("(a+)+(?=b)", None, 5)


def test_a_look_is_bounded() -> None:
    ticks = itertools.count()
    endless = WholeLog(
        {"main": lambda: itertools.repeat(b"quiet line\n")}, LookLimits(1 << 30, 9.0), lambda: float(next(ticks))
    )
    assert endless.grep("boom", None, 5) == ([], 0, False) and next(ticks) == 11, "the clock went on by one a block"
    assert endless.window("main", 10**12, 10**12 + 5) == []
    line = WholeLog({"main": lambda: itertools.repeat(b"no end")}, LookLimits(1 << 30, 9.0), lambda: float(next(ticks)))
    assert line.grep("boom", None, 5) == ([], 0, False) and line.sought(None, "main", 5, 0) == (0, [], 0, False)
    assert len(log(b"x\n" * 9000).window("main", 1, 10**9)) == 400
    assert log(b"a\n" * 10 + b"boom\n", 2, read=6, seconds=9.0).grep("boom", None, 5) == ([], 0, False)


def test_a_line_without_an_end_is_held_in_part_only() -> None:
    long = WholeLog(
        {"main": lambda: itertools.chain([b"first\n"], itertools.repeat(b"y" * (1 << 20), 40), [b"\nlast"])}
    )
    assert [(number, len(text)) for number, text in long.window("main", 1, 5)] == [(1, 5), (2, 8192), (3, 4)]


def test_colours_are_left_out() -> None:
    assert log(b"\x1b[31mboom\x1b[0m 3\n", 100).grep(r"^boom \d$", None, 5).lines == [("main", 1, "boom 3")]


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 9))
def test_matching_lines_are_counted_and_the_first_and_last_shown(size: int, most: int, lead: int) -> None:
    rows = [f"boom {n}" if n % 5 == 0 else f"quiet {n}" for n in range(100)]
    data = "".join(f"{row}\n" for row in rows).encode()
    for pattern, wanted in (("boom", range(0, 100, 5)), (None, range(100)), ("none", range(0))):
        matching, hits, lines, complete = log(data, size).sought(pattern, "main", most, lead)
        assert (matching, lines, complete) == (len(wanted), 100, True)
        ends = [*wanted] if len(wanted) <= 2 * most else [*wanted[:most], *wanted[-most:]]
        assert hits == [(n + 1, rows[n], rows[max(0, n - lead) : n]) for n in ends]


def test_a_search_that_is_cut_short_says_so() -> None:
    matching, _, lines, complete = log(b"a\n" * 10 + b"boom\n", 2, read=6, seconds=9.0).sought("boom", "main", 5, 5)
    assert (matching, complete) == (0, False) and lines == 3
    with pytest.raises(RuleError):
        log(b"x\n").sought("(a+)+(?=b)", "main", 5, 5)
