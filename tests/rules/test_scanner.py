"""Who gets a line: evidence before filters, strong marks before ordinary rules, fallbacks last."""

import atexit
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.compress.cut import newlines_of
from logdoctor.rules import marks
from logdoctor.rules.match import Matcher
from logdoctor.rules.scanner import Scanner
from tests.rules.books import diagnosis, evidence_of, filter_rule, owner_of, scan_line, small_book, small_scanner

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


def test_a_message_begins_at_any_mark_of_its_prefix(tmp_path: Path) -> None:
    """Dashes and blanks may be separators of a prefix or the beginning of a message."""
    scanner = small_scanner(
        tmp_path,
        filter_rule("rule", r"^-{40,}$"),
        filter_rule("table", r"^\|\s+N/A\s+\|$"),
        filter_rule("at", r"^\s{36}at "),
    )
    for prefix in ("", "[rank0]: ", "2024-03-02T11:08:47.123456+00:00 gpu-node-017 | [rank12]: INFO: "):
        assert owner_of(scanner, prefix + "-" * 60) == "filter/rule"
        assert owner_of(scanner, prefix + "|" + " " * 50 + "N/A |") == "filter/table"
        assert owner_of(scanner, prefix + " " * (40 if prefix else 36) + "at foo") == "filter/at"


LINES = [
    "INFO all well",
    "INFO double bit",
    "link down",
    "[rank3]: maintenance: link down",
    "2024-03-02 11:08:47,123 INFO - step 17 of 20",
    "step 17 of 20, loss 0.5",
    "step 18 of 20, loss 0.5",
    "step 8 of 20, loss 0.5",
    "exit code 137",
    "exit code 138",
    "exit code 139, 0 failed",
    "exit code 139, 1 failed",
    "acme.OddError: gone",
    "",
    "=====",
    " 12: x = 5",
    " 12: x = 6",
]


@given(lines=st.lists(st.sampled_from(LINES), min_size=1, max_size=30), cut=st.integers(0, 400))
def test_property_a_line_is_judged_by_itself_whatever_was_seen_before(lines: list[str], cut: int) -> None:
    """What is remembered of an outline holds for a line that is told apart by its digits only where none of them
    matters."""
    buffer = "\n".join(lines).encode() + b"\n"
    for part in (buffer[: buffer.find(b"\n", cut) + 1], buffer):
        scan = TELLING.scan(part, newlines_of(part))
        for place, line in enumerate(part.decode().split("\n")[:-1]):
            alone = Scanner(TELLING.book, TELLING.cache).scan(f"{line}\n".encode(), np.array([len(line)]))
            for column in ("owner", "metric", "strong", "weak", "shadow"):
                assert getattr(scan, column)[place] == getattr(alone, column)[0], (column, line)
            assert scan.evidence[scan.evidence[:, 0] == place][:, 1].tolist() == alone.evidence[:, 1].tolist()


def _telling() -> Scanner:
    folder = Path(tempfile.mkdtemp(prefix="logdoctor-telling-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    book = small_book(
        folder,
        filter_rule("info", "INFO"),
        filter_rule("step", r"step \d+ of \d+", metrics=[r"step (?P<step>\d+)"]),
        filter_rule("a-step", "step 18"),
        filter_rule("five", "^x = 5$", fallback=True),
        filter_rule("rule", r"^(?:=+$|\n)", fallback=True),
        diagnosis("ecc", "double bit"),
        diagnosis("down", "link down", unless=["^maintenance"]),
        diagnosis("killed", r"exit code 13[79]", unless=[", 0 failed"]),
    )
    return Scanner(book, folder / "cache")


TELLING = _telling()
