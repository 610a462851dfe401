"""The Log Agent learns what jobs print, keeps what is rare, and never takes a line that tells of a cause."""

import io
import json
import re
from datetime import date
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import msgspec
import pytest
from rich.console import Console

from eval import chart
from eval import learning_curve as lc
from eval.cause_lines import CauseLines
from logdoctor.compress.filter import compress
from logdoctor.errors import InputError
from logdoctor.learning.filters.canary import causes
from logdoctor.learning.filters.guards import FilterGuards
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import FilterRule, Origin

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "eval" / "corpus"
SETUP = lc.LearningSetup(frameworks=("megatron", "nemo"), healthy=False, mb=2, jobs=3)


@pytest.fixture(scope="module")
def untaught(scanner: Scanner) -> Scanner:
    """All diagnosis rules and no filter rule."""
    return Scanner(scanner.book.without_filters(), scanner.cache)


@pytest.fixture(scope="module")
def guards(book: RuleBook) -> FilterGuards:
    return FilterGuards(causes(book, ROOT / "rules" / "canary"))


@pytest.fixture(scope="module")
def report(untaught: Scanner, guards: FilterGuards, tmp_path_factory: pytest.TempPathFactory) -> lc.LearningReport:
    return lc.run(untaught, guards, CORPUS, tmp_path_factory.mktemp("curve"), SETUP)


def test_no_filter_rule_is_there_at_first(untaught: Scanner, book: RuleBook) -> None:
    assert untaught.book.filters == () and untaught.book.diagnoses == book.diagnoses


def test_what_is_regular_is_taken_from_the_second_job_on(report: lc.LearningReport) -> None:
    assert list(report.removed_by_job) == ["megatron", "nemo"]
    for kind, shares in report.removed_by_job.items():
        assert shares[0] == 0.0, kind  # it comes as one piece, and is read before anything is learned
        assert shares[1] >= 0.9, kind
        assert shares[2] >= 0.93, (kind, report.left[kind][:3])
        assert report.without_marks[kind][2] >= shares[2]


def test_no_line_of_a_cause_is_ever_taken(report: lc.LearningReport) -> None:
    assert report.cause_lines_removed == 0, report.caught
    assert report.moments >= 4  # each kind learned, then rules became active


def test_rare_lines_stay(report: lc.LearningReport) -> None:
    assert sum(job.rare for job in report.jobs) > 20
    assert report.rare_lines_removed == 0


def test_the_second_job_asks_nobody(report: lc.LearningReport) -> None:
    assert report.second_job_model_calls == {"megatron": 0, "nemo": 0}
    assert all(job.calls == job.lessons * 6 > 0 for job in report.jobs if job.number == 1)  # five runs and a judge


def test_lines_are_accounted_for(report: lc.LearningReport) -> None:
    for job in report.jobs:
        assert job.regular + job.rare == job.lines
        left = sum(one.lines for one in report.left.get(job.kind, []))
        assert job.number < 3 or left <= job.regular - job.regular_removed
        assert job.number < 3 or job.active > 0


@pytest.mark.parametrize(
    ("status", "metrics", "citable"),
    [
        ("shadow", (), False),
        ("shadow", (r"loss: +(?P<loss>\d+\.\d+)",), True),
        ("active", (), False),
        ("active", (r"loss: +(?P<loss>\d+\.\d+)",), True),
    ],
)
def test_evidence_that_a_rule_matches_is_counted(
    untaught: Scanner, status: Literal["shadow", "active"], metrics: tuple[str, ...], citable: bool
) -> None:
    """The measure itself: what a rule does that no guard looked at."""
    cases = [json.loads(line) for line in (CORPUS / "failures" / "cases.jsonl").read_text().splitlines()]
    case = next(case for case in cases if case["file"] == "inf-053.log")  # a loss spike: metric lines are its cause
    number = case["evidence_lines"][0]
    line = (CORPUS / "failures" / case["file"]).read_bytes().split(b"\n")[number - 1].decode()
    pattern = rf"^.*{re.sub('[0-9]+', lambda _: '[0-9]+', line[-14:])}$"
    rule = FilterRule(
        "learned/x/1", status, "x", (pattern,), (line,), Origin("test", date(2026, 11, 21), "test"), metrics=metrics
    )
    tried = CauseLines(CORPUS / "failures")
    scanner = untaught.learning("x", (rule,))
    tried.look("x", scanner)
    tried.look("x", scanner)
    assert tried.moments == 1  # what did not change is not tried again
    caught = [one for one in tried.caught.values() if (one.file, one.line) == (case["file"], number)]
    assert [(one.rule, one.status, one.citable, one.text) for one in caught] == [(rule.id, status, citable, line)]


def test_a_log_that_is_submitted_again_has_other_numbers() -> None:
    first = b"2026-11-21 10:00:00 [rank3] step 120/5000 loss: 2.3456 pid=418213 fp16 v2.5.1 0 failed\n"
    second, third = lc.resubmitted(first, 1), lc.resubmitted(first, 2)
    assert lc.resubmitted(first, 0) == first
    assert len({first, second, third}) == 3
    shape = rb"2026-11-2\d 10:00:00 \[rank3\] step 120/5000 loss: 2\.\d{4} pid=418\d{3} fp16 v2\.5\.1 0 failed\n"
    assert re.fullmatch(shape, second) and re.fullmatch(shape, third)
    assert lc.resubmitted(first * 2, 1) == second * 2  # the same number becomes the same other one


@pytest.mark.parametrize("log", sorted(path.name for path in (CORPUS / "healthy").glob("*.log"))[::4])
def test_a_log_that_is_submitted_again_reads_the_same(untaught: Scanner, log: str) -> None:
    """Other numbers neither add nor take away evidence or marks."""
    first = (CORPUS / "healthy" / log).read_bytes()
    second = lc.resubmitted(first, 1)
    assert len(first) == len(second) and first.count(b"\n") == second.count(b"\n") and first != second
    scans = [compress(next(lc._segments(data)), untaught).scan for data in (first, second)]
    assert (scans[0].strong == scans[1].strong).all() and (scans[0].weak == scans[1].weak).all()
    assert scans[0].evidence.tolist() == scans[1].evidence.tolist()


def test_the_report_can_be_shown_and_kept(report: lc.LearningReport, tmp_path: Path) -> None:
    report.write(tmp_path, f"\n{lc.section(report)}")
    assert msgspec.json.decode((tmp_path / "learn-filters.json").read_bytes(), type=lc.LearningReport) == report
    table = (tmp_path / "learn-filters.md").read_text()
    assert table.startswith("# Learning curve") and "\n| megatron | 0.00 | 9" in table
    rows = [line for line in table.split("\n") if line.startswith("|")]
    assert len(rows) == 8 and len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
    console = Console(file=io.StringIO(), width=120)
    report.show(console)
    assert "0 cause lines removed" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_picture_is_sound(report: lc.LearningReport) -> None:
    root = ElementTree.fromstring(chart.draw(report.chart()))
    texts = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(text.startswith("megatron\u2003") for text in texts) and "job 3" in texts
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 < float(text.attrib["x"]) < chart.WIDTH and 0 < float(text.attrib["y"]) < chart.HEIGHT


def test_what_is_missing_is_told(
    untaught: Scanner, guards: FilterGuards, report: lc.LearningReport, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"biglog\.py"):
        lc.run(untaught, guards, tmp_path, tmp_path)
    with pytest.raises(InputError, match="unknown framework"):
        lc.run(untaught, guards, CORPUS, tmp_path, lc.LearningSetup(frameworks=("none",), healthy=False, jobs=1))
    with pytest.raises(InputError, match="cannot be written"):
        report.write(tmp_path / "none")
