"""The figures that the verdicts must reach on the corpus that is carried along, by rules and structure alone."""

from pathlib import Path

import pytest

from eval.corpus_score import METRICS, REMOVED_AFTER_HEADER, CorpusReport, evaluate
from logdoctor import pipeline
from logdoctor.pipeline import LogFile, ReadLimits
from logdoctor.rules.scanner import Scanner

CORPUS = Path(__file__).parents[1] / "eval" / "corpus"


@pytest.fixture(scope="module")
def report(scanner: Scanner, limits: ReadLimits) -> CorpusReport:
    return evaluate(
        [CORPUS],
        lambda path: pipeline.diagnose([LogFile("main", path)], scanner, limits),
        lambda path: pipeline.kept_lines(path, scanner),
        metric_rules=scanner.book.progress_rules(),
        citable_lines=lambda path: pipeline.citable_lines(path, scanner, limits),
    )


def missed(report: CorpusReport, metric: str) -> str:
    """What went wrong, for the message of a failing test."""
    return "\n".join(
        f"{miss.file}: wanted {miss.wanted}, got {miss.got}" for miss in report.misses if miss.metric == metric
    )


def test_the_corpus_is_whole(report: CorpusReport) -> None:
    assert (report.failures, report.healthy) == (73, 16)


@pytest.mark.parametrize(
    ("metric", "least"),
    [
        ("reason", 0.95),
        ("category", 0.98),
        ("recovery", 0.95),
        ("evidence", 0.95),
        ("quotes", 1.0),
        ("node_precision", 1.0),
        ("after_header", 0.99),
        ("cause_kept", 1.0),
        ("survived", 1.0),
    ],
)
def test_a_share_is_reached(report: CorpusReport, metric: str, least: float) -> None:
    share = report.all[metric].share
    assert share is not None and share >= least, missed(report, metric)


@pytest.mark.parametrize(("metric", "most"), [("wrong_actions", 0.02), ("false_alarms", 0.0)])
def test_a_share_is_not_exceeded(report: CorpusReport, metric: str, most: float) -> None:
    share = report.all[metric].share
    assert share is not None and share <= most, missed(report, metric)


def test_the_aims_of_the_report_are_those_of_these_tests() -> None:
    aims = {name: metric.aim for name, metric in METRICS.items() if metric.aim is not None}
    assert aims == {
        "reason": 0.95,
        "category": 0.98,
        "recovery": 0.95,
        "wrong_actions": 0.02,
        "evidence": 0.95,
        "quotes": 1.0,
        "node_precision": 1.0,
        "false_alarms": 0.0,
        "after_header": REMOVED_AFTER_HEADER,
        "cause_kept": 1.0,
    }


def test_every_miss_is_explained(report: CorpusReport) -> None:
    assert all(miss.why and miss.wanted != miss.got for miss in report.misses)
