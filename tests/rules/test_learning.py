"""Learned rules come last: whatever their pattern, evidence and trouble are not theirs, and in shadow nothing is."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logdoctor.compress.cut import newlines_of
from logdoctor.errors import RuleError
from logdoctor.rules.scanner import Scan, Scanner
from tests.rules.books import diagnosis, evidence_of, filter_rule, owner_of, scan_line, small_scanner
from tests.rules.learned import KIND, learned_rule

WIDE = (
    "^.+$",
    r"^.*\S.*$",
    r"^[^\x00]+$",
    r"^(?:.*Error.*|.+)$",
    ".",
    "(?i)error|fail|xid|nccl",
    r"^\[?[A-Za-z].*$",
    r"(?:\d|[a-z])+",
    r"^(?:Traceback|RuntimeError|NVRM|torch).*$",
)
"""Patterns that no guard would let pass."""
TROUBLE = (
    b"Traceback (most recent call last):",
    b'  File "train.py", line 3, in main',
    b"acme.OddError: gone",
    b"Segmentation fault (core dumped)",
    b"worker 3 failed to join",
    b"12 errors, 3 failed",
    b"got SIGTERM",
    b"[rank0]: ERROR cannot open the door",
)
QUIET = (b"hello there", b"step done", b"", b"   ", b"\xff\xfe", b"\x00", b"\r", b"12", b"100 passed, 0 failed")


@cache
def wide(scanner: Scanner, pattern: str, status: str, harmless: bool, metrics: bool) -> Scanner:
    more: dict[str, Any] = {"metrics": (r"(?P<loss>\d+)",)} if metrics else {}
    return scanner.learning(KIND, (learned_rule(pattern, status=status, harmless=harmless, **more),))


def logs(lines: list[bytes]) -> st.SearchStrategy[bytes]:
    """Known lines, causes among them, trouble and noise, some behind prefixes."""
    known = st.sampled_from(lines)
    line = st.one_of(
        known,
        known.map(lambda text: b"[rank3]: " + text),
        known.map(lambda text: b"2024-03-02 11:08:47,123 gpu-17: " + text + b"\r"),
        st.sampled_from((*TROUBLE, *QUIET)),
        st.binary(max_size=30),
    )
    return st.lists(line, max_size=12).map(b"\n".join)


def scans(scanner: Scanner, learned: Scanner, log: bytes) -> tuple[Scan, Scan]:
    newlines = newlines_of(log)
    return scanner.scan(log, newlines), learned.scan(log, newlines)


@given(
    data=st.data(),
    pattern=st.sampled_from(WIDE),
    status=st.sampled_from(["active", "shadow"]),
    harmless=st.booleans(),
    metrics=st.booleans(),
)
def test_property_no_learned_rule_takes_evidence_or_trouble(
    scanner: Scanner,
    book_lines: list[bytes],
    data: st.DataObject,
    pattern: str,
    status: str,
    harmless: bool,
    metrics: bool,
) -> None:
    log = data.draw(logs(book_lines))
    before, after = scans(scanner, wide(scanner, pattern, status, harmless, metrics), log)
    first = len(scanner.book.filters)
    assert np.array_equal(before.evidence, after.evidence)
    assert np.array_equal(before.strong, after.strong) and np.array_equal(before.weak, after.weak)
    new = np.flatnonzero(before.owner != after.owner)
    assert (before.owner[new] == -1).all() and (after.owner[new] == first).all()
    theirs = np.union1d(new, np.flatnonzero(after.shadow >= 0))
    assert not np.intersect1d(theirs, before.evidence[:, 0]).size
    assert (before.owner[theirs] == -1).all()
    if not harmless:
        assert not (before.strong | before.weak)[theirs].any()
    if status == "shadow":
        assert not new.size and np.array_equal(before.metric, after.metric)
    else:
        assert (after.shadow == -1).all()


@given(data=st.data(), pattern=st.sampled_from(["^.+$", r"^hello \w+$", "^step done$", r"^\[?[A-Za-z].*$"]))
def test_property_what_a_learned_rule_takes_does_not_depend_on_neighbours(
    scanner: Scanner, book_lines: list[bytes], data: st.DataObject, pattern: str
) -> None:
    log = data.draw(logs(book_lines))
    learned = wide(scanner, pattern, "active", False, False)
    found = learned.scan(log, newlines_of(log)).owner.tolist()
    alone = [int(learned.scan(line + b"\n", np.array([len(line)])).owner[0]) for line in log.split(b"\n")]
    assert found[:-1] == alone[:-1]


@pytest.mark.parametrize("pattern", ["^.*$", "^(?:abc)?$", "^a*$", "^$", r"^[^q]*$", "^(?:a|)$"])
def test_a_pattern_that_matches_an_empty_line_is_refused(scanner: Scanner, pattern: str) -> None:
    """What is found in an empty line counts for the line before it, which would be taken unlooked."""
    for status in ("active", "shadow"):
        with pytest.raises(RuleError, match=r"learned/acme/train\.py/one.*empty line"):
            scanner.learning(KIND, (learned_rule(pattern, status=status),))


@given(st.lists(st.sampled_from(["alpha", "", "abc", "beta 3", " "]), max_size=8))
@example(["alpha", "", "beta 3"])
def test_property_only_lines_that_match_are_taken(scanner: Scanner, lines: list[str]) -> None:
    learned = wide(scanner, "^(?:abc| )$", "active", False, False)
    log = "\n".join(lines).encode()
    owner = learned.scan(log, newlines_of(log)).owner.tolist()
    first = len(scanner.book.filters)
    assert {line for line, who in zip(lines or [""], owner, strict=True) if who == first} <= {"abc", " "}


def test_shipped_rules_go_first(tmp_path: Path) -> None:
    shipped = small_scanner(tmp_path, filter_rule("pack", "step 1"), filter_rule("rest", "step 2", fallback=True))
    learned = shipped.learning(KIND, (learned_rule(r"^step \d+$"),))
    assert [owner_of(learned, f"step {n}") for n in (1, 2, 3)] == [
        "filter/pack",
        "filter/rest",
        "learned/acme/train.py/one",
    ]
    assert owner_of(shipped, "step 3") is None, "the scanner that it was made of is as before"


def test_evidence_stays_evidence(tmp_path: Path) -> None:
    shipped = small_scanner(tmp_path, diagnosis("ecc", "double bit", unless=["expected"]))
    learned = shipped.learning(KIND, (learned_rule("^.+$", harmless=True),))
    assert owner_of(learned, "double bit") is None
    assert evidence_of(learned, "[rank3]: double bit") == ["diagnosis/ecc"]
    assert owner_of(learned, "double bit, as expected") == "learned/acme/train.py/one"


@pytest.mark.parametrize("line", [*TROUBLE, b"it failed"])
def test_trouble_is_only_for_those_that_are_harmless(scanner: Scanner, line: bytes) -> None:
    nowhere = np.empty(0, np.int64)
    for status, column in (("active", "owner"), ("shadow", "shadow")):
        timid = wide(scanner, "^.+$", status, False, False).scan(line, nowhere)
        bold = wide(scanner, "^.+$", status, True, False).scan(line, nowhere)
        first = len(scanner.book.filters)
        assert getattr(timid, column)[0] != first
        assert (getattr(bold, column)[0] == first) == (not len(bold.evidence) and scanner.scan(line, nowhere).owner < 0)


def test_a_pattern_begins_behind_the_prefix_and_ends_before_the_return(tmp_path: Path) -> None:
    learned = small_scanner(tmp_path, diagnosis("d", "never")).learning(KIND, (learned_rule(r"^tick \d+$"),))
    for line in ("tick 1", "[rank3]: tick 1", "2024-03-02 11:08:47,123 gpu-17: tick 1\r"):
        assert owner_of(learned, line) == "learned/acme/train.py/one"
    for line in ("a tick 1", "tick 1 and more", "tick"):
        assert owner_of(learned, line) is None


@pytest.mark.parametrize("status", ["proposed", "retired"])
def test_what_waits_and_what_is_retired_does_nothing(tmp_path: Path, status: str) -> None:
    rules = (learned_rule("^tick$", "a", status), learned_rule("^tock$", "b", "shadow"))
    learned = small_scanner(tmp_path, diagnosis("d", "never")).learning(KIND, rules)
    scan = scan_line(learned, "tick")
    assert (scan.owner[0], scan.shadow[0]) == (-1, -1) and learned.matching(["tick"]) == [set()]
    assert scan_line(learned, "tock").shadow[0] == 1 and learned.matching(["tock"]) == [{"^tock$"}]


def test_of_several_the_first_takes_a_line_and_a_shadow_does_not_count_what_is_taken(tmp_path: Path) -> None:
    rules = (
        learned_rule(r"^a.*$", "s1", "shadow"),
        learned_rule(r"^a \d+$", "a1"),
        learned_rule(r"^a.*$", "a2"),
        learned_rule(r"^b.*$", "s2", "shadow"),
        learned_rule(r"^b \d+$", "s3", "shadow"),
    )
    learned = small_scanner(tmp_path, diagnosis("d", "never")).learning(KIND, rules)
    first = scan_line(learned, "a 1")
    assert (first.owner[0], first.shadow[0]) == (1, -1)
    assert scan_line(learned, "a b").owner[0] == 2
    assert scan_line(learned, "b 1").shadow[0] == 3


def test_learned_rules_take_the_place_of_those_before(scanner: Scanner) -> None:
    once = scanner.learning(KIND, (learned_rule("^tick$"),))
    twice = once.learning("other", (learned_rule("^tock$", "two"), learned_rule("^tack$", "three")))
    assert owner_of(twice, "tick") is None and owner_of(twice, "tack") == "learned/acme/train.py/three"
    assert twice.book.kind == "other" and len(twice.book.learned) == 2
    assert twice.book.filters[: len(scanner.book.filters)] == scanner.book.filters
    assert owner_of(once, "tick") == "learned/acme/train.py/one"
    assert owner_of(twice.learning("other", ()), "tack") is None


def test_metric_lines_are_read_by_those_that_are_active(tmp_path: Path) -> None:
    shipped = small_scanner(tmp_path, diagnosis("nan", "loss nan"))
    metrics = (r"loss (?P<loss>\S+)",)
    active = shipped.learning(KIND, (learned_rule("^loss .*$", metrics=metrics),))
    shadow = shipped.learning(KIND, (learned_rule("^loss .*$", status="shadow", metrics=metrics),))
    plain = shipped.learning(KIND, (learned_rule("^loss .*$"),))
    assert scan_line(active, "loss 2").metric[0] == 0
    assert scan_line(active, "loss nan").owner[0] == -1
    assert scan_line(shadow, "loss 2").metric[0] == -1 and scan_line(plain, "loss 2").metric[0] == -1


def test_a_metric_line_of_a_shipped_rule_stays_its_own(tmp_path: Path) -> None:
    """A line that a shipped rule may not take, because it looks like trouble, is still read by that rule."""
    shipped = small_scanner(tmp_path, filter_rule("m", "^loss", metrics=[r"loss (?P<loss>\S+)"]))
    learned = shipped.learning(KIND, (learned_rule("^.+$", metrics=(r"(?P<loss>9)",)),))
    line = "loss 2 OddError: 9"
    assert scan_line(shipped, line).metric[0] == 0 == scan_line(learned, line).metric[0]


@pytest.mark.parametrize("status", ["active", "shadow"])
def test_a_pattern_that_is_refused_is_named(scanner: Scanner, tmp_path: Path, status: str) -> None:
    for shipped in (scanner, small_scanner(tmp_path, diagnosis("d", "never"))):
        with pytest.raises(RuleError, match=r"rule learned/acme/train\.py/bad"):
            shipped.learning(KIND, (learned_rule("^fine$"), learned_rule("^a(?=b)$", "bad", status)))


def test_the_digest_tells_what_takes_part_in_a_verdict(scanner: Scanner) -> None:
    shipped = scanner.book
    rule, other = learned_rule("^tick$"), learned_rule("^tock$", "two", "shadow")
    one, more = shipped.with_learned(KIND, (rule,)), shipped.with_learned(KIND, (rule, other))
    assert shipped.with_learned(KIND, (other,)).digest == shipped.digest == shipped.shipped_digest
    assert one.digest == more.digest != shipped.digest
    assert one.shipped_digest == more.shipped_digest == shipped.shipped_digest
    assert shipped.with_learned(KIND, (learned_rule("^tack$"),)).digest != one.digest
    assert more.with_learned("other", ()).digest == shipped.digest
    assert more.rule("learned/acme/train.py/two") == other


def test_a_rule_that_reads_steps_is_a_progress_rule(scanner: Scanner) -> None:
    rule = learned_rule("^tick$", metrics=(r"step (?P<step>\d+)",))
    more = scanner.book.with_learned(KIND, (rule,)).progress_rules() - scanner.book.progress_rules()
    assert more == {rule.id}
