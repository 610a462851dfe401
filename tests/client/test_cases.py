"""`logdoctor cases` through a service."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.confirmed import AGREEMENT, Cited, Confirmed
from tests.client.conftest import ENGINEER, Twins
from tests.test_cli import assert_refused
from tests.test_cli_cases import case
from tests.web.test_pages import changed

AT = 1_795_250_000.0


def fill(folder: Path) -> None:
    """1 to 3: an ECC Error, a Key Error that attempts agree on, one that was withdrawn; and three verdicts."""
    records = Records(f"sqlite:///{folder / 'logdoctor.db'}")
    confirmed = Confirmed(records.database)
    confirmed.add(case(evidence=(Cited("gpu-12", 126, "the raw line"),), comment="the third"), AT)
    confirmed.add(case("k", reason="Key Error", by=AGREEMENT, fix=""), AT + 1)
    confirmed.withdraw(confirmed.add(case("l"), AT + 2).id, "ops", "it was the cable", AT + 3)
    for job, verdict in (("one", changed()), ("two", changed()), ("fine", changed(outcome="completed", reason="None"))):
        records.open_attempt(job, 1, AT)
        records.publish(job, 1, verdict, True, AT)
        records.settle(job, 1)
    records.close()


@pytest.fixture
def pair(twins: Callable[..., Twins]) -> Twins:
    return twins(fill)


def test_the_same_is_listed_and_shown(pair: Twins) -> None:
    for options, wanted in (([], [2, 1]), (["--withdrawn"], [3, 2, 1]), (["--reason", "ECC Error"], [1])):
        pair.same("cases", "list", *options)
        told = pair.same("cases", "list", *options, "--json").out.splitlines()
        assert [json.loads(line)["id"] for line in told] == wanted
    assert pair.same("cases", "list", "--reason", "Hang").out == "no cases\n"
    out = pair.same("cases", "list").out
    assert out.index("Key Error") < out.index("ECC Error") and "fixed by: board returned" in out and "l/1" not in out
    assert "attempts that agree" in out and "withdrawn" in pair.same("cases", "list", "--withdrawn").out
    shown = [pair.same("cases", "show", number).out for number in (1, 2, 3)]
    for words in ("case 1: ECC Error", "cordon the node", "board returned", "the third", "gpu-12:126 the raw line"):
        assert words in shown[0], words
    assert "case 2: " in shown[1] and "ops: it was the cable" in shown[2]
    told = json.loads(pair.same("cases", "show", 1, "--json").out)
    assert (told["id"], told["by"]) == (1, "user-17")
    found = pair.both("cases", "show", 99)
    assert_refused(found.here, "99", "does not exist")
    assert_refused(found.there, "99", "does not exist", "List the cases.")


def test_the_same_is_confirmed_corrected_and_withdrawn(pair: Twins) -> None:
    assert "case 4: ECC Error" in pair.same("cases", "confirm", "one/1", "--fix", "board returned").out
    correct = ["cases", "correct", "2", "--reason", "key error", "--suggestion", "rename it", "--comment", "c"]
    evidence = pair.service.records.current("two", 1)
    assert evidence is not None
    cited = evidence.verdict.evidence[0]
    assert "case 5: Key Error" in pair.same(*correct, "--line", f"{cited.stream}:{cited.line}").out
    entered = pair.service.casework.confirmed.one(5)
    assert (entered.by, entered.suggestion, entered.comment) == (ENGINEER, "rename it", "c")
    pair.same("cases", "show", 5)
    assert pair.same("cases", "withdraw", 5, "--why", "no").out == "case 5 no longer decides anything\n"
    pair.same("cases", "list", "--withdrawn")
    again = pair.both("cases", "withdraw", 5)
    assert again.here.err == again.there.err
    assert_refused(again.there, "already withdrawn")


def test_what_cannot_be_said(pair: Twins) -> None:
    for command, words in (
        (["confirm", "99"], "does not exist"),
        (["confirm", "none/1"], "does not exist"),
        (["confirm", "fine/1"], "not failed"),
        (["correct", "one/1", "--reason", "Key Error", "--line", "main:7"], "is not in one/1"),
        (["correct", "one/1", "--reason", "Key Error", "--line", "../../x:7"], "is not in one/1"),
        (["withdraw", "99"], "does not exist"),
    ):
        found = pair.both("cases", *command)
        assert_refused(found.here, words)
        assert_refused(found.there, words)
    for command in (
        ["confirm", "x"],
        ["confirm", "one/x"],
        ["correct", "one/1"],
        ["correct", "one/1", "--reason", "Bad Luck"],
        ["correct", "one/1", "--reason", "Key Error", "--recovery", "pray"],
        ["correct", "one/1", "--reason", "Key Error", "--line", "7"],
        ["show", "x"],
        ["withdraw", "0"],
    ):
        assert pair.same("cases", *command).code == 2
    bound = pair.secret("read", "operate", prefixes=("one",))
    assert_refused(pair.there("cases", "confirm", "one/1", token=bound), "failures of all jobs")
    assert_refused(pair.there("cases", "confirm", 2, token=bound), "verdict 2", "does not exist")


def test_the_index_is_rebuilt_where_it_lies(pair: Twins) -> None:
    ran = pair.there("cases", "reindex", "--url", pair.url)
    assert ran.code == 2 and "takes no --url: it works on the data folder" in ran.err
