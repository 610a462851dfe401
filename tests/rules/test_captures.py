"""Named groups come out of a line, or nothing does: never an error, never a hang (law 9)."""

from pathlib import Path
from typing import Any

from logdoctor.rules.captures import TimedPattern, captures
from logdoctor.rules.schema import DiagnosisRule
from tests.rules.books import diagnosis, small_book


def rule(root: Path, *patterns: str, **more: Any) -> DiagnosisRule:
    return small_book(root, diagnosis("x", "x", any=list(patterns), **more)).diagnoses[0]


def test_groups_of_all_patterns_are_gathered(tmp_path: Path) -> None:
    some = rule(tmp_path, r"Xid (?P<xid>\d+)", r"on (?P<node>\S+)", "no group", r"rank (?P<rank>\d+)")
    assert captures(some, "Xid 79 on gpu-7") == {"xid": "79", "node": "gpu-7"}
    assert captures(some, "nothing") == {}


def test_a_group_that_takes_no_part_is_left_out(tmp_path: Path) -> None:
    some = rule(tmp_path, r"Xid (?P<xid>\d+)(?: on (?P<node>\S+))?")
    assert captures(some, "Xid 79") == {"xid": "79"}


def test_a_caret_looks_behind_any_prefix(tmp_path: Path) -> None:
    some = rule(tmp_path, r"^slurmstepd: error: (?P<what>\w+)")
    assert captures(some, "3: 2024-03-02 11:08:47 slurmstepd: error: killed") == {"what": "killed"}


def test_a_pattern_that_is_slow_on_a_line_yields_nothing(tmp_path: Path) -> None:
    """Nested repetition: linear for Hyperscan, exponential for a backtracking matcher."""
    some = rule(tmp_path, r"(?P<slow>(?:[ab]|a[ab]?|[ab]b?)+)c", r"(?P<quick>aa)")
    assert captures(some, "ab" * 3000) == {}
    assert captures(some, "aa" + "ab" * 3000) == {"quick": "aa"}


def test_the_same_pattern_finds_its_group_where_it_is_quick(tmp_path: Path) -> None:
    some = rule(tmp_path, r"(?P<slow>(?:[ab]|a[ab]?|[ab]b?)+)c")
    assert captures(some, "abc") == {"slow": "ab"}


def test_a_slow_expression_of_somebody_else_is_given_up() -> None:
    slow = TimedPattern(rb"^(?P<loss>(?:\d|\d\d|\d\d\d)+)[!?]$")
    found = slow.search(b"12!")
    assert found is not None and found.regs == ((0, 3), (0, 2)) and dict(slow.groupindex) == {"loss": 1}
    assert [slow.search(b"1" * 60 + b".") for _ in range(1000)] == [None] * 1000
    assert slow.search(b"12!") is None, "it cost enough"
