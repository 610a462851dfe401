"""Overrides: for which jobs and until when a diagnosis rule says something else; as files, too."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from logdoctor.diagnose.decide import diagnose
from logdoctor.errors import RuleError
from logdoctor.pipeline import LogFile, ReadLimits, records
from logdoctor.pipeline import diagnose as diagnose_files
from logdoctor.rules.load import RuleBook, load_book
from logdoctor.rules.overrides import Overriding, in_force
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import Claim, Origin, OverrideRule
from tests.rules.books import ORIGIN, diagnosis, filter_rule, small_scanner, write_rules

TODAY = datetime.date(2026, 11, 24)
DAY = datetime.timedelta(1)
FABRIC = "fabric link 3 went down"
RULES = (diagnosis("fabric", FABRIC, reason="Network Error"), filter_rule("step", "step done"))
LIMITS = ReadLimits(1 << 20, 1, 1 << 30, 1000)


def override(name: str = "a", reason: str = "NVLink Error", **more: Any) -> OverrideRule:
    """An override of the rule, which is muted without a reason."""
    claim = Claim(reason, "cause") if reason else None
    origin = Origin("ops", TODAY, "a test")
    return OverrideRule(f"override/{name}", "active", name, "diagnosis/fabric", origin, verdict=claim, **more)


def holding(*overrides: OverrideRule, job: str = "j", kind: str = "k", day: datetime.date = TODAY) -> list[str]:
    """The names of those that hold."""
    return [one.title for one in in_force(Overriding(overrides, job, kind), day)]


def test_an_override_holds_for_its_jobs() -> None:
    of_job, of_kind, of_all = override("a", scope={"job": "j"}), override("b", scope={"kind": "k"}), override("c")
    assert holding(of_job) == ["a"] and holding(of_job, job="j2") == [] and holding(of_job, job="") == []
    assert holding(of_kind) == ["b"] and holding(of_kind, kind="") == [] and holding(of_all, job="", kind="") == ["c"]


def test_the_closest_holds_and_of_two_the_later() -> None:
    of_job, of_kind, of_all = override("a", scope={"job": "j"}), override("b", scope={"kind": "k"}), override("c")
    for some in ((of_job, of_kind, of_all), (of_all, of_kind, of_job)):
        assert (
            holding(*some) == ["a"] and holding(*some, job="x") == ["b"] and holding(*some, job="x", kind="y") == ["c"]
        )
    assert holding(override("a"), override("b")) == ["b"]


def test_an_override_ends_with_its_day() -> None:
    ending = override(expires=TODAY)
    assert holding(ending) == ["a"] and holding(ending, day=TODAY + DAY) == []
    assert holding(override(), day=TODAY + 9999 * DAY) == ["a"]


def verdict(scanner: Scanner, path: Path, book: RuleBook) -> tuple[str, str, str]:
    """What is said of a log, by what, with which digest of the rules."""
    said = diagnose(records([LogFile("main", path)], scanner, LIMITS), book)
    return said.reason, said.decided_by.rule, said.decided_by.rulebook


def test_a_rule_says_what_it_is_told_and_the_verdict_names_who_told_it(tmp_path: Path) -> None:
    scanner, path = small_scanner(tmp_path / "rules", *RULES), tmp_path / "log"
    path.write_text(f"step done\n{FABRIC}\n")
    before = verdict(scanner, path, scanner.book)
    told = verdict(scanner, path, scanner.book.overruled((override(),)))
    assert before[:2] == ("Network Error", "diagnosis/fabric") and told[:2] == ("NVLink Error", "override/a")
    muted = scanner.book.overruled((override(reason=""),))
    silent = verdict(scanner, path, muted)
    assert silent[:2] == ("None", "running") and len({before[2], told[2], silent[2]}) == 3
    assert scanner.book.overruled(()) is scanner.book


def test_a_muted_rule_keeps_filter_rules_off_its_lines(tmp_path: Path) -> None:
    greedy = filter_rule("all", "went down", harmless=True)
    scanner, path = small_scanner(tmp_path / "rules", *RULES, greedy), tmp_path / "log"
    path.write_text(f"{FABRIC}\nnobody went down\n")
    (record,) = records([LogFile("main", path)], scanner, LIMITS)
    assert record.compression.lines_kept == 1 and [line.text for line in record.lines if line.rules] == [FABRIC]


def test_files_of_overrides_hold_where_their_folder_is_used(tmp_path: Path) -> None:
    file = {
        "id": "override/net/fabric",
        "kind": "override",
        "status": "active",
        "title": "our fabric is NVLink",
        "rule": "diagnosis/fabric",
        "origin": ORIGIN,
        "scope": {"job": "llama"},
        "verdict": {"reason": "NVLink Error", "role": "cause"},
    }
    book = load_book(write_rules(tmp_path / "rules", *RULES, file))
    assert [one.id for one in book.overrides] == ["override/net/fabric"] and len(book.diagnoses) == 1
    path = tmp_path / "log"
    path.write_text(f"{FABRIC}\n")
    scanner = Scanner(book)
    assert diagnose_files([LogFile("main", path)], scanner, LIMITS).reason == "Network Error"
    told = diagnose_files([LogFile("main", path)], scanner, LIMITS, overriding=Overriding(job="llama"))
    assert (told.reason, told.decided_by.rule) == ("NVLink Error", "override/net/fabric")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rule": "diagnosis/none"}, "which is not here"),
        ({"scope": {"user": "u"}}, "names 'user'"),
        ({"scope": {"job": ""}}, "names 'job'"),
        ({"verdict": {"reason": "Bad Luck", "role": "cause"}}, "not in the taxonomy"),
        ({"verdict": {"outcome": "completed"}}, "needs a reason"),
        ({"kind": "filter"}, "kind"),
        ({"more": 1}, "more"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    file = {"id": "override/x", "kind": "override", "status": "active", "title": "x", "rule": "diagnosis/fabric"}
    root = write_rules(tmp_path, *RULES, file | {"origin": ORIGIN} | change)
    with pytest.raises(RuleError) as caught:
        load_book(root)
    assert words in str(caught.value) and "override/x" in str(caught.value) and caught.value.next_step
