"""Why a line is taken, kept or evidence, in sentences that name every rule that had a say."""

from pathlib import Path

import pytest

from logdoctor.rules.scanner import Scanner
from logdoctor.rules.why import why
from tests.rules.books import diagnosis, filter_rule, small_scanner


@pytest.fixture
def small(tmp_path: Path) -> Scanner:
    return small_scanner(
        tmp_path,
        filter_rule("info", "INFO"),
        filter_rule("later", "INFO all"),
        filter_rule("trial", "INFO", status="shadow"),
        diagnosis("xid", "Xid", any=[r"Xid (?P<xid>\d+)"], unless=["last boot"]),
        diagnosis("near", "Xid", role="proximate", reason="Runtime Error"),
        diagnosis("end", "goodbye", verdict={"outcome": "completed"}),
        diagnosis("off", "Xid", status="proposed"),
    )


def said(scanner: Scanner, line: str) -> list[str]:
    return list(why(scanner, line))


def test_a_taken_line(small: Scanner) -> None:
    assert said(small, "INFO all well") == [
        "taken by   filter/info",
        "in vain    filter/later: another rule removes the line first",
        "in vain    filter/trial: it is in shadow",
    ]


def test_evidence_best_rule_first(small: Scanner) -> None:
    assert said(small, "INFO Xid 79") == [
        "evidence   diagnosis/xid: cause of CUDA Error {'xid': '79'}",
        "evidence   diagnosis/near: proximate of Runtime Error",
        "in vain    filter/info: the line is evidence, which is never removed",
        "in vain    filter/trial: it is in shadow",
        "in vain    diagnosis/off: it is proposed",
        "kept       the line is kept for diagnosis",
    ]


def test_unless_is_quoted(small: Scanner) -> None:
    assert "in vain    diagnosis/xid: the line also matches 'last boot', which the rule excludes" in said(
        small, "Xid 79 of the last boot"
    )


def test_a_table_gives_role_and_reason(tmp_path: Path) -> None:
    looked_up = diagnosis("code", "code", any=[r"code (?P<code>\w+)"], verdict={"lookup": "code"})
    scanner = small_scanner(tmp_path, looked_up | {"must_match": [{"text": "code 1"}]})
    (tmp_path / "knowledge" / "code.tsv").write_text("code\treason\trole\n1\tECC Error\tcause\n")
    assert said(scanner, "code 1")[0] == "evidence   diagnosis/code: cause of ECC Error, by table code {'code': '1'}"
    assert said(scanner, "code 2")[0] == "evidence   diagnosis/code: no row of table code {'code': '2'}"


def test_an_outcome(small: Scanner) -> None:
    assert said(small, "goodbye")[0] == "evidence   diagnosis/end: outcome completed"


def test_marks_hold_a_line_back(small: Scanner) -> None:
    assert said(small, "INFO OddError: it failed") == [
        "marks      exception, word",
        "in vain    filter/info: the line looks like an error, and the rule is not `harmless`",
        "in vain    filter/trial: it is in shadow",
        "kept       the line is kept for diagnosis",
    ]


@pytest.mark.parametrize("line", ["nothing known", ""])
def test_an_unknown_line(small: Scanner, line: str) -> None:
    assert said(small, line) == ["kept       the line is kept for diagnosis"]
