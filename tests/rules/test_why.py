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
        "in vain    filter/trial: it is shadow",
    ]


def test_evidence_best_rule_first(small: Scanner) -> None:
    assert said(small, "INFO Xid 79") == [
        "evidence   diagnosis/xid: cause of CUDA Error {'xid': '79'}",
        "evidence   diagnosis/near: proximate of Runtime Error",
        "in vain    filter/info: the line is evidence, which wins",
        "in vain    filter/trial: it is shadow",
        "in vain    diagnosis/off: it is proposed",
        "kept       the line stays in the residual",
    ]


def test_unless_is_quoted(small: Scanner) -> None:
    assert "in vain    diagnosis/xid: unless 'last boot'" in said(small, "Xid 79 of the last boot")


def test_an_outcome(small: Scanner) -> None:
    assert said(small, "goodbye")[0] == "evidence   diagnosis/end: outcome completed"


def test_marks_hold_a_line_back(small: Scanner) -> None:
    assert said(small, "INFO OddError: it failed") == [
        "marks      exception, word",
        "in vain    filter/info: the line has a strong error mark and the rule is not `harmless`",
        "in vain    filter/trial: it is shadow",
        "kept       the line stays in the residual",
    ]


@pytest.mark.parametrize("line", ["nothing known", ""])
def test_an_unknown_line(small: Scanner, line: str) -> None:
    assert said(small, line) == ["kept       the line stays in the residual"]
