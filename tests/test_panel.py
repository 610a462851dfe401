"""What people see of a verdict at 80 columns."""

import io
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import logdoctor
from logdoctor import pipeline
from logdoctor.pipeline import ReadLimits
from logdoctor.pipeline.attempts import attempts
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Verdict
from logdoctor.words.panel import panel

EVAL = Path(__file__).parents[1] / "eval"
CHAIN = """\
step 1 loss 2.5
 17%|#7   | 2/12 [00:01<00:04, 21.9it/s][rank1]: Traceback (most recent call last):
[rank1]:   File "/opt/train.py", line 9, in main
[rank1]:     raise exception
[rank1]: ValueError: Caught ValueError in DataLoader worker process 0.
[rank1]: Original Traceback (most recent call last):
[rank1]:   File "/opt/collate.py", line 3, in collate
[rank1]:     return torch.tensor(value)
[rank1]: ValueError: expected sequence of length 70 at dim 1 (got 50)

[rank1]: The above exception was the direct cause of the following exception:

[rank1]: Traceback (most recent call last):
[rank1]:   File "/opt/tokens.py", line 700, in convert
[rank1]:     raise ValueError("no tensor") from error
[rank1]: ValueError: Unable to create tensor
"""

Judged = Callable[[Path], Verdict]


@pytest.fixture(scope="module")
def judged(scanner: Scanner, limits: ReadLimits) -> Judged:
    return lambda path: pipeline.diagnose(attempts(path)[-1].streams, scanner, limits._replace(workers=1))


def shown(verdict: Verdict, whole: bool = False, columns: int = 80) -> str:
    console = Console(highlight=False, file=io.StringIO(), width=columns, color_system=None)
    with console.capture() as captured:
        console.print(panel("x.log", verdict, whole))
    return captured.get()


def words(text: str) -> str:
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


def test_half_of_all_failures_take_no_more_than_fifteen_lines(judged: Judged) -> None:
    rows = []
    for folder in (EVAL / "corpus" / "failures", EVAL / "validation" / "failures"):
        for case in map(json.loads, (folder / "cases.jsonl").read_text().splitlines()):
            lines = shown(judged(folder / case["file"])).splitlines()
            assert max(map(len, lines)) <= 80
            rows.append(len(lines))
    assert len(rows) > 150
    assert statistics.median(rows) <= 15 and max(rows) <= 25, sorted(rows)


def test_neighbours_of_the_deciding_line_take_one_row_each(judged: Judged) -> None:
    out = shown(judged(EVAL / "corpus" / "failures" / "inf-008.log"))
    (row,) = [line for line in out.splitlines() if " 155 " in line]
    assert "2023-06-02T06:31:23" in row and "…" in row
    assert out.index(" 155 ") < out.index("> 156 ") < out.index(" 157 ")


def test_a_line_that_several_quotes_are_near_comes_once(judged: Judged) -> None:
    verdict = judged(EVAL / "corpus" / "failures" / "inf-005.log")
    assert [one.line for one in verdict.evidence] == [151, 153]
    for whole in (False, True):
        numbers = re.findall(r"^│ (?:> )? *(?:> )?(\d+) ", shown(verdict, whole), re.M)
        assert {"151", "152", "153"} <= set(numbers) and len(numbers) == len(set(numbers))
    assert "lm loss: 7.481203E+00" in words(shown(verdict))  # the middle of a line of 300 characters


def test_the_root_of_a_chain_stands_beside_its_last_exception(judged: Judged, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(CHAIN)
    out = shown(judged(tmp_path / "a.log"))
    assert "> 9 [rank1]: ValueError: expected sequence of length 70" in words(out)
    assert "last > 16 [rank1]: ValueError: Unable to create tensor" in words(out)


def test_a_cause_that_a_rule_found_further_out_has_the_root_beside_it(judged: Judged) -> None:
    out = words(shown(judged(EVAL / "corpus" / "failures" / "usr-077.log")))
    assert "last > 220 " in out or "root > " in out


def test_the_file_of_each_quote_is_named_in_the_verdict_on_a_folder(judged: Judged, tmp_path: Path) -> None:
    (tmp_path / "rank_0.log").write_text("step 1\nKeyError: 'prompt_len'\n")
    (tmp_path / "rank_1.log").write_text("step 1\nstep 2\n")
    out = shown(judged(tmp_path), columns=200)
    assert str(tmp_path / "rank_0.log") in out and str(tmp_path / "rank_1.log") not in out


def test_the_node_is_cordoned_only_when_it_is_named(judged: Judged, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("step 1\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    out = words(shown(judged(log)))
    assert "find the faulty node" in out and "Once the node is found, cordon it" in out
    assert "Cordon the node" not in out
    log.write_text("step 1\ngpu-a07: RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    assert "next step Cordon the node and" in words(shown(judged(log)))


@pytest.mark.parametrize(
    ("content", "title", "why"),
    [
        (b"", "Empty log", "The log is empty."),
        (b"\x7fELF\x02\x01\x01" + bytes(range(128, 256)) * 40, "Binary file, no log", "binary, not text"),
        (
            b"\x89PNG\r\n\x1a\n" + b"\x00\x01\x02\x8f" * 90 + b"\nKeyError: \x01\x02\x03\n" + b"\x00\xff" * 50,
            "Binary",
            "",
        ),
    ],
)
def test_what_is_no_log_is_called_that(
    scanner: Scanner, limits: ReadLimits, tmp_path: Path, content: bytes, title: str, why: str
) -> None:
    from logdoctor.diagnose.ending import FAILED, NOTHING

    (tmp_path / "a.log").write_bytes(content)
    for reported in (NOTHING, FAILED):
        verdict = pipeline.diagnose(attempts(tmp_path / "a.log")[0].streams, scanner, limits, reported)
        out = shown(verdict)
        assert out.startswith(f"╭─ {title}") and why.rstrip(".").lower()[-12:] in words(out).lower()
        assert "Look at the quoted lines" not in words(out)


def test_a_log_that_is_torn_at_its_end_is_a_log(judged: Judged, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"step 1\nKeyError: 'a'\n" + bytes(5000))
    assert judged(tmp_path / "a.log").reason == "Key Error"


def test_each_other_error_has_its_reason_not_to_be_the_cause(judged: Judged) -> None:
    verdict = judged(EVAL / "corpus" / "failures" / "inf-028.log")
    against = {one.reason: one.why for one in verdict.symptoms}
    assert against["CUDA Error"] == "ECC Error leads to it"
    assert against["ECC Error"] == "it is the same failure, said again"
    assert against["NCCL Timeout Error"] == "it usually follows from another failure"
    assert not verdict.alternatives
    other = judged(EVAL / "corpus" / "failures" / "inf-033.log")
    later = "it came later than line 141, which names a cause, too"
    assert {one.reason: one.why for one in other.symptoms}["Out of Memory Error"] == later
    assert other.alternatives[0].why == f"Line 190 is evidence for it, but {later}."


def test_in_python_no_failure_is_none() -> None:
    verdict = logdoctor.diagnose(EVAL / "corpus" / "healthy" / "ok-002.log")
    assert (verdict.reason, verdict.category, verdict.outcome) == (None, None, "completed")
    assert str(verdict).startswith("╭─ Completed") and "Completed" in verdict._repr_html_()
    assert "None" not in str(verdict)
