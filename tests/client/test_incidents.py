"""`logdoctor incidents` through a service."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from logdoctor.cli.client.connection import Connection
from logdoctor.cli.client.incidents import ServedIncidents
from logdoctor.store.incidents.table import WantedIncidents
from logdoctor.store.jobs.records import JobFacts, Records
from tests.client.conftest import ENGINEER, Twins
from tests.store.test_incidents import USER_CODE, publish, quoted, verdict
from tests.store.test_records import on
from tests.test_cli import assert_refused

NEWEST = 1_795_250_009.0


def fill(folder: Path) -> None:
    """1: gpu-12 in three attempts of two jobs; 2: a Key Error."""
    records = Records(f"sqlite:///{folder / 'logdoctor.db'}")
    for number in range(3):
        what = quoted("uncorrectable ECC error", suspects=on("gpu-12"))
        publish(records, f"llama-{number % 2}", number, what, 1_795_250_000.0 + number)
    records.put_job("llama-1", JobFacts(user="u17"), 1.0)
    publish(records, "bert", 1, verdict(USER_CODE, evidence=()), NEWEST, False)
    records.close()


@pytest.fixture
def pair(twins: Callable[..., Twins]) -> Twins:
    return twins(fill)


def test_the_same_is_listed(pair: Twins) -> None:
    assert "ECC Error  on gpu-12" in pair.same("incidents", "list").out
    for options, wanted in (
        ([], [2, 1]),
        (["--reason", "Key Error"], [2]),
        (["--node", "gpu-12"], [1]),
        (["--user", "u17"], [1]),
        (["--job", "bert"], [2]),
        (["--text", "UNCORRECTABLE gpu-12"], [1]),
        (["--state", "new"], [2, 1]),
        (["--state", "resolved"], []),
        (["--state", "all"], [2, 1]),
        (["-q", "node:gpu-* attempts:>1"], [1]),
        (["--query", "-job:bert is:all"], [1]),
        (["-q", "is:resolved", "--state", "new"], []),
    ):
        pair.same("incidents", "list", *options)
        told = pair.same("incidents", "list", "--json", *options).out.splitlines()
        assert [json.loads(line)["id"] for line in told] == wanted, options
    assert pair.same("incidents", "list", "--state", "resolved").out == "no incidents\n"
    assert pair.same("incidents", "list", "--state", "open").code == 2
    wrong = pair.both("incidents", "list", "-q", "nod:gpu-12")
    assert wrong.here.err == wrong.there.err
    assert_refused(wrong.there, "the term nod:gpu-12", "Did you mean node:?")


def test_the_same_is_shown(pair: Twins) -> None:
    pair.same("incidents", "acknowledge", 1, "--note", "draining")
    for number, words in (
        (1, ("acknowledged  ECC Error  on gpu-12", "cordon the node", "Cordon the node.", "by engineer: draining")),
        (1, ("llama-0/2  verdict 3", "joined llama-1/1", "opened llama-0/0")),
        (2, ("verdict 4, provisional",)),
    ):
        shown = pair.same("incidents", "show", number).out
        assert all(word in shown for word in words), shown
    told = json.loads(pair.same("incidents", "show", 1, "--json").out)
    assert (told["id"], told["attempts"]) == (1, 3)
    found = pair.both("incidents", "show", 99)
    assert found.here.err == found.there.err
    assert_refused(found.there, "incident 99", "does not exist")
    for number in ("0", "x"):
        assert pair.same("incidents", "show", number).code == 2


def test_the_same_is_handed_over(pair: Twins) -> None:
    told = pair.same("incidents", "handover", 1).out
    assert told.startswith("Incident 1 (new): ") and "ECC Error" in told and told.count("\n\n") == 1
    assert "\n#SBATCH --exclude=gpu-12\n" in told and "values: [gpu-12]" in told
    assert pair.service.incidents.one(1) is not None
    assert "exclude" not in pair.same("incidents", "handover", 2).out, "no node is suspected"
    assert_refused(pair.both("incidents", "handover", 99).there, "incident 99", "does not exist")


def test_the_same_steps_are_taken(pair: Twins) -> None:
    assert pair.same("incidents", "acknowledge", 1, "--note", "draining").out == "incident 1: acknowledged\n"
    again = pair.both("incidents", "acknowledge", 1)
    assert_refused(again.here, f"{ENGINEER} acknowledged it at")
    assert_refused(again.there, f"{ENGINEER} acknowledged it at")
    pair.same("incidents", "show", 1)
    assert pair.same("incidents", "resolve", 1).out == "incident 1: resolved\n"
    assert "ECC" not in pair.same("incidents", "list").out
    assert "ECC" in pair.same("incidents", "list", "--state", "resolved").out
    assert pair.same("incidents", "reopen", 1, "--note", "it is back").code == 0
    unknown = pair.both("incidents", "resolve", 99)
    assert unknown.here.code == unknown.there.code == 2 and "incident 99 does not exist" in unknown.there.err


def test_who_acts_is_whose_token_it_is(pair: Twins) -> None:
    ran = pair.there("incidents", "acknowledge", 1, "--by", "somebody-else")
    assert ran.code == 2 and "--by is for a data folder" in ran.err
    one = pair.service.incidents.one(1)
    assert one is not None and one.state == "new"


def test_a_token_does_what_its_scopes_allow(pair: Twins) -> None:
    reader = pair.secret("read")
    assert pair.there("incidents", "show", 1, token=reader).code == 0
    assert_refused(pair.there("incidents", "resolve", 1, token=reader), "does not allow 'operate'", "another token")
    sender = pair.secret("ingest")
    assert_refused(pair.there("incidents", "list", token=sender), "does not allow 'read'")
    bound = pair.secret("read", "operate", prefixes=("bert",))
    assert "ECC" not in pair.there("incidents", "list", token=bound).out
    assert_refused(pair.there("incidents", "show", 1, token=bound), "incident 1", "does not exist")


def test_a_list_goes_on_with_its_next_page(pair: Twins) -> None:
    found = ServedIncidents(Connection(pair.url, pair.token))
    first = found.search(WantedIncidents(states=()), None, 1)
    second = found.search(WantedIncidents(states=()), first.next, 1)
    assert [one.id for one in (*first.items, *second.items)] == [2, 1] and second.next is None
    assert second.items == pair.service.incidents.search(WantedIncidents(states=()), first.next, 1).items


def test_the_same_work_is_done(pair: Twins) -> None:
    assert pair.same("incidents", "assign", 1).out == f"incident 1: new, with {ENGINEER}\n"
    assert pair.same("incidents", "assign", 1, "anna", "--note", "she knows it").out == "incident 1: new, with anna\n"
    assert pair.same("incidents", "snooze", 1, "--for", "8h", "--more", 5).out.endswith("with anna, snoozed\n")
    pair.same("incidents", "show", 1)
    assert "ECC" not in pair.same("incidents", "list", "--quiet", "hide").out
    assert "ECC" in pair.same("incidents", "list", "--quiet", "only", "--assignee", "anna").out
    pair.same("incidents", "wake", 1)
    assert_refused(pair.both("incidents", "wake", 1).there, "incident 1 is not snoozed")
    pair.same("incidents", "comment", 1, "seen before")
    pair.same("incidents", "assign", 1, "--nobody")
    pair.same("incidents", "list", "--order", "severity")
    shown = pair.same("incidents", "show", 1).out
    assert "commented by engineer: seen before" in shown


def test_the_same_is_muted(pair: Twins) -> None:
    assert pair.same("incidents", "mutes").out == "nothing is muted\n"
    said = pair.same("incidents", "mute", "node", "gpu-12", "--for", "2d", "--why", "in repair").out
    assert said.startswith("mute 1: node gpu-12, until ") and said.endswith("by engineer: in repair\n")
    assert "muted" in pair.same("incidents", "list").out
    pair.same("incidents", "mutes")
    assert "lifted by engineer" in pair.same("incidents", "unmute", 1).out
    assert "does not exist" in pair.both("incidents", "unmute", 9).there.err
    pair.same("incidents", "mutes", "--all")


def test_what_is_no_span_is_refused(pair: Twins) -> None:
    for words in (("snooze", 1), ("snooze", 1, "--for", "soon"), ("assign", 1, "a", "--nobody")):
        assert pair.here("incidents", *words).code == 2
