"""Lines that somebody pastes: what is said of them is what `why` says, for as long as there is time."""

import msgspec
import pytest

from logdoctor.learning.files.trial import tried, verdict
from logdoctor.learning.files.why import LineFinding, finding, why_learned
from logdoctor.rules.scanner import Scanner
from logdoctor.store.learning.learned import Learned, Source, StoredClaim
from logdoctor.store.learning.refusals import Votes
from logdoctor.store.learning.rule_rows import DIAGNOSIS
from tests.web.test_pages import HOSTILE

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4182, name=python, GPU has fallen off the bus."


def learned(pattern: str, status: str = "active", kind: str = DIAGNOSIS, id: str = "learned/diagnosis/1") -> Learned:
    """A rule as it is stored."""
    claim = StoredClaim("Runtime Error", recovery="fix_first") if kind == DIAGNOSIS else None
    said = (pattern, "a title", ("x",), (), False, status, "", "miner", Source("j", 1), Votes(0, (), ""))
    return Learned(id, 0, kind, *said, 0, 0, 0, 1.0, 1.0, claim)


def test_sentences_are_taken_apart() -> None:
    assert finding("taken by   filter/a/b") == LineFinding("taken by", "filter/a/b", "")
    assert finding("in vain    learned/x/1: it is in shadow: no") == LineFinding(
        "in vain", "learned/x/1", "it is in shadow: no"
    )
    assert finding("kept       the line stays: here") == LineFinding("kept", "", "the line stays: here")


@pytest.mark.parametrize(
    "line", [XID, "hello", "RuntimeError: x", HOSTILE, "", "iteration 3/ 9 | elapsed time per iteration (ms): 3"]
)
def test_all_that_why_says_is_told(scanner: Scanner, line: str) -> None:
    rules = [learned("^RuntimeError: [a-z]$"), learned("^hel+o$", kind="k", id="learned/k/1")]
    (one,) = tried(scanner, rules, [line], 20.0)
    assert one.explained is not None
    said = why_learned(scanner, rules, line)
    assert [(group.kind, len(group.findings)) for group in one.explained] == [
        (one.kind, len(one.findings)) for one in said
    ]
    for group, told in zip(one.explained, said, strict=True):
        for found, sentence in zip(group.findings, told.findings, strict=True):
            assert sentence.startswith(found.word) and found.rule in sentence and found.text in sentence


def test_captures_stand_apart(scanner: Scanner) -> None:
    (one,) = tried(scanner, [], [XID], 20.0)
    assert one.explained is not None
    (group,) = one.explained
    assert group.captured["diagnosis/infrastructure/xid-kernel"] == {"pci": "0000:3b:00", "xid": "79"}
    assert (
        LineFinding("evidence", "diagnosis/infrastructure/xid-kernel", "cause of CUDA Error, by table xid")
        in group.findings
    )


def test_the_first_line_is_always_looked_at(scanner: Scanner) -> None:
    found = tried(scanner, [], ["a", "b", "c"], 0.0)
    assert [one.explained is None for one in found] == [False, True, True]


def test_the_verdict_on_lines(scanner: Scanner) -> None:
    assert verdict(scanner, [], ["hello", XID]).reason == "CUDA Error"
    assert verdict(scanner, [], ["hello", XID]).evidence[0].line == 2
    assert verdict(scanner, [], [HOSTILE, "", "\n"]).decided_by.kind != "rule"


def test_only_active_rules_decide(scanner: Scanner) -> None:
    line = "RuntimeError: buckets differ on rank 3"
    rule = learned("^RuntimeError: buckets differ on rank [0-9]+")
    said = verdict(scanner, [rule], [line])
    assert (said.reason, said.recovery, said.decided_by.rule) == ("Runtime Error", "fix_first", rule.id)
    for status in ("shadow", "proposed", "retired"):
        assert verdict(scanner, [msgspec.structs.replace(rule, status=status)], [line]).decided_by.rule != rule.id


@pytest.mark.parametrize(
    "pattern", ["^RuntimeError: buckets differ$", "^RuntimeError: (?:buckets|ranks) differ", "(?i)runtimeerror"]
)
def test_a_diagnosis_rule_is_found_with_or_without_literals(scanner: Scanner, pattern: str) -> None:
    said = why_learned(scanner, [learned(pattern)], "[rank3]: RuntimeError: buckets differ")
    assert [one.kind for one in said] == ["", DIAGNOSIS]
    assert [one.kind for one in why_learned(scanner, [learned(pattern)], "KeyError: x")] == [""]
    assert [one.kind for one in why_learned(scanner, [learned("^(((")], "RuntimeError")] == [""]
