"""Who gets a line: evidence before filters, strong marks before ordinary rules, fallbacks last."""

from pathlib import Path

import numpy as np
import pytest

from logdoctor.compress.cut import newlines_of
from logdoctor.rules import marks
from logdoctor.rules.match import Matcher
from logdoctor.rules.scanner import Scanner
from tests.rules.books import diagnosis, evidence_of, filter_rule, owner_of, scan_line, small_scanner

RETIRED = {"at": "2026-01-02", "by": "a person", "why": "it took evidence"}


@pytest.mark.parametrize("how", [{}, {"harmless": True}, {"fallback": True}])
def test_evidence_wins_over_every_filter_rule(tmp_path: Path, how: dict[str, bool]) -> None:
    scanner = small_scanner(tmp_path, filter_rule("info", "INFO", **how), diagnosis("ecc", "double bit"))
    assert owner_of(scanner, "INFO all well") == "filter/info"
    assert owner_of(scanner, "INFO double bit") is None
    assert evidence_of(scanner, "INFO double bit") == ["diagnosis/ecc"]


@pytest.mark.parametrize(
    "line",
    [
        "INFO Traceback (most recent call last):",
        'INFO   File "train.py", line 3, in main',
        "INFO acme.OddError: gone",
        "INFO OddError\r",
        "INFO terminate called after throwing",
        "INFO Segmentation fault (core dumped)",
    ],
)
def test_strong_marks_beat_ordinary_rules_but_not_harmless_ones(tmp_path: Path, line: str) -> None:
    ordinary = small_scanner(tmp_path / "a", filter_rule("info", "INFO"), filter_rule("rest", "INFO", fallback=True))
    harmless = small_scanner(tmp_path / "b", filter_rule("info", "INFO", harmless=True))
    assert owner_of(ordinary, line) is None
    assert owner_of(harmless, line) == "filter/info"
    assert scan_line(ordinary, line).strong[0] and scan_line(harmless, line).strong[0]


def test_weak_marks_do_not_hold_a_line_back(tmp_path: Path) -> None:
    scanner = small_scanner(tmp_path, filter_rule("info", "INFO"))
    assert owner_of(scanner, "INFO 0 errors, none failed") == "filter/info"
    assert not scan_line(scanner, "INFO none failed").weak[0]
    assert scan_line(scanner, "WARN some failed").weak[0]
    assert not scan_line(scanner, "WARN all well").weak[0]


def test_unless_takes_a_hit_back(tmp_path: Path) -> None:
    rule = diagnosis("down", "link down", unless=["expected", "^maintenance"])
    scanner = small_scanner(tmp_path, rule, filter_rule("link", "link", harmless=True))
    assert evidence_of(scanner, "link down") == ["diagnosis/down"]
    assert evidence_of(scanner, "link down, as expected") == []
    assert evidence_of(scanner, "[rank3]: maintenance: link down") == []
    assert evidence_of(scanner, "link down after maintenance") == ["diagnosis/down"]
    assert owner_of(scanner, "link down, as expected") == "filter/link"


def test_unless_of_one_rule_or_line_leaves_others_alone(tmp_path: Path) -> None:
    scanner = small_scanner(
        tmp_path, diagnosis("a", "link down", unless=["expected"]), diagnosis("b", "down", role="proximate")
    )
    buffer = b"link down expected\nlink down\nexpected\ndown\n" + b"odd\n" * 50
    found = scanner.scan(buffer, newlines_of(buffer)).evidence
    assert [(int(line), scanner.book.diagnoses[int(rule)].id[-1]) for line, rule in found] == [
        (0, "b"),
        (1, "a"),
        (1, "b"),
        (3, "b"),
    ]


def test_a_rule_hits_a_line_once_whatever_it_matches_in_it(tmp_path: Path) -> None:
    scanner = small_scanner(tmp_path, diagnosis("x", "xx", any=["xx", "yy"]))
    assert evidence_of(scanner, "xx yy xx xxxx") == ["diagnosis/x"]


def test_a_fallback_is_tried_last(tmp_path: Path) -> None:
    scanner = small_scanner(
        tmp_path,
        filter_rule("a-general", "step", fallback=True),
        filter_rule("z-pack", "step 1"),
        diagnosis("d", "never"),
    )
    assert owner_of(scanner, "step 1") == "filter/z-pack"
    assert owner_of(scanner, "step 2") == "filter/a-general"
    assert owner_of(scanner, "stop") is None


def test_of_two_rules_the_first_by_id_takes_a_line(tmp_path: Path) -> None:
    scanner = small_scanner(tmp_path, filter_rule("b", "step"), filter_rule("a", "step 1"))
    assert owner_of(scanner, "step 1") == "filter/a"
    assert owner_of(scanner, "step 2") == "filter/b"


@pytest.mark.parametrize("status", ["proposed", "shadow", "retired"])
def test_a_rule_that_is_not_active_does_nothing(tmp_path: Path, status: str) -> None:
    more = {"status": status} | ({"retired": RETIRED} if status == "retired" else {})
    scanner = small_scanner(
        tmp_path, filter_rule("info", "INFO", **more), diagnosis("ecc", "double bit", **more), filter_rule("on", "on")
    )
    assert owner_of(scanner, "INFO") is None
    assert evidence_of(scanner, "double bit") == []
    assert owner_of(scanner, "on") == "filter/on"


def test_metric_lines_are_named_even_when_they_are_evidence(tmp_path: Path) -> None:
    rule = filter_rule("m", "loss", metrics=[r"loss (?P<loss>\w+)"])
    scanner = small_scanner(tmp_path, rule, filter_rule("n", "lr"), diagnosis("nan", "loss nan"))
    metrics = [int(scan_line(scanner, line).metric[0]) for line in ("loss 1", "loss nan", "lr 3", "odd")]
    assert metrics == [0, 0, -1, -1]
    assert [owner_of(scanner, line) for line in ("loss 1", "loss nan")] == ["filter/m", None]


def test_an_empty_book_keeps_everything(tmp_path: Path) -> None:
    scanner = small_scanner(tmp_path, filter_rule("off", "off", status="shadow"))
    scan = scanner.scan(b"a\nb error\n", np.array([1, 9]))
    assert scan.owner.tolist() == [-1, -1, -1]
    assert scan.weak.tolist() == [False, True, False]
    assert scan.evidence.shape == (0, 2)


def test_an_empty_buffer_has_one_empty_line(scanner: Scanner) -> None:
    scan = scanner.scan(b"", np.empty(0, np.int64))
    assert scan.owner.tolist() == [-1]
    assert scan.evidence.shape == (0, 2)


@pytest.mark.parametrize("few", [True, False])
def test_the_rest_is_scanned_alike_whether_it_is_much_or_little(tmp_path: Path, few: bool) -> None:
    """Few lines are copied out before the second scan, many are not."""
    scanner = small_scanner(tmp_path, filter_rule("pack", "step"), filter_rule("rest", "^odd", fallback=True))
    noise = [b"step"] * (40 if few else 1)
    lines = [b"odd one", *noise, b"[rank1]: odd two", b"it failed", *noise, b"an odd three"]
    buffer = b"\n".join(lines)
    scan = scanner.scan(buffer, newlines_of(buffer))
    ids = [scanner.book.filters[i].id if i >= 0 else None for i in scan.owner.tolist()]
    pack = ["filter/pack"] * len(noise)
    assert ids == ["filter/rest", *pack, "filter/rest", None, *pack, None]
    assert np.flatnonzero(scan.weak).tolist() == [lines.index(b"it failed")]


@pytest.mark.parametrize("noise", [1, 40])
def test_a_blank_line_is_one_wherever_it_stands(tmp_path: Path, noise: int) -> None:
    rule = filter_rule("blank", r"^(?:=+$|\n)", fallback=True)
    scanner = small_scanner(tmp_path, filter_rule("pack", "step"), rule)
    buffer = b"step\n" * noise + b"\nstep"
    owner = scanner.scan(buffer, newlines_of(buffer)).owner.tolist()
    assert [scanner.book.filters[i].id for i in owner] == ["filter/pack"] * noise + ["filter/blank", "filter/pack"]


@pytest.mark.parametrize("name", [*marks.STRONG, *marks.WEAK])
def test_marks_compile_and_stay_quiet_on_a_plain_line(name: str) -> None:
    matcher = Matcher([(marks.STRONG | marks.WEAK)[name]])
    assert not len(matcher.scan(b"step 7 of 100, loss 2.5, all well")[0])


PARTS = (
    filter_rule("info", "INFO"),
    filter_rule("loud", "loud", harmless=True),
    filter_rule("rest", "all", fallback=True),
    diagnosis("ecc", "double bit"),
    diagnosis("down", "link down", unless=["expected"]),
    diagnosis("up", "link up", unless=["expected"]),
)
LINES = (
    b"INFO all well\nINFO double bit\nlink down\nlink down, as expected\nlink up, loud\nlink up, as expected, all\n"
    b"loud OddError: gone\nWARN some failed\nall of it\nINFO link down\n"
)


@pytest.mark.parametrize("out", range(len(PARTS) - 1))
def test_a_scanner_of_fewer_rules_is_as_one_compiled_of_them_alone(tmp_path: Path, out: int) -> None:
    whole = small_scanner(tmp_path / "whole", *PARTS)
    fewer = small_scanner(tmp_path / "fewer", *PARTS[:out], *PARTS[out + 1 :])
    fewest = small_scanner(tmp_path / "fewest", *PARTS[out + 1 :])
    newlines = newlines_of(LINES)
    part = whole.of_fewer(fewer.book)
    for one, alone in ((part, fewer), (part.of_fewer(fewest.book), fewest), (whole.of_fewer(fewest.book), fewest)):
        for found, wanted in zip(one.scan(LINES, newlines), alone.scan(LINES, newlines), strict=True):
            assert np.array_equal(found, wanted)
        assert all(one.matching(line) == alone.matching(line) for line in LINES.decode().split("\n"))


def test_fewer_rules_are_rules_of_the_whole(tmp_path: Path) -> None:
    whole, other = small_scanner(tmp_path / "a", *PARTS[1:]), small_scanner(tmp_path / "b", *PARTS)
    with pytest.raises(ValueError, match="'INFO' is no pattern"):
        whole.of_fewer(other.book)
