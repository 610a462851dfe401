"""Quotes are checked against what was shown and against the log."""

from hypothesis import given
from hypothesis import strategies as st

from logdoctor.failure_agent.brief import Shown
from logdoctor.failure_agent.forms import Candidate, Findings, Quote, named
from logdoctor.failure_agent.grounding import complaint, ground, line_of
from logdoctor.llm.masking import mask
from logdoctor.taxonomy import REASONS
from tests.failure_agent.conftest import WholeLog

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
    assert found("0:13", "RuntimeError: NCCL communicator was aborted") is None  # stands twice
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


def test_what_is_wrong_is_named_to_the_model_in_few_words() -> None:
    assert complaint(Findings([]), SHOWN, None) == ""
    assert complaint(Findings([candidate("unknown")]), SHOWN, None) == ""
    assert complaint(Findings([candidate("CUDA Error", ("0:10", XID))]), SHOWN, None) == ""
    assert '"Gremlin Error", which is not in the list' in complaint(Findings([candidate("Gremlin Error")]), SHOWN, None)
    assert "quotes no line" in complaint(Findings([candidate("Key Error")]), SHOWN, None)
    made_up = [("0:10", "made up\n" * 10_000 + "é"), ("0" * 9000, "b")] * 9
    said = complaint(Findings([candidate("Key Error", *made_up)]), SHOWN, None)
    assert said.startswith('quotes what does not stand there: "made up made up') and said.isascii() and len(said) <= 300
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
