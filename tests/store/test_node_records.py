"""Tests, cordons and actions stay on record with who did what, nothing twice, and the audit cannot be changed."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from logdoctor.errors import ActionRefused, CordonRefused, CursorError, InputError, NodeTestRefused, StoreError
from logdoctor.store import schema
from logdoctor.store.jobs.records import Records
from logdoctor.store.nodes.records import NodeRecords, OpenCordons, StoredTest
from logdoctor.types import Suspect
from logdoctor.types.nodes import Action, Conclusion, Finding, LinkFault, Node, Reading, Result, World
from tests.at_once import at_once
from tests.store.conftest import on_both
from tests.verdicts import ecc

NODES = (Node("gpu-1", "10.0.0.1", "rack-1", "H100"), Node("gpu-2"), Node("gpu-3"))
CORDON = Action("cordon", ("gpu-2",), "ask", "The test found it faulty", verdict=7, test=3)


@pytest.fixture
def opened(url: str) -> Iterator[Records]:
    records = Records(url)
    yield records
    records.close()


@pytest.fixture
def records(opened: Records) -> NodeRecords:
    return NodeRecords(opened.database)


def begin(records: NodeRecords, nodes: tuple[Node, ...] = NODES, at: float = 5.0) -> int:
    return records.begin_test("local", nodes, {"repeats": 2}, "user-17", 7, at)


def result(number: int, *readings: Reading, **changes: Any) -> Result:
    return msgspec.structs.replace(
        Result(World(number, 1, ("gpu-1", "gpu-2"), "pair"), "passed", readings=readings), **changes
    )


def finding(node: str, standing: Any = "healthy", fault: str = "") -> Finding:
    return Finding(node, standing, "said why", (1, 2), ("gpu-1",), fault)


def convicted(records: NodeRecords, boot: str, at: float, fault: str = "wrong data") -> int:
    test = begin(records, at=at)
    records.add_result(test, result(1, Reading("gpu-2", False, boot=boot)))
    records.finish_test(test, Conclusion((finding("gpu-2", "faulty", fault),)), at + 1)
    return test


def failed(opened: Records, job: str, node: str | None, at: float, suggestion: str = "") -> int:
    suspects = (Suspect(node, None, None, "a line"),) if node else ()
    stored = opened.publish(job, 1, ecc(suggestion=suggestion, suspects=suspects), True, at)
    assert stored is not None
    return stored.id


def steps(records: NodeRecords, **which: Any) -> list[tuple[str, str]]:
    """What happened and by whom, in order."""
    return [(event.step, event.by) for event in reversed(records.audit(limit=500, **which).items)]


# tests


@on_both
def test_a_test_comes_back_as_it_was(records: NodeRecords, opened: Records) -> None:
    test = begin(records)
    running = NodeRecords(opened.database).test(test)
    assert running is not None and records.running() == [running]
    assert (running.nodes, running.options, running.verdict, running.state) == (NODES, {"repeats": 2}, 7, "running")
    assert (running.launcher, running.by, running.at, running.conclusion) == ("local", "user-17", 5.0, None)
    reading = Reading("gpu-1", True, "done", bandwidth={"1024": 1.5}, tflops=3.5, state=("Xid 63",), boot="b")
    records.add_result(test, result(2, ended="failed", why="wrong data"))
    records.add_result(test, result(1, reading))
    assert [one.world.number for one in records.results(test)] == [2, 1]  # as they ended
    assert records.results(test)[1] == result(1, reading)
    assert records.results(test, 1) == records.results(test)[1:] and records.results(test, 2) == []
    link = LinkFault(("gpu-1", "gpu-3"), "nodes", "cannot", (4,))
    conclusion = Conclusion((finding("gpu-1"), finding("gpu-2", "faulty", "wrong data")), (link,), 3, "gpu-3 is open")
    records.finish_test(test, conclusion, 9.0)
    finished = records.test(test)
    assert finished and (finished.state, finished.ended, finished.conclusion) == ("finished", 9.0, conclusion)
    assert records.running() == [] and records.test(test + 1) is None and records.test(-1) is None


@on_both
def test_what_follows_from_a_test_is_remembered(records: NodeRecords) -> None:
    finished, aborted, running = begin(records), begin(records), begin(records)
    records.finish_test(finished, Conclusion(()), 6.0)
    records.abort_test(aborted, "killed", 6.0, "user-18")
    assert records.unfollowed() == [finished, aborted]
    for test in (finished, running):
        records.follow_test(test)
    assert records.unfollowed() == [aborted], "one that runs is not followed yet"
    records.abort_test(running, "killed", 7.0)
    assert records.unfollowed() == [aborted, running]
    assert steps(records, test=aborted)[-1] == ("aborted", "user-18")


def test_a_test_begins_only_when_it_is_claimed(records: NodeRecords) -> None:
    claimed: list[tuple[int, list[int]]] = []

    def claim(id: int, running: list[StoredTest]) -> None:
        claimed.append((id, [test.id for test in running]))
        if running:
            raise ActionRefused("a test", "another one runs", "Wait.")

    test = records.begin_test("local", NODES, {}, "user-17", None, 5.0, claim)
    with pytest.raises(ActionRefused):
        records.begin_test("local", NODES, {}, "user-17", None, 5.0, claim)
    assert claimed == [(test, []), (test + 1, [test])]
    assert [one.id for one in records.tests().items] == [test] and steps(records) == [("begun", "user-17")]


def test_a_world_is_entered_once(records: NodeRecords) -> None:
    test = begin(records)
    records.add_result(test, result(1))
    records.add_result(test, result(1, ended="failed"))
    assert records.results(test) == [result(1)]


def test_an_ended_test_takes_nothing_more(records: NodeRecords) -> None:
    finished, aborted = begin(records), begin(records)
    records.finish_test(finished, Conclusion(()), 6.0)
    records.abort_test(aborted, "killed", 6.0)
    for test, state in ((finished, "finished"), (aborted, "aborted")):
        for call in (
            lambda test=test: records.add_result(test, result(1)),
            lambda test=test: records.finish_test(test, Conclusion(()), 7.0),
            lambda test=test: records.abort_test(test, "", 7.0),
        ):
            with pytest.raises(NodeTestRefused, match=state):
                call()
    with pytest.raises(NodeTestRefused, match="does not exist"):
        records.add_result(99, result(1))
    stored = records.test(aborted)
    assert stored and (stored.why, stored.ended, stored.conclusion) == ("killed", 6.0, None)


@pytest.mark.parametrize(
    "conclusion",
    [Conclusion((finding("gpu-9"),)), Conclusion((finding("gpu-1"), finding("gpu-1")))],
)
def test_a_conclusion_about_other_nodes_changes_nothing(records: NodeRecords, conclusion: Conclusion) -> None:
    test = begin(records)
    with pytest.raises(NodeTestRefused, match="does not test, or twice"):
        records.finish_test(test, conclusion, 6.0)
    assert [one.id for one in records.running()] == [test] and records.history("gpu-1").findings == ()


@pytest.mark.parametrize("name", ["", "a b", "-x", "a;rm -rf /", "$(x)", "a\n", "x" * 300, "\u7814", "a\0"])
def test_hostile_names_get_nowhere(records: NodeRecords, name: str) -> None:
    with pytest.raises(InputError):
        begin(records, (Node("gpu-1"), Node(name)))
    with pytest.raises(InputError):
        records.want_cordon(name, "file", "user-17", 5.0, "why")
    with pytest.raises(InputError):
        records.propose(Action("cordon", (name,), "ask", "why"), None, None, 5.0)
    assert records.audit().items == [] and records.tests().items == [] and records.history(name).cordons == ()


def test_what_cannot_be_tested_is_refused(records: NodeRecords) -> None:
    for nodes in ((), (Node("a"), Node("b"), Node("a"))):
        with pytest.raises(NodeTestRefused):
            begin(records, nodes)
    with pytest.raises(NodeTestRefused, match="nobody"):
        records.begin_test("local", NODES, {}, " ", None, 5.0)
    for options in ({"a": object()}, {"a": "x" * 100_000}, {"a": "\0"}):
        with pytest.raises(InputError):
            records.begin_test("local", NODES, options, "user-17", None, 5.0)
    assert records.audit().items == []


def test_what_nodes_say_is_cut_and_fit_to_be_stored(records: NodeRecords) -> None:
    test, huge = begin(records), "x\0\ud800" * 100_000
    hostile = Reading(
        huge, False, huge, huge, huge, 2**99, huge, dict.fromkeys(map(str, range(999)), float("nan")), float("inf"),
        (huge,) * 999, huge, float("nan"),
    )  # fmt: skip
    records.add_result(test, result(1, hostile, why=huge, seconds=float("inf"), unreached=(huge,)))
    (kept,) = records.results(test)
    assert len(msgspec.json.encode(kept)) < 500_000 and kept.readings[0].tflops == 0.0
    records.finish_test(test, Conclusion((Finding("gpu-1", "faulty", huge, fault=huge, warnings=(huge,) * 99),)), 6.0)
    stored = records.test(test)
    assert stored and stored.conclusion and len(stored.conclusion.findings[0].why) == 2000
    assert len(records.history("gpu-1").findings[0].fault) == 300


@on_both
def test_pages_of_tests_follow_each_other(records: NodeRecords) -> None:
    tests = [begin(records, (Node("a"), Node("b")) if number % 2 else NODES) for number in range(5)]
    first = records.tests(limit=2)
    second = records.tests(first.next, 2)
    third = records.tests(second.next, 2)
    assert [one.id for page in (first, second, third) for one in page.items] == tests[::-1] and third.next is None
    assert [one.id for one in records.tests(node="a").items] == [tests[3], tests[1]]
    for cursor in ("x", "-1", "9" * 30):
        with pytest.raises(CursorError):
            records.tests(cursor)


# histories


def test_the_history_of_a_node(records: NodeRecords, opened: Records) -> None:
    first, second = convicted(records, "boot-a", 10.0), convicted(records, "boot-b", 20.0)
    verdicts = [failed(opened, f"job-{number}", "gpu-2", float(number)) for number in range(3)]
    cordon = records.want_cordon("gpu-2", "file", "user-17", 30.0, "faulty", 7, second)
    history = records.history("gpu-2")
    assert [(past.test, past.boot, past.fault) for past in history.findings] == [
        (second, "boot-b", "wrong data"),
        (first, "boot-a", "wrong data"),
    ]
    assert [past.verdict for past in history.failures] == verdicts[::-1]
    assert (history.failures[0].job, history.failures[0].at, history.failures[0].reason) == ("job-2", 2.0, "ECC Error")
    assert history.cordons == (cordon,)
    assert len(records.history("gpu-2", 1).findings) == 1 and records.history("gpu-2", 1).findings[0].test == second
    many = records.histories(["gpu-2", "gpu-9", "gpu-2"])
    assert many["gpu-2"] == history and many["gpu-9"].findings == () and list(many) == ["gpu-2", "gpu-9"]


def test_a_superseded_verdict_counts_no_more(records: NodeRecords, opened: Records) -> None:
    failed(opened, "job-1", "gpu-2", 1.0)
    failed(opened, "job-1", "gpu-3", 2.0)
    assert [one.node for one in records.nodes()] == ["gpu-3"] and records.history("gpu-2").failures == ()


def test_a_correction_does_not_make_a_failure_newer(records: NodeRecords, opened: Records) -> None:
    """It happened when it happened, in the order and in the count of the last 30 days, too."""
    failed(opened, "job-1", "gpu-2", 1.0)
    failed(opened, "job-2", "gpu-2", 2.0)
    corrected = failed(opened, "job-1", "gpu-2", 90 * 86_400.0, "said by a person")
    history = records.history("gpu-2").failures
    assert [(one.job, one.at) for one in history] == [("job-2", 2.0), ("job-1", 1.0)]
    assert history[1].verdict == corrected
    found = records.node_page(now=91 * 86_400.0).items[0]
    assert (found.failures, found.recent_failures) == (2, 0)
    assert found.last_failure and found.last_failure.at == 2.0


@on_both
def test_repeat_offenders_come_first(records: NodeRecords, opened: Records) -> None:
    for number in range(3):
        failed(opened, f"job-{number}", "gpu-7", float(number))
    failed(opened, "other", "gpu-8", 9.0)
    test = convicted(records, "boot-a", 10.0)
    cordon = records.want_cordon("gpu-9", "file", "user-17", 30.0, "by hand")
    nodes = records.nodes()
    assert [one.node for one in nodes] == ["gpu-7", "gpu-8", "gpu-2", "gpu-9"]
    assert (nodes[0].failures, nodes[0].last_failure and nodes[0].last_failure.job) == (3, "job-2")
    assert nodes[2].faulty == 1 and nodes[2].last_finding and nodes[2].last_finding.test == test
    assert nodes[3].cordon == cordon and [one.node for one in records.nodes(1)] == ["gpu-7"]
    records.step_cordon(cordon.id, "failed", "user-17", "", 31.0)
    assert "gpu-9" not in [one.node for one in records.nodes()]


def fill(opened: Records, nodes: int, findings: int) -> None:
    """Nodes with a history: findings, a failure and an undone cordon each."""
    names = [f"gpu-{number:05}" for number in range(nodes)]
    with opened.database.writing() as connection:
        test = {"at": 1.0, "by": "x", "launcher": "x", "state": "finished", "why": "", "nodes": "[]", "options": "{}"}
        test |= {"followed": True, "seen": 1.0}
        connection.execute(sa.insert(schema.node_tests), [test] * findings)
        found = {"at": 1.0, "standing": "healthy", "fault": "", "why": "all worlds passed", "boot": "b"}
        rows = [found | {"node": name, "test": test} for test in range(1, findings + 1) for name in names]
        connection.execute(sa.insert(schema.node_findings), rows)
        undone = {"how": "file", "state": "undone", "by": "x", "at": 1.0, "reason": "", "changed": 1.0, "why": ""}
        undone |= {"owner": "logdoctor"}
        connection.execute(sa.insert(schema.node_cordons), [undone | {"node": name} for name in names])
    verdict = failed(opened, "job", names[0], 1.0)
    with opened.database.writing() as connection:
        rows = [{"node": name, "at": 1.0, "verdict": verdict} for name in names[1:]]
        connection.execute(sa.insert(schema.nodes), rows)


def statements(opened: Records, call: Callable[[], object]) -> int:
    """How many statements a call takes."""
    seen: list[str] = []
    with opened.database.reading() as connection:
        engine = connection.engine
    note = lambda *of: seen.append(of[2])  # noqa: E731 - to be taken away again
    sa.event.listen(engine, "before_cursor_execute", note)
    call()
    sa.event.remove(engine, "before_cursor_execute", note)
    return len(seen)


def test_of_many_nodes_not_each_takes_a_statement(records: NodeRecords, opened: Records) -> None:
    fill(opened, 1000, 10)
    names = [f"gpu-{number:05}" for number in range(588)]
    assert len(records.nodes()) == 1000 and len(records.histories(names)) == 588
    assert statements(opened, records.nodes) < 50
    assert statements(opened, lambda: records.history("gpu-00500")) < 50
    assert statements(opened, lambda: records.histories(names)) < 50


# cordons


@on_both
def test_a_cordon_takes_its_steps_and_no_others(records: NodeRecords) -> None:
    wanted = records.want_cordon("gpu-2", "file", "user-17", 5.0, "faulty", 7, 3)
    assert (wanted.state, wanted.node, wanted.by, wanted.verdict, wanted.test) == ("wanted", "gpu-2", "user-17", 7, 3)
    with pytest.raises(CordonRefused, match="is wanted, and cannot become undone"):
        records.step_cordon(wanted.id, "undone", "user-17", "", 6.0)
    standing = records.step_cordon(wanted.id, "standing", "user-17", "", 6.0)
    undone = records.step_cordon(wanted.id, "undone", "user-18", "repaired", 7.0)
    assert (standing.state, undone.state, undone.why, undone.changed) == ("standing", "undone", "repaired", 7.0)
    for state in ("wanted", "standing", "failed", "nonsense"):
        with pytest.raises(CordonRefused):
            records.step_cordon(wanted.id, state, "user-17", "", 8.0)
    with pytest.raises(CordonRefused, match="does not exist"):
        records.step_cordon(99, "standing", "user-17", "", 8.0)
    assert steps(records) == [("wanted", "user-17"), ("standing", "user-17"), ("undone", "user-18")]
    assert records.cordons(state="undone") == [undone] == records.cordons(node="gpu-2", how="file")


def test_a_node_is_held_once(records: NodeRecords) -> None:
    first = records.want_cordon("gpu-2", "file", "user-17", 5.0, "faulty")
    with pytest.raises(CordonRefused, match=rf"already cordoned, or about to be \(cordon {first.id}\)"):
        records.want_cordon("gpu-2", "file", "user-18", 6.0, "faulty")
    assert records.want_cordon("gpu-2", "dry-run", "user-18", 6.0, "faulty").state == "wanted"
    assert [one.state for one in records.cordons(node="gpu-2", how="file")] == ["refused", "wanted"]
    assert ("refused", "user-18") in steps(records)


def test_the_check_sees_what_is_cordoned(records: NodeRecords) -> None:
    seen: list[OpenCordons] = []
    at = 10_000.0
    for number, age in enumerate((4000.0, 3000.0, 2000.0, 1000.0)):
        cordon = records.want_cordon(f"gpu-{number}", "file", "user-17", at - age, "")
        records.step_cordon(cordon.id, "failed" if number == 1 else "standing", "user-17", "", at - age)
        if number == 2:
            records.step_cordon(cordon.id, "undone", "user-17", "", at)
    records.want_cordon("gpu-8", "file", "user-17", at, "", check=seen.append)
    records.want_cordon("gpu-9", "dry-run", "user-17", at, "", check=seen.append)
    assert seen == [OpenCordons(frozenset({"gpu-0", "gpu-3"}), 2), OpenCordons(frozenset(), 0)]


@on_both
def test_the_check_is_alone_with_its_write(opened: Records, records: NodeRecords) -> None:
    """Of many who want a cordon at once as many get one as the check allows."""

    def at_most_three(held: OpenCordons) -> None:
        if len(held.nodes) >= 3:
            raise CordonRefused("a cordon", "three are enough", "Wait.")

    def want(number: int) -> bool:
        try:
            records.want_cordon(f"gpu-{number}", "file", "user-17", 5.0, "", check=at_most_three)
        except CordonRefused:
            return False
        return True

    assert sum(at_once(want, range(12))) == 3
    assert len(records.cordons(state="wanted")) == 3 and len(records.cordons(state="refused")) == 9


# actions


@on_both
def test_an_action_waits_is_approved_and_done(records: NodeRecords) -> None:
    proposed = records.propose(CORDON, "run-1", 2, 5.0)
    assert proposed and (proposed.state, proposed.action, proposed.job, proposed.by) == ("waiting", CORDON, "run-1", "")
    with pytest.raises(ActionRefused, match="is waiting"):
        records.settle_action(proposed.id, "done", "", 6.0)
    with pytest.raises(ActionRefused, match="nobody"):
        records.decide(proposed.id, True, " ", "", 6.0)
    approved = records.decide(proposed.id, True, "user-17", "looks right", 6.0)
    assert (approved.state, approved.by, approved.why, approved.changed) == ("approved", "user-17", "looks right", 6.0)
    with pytest.raises(ActionRefused, match="is approved, and cannot become refused"):
        records.decide(proposed.id, False, "user-18", "", 7.0)
    done = records.settle_action(proposed.id, "done", "", 8.0)
    assert (done.state, done.by) == ("done", "user-17") and records.action(done.id) == done
    assert steps(records, node="gpu-2") == [
        ("cordon proposed", "policy"),
        ("cordon approved", "user-17"),
        ("cordon done", "user-17"),
    ]
    with pytest.raises(ActionRefused, match="does not exist"):
        records.decide(99, True, "user-17", "", 9.0)


def test_what_is_done_at_once_says_so(records: NodeRecords) -> None:
    auto = records.propose(msgspec.structs.replace(CORDON, mode="auto"), None, None, 5.0)
    assert auto and (auto.state, auto.by) == ("approved", "policy")
    assert steps(records)[-1] == ("cordon approved", "policy")


@pytest.mark.parametrize(("kind", "mode"), [("cordon", "never"), ("reboot", "auto"), ("restart", "auto")])
def test_what_logdoctor_never_does_is_refused(records: NodeRecords, kind: Any, mode: Any) -> None:
    with pytest.raises(ActionRefused):
        records.propose(Action(kind, ("gpu-2",), mode, "why"), None, None, 5.0)


@pytest.mark.parametrize("came", ["waiting", "approved", "refused", "done", "failed"])
def test_the_same_verdict_proposes_nothing_twice(records: NodeRecords, came: Any) -> None:
    proposed = records.propose(CORDON, "run-1", 2, 5.0)
    assert proposed
    if came != "waiting":
        records.decide(proposed.id, came != "refused", "user-17", "", 6.0)
    if came in ("done", "failed"):
        records.settle_action(proposed.id, came, "", 7.0)
    again = msgspec.structs.replace(CORDON, why="said in other words")
    assert records.propose(again, "run-1", 2, 8.0) is None
    later = msgspec.structs.replace(CORDON, verdict=8, test=4)
    assert (records.propose(later, "run-2", 1, 9.0) is None) == (came in ("waiting", "approved"))


@on_both
def test_a_waiting_action_takes_the_newer_proof(records: NodeRecords) -> None:
    first = records.propose(CORDON, "run-1", 2, 5.0)
    assert first
    newer = msgspec.structs.replace(CORDON, verdict=8, test=4, why="found again")
    assert records.propose(newer, "run-2", 1, 6.0) is None
    assert records.propose(msgspec.structs.replace(CORDON, test=2, why="older"), "run-3", 1, 7.0) is None
    (waiting,) = records.actions().items
    assert (waiting.id, waiting.action, waiting.at, waiting.changed) == (first.id, newer, 5.0, 6.0)
    assert (waiting.job, waiting.attempt, waiting.state) == ("run-2", 1, "waiting")
    at_once = records.propose(msgspec.structs.replace(CORDON, test=5, mode="auto"), "run-2", 1, 8.0)
    assert at_once and (at_once.id, at_once.state, at_once.by) == (first.id, "approved", "policy")
    assert records.propose(msgspec.structs.replace(CORDON, test=6, mode="auto"), "run-2", 1, 9.0) is None
    assert [step for step, _ in steps(records)] == [
        "cordon proposed", "cordon renewed", "cordon renewed", "cordon approved",
    ]  # fmt: skip


def test_an_open_action_is_superseded_or_waits_again(records: NodeRecords) -> None:
    first = records.propose(CORDON, "run-1", 2, 5.0)
    assert first
    with pytest.raises(ActionRefused):
        records.put_back(first.id, "it waits already", 6.0)
    records.decide(first.id, True, "user-17", "go", 6.0)
    waiting = records.put_back(first.id, "a cap", 7.0)
    assert (waiting.state, waiting.by, waiting.why) == ("waiting", "", "a cap")
    assert records.supersede(first.id, "found healthy", 8.0).state == "superseded"
    for call in (records.supersede, records.put_back):
        with pytest.raises(ActionRefused, match="is superseded"):
            call(first.id, "again", 9.0)
    assert records.propose(CORDON, "run-1", 2, 10.0) is None, "the same proof"
    assert records.propose(msgspec.structs.replace(CORDON, test=9), "run-1", 2, 10.0) is not None


@on_both
def test_actions_are_found_by_their_state_and_verdict(records: NodeRecords) -> None:
    for number in range(3):
        assert records.propose(Action("cordon", (f"gpu-{number}",), "ask", "why", number), None, None, 5.0)
    records.decide(2, False, "user-17", "", 6.0)
    assert [one.id for one in records.every_action("waiting")] == [3, 1]
    assert records.acted_on([1, 2, 7]) == {1, 2} and records.acted_on([]) == set()


@on_both
def test_a_test_is_for_its_attempt(records: NodeRecords) -> None:
    test = Action("test_nodes", ("a", "b"), "auto", "why", verdict=1)
    first = records.propose(test, "run-1", 1, 5.0)
    assert first and records.propose(test, "run-1", 2, 5.0) and records.propose(test, "run-2", 1, 5.0)
    turned = msgspec.structs.replace(test, nodes=("b", "a"), verdict=2)
    assert records.propose(turned, "run-1", 1, 5.0) is None
    records.settle_action(first.id, "done", "", 6.0)
    assert records.propose(turned, "run-1", 1, 7.0) is None
    by_hand = Action("test_nodes", ("c",), "ask", "why")
    refused = records.propose(by_hand, None, None, 5.0)
    assert refused and records.propose(by_hand, None, None, 5.0) is None
    records.decide(refused.id, False, "user-17", "", 6.0)
    assert records.propose(by_hand, None, None, 7.0) is not None


@on_both
def test_of_many_that_propose_the_same_one_does(records: NodeRecords) -> None:
    got = at_once(lambda at: records.propose(CORDON, "run-1", 2, at), [5.0] * 8)
    assert len([one for one in got if one is not None]) == 1


def test_pages_of_actions_follow_each_other(records: NodeRecords) -> None:
    ids = []
    for number in range(5):
        stored = records.propose(Action("cordon", (f"gpu-{number}",), "ask", "why"), None, None, 5.0)
        assert stored
        ids.append(stored.id)
    first = records.actions(limit=3)
    assert [one.id for one in (*first.items, *records.actions(cursor=first.next).items)] == ids[::-1]
    records.decide(ids[1], False, "user-17", "", 6.0)
    assert [one.id for one in records.actions("refused").items] == [ids[1]] and len(
        records.actions("waiting").items
    ) == 4
    with pytest.raises(CursorError):
        records.actions(cursor="x")


# the audit


def test_the_audit_tells_the_whole_story(records: NodeRecords) -> None:
    test = convicted(records, "boot-a", 10.0)
    stored = records.propose(msgspec.structs.replace(CORDON, test=test), "run-1", 2, 12.0)
    assert stored
    records.decide(stored.id, True, "user-18", "yes", 13.0)
    cordon = records.want_cordon("gpu-2", "file", "user-18", 14.0, "faulty", 7, test)
    records.step_cordon(cordon.id, "standing", "user-18", "", 15.0)
    records.note_cordon(cordon.id, "undo wanted", "user-19", "repaired", 16.0)
    story = [
        ("begun", "user-17"),
        ("finished", "user-17"),
        ("faulty", "user-17"),
        ("cordon proposed", "policy"),
        ("cordon approved", "user-18"),
        ("wanted", "user-18"),
        ("standing", "user-18"),
        ("undo wanted", "user-19"),
    ]
    other = begin(records, (Node("gpu-9"),))
    assert steps(records, test=test) == story == steps(records, node="gpu-2")
    assert steps(records, node="gpu-9") == [("begun", "user-17")] == steps(records, test=other)
    assert steps(records, node="gpu-1") == story[:2] and len(steps(records)) == 9
    first = records.audit(limit=4)
    assert len(records.audit(first.next, 500).items) == 5 and first.items[0].at == 5.0


@on_both
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE node_audit SET why = 'nothing'",
        "DELETE FROM node_audit",
        "DELETE FROM node_audit WHERE id = 1",
        "INSERT INTO node_audit VALUES (1, 1.0, 'nobody', 'test', 1, '', 'begun', 'nothing') "
        "ON CONFLICT (id) DO UPDATE SET why = 'nothing'",
        {
            "sqlite": "REPLACE INTO node_audit VALUES (1, 1.0, 'nobody', 'test', 1, '', 'begun', 'nothing')",
            "postgresql": "TRUNCATE node_audit",
        },
    ],
    ids=["update", "delete", "delete-one", "insert-over", "replace"],
)
def test_the_audit_cannot_be_changed(records: NodeRecords, opened: Records, statement: str | dict[str, str]) -> None:
    begin(records)
    before = records.audit().items
    with pytest.raises(StoreError, match="only appended to"), opened.database.writing() as connection:
        own = statement if isinstance(statement, str) else statement[connection.dialect.name]
        connection.exec_driver_sql(own)
    assert records.audit().items == before != []


@on_both
def test_no_change_without_its_audit(records: NodeRecords, opened: Records) -> None:
    """Where the audit cannot be written nothing is changed."""
    test = begin(records)
    wanted = records.want_cordon("gpu-2", "file", "user-17", 5.0, "")
    proposed = records.propose(CORDON, "run-1", 2, 5.0)
    assert proposed
    with opened.database.writing() as connection:
        refusing = {
            "sqlite": "CREATE TRIGGER no_more BEFORE INSERT ON node_audit BEGIN SELECT RAISE(ABORT, 'x'); END",
            "postgresql": "ALTER TABLE node_audit ADD CONSTRAINT no_more CHECK (id < 0) NOT VALID",
        }
        connection.exec_driver_sql(refusing[connection.dialect.name])
    calls: list[Any] = [
        lambda: begin(records),
        lambda: records.finish_test(test, Conclusion((finding("gpu-1"),)), 6.0),
        lambda: records.abort_test(test, "", 6.0),
        lambda: records.want_cordon("gpu-3", "file", "user-17", 6.0, ""),
        lambda: records.step_cordon(wanted.id, "standing", "user-17", "", 6.0),
        lambda: records.propose(Action("cordon", ("gpu-1",), "ask", ""), None, None, 6.0),
        lambda: records.decide(proposed.id, True, "user-17", "", 6.0),
    ]
    for call in calls:
        with pytest.raises(StoreError):
            call()
    assert [one.id for one in records.running()] == [test] and records.history("gpu-1").findings == ()
    assert records.cordons() == [wanted] and records.actions().items == [proposed]


@pytest.mark.parametrize("by", ["", "  ", "policy", " policy "])
def test_nobody_decides_in_the_name_of_the_policy(records: NodeRecords, by: str) -> None:
    action = Action("test_nodes", ("gpu-1",), "ask", "because", verdict=1)
    proposed = records.propose(action, "job", 1, 1.0)
    assert proposed is not None
    with pytest.raises(ActionRefused, match="Say who you are"):
        records.decide(proposed.id, True, by, "", 2.0)
