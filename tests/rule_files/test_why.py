"""What rules do to a line, learned ones of every status included."""

import time
from pathlib import Path

import pytest

from logdoctor.learning.files.why import Said, why_learned
from logdoctor.rules.scanner import Scanner
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.store.learning.refusals import Refused
from tests.rule_files.learned import HEARTBEAT, KIND, SHARD, active, entered, new, opened

LINE = SHARD.examples[0]
BEAT = HEARTBEAT.examples[0]


@pytest.fixture
def rules(tmp_path: Path) -> LearnedRules:
    return opened(tmp_path / "data")


def said(scanner: Scanner, rules: LearnedRules, line: str) -> list[str]:
    """What is said of a line of the one kind that has rules."""
    (one,) = why_learned(scanner, rules.list(), line)
    assert one.kind == KIND
    return one.findings


def test_each_status_has_its_words(scanner: Scanner, rules: LearnedRules) -> None:
    (rule,) = entered(rules)
    kept = ["kept       the line is kept for diagnosis", "because    none of the rules that match it may remove it"]
    assert said(scanner, rules, LINE) == [
        f"would take {rule.id}: it is in shadow, where it counts lines but removes none",
        *kept,
    ]
    rules.approve(rule.id, "user-17", "", 2.0)
    assert said(scanner, rules, LINE) == [f"taken by   {rule.id}"]
    assert said(scanner, rules, f"[rank3]: {LINE}") == [f"taken by   {rule.id}"], "prefixes do not matter"
    rules.retire(rule.id, "user-17", "", 3.0)
    assert said(scanner, rules, LINE) == [f"in vain    {rule.id}: it is retired", *kept]


def test_a_line_that_looks_like_trouble_waits_for_a_human(scanner: Scanner, rules: LearnedRules) -> None:
    (rule,) = entered(rules, HEARTBEAT)
    assert said(scanner, rules, BEAT)[1] == f"in vain    {rule.id}: it is waiting for approval ({rule.waits_for})"
    rules.approve(rule.id, "user-17", "", 2.0)
    rules.approve(rule.id, "user-17", "", 3.0)
    assert said(scanner, rules, BEAT)[-1] == f"taken by   {rule.id}"


def test_a_mark_holds_back_a_rule_that_nobody_approved_for_it(scanner: Scanner, rules: LearnedRules) -> None:
    rule = active(rules, new(pattern="^retrying lost heartbeat [0-9]+ of [0-9]+$", examples=(BEAT,)))
    assert f"in vain    {rule.id}: the line looks like an error, and the rule is not approved for such lines" in said(
        scanner, rules, BEAT
    )


def test_evidence_wins(scanner: Scanner, rules: LearnedRules) -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4182, name=python, GPU has fallen off the bus."
    pattern = r"^NVRM: Xid \(PCI:[0-9a-f:]+\): [0-9]+, pid=[0-9]+, name=python, GPU has fallen off the bus\.$"
    rule = active(rules, new(pattern=pattern, examples=(line,)))
    found = said(scanner, rules, line)
    assert found[0].startswith("evidence   diagnosis/")
    assert f"in vain    {rule.id}: the line is evidence, which is never removed" in found
    assert found[-1] == "because    it is evidence, which no filter rule may remove"


def test_shipped_rules_and_older_ones_take_lines_first(scanner: Scanner, rules: LearnedRules) -> None:
    shipped = "[rank0]: NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>"
    assert any("taken by   filter/" in finding for one in why_learned(scanner, [], shipped) for finding in one.findings)
    one = active(rules, new(pattern="^NCCL INFO Bootstrap : Using eth[0-9]:[0-9.]+<[0-9]>$", examples=(shipped,)))
    found = said(scanner, rules, shipped)
    assert found[-1] == f"in vain    {one.id}: another rule removes the line first"
    first, second = active(rules), active(rules, new(pattern=SHARD.pattern.replace("a-z", "a-y")))
    assert said(scanner, rules, LINE) == [
        f"taken by   {first.id}",
        f"in vain    {second.id}: another rule removes the line first",
    ]


def test_each_kind_is_told_apart(scanner: Scanner, rules: LearnedRules) -> None:
    here, there = active(rules), active(rules, new(kind="nemo/train.py"))
    assert why_learned(scanner, rules.list(), LINE) == [
        Said(KIND, [f"taken by   {here.id}"]),
        Said("nemo/train.py", [f"taken by   {there.id}"]),
    ]


@pytest.mark.parametrize("line", ["never seen before", "\N{REPLACEMENT CHARACTER} \x1b[31m", "x" * 100_000])
def test_a_line_that_no_rule_matches(scanner: Scanner, rules: LearnedRules, line: str) -> None:
    active(rules)
    (one,) = why_learned(scanner, rules.list(), line)
    assert one.kind == "" and one.findings[-2:] == [
        "kept       the line is kept for diagnosis",
        "because    no rule matches it",
    ]


def test_many_rules_are_not_compiled_for_one_line(scanner: Scanner, rules: LearnedRules) -> None:
    entered(rules, *(new(pattern=f"^stage {'abcdefghij'[n % 10] * 4}{n} took [0-9]+ ms$") for n in range(1500)))
    every = rules.list()
    begin = time.process_time()
    (one,) = why_learned(scanner, every, "stage aaaa10 took 12 ms")
    assert len(one.findings) == 3 and one.findings[0].startswith("would take")
    assert time.process_time() - begin < 5, "each of them was compiled"


def test_it_is_said_which_step_refused_a_rule_for_a_line(scanner: Scanner, rules: LearnedRules) -> None:
    line = "wandering over 17 hills"
    refused = Refused(r"^wandering[ \t]+[^\t]+$", "field", "any text may follow")
    others = [Refused(r"^wandering over \d+ hills$", "vote", "1 of 5 runs agree"), Refused("^(((", "grammar", "odd")]
    rules.refusals.add(KIND, "job-1", 1, "miner", [refused, *others, refused], 1.0)
    (one,) = why_learned(scanner, rules.list(), line, rules.refusals.list())
    assert one.findings == [
        "kept       the line is kept for diagnosis",
        "because    no rule matches it",
        "refused    field: any text may follow (2 times)",
        "refused    vote: 1 of 5 runs agree (once)",
    ]
    (one,) = why_learned(scanner, rules.list(), "nothing like it", rules.refusals.list())
    assert one.findings[-1].startswith("unlearned  no proposal matches it")
    (one,) = why_learned(
        scanner, rules.list(), "torch.cuda.OutOfMemoryError: CUDA out of memory.", rules.refusals.list()
    )
    assert not any(finding.startswith(("refused", "unlearned")) for finding in one.findings), "it is evidence"
