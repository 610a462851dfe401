"""Quotes are checked against what was shown and against the log."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logdoctor.compress.whole_log import WholeLog as RealLog
from logdoctor.failure_agent.brief import Pages, Shown, shortened
from logdoctor.failure_agent.forms import Candidate, Findings, Quote, named
from logdoctor.failure_agent.grounding import complaint, ground, line_of
from logdoctor.llm.masking import Masker, mask
from logdoctor.taxonomy import REASONS
from logdoctor.text import decode
from logdoctor.types import Line, Record
from tests.failure_agent.conftest import Ask, WholeLog
from tests.soak import SOAKING

TEXTS = {
    (0, 3): "[rank1]: step 3 is made",
    (0, 10): "gpu-17 kernel: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus",
    (0, 12): "RuntimeError: NCCL communicator was aborted",
    (0, 40): "RuntimeError: NCCL communicator was aborted",
    (1, 7): "ERROR login password=hunter2secret\tfailed   twice",
}
SHOWN = {
    (stream, number): Shown(stream, f"s{stream}", number, text, mask(text)) for (stream, number), text in TEXTS.items()
}
XID = "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen"


def found(line: str, text: str) -> tuple[int, int] | None:
    taken = line_of(Quote(line, text), SHOWN)
    return taken and (taken.stream, taken.number)


def test_a_part_of_the_line_that_was_named_stands() -> None:
    for handle in ("0:10", "[0:10]", " 0 : 10 ", "line 0:10"):
        assert found(handle, XID) == (0, 10)
    assert found("0:10", f"[0:10] {XID}...") == (0, 10)
    assert found("1:7", "ERROR login password=<secret> failed twice") == (1, 7)  # as it was shown: masked


def test_a_number_that_is_wrong_by_a_little_is_mended_where_the_text_is_unique() -> None:
    assert found("0:11", XID) == (0, 10)
    assert found("0:400", XID) is None  # by too much
    assert found("1:10", XID) is None  # another stream
    assert found("0:13", "RuntimeError: NCCL communicator was aborted") == (0, 12)  # stands twice: the nearer one
    assert found("0:5", "step 3") is None  # too short to tell


def test_what_does_not_stand_there_is_none() -> None:
    assert found("0:10", "GPU has fallen off the table") is None
    assert found("0:12", XID + " off the bus and more") is None
    assert found("7:7", XID) is None
    assert found("", XID) is None and found("stream:number", XID) is None and found("0:" + "9" * 50, XID) is None
    assert found("0:10", "") is None and found("0:10", "79") is None and found("0:10", "(((((((((") is None
    assert found("1:7", "hunter2secret") is None  # never shown
    assert found("0:10", "x" * 300_000) is None


def test_a_number_alone_is_of_the_only_stream() -> None:
    assert line_of(Quote("10", XID), SHOWN) is None
    assert line_of(Quote("10", XID), {(0, 10): SHOWN[0, 10]}) == SHOWN[0, 10]


def candidate(reason: str, *quotes: tuple[str, str], **given: str) -> Candidate:
    return Candidate(reason, [Quote(*quote) for quote in quotes], **given)


def test_claims_without_a_quote_that_stands_or_of_no_reason_are_dropped() -> None:
    findings = Findings(
        [
            candidate("Gremlin Error", ("0:10", XID)),
            candidate("ECC Error", ("0:10", "uncorrectable ECC error")),
            candidate("cuda error", ("0:10", XID), ("0:10", "made up by me"), ("0:11", XID)),
            candidate("Unknown", ("0:10", XID)),
        ]
    )
    (one,) = ground(findings, SHOWN, None)
    assert (one.order, one.reason, one.failed) == (2, "CUDA Error", 1)
    assert [(line.stream, line.number) for line in one.lines] == [(0, 10)]


def test_only_the_first_candidates_and_quotes_are_looked_at() -> None:
    many = Findings([candidate("Key Error", ("0:1", "nothing of it"))] * 500 + [candidate("CUDA Error", ("0:10", XID))])
    assert ground(many, SHOWN, None) == []
    long = Findings([candidate("CUDA Error", *[("0:1", "nothing of it")] * 500, ("0:10", XID))])
    assert ground(long, SHOWN, None) == []


def test_a_line_must_still_stand_in_the_log() -> None:
    findings = Findings([candidate("CUDA Error", ("0:10", XID))])
    same = WholeLog({"s0": "\n" * 9 + TEXTS[0, 10] + "\r"})
    assert ground(findings, SHOWN, same)
    assert not ground(findings, SHOWN, WholeLog({"s0": "\n" * 9 + "something else"}))
    assert ground(findings, SHOWN, WholeLog({"s0": ""}))  # no longer kept: the record is what there is


def test_copies_differ_in_what_copying_changes() -> None:
    raw = "ld: cannot open \u2018/srv/a.so\u2019: " + r"C:\temp said {\"code\": 7}\nand more"
    place = {(0, 1): Shown(0, "main", 1, raw, raw)}
    for text in (
        "cannot open '/srv/a.so'",
        r"C:\temp said {\"code\"",
        'said {"code": 7}',
        "7}\nand more",
        r"7}\nand more",
    ):
        assert line_of(Quote("0:1", text), place), text
    for text in ("open '/srv/a.so'... temp said", "ld: cannot … code", "... open '/srv"):
        assert line_of(Quote("0:1", text), place), text
    for text in (
        "temp said ... ld: cannot",
        "l ... d ... c ... a",
        "a ... b",
        "\\n\\n\\n\\n\\n\\n",
        "\\n\\n\\n\\n\\na",
        "open it: C:",
    ):
        assert line_of(Quote("0:1", text), place) is None, text
    for handle in ("0:1-0:3", "stream 0:1", "[0:1]: ld", "0:1, 0:2"):
        assert line_of(Quote(handle, "ld: cannot open"), place), handle


CORPUS = sorted((Path(__file__).parents[2] / "eval" / "corpus").rglob("*.log"))
PREFIXES = (
    "", "[rank3]: ", "[default0]:", "12: ", "[1,7]<stderr>:", "gpu-17: ", "2024-03-02 11:40:02 ERROR ",
    "(Worker pid=7) ",
    "\x1b[36m(RayTrainWorker pid=41, ip=10.0.0.7)\x1b[0m ", "\x1b[1;36m(EngineCore_0 pid=9)\x1b[0;0m ",
    "  3%|#   | 3/99 [00:01<00:09]\r  4%|#   | 4/99 [00:02<00:08]\r", "x" * 9000 + "\r", "\x1b[31m" * 2000, "\x00",
)  # fmt: skip
"""What may stand before what a program printed."""


@cache
def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")


@pytest.mark.more_in_soak
@settings(max_examples=2000 if SOAKING else 300)
@given(data=st.data())
def test_property_any_part_of_any_line_may_be_quoted(ask: Ask, data: st.DataObject) -> None:
    lines = lines_of(data.draw(st.sampled_from(CORPUS)))
    raw = data.draw(st.sampled_from(PREFIXES)).encode() + data.draw(st.sampled_from(lines))
    log = b"\n".join([b"first", raw, raw, b"last on wn061"])
    masker = Masker(hosts=True, ips=True)
    record = Record("main", "main.log", [Line(2, decode(raw[-8192:])), Line(3, decode(raw[-8192:]))])
    pages = Pages(ask(records=[record]), masker.mask)
    shown = {(0, n): line for n in (2, 3) if (line := pages.line(0, n)) is not None}
    number = data.draw(st.sampled_from([2, 3]))
    text = shown[0, number].text if shown else ""
    begin = data.draw(st.integers(0, len(text)))
    part = text[begin : data.draw(st.integers(begin, len(text)))]
    if sum(map(str.isalpha, part)) < 6:
        return
    masker.mask(f"node={data.draw(st.sampled_from([*part.split(), 'wn061']))} is down")  # a later line gave a host away
    real = RealLog({"main": lambda: iter([log])})
    for copied in (part, f"[0:{number}] {part}", f"{part}...", f" {part}\n", shortened(part, 40)):
        findings = Findings([candidate("OS Error", (f"0:{number}", copied))])
        assert ground(findings, shown, real, masker), (part, complaint(findings, shown, real, masker))
    sent = masker.mask_rest(text)
    assert ground(Findings([candidate("OS Error", (f"0:{number}", sent[-200:]))]), shown, real, masker), sent


def test_what_is_wrong_is_named_to_the_model_in_few_words() -> None:
    assert complaint(Findings([]), SHOWN, None) == ""
    assert complaint(Findings([candidate("unknown")]), SHOWN, None) == ""
    assert complaint(Findings([candidate("CUDA Error", ("0:10", XID))]), SHOWN, None) == ""
    assert '"Gremlin Error", which is not in the list' in complaint(Findings([candidate("Gremlin Error")]), SHOWN, None)
    assert "quotes no line" in complaint(Findings([candidate("Key Error")]), SHOWN, None)
    made_up = [("0:10", "made up\n" * 10_000 + "é"), ("0" * 9000, "b")] * 9
    said = complaint(Findings([candidate("Key Error", *made_up)]), SHOWN, None)
    assert said.startswith('quotes what does not stand there: "made up made up') and len(said) <= 400
    assert f"```\n[0:10] {TEXTS[0, 10]}\n```\nCopy" in said  # as it is compared with, between fences
    said = complaint(Findings([candidate("Key Error", ("0:11", "made up"))]), SHOWN, None)
    assert "No such line was shown" in said
    assert len(complaint(Findings([candidate("\u202e" * 90_000)]), SHOWN, None)) <= 300


def test_words_are_taken_as_meant() -> None:
    assert named("KeyError", REASONS) == named(" key_error ", REASONS) == "Key Error"
    assert named("s3 storage error", REASONS) == "S3 Storage Error"
    assert named("Gremlin Error", REASONS) == named("", REASONS) == ""
    assert named("Isolate and restart", ["restart", "isolate_and_restart"]) == "isolate_and_restart"


@given(st.text(), st.text())
def test_nothing_that_a_model_writes_breaks_the_check(line: str, text: str) -> None:
    taken = line_of(Quote(line, text), SHOWN)
    assert taken is None or taken in SHOWN.values()
