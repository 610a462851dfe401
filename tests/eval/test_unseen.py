"""A reason is taken away wholly and alone, what is then said is counted as what it is, and the aim is met."""

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from eval import unseen
from eval.labels import FailureCase, HealthyCase, LabelledLog
from logdoctor import pipeline
from logdoctor.cli import cli
from logdoctor.diagnose.ending import FAILED
from logdoctor.errors import InputError
from logdoctor.pipeline import LogFile, ReadLimits
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.settings import Settings, rules_folder
from logdoctor.types import Compression, DecidedBy, Evidence, Progress, Verdict

ROOT = Path(__file__).parents[2]
TABLES = rules_folder(Settings()) / "knowledge"
BOTH = (ROOT / "eval" / "corpus", ROOT / "eval" / "validation")

XID = "Mar 02 10:59:10 wn061 kernel: NVRM: Xid (PCI:0000:1b:00): {}, pid=4182, name=python, {}\n"
TRACE = 'Traceback (most recent call last):\n  File "/opt/app/train.py", line 3, in main\n    run()\n{}\n'
LOGS = {
    "ecc.log": XID.format(48, "An uncorrectable double bit error (DBE) has been detected on GPU"),
    "key.log": TRACE.format("KeyError: 'input_ids'"),
    "fine.log": "exiting program at iteration 500000\n",
}
LABELS: list[dict[str, Any]] = [
    {"id": "e", "file": "ecc.log", "reason": "ECC Error", "category": "Infrastructure", "user_fault": False}
    | {"recovery": "isolate_and_restart", "evidence_lines": [1]},
    {"id": "k", "file": "key.log", "reason": "Key Error", "category": "Script", "user_fault": True}
    | {"recovery": "fix_first", "evidence_lines": [4]},
    {"id": "f", "file": "fine.log", "outcome": "completed"},
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for name, text in LOGS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, LABELS)))
    return tmp_path


def judged_by(limits: ReadLimits) -> unseen.Judge:
    return lambda path, scanner: pipeline.diagnose([LogFile("main", path)], scanner, limits, FAILED)


# ---- taking away


@pytest.mark.parametrize("reason", ["ECC Error", "CUDA Error", "NVLink Error", "Key Error"])
def test_a_reason_goes_with_its_rules_and_its_rows_and_nothing_else_goes(
    reason: str, book: RuleBook, tmp_path: Path
) -> None:
    left = unseen.without_reason(book, TABLES, reason, tmp_path)
    assert left.filters == book.filters
    kept = {rule.id for rule in left.diagnoses}
    assert {rule.verdict.reason for rule in book.diagnoses if rule.id not in kept} <= {reason}
    assert reason not in {rule.verdict.reason for rule in left.diagnoses}
    for table in ("xid", "sxid", "nvlink5"):
        rows = book.knowledge(table)
        assert left.knowledge(table) == {key: row for key, row in rows.items() if row["reason"] != reason}


def test_a_row_that_is_missing_claims_nothing_and_its_neighbours_still_do(
    scanner: Scanner, limits: ReadLimits, tmp_path: Path
) -> None:
    """Xid 48 is of the memory, Xid 79 of the device: without ECC Error only the second is known."""
    (tables := tmp_path / "tables").mkdir()
    left = unseen.scanner_without("ECC Error", scanner, TABLES, tables)
    judge = judged_by(limits)
    (memory := tmp_path / "memory.log").write_text(LOGS["ecc.log"])
    (device := tmp_path / "device.log").write_text(XID.format(79, "GPU has fallen off the bus."))
    assert judge(memory, left).reason == "Unknown"
    assert judge(device, left).reason == "CUDA Error"


def test_a_book_without_reasons_still_knows_how_jobs_end(book: RuleBook) -> None:
    left = unseen.without_reasons(book, TABLES)
    assert {rule.verdict.lookup for rule in left.diagnoses} == {""}
    assert {rule.verdict.role for rule in left.diagnoses if rule.verdict.reason} <= {"note"}
    assert {"completed", "cancelled", "recovered"} <= {rule.verdict.outcome for rule in left.diagnoses}


# ---- running


def test_failures_are_diagnosed_without_what_is_known_of_them(
    corpus: Path, scanner: Scanner, limits: ReadLimits
) -> None:
    report = unseen.run([corpus], scanner, TABLES, judged_by(limits), workers=1)
    assert (report.all.failures, report.all.right, report.all.unknown) == (2, 1, 1)
    assert report.by_reason["Key Error"].right == 1  # its class says so
    assert report.by_reason["ECC Error"].unknown == 1
    assert report.missed == []


def test_processes_say_the_same_as_one(corpus: Path, scanner: Scanner, limits: ReadLimits) -> None:
    alone, shared = (unseen.run([corpus], scanner, TABLES, judged_by(limits), workers=n) for n in (1, 2))
    assert alone == shared


def test_a_corpus_without_failures_is_named(corpus: Path, scanner: Scanner, limits: ReadLimits) -> None:
    (corpus / "cases.jsonl").write_text(json.dumps(LABELS[2]))
    with pytest.raises(InputError, match="no failures"):
        unseen.run([corpus], scanner, TABLES, judged_by(limits))


def test_the_wrong_reasons_of_the_shipped_corpora_are_within_the_aim(scanner: Scanner, limits: ReadLimits) -> None:
    report = unseen.run(BOTH, scanner, TABLES, judged_by(limits))
    assert report.all.failures == 157
    wrong = "\n".join(f"{one.file}: {one.label}, said {one.said}" for one in report.missed if one.kind == "wrong")
    assert report.all.wrong_share <= unseen.AIM, wrong


# ---- scoring


def verdict(reason: str, outcome: Any = "failed", recovery: Any = "ask_human") -> Verdict:
    cited = (Evidence("a.log", "main", 1, "a line", "r"),)
    numbers = ("", Progress(), Compression())
    return Verdict(
        reason, "None", "unknown", recovery, outcome, 0.5, "", cited, (), None, (), DecidedBy("rule"), *numbers
    )


def labelled(**changed: Any) -> LabelledLog:
    """A failure of the memory of a GPU, which a careful person may also call one of the device."""
    case = LABELS[0] | {"also_acceptable": ["CUDA Error"]} | changed
    return LabelledLog(Path("ecc.log"), msgspec.convert(case, FailureCase))


@pytest.mark.parametrize(
    ("said", "outcome", "kind"),
    [
        ("ECC Error", "failed", "right"),
        ("CUDA Error", "failed", "acceptable"),
        ("NVLink Error", "failed", "family"),
        ("Unknown", "failed", "unknown"),
        ("Key Error", "failed", "wrong"),
        ("None", "running", "unnoticed"),
        ("None", "completed", "unnoticed"),
    ],
)
def test_what_is_said_is_counted_as_what_it_is(said: str, outcome: str, kind: str) -> None:
    assert unseen.answer_of("c", labelled(), verdict(said, outcome)).kind == kind


@pytest.mark.parametrize(
    ("advised", "wrong"),
    [("isolate_and_restart", False), ("restart", False), ("ask_human", False), ("fix_first", True)],
)
def test_an_action_is_wrong_when_it_works_against_the_right_one(advised: str, wrong: bool) -> None:
    assert unseen.answer_of("c", labelled(), verdict("Unknown", recovery=advised)).wrong_action is wrong


def test_the_shares_are_of_all_failures_and_both_readings_are_given() -> None:
    said = ["ECC Error", "CUDA Error", "NVLink Error", "Node Failure", "Unknown", "Key Error", "Unknown", "Unknown"]
    counted = unseen.count([unseen.answer_of("c", labelled(), verdict(reason)) for reason in said])
    assert (counted.right, counted.acceptable, counted.family, counted.unknown, counted.wrong) == (1, 1, 2, 3, 1)
    assert (counted.wrong_share, counted.wrong_reasons, counted.wrong_reasons_share) == (0.125, 3, 0.375)
    assert unseen.count([]).wrong_share == 0


def test_a_healthy_log_is_no_failure(corpus: Path) -> None:
    logs = [log for some in unseen.labelled_failures([corpus]).values() for _, log in some]
    assert len(logs) == 2 and not any(isinstance(log.case, HealthyCase) for log in logs)


# ---- showing


@pytest.fixture
def report() -> unseen.UnseenReport:
    some = [unseen.answer_of("c", labelled(), verdict(reason)) for reason in ("ECC Error", "Key Error", "NVLink Error")]
    return unseen.summarise(["c"], some)


def test_the_table_shows_both_readings_and_the_misses_on_wish(report: unseen.UnseenReport) -> None:
    console = Console(file=io.StringIO(), width=120)
    report.show(console, details=True)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "another category than the label: 1 of 3 (33.3 %" in shown
    assert "nor acceptable: 2 of 3 (66.7 %" in shown
    assert "wrong: failed, Key Error" in shown and "family: failed, NVLink Error" in shown


def test_the_report_is_written_as_json_and_as_a_page(report: unseen.UnseenReport, tmp_path: Path) -> None:
    report.write(tmp_path)
    again = msgspec.json.decode((tmp_path / "unseen.json").read_bytes(), type=unseen.UnseenReport)
    assert again == report
    assert "| ecc.log | ECC Error | Key Error | wrong |" in (tmp_path / "unseen.md").read_text()


def test_a_folder_that_is_none_is_named(report: unseen.UnseenReport, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        report.write(tmp_path / "missing")


def test_the_command_prints_the_report_of_a_folder(corpus: Path) -> None:
    done = CliRunner().invoke(cli, ["eval", "unseen", str(corpus), "--json"])
    assert done.exit_code == 0, done.output
    assert msgspec.json.decode(done.stdout.encode(), type=unseen.UnseenReport).all.failures == 2
