"""The figures that the verdicts must reach on the corpus that is carried along, by rules and structure alone."""

import gzip
import io
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from eval.corpus_score import METRICS, REMOVED_AFTER_HEADER, CorpusReport, evaluate
from logdoctor import pipeline
from logdoctor.pipeline import LogFile, ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Verdict

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


def timeless(verdict: Verdict) -> Verdict:
    """A verdict without where its log lies and how long it took."""
    evidence = tuple(msgspec.structs.replace(item, file="") for item in verdict.evidence)
    return msgspec.structs.replace(verdict, evidence=evidence, file="", seconds=0.0)


@pytest.mark.parametrize(
    "name",
    [
        "failures/inf-028.log",
        "failures/usr-061.log",
        "failures/inf-042.log",
        "healthy/ok-012.log",
        "healthy/ok-031.log",
    ],
)
def test_streaming_gives_the_verdict_of_the_plain_file(
    name: str, scanner: Scanner, limits: ReadLimits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = (CORPUS / name).read_bytes()
    packed = tmp_path / "log"
    packed.write_bytes(gzip.compress(raw))
    plain = timeless(pipeline.diagnose([LogFile("main", CORPUS / name)], scanner, limits))
    assert timeless(pipeline.diagnose([LogFile("main", packed)], scanner, limits)) == plain
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(raw)))
    assert timeless(pipeline.diagnose([LogFile("main", Path("-"))], scanner, limits)) == plain
