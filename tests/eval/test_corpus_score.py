"""Scores are right for right verdicts, wrong for wrong ones, and a broken corpus is named."""

import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from eval import corpus_score as ev
from eval import labels
from logdoctor.errors import InputError
from logdoctor.types import Compression, DecidedBy, Evidence, Progress, RuleCount, Suspect, Verdict

LOG = "start\nstep 1\nstep 2\nECC error on \x1b[31mgpu 3\nnoise\nRuntimeError: NCCL\nbye\n"
FAILED: dict[str, Any] = {
    "id": "a",
    "file": "a.log",
    "reason": "ECC Error",
    "also_acceptable": ["CUDA Error"],
    "category": "Infrastructure",
    "user_fault": False,
    "recovery": "isolate_and_restart",
    "recovery_also": ["restart"],
    "faulty_nodes": ["gpu-12"],
    "first_failing_rank": 3,
    "evidence_lines": [4],
    "evidence_text": ["NCCL"],
    "difficulty": "hard",
    "why": "the memory of gpu 3 is broken",
}
HEALTHY: dict[str, Any] = {
    "id": "h",
    "file": "h.log",
    "outcome": "completed",
    "fault": None,
    "why": "it ended",
}


def cited(line: int, quote: str) -> Evidence:
    return Evidence("a.log", "main", line, quote, "some/rule")


def verdict(**changed: Any) -> Verdict:
    """A verdict that is right in every respect for `FAILED`."""
    right: dict[str, Any] = {
        "reason": "ECC Error",
        "category": "Infrastructure",
        "fault": "infrastructure",
        "recovery": "isolate_and_restart",
        "outcome": "failed",
        "confidence": 0.9,
        "suggestion": "",
        "evidence": (cited(4, "ECC error on \x1b[31mgpu 3"),),
        "suspects": (Suspect("gpu-12", 3, None, "it said so"),),
        "first_rank": 3,
        "symptoms": (),
        "decided_by": DecidedBy("rule"),
        "fingerprint": "",
        "progress": Progress(),
        "compression": Compression(7, 4, 70, 40, {"filter/steps": RuleCount(2, 2, 3)}),
    }
    return Verdict(**(right | changed))


def fine(**changed: Any) -> Verdict:
    """A verdict that is right in every respect for `HEALTHY`."""
    quiet: dict[str, Any] = {
        "reason": "None",
        "category": "None",
        "fault": "nobody",
        "recovery": "none",
        "outcome": "completed",
        "evidence": (),
        "suspects": (),
        "first_rank": None,
    }
    return verdict(**(quiet | changed))


def score(
    changed: dict[str, Any] | None = None, label: dict[str, Any] | None = None, kept: set[int] | None = None
) -> dict[str, tuple[int, int]]:
    """Hits and total of each metric for one failed job."""
    case = msgspec.convert(FAILED | (label or {}), labels.FailureCase)
    texts = dict(enumerate(LOG.split("\n"), 1))
    seen = ev.DiagnosedLog(verdict(**(changed or {})), {1, 4, 6, 7} if kept is None else kept, texts)
    return {mark.metric: (mark.hits, mark.total) for mark in ev.score_failure(case, seen)}


def score_fine(
    changed: dict[str, Any] | None = None, label: dict[str, Any] | None = None, kept: set[int] | None = None
) -> dict[str, tuple[int, int]]:
    """Hits and total of each metric for one healthy job."""
    case = msgspec.convert(HEALTHY | (label or {}), labels.HealthyCase)
    seen = ev.DiagnosedLog(fine(**(changed or {})), {1} if kept is None else kept, {}, {"filter/steps"})
    return {mark.metric: (mark.hits, mark.total) for mark in ev.score_healthy(case, seen)}


RIGHT, WRONG = (1, 1), (0, 1)


def test_a_right_verdict_scores_in_full() -> None:
    assert score() == {
        "outcome": RIGHT,
        "reason": RIGHT,
        "lenient": RIGHT,
        "category": RIGHT,
        "fault": RIGHT,
        "recovery": RIGHT,
        "wrong_actions": WRONG,
        "evidence": RIGHT,
        "quotes": RIGHT,
        "first_rank": RIGHT,
        "node_precision": RIGHT,
        "node_recall": RIGHT,
        "lines_removed": (3, 7),
        "bytes_removed": (30, 70),
        "cause_kept": RIGHT,
    }


@pytest.mark.parametrize(
    ("changed", "metric", "want"),
    [
        ({"outcome": "completed"}, "outcome", WRONG),
        ({"reason": "CUDA Error"}, "reason", WRONG),
        ({"reason": "CUDA Error"}, "lenient", RIGHT),
        ({"reason": "Key Error"}, "lenient", WRONG),
        ({"category": "Script"}, "category", WRONG),
        ({"fault": "user"}, "fault", WRONG),
        ({"fault": "unknown"}, "fault", RIGHT),
        ({"recovery": "restart"}, "recovery", RIGHT),
        ({"recovery": "rollback_and_skip"}, "recovery", WRONG),
        ({"recovery": "ask_human"}, "recovery", WRONG),
        ({"first_rank": 4}, "first_rank", WRONG),
        ({"first_rank": None}, "first_rank", WRONG),
    ],
)
def test_fields_are_compared_with_the_label(changed: dict[str, Any], metric: str, want: tuple[int, int]) -> None:
    assert score(changed)[metric] == want


def test_fault_of_the_user_must_be_named() -> None:
    assert score({"fault": "user"}, {"user_fault": True})["fault"] == RIGHT
    assert score({"fault": "nobody"}, {"user_fault": True})["fault"] == WRONG


@pytest.mark.parametrize(
    ("right", "advised", "wrong"),
    [
        (["fix_first"], "restart", True),
        (["fix_first"], "isolate_and_restart", True),
        (["fix_first"], "rollback_and_skip", True),
        (["fix_first", "ask_human"], "restart", True),
        (["fix_first", "restart"], "restart", False),
        (["fix_first", "restart"], "isolate_and_restart", False),
        (["fix_first", "restart"], "fix_first", False),
        (["restart"], "fix_first", True),
        (["restart"], "isolate_and_restart", False),
        (["restart"], "ask_human", False),
        (["restart"], "none", False),
        (["fix_first"], "fix_first", False),
        (["fix_first"], "ask_human", False),
        (["ask_human"], "fix_first", False),
        (["ask_human"], "restart", True),
    ],
)
def test_wrong_actions(right: list[str], advised: str, wrong: bool) -> None:
    assert labels.is_wrong_action(right, advised) is wrong
    marks = score({"recovery": advised}, {"recovery": right[0], "recovery_also": right[1:]})
    assert marks["wrong_actions"] == (int(wrong), 1)


@pytest.mark.parametrize(
    ("evidence", "want"),
    [
        ([(3, "step 2")], RIGHT),
        ([(5, "noise")], RIGHT),
        ([(2, "step 1")], WRONG),
        ([(6, "RuntimeError")], RIGHT),  # two lines off, but the line holds a labelled text
        ([(1, "NCCL")], WRONG),  # the quote holds the text, the line does not
        ([(1, "start"), (4, "ECC")], RIGHT),
        ([(99, "NCCL")], WRONG),
        ([], WRONG),
    ],
)
def test_evidence_is_near_a_labelled_line_or_holds_a_labelled_text(
    evidence: list[tuple[int, str]], want: tuple[int, int]
) -> None:
    assert score({"evidence": tuple(cited(*item) for item in evidence)})["evidence"] == want


def test_quotes_must_stand_in_their_line() -> None:
    evidence = (
        cited(4, "ECC error"),
        cited(4, "ECC  error"),
        cited(5, "ECC error"),
        cited(99, "x"),
        cited(1, ""),
    )
    assert score({"evidence": evidence})["quotes"] == (1, 5)


def test_first_rank_is_counted_apart_where_no_rank_can_be_named() -> None:
    named = score({"first_rank": 0}, {"first_failing_rank": None})
    assert named["rank_invented"] == (1, 1)
    assert "first_rank" not in named
    assert score({"first_rank": None}, {"first_failing_rank": None})["rank_invented"] == (0, 1)
    assert score({"first_rank": 0}, {"first_failing_rank": 0})["first_rank"] == RIGHT


@pytest.mark.parametrize(
    ("named", "faulty", "precision", "recall"),
    [
        (["GPU-12.cluster.local"], ["gpu-12"], (1, 1), (1, 1)),
        (["gpu-12"], ["gpu-12.cluster.local"], (1, 1), (1, 1)),
        (["gpu-12", "GPU-12", "gpu-12.local"], ["gpu-12"], (1, 1), (1, 1)),
        (["gpu-12", "gpu-7"], ["gpu-12"], (1, 2), (1, 1)),
        (["gpu-1"], ["gpu-12"], (0, 1), (0, 1)),
        (["gpu-12.a"], ["gpu-12.b"], (0, 1), (0, 1)),
        (["gpu-12.a"], ["gpu-12.a.local"], (0, 1), (0, 1)),
        (["172"], ["172.40.6.118"], (0, 1), (0, 1)),
        ([None], ["gpu-12"], (0, 0), (0, 1)),
        (["gpu-12"], [], (0, 1), (0, 0)),
        (["gpu-12"], ["gpu-12", "gpu-13"], (1, 1), (1, 2)),
    ],
)
def test_nodes(named: list[str | None], faulty: list[str], precision: tuple[int, int], recall: tuple[int, int]) -> None:
    suspects = tuple(Suspect(node, None, None, "") for node in named)
    marks = score({"suspects": suspects}, {"faulty_nodes": faulty})
    assert (marks["node_precision"], marks["node_recall"]) == (precision, recall)


def test_every_labelled_line_must_be_kept() -> None:
    assert score(label={"evidence_lines": [4, 5, 6]})["cause_kept"] == (2, 3)
    assert score(kept=set())["cause_kept"] == (0, 1)


def test_a_metric_line_of_an_anomaly_is_kept_when_it_is_cited_or_can_be() -> None:
    spike = {"reason": "Loss Spike", "category": "Anomaly", "evidence_lines": [3]}
    assert score({"evidence": (cited(2, "step 1"),)}, spike, kept=set())["cause_kept"] == (1, 1)
    assert score({"evidence": (cited(1, "start"),)}, spike, kept=set())["cause_kept"] == (0, 1)
    assert score({"evidence": (cited(3, "step 2"),)}, {"evidence_lines": [3]}, kept=set())["cause_kept"] == (0, 1)


def test_a_right_verdict_on_a_healthy_log() -> None:
    assert score_fine() == {
        "outcome": RIGHT,
        "false_alarms": WRONG,
        "quotes": (0, 0),
        "lines_removed": (3, 7),
        "bytes_removed": (30, 70),
        "after_header": (6, 6),
    }


def test_false_alarms() -> None:
    assert score_fine({"recovery": "restart"})["false_alarms"] == (1, 1)
    assert score_fine({"recovery": "ask_human"})["false_alarms"] == (1, 1)
    assert score_fine({"outcome": "failed"})["false_alarms"] == (1, 1)
    running = score_fine({"outcome": "running"})
    assert (running["false_alarms"], running["outcome"]) == ((0, 1), WRONG)


def test_a_recovered_job_is_right_with_its_fault_named_and_nothing_to_do() -> None:
    label = {"outcome": "recovered", "fault": "Node Failure"}
    right = score_fine({"outcome": "recovered", "reason": "Node Failure"}, label)
    assert (right["outcome"], right["survived"], right["false_alarms"]) == (RIGHT, RIGHT, (0, 1))
    assert score_fine({"outcome": "recovered"}, label)["survived"] == WRONG


def test_the_header_ends_with_the_first_line_of_a_rule_that_reads_metrics() -> None:
    assert score_fine(kept={1})["after_header"] == (6, 6)
    assert score_fine(kept={1, 2, 7})["after_header"] == (4, 6)
    rules = {"filter/steps": RuleCount(1, 6, 6), "filter/warnings": RuleCount(3, 1, 3)}
    late = score_fine({"compression": Compression(7, 3, 70, 30, rules)}, kept={4, 5, 7})
    assert late["after_header"] == (1, 2)
    none = score_fine({"compression": Compression(7, 3, 70, 30, {})}, kept={4, 5, 7})
    assert none["after_header"] == (4, 7)


@pytest.mark.parametrize(("left", "missed"), [(2, False), (3, True)])
def test_a_healthy_log_is_listed_when_less_than_99_percent_are_removed(left: int, missed: bool) -> None:
    account = Compression(200, left, 0, 0, {"filter/steps": RuleCount(198, 1, 200)})
    seen = ev.DiagnosedLog(fine(compression=account), set(range(1, left + 1)), {}, {"filter/steps"})
    marks = ev.score_healthy(msgspec.convert(HEALTHY, labels.HealthyCase), seen)
    assert [mark.missed for mark in marks if mark.metric == "after_header"] == [missed]


def test_aims() -> None:
    least, most = ev.METRICS["reason"], ev.METRICS["wrong_actions"]
    assert [ev.meets_aim(least, ev.Share(0, 1, share)) for share in (0.95, 0.94, None)] == [True, False, None]
    assert [ev.meets_aim(most, ev.Share(0, 1, share)) for share in (0.02, 0.03, None)] == [True, False, None]
    assert ev.meets_aim(ev.METRICS["lenient"], ev.Share(0, 1, 0.0)) is None


# ---- whole corpora


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two failures (the second is easy and of the user) and a healthy log."""
    second = {"id": "b", "file": "b.log", "difficulty": "easy", "reason": "Key Error", "why": "no such key"}
    write(tmp_path / "failures", [FAILED, FAILED | second])
    write(tmp_path / "healthy", [HEALTHY])
    return tmp_path


def write(folder: Path, cases: list[dict[str, Any]]) -> None:
    folder.mkdir()
    (folder / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    for case in cases:
        (folder / case["file"]).write_bytes(LOG.encode())


def oracle(path: Path) -> Verdict:
    """A verdict that is right for the failures named a and the healthy logs."""
    return fine() if path.name.startswith("h") else verdict()


def kept(path: Path) -> set[int]:
    return {1, 4, 6, 7}


def test_a_corpus_is_summed_up(corpus: Path) -> None:
    report = ev.evaluate([corpus], oracle, kept, {"filter/steps"})
    assert (report.failures, report.healthy, report.cost.logs) == (2, 1, 3)
    assert report.all["reason"] == ev.Share(1, 2, 0.5)
    assert report.all["false_alarms"] == ev.Share(0, 1, 0.0)
    assert report.all["outcome"] == ev.Share(3, 3, 1.0)
    assert report.all["lines_removed"] == ev.Share(9, 21, 9 / 21)
    assert report.all["after_header"] == ev.Share(3, 6, 0.5)
    assert report.all["survived"] == ev.Share(0, 0, None)
    assert {name: group["reason"].hits for name, group in report.by_difficulty.items()} == {
        "easy": 0,
        "hard": 1,
    }
    assert {name: group["reason"].hits for name, group in report.by_reason.items()} == {
        "ECC Error": 1,
        "Key Error": 0,
    }
    assert report.by_reason["Key Error"]["recovery"] == ev.Share(1, 1, 1.0)


def test_several_corpora_are_one(corpus: Path, tmp_path: Path) -> None:
    halves = ev.evaluate([corpus / "failures", corpus / "healthy"], oracle, kept, {"filter/steps"})
    whole = ev.evaluate([corpus], oracle, kept, {"filter/steps"})
    assert (halves.all, halves.by_reason, halves.calibration) == (whole.all, whole.by_reason, whole.calibration)
    assert halves.folder == f"{corpus / 'failures'}, {corpus / 'healthy'}"


def test_confidence_is_weighed_where_a_failure_is_given_a_reason(corpus: Path) -> None:
    found = ev.evaluate([corpus], lambda path: verdict(confidence=0.8), kept).calibration
    assert [(one.verdicts, one.confidence, one.right) for one in found.bins] == [(2, 0.8, 0.5)]
    for odd in (verdict(reason="Unknown"), verdict(outcome="unknown", reason="None"), fine()):
        assert ev.evaluate([corpus], lambda path, odd=odd: odd, kept).calibration.bins == []  # type: ignore[misc]
    defended = msgspec.convert(FAILED | {"also_acceptable": ["Hang"]}, labels.FailureCase)
    assert ev.judged_confidence(defended, verdict(reason="Hang", confidence=0.7)) == (0.7, True)
    assert ev.judged_confidence(msgspec.convert(HEALTHY, labels.HealthyCase), verdict()) is None


def test_misses_say_what_was_wanted_and_why(corpus: Path) -> None:
    misses = ev.evaluate([corpus], oracle, kept, {"filter/steps"}).misses
    assert ev.Miss("b.log", "reason", "Key Error", "ECC Error", "no such key") in misses
    assert [miss.metric for miss in misses if miss.file == "a.log"] == []
    assert [miss.metric for miss in misses if miss.file == "h.log"] == ["after_header"]


def test_the_cost_is_counted(corpus: Path) -> None:
    cost = ev.evaluate([corpus], oracle, kept).cost
    assert cost.bytes == 3 * len(LOG)
    assert cost.seconds > 0
    assert cost.mb_per_second == pytest.approx(cost.bytes / 1e6 / cost.seconds)
    assert 1e6 < cost.peak_bytes < 1e11


def test_callables_that_cannot_be_pickled_serve(corpus: Path) -> None:
    reasons = {"a.log": "Key Error", "b.log": "Key Error", "h.log": "None"}
    report = ev.evaluate([corpus], lambda path: verdict(reason=reasons[path.name]), lambda path: set())
    assert report.all["reason"].hits == 1
    assert report.all["cause_kept"] == ev.Share(0, 2, 0.0)
    assert report.all["false_alarms"] == ev.Share(1, 1, 1.0)


@pytest.mark.parametrize(("half", "counts"), [("failures", (2, 0)), ("healthy", (0, 1))])
def test_half_a_corpus_is_one_too(corpus: Path, half: str, counts: tuple[int, int]) -> None:
    report = ev.evaluate([corpus / half], oracle, kept)
    assert (report.failures, report.healthy) == counts


def test_lines_end_with_newlines_alone(tmp_path: Path) -> None:
    write(tmp_path / "failures", [FAILED | {"evidence_lines": [2], "evidence_text": ["cause"]}])
    (tmp_path / "failures" / "a.log").write_bytes(b"bar 1%\rbar 2%\x0b\x0c\x85\xe2\x80\xa8 end\ncause \xff\x00\n")
    evidence = (cited(2, "cause \ufffd\x00"),)
    report = ev.evaluate([tmp_path], lambda path: verdict(evidence=evidence), kept)
    assert report.all["quotes"] == ev.Share(1, 1, 1.0)


def shown(report: ev.CorpusReport, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    report.show(console, details=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_report_is_shown(corpus: Path) -> None:
    text = shown(ev.evaluate([corpus], oracle, kept, {"filter/steps"}))
    row = next(line for line in text.splitlines() if "reason, strict" in line)
    assert re.split(r" {2,}", row.strip())[1:] == [
        "50.0 %",
        "0.0 %",
        "100 %",
        "1 / 2",
        ">= 95 %",
    ]
    assert "Key Error" in text
    assert "reason, strict: wanted Key Error; got ECC Error" in text
    assert "why: no such key" in text


def test_brackets_in_labels_are_shown_as_they_are(corpus: Path) -> None:
    write(corpus / "odd", [FAILED | {"reason": "Key Error", "why": "[rank0] has [/no] key"}])
    assert "why: [rank0] has [/no] key" in shown(ev.evaluate([corpus / "odd"], oracle, kept))


def test_almost_all_is_not_shown_as_all(corpus: Path) -> None:
    write(corpus / "long", [HEALTHY])
    account = Compression(100_000, 1, 100_000, 1, {})
    report = ev.evaluate([corpus / "long"], lambda path: fine(compression=account), lambda path: {1})
    assert "99.9 %" in shown(report)
    assert "100 %" not in next(line for line in shown(report).splitlines() if "lines removed" in line)


def test_the_report_goes_through_json(corpus: Path) -> None:
    report = ev.evaluate([corpus], oracle, kept)
    assert msgspec.json.decode(msgspec.json.encode(report), type=ev.CorpusReport) == report


# ---- corpora that cannot be used


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gone is not a folder"):
        labels.read_corpus(tmp_path / "gone")


def test_no_labels(corpus: Path) -> None:
    (corpus / "healthy" / "cases.jsonl").unlink()
    with pytest.raises(InputError, match=r"healthy/cases\.jsonl cannot be read"):
        labels.read_corpus(corpus)


def test_empty_labels(corpus: Path) -> None:
    (corpus / "healthy" / "cases.jsonl").write_text("\n\n")
    with pytest.raises(InputError, match=r"healthy/cases\.jsonl holds no cases"):
        labels.read_corpus(corpus)


def test_missing_log(corpus: Path) -> None:
    (corpus / "failures" / "b.log").unlink()
    with pytest.raises(InputError, match=r"b\.log: there is no such log, but case 'b'"):
        labels.read_corpus(corpus)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("{not json", "malformed"),
        ("[1]", "object"),
        (json.dumps(FAILED | {"recovery": "reboot"}), "reboot"),
        (json.dumps(FAILED | {"reason": "ECC error"}), "'ECC error' is not in the taxonomy"),
        (json.dumps(HEALTHY | {"outcome": "good"}), "good"),
        (json.dumps({key: value for key, value in FAILED.items() if key != "category"}), "category"),
    ],
)
def test_garbled_label(corpus: Path, row: str, told: str) -> None:
    with (corpus / "failures" / "cases.jsonl").open("a") as file:
        file.write(row + "\n")
    with pytest.raises(InputError, match=r"failures/cases\.jsonl, line 3 is not a case") as caught:
        labels.read_corpus(corpus)
    assert told in str(caught.value)


def test_label_that_is_not_utf8(corpus: Path) -> None:
    (corpus / "failures" / "cases.jsonl").write_bytes(b'{"id": "\xff"}\n')
    with pytest.raises(InputError, match=r"cases\.jsonl, line 1"):
        labels.read_corpus(corpus)


def test_our_own_corpus_can_be_read() -> None:
    corpus = labels.read_corpus(Path(__file__).parents[2] / "eval" / "corpus")
    assert sum(isinstance(labelled.case, labels.FailureCase) for labelled in corpus) == 73
    assert sum(isinstance(labelled.case, labels.HealthyCase) for labelled in corpus) == 16
