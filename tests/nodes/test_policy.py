"""Policy: tests before cordons, words of a log never more than a question, and no node outside the job."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.nodes.policy import (
    NAMED,
    JobNodes,
    Modes,
    after_test,
    after_verdict,
    first_to_test,
    of_job,
    reboots,
    trouble,
    unproven,
)
from logdoctor.taxonomy import FAULTS, OUTCOMES, REASONS, RECOVERIES
from logdoctor.types import Compression, DecidedBy, Progress, Suspect, Verdict
from logdoctor.types.nodes import (
    NAME,
    PERFORMED,
    Action,
    Conclusion,
    Finding,
    LinkFault,
    NodeHistory,
    PastCordon,
    PastFailure,
    PastFinding,
)
from tests.verdicts import ecc

NODES = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")
JOB = JobNodes(NODES, len(NODES))
AUTO = Modes("auto", "auto", "auto", "auto", "auto")
NONE: Mapping[str, NodeHistory] = {}
ECC = ecc(suspects=(Suspect("gpu-3", None, None, "Xid 48 (line 7)"),))


def verdict(*suspects: str, **changes: Any) -> Verdict:
    named = tuple(Suspect(name, None, None, "a line") for name in suspects)
    return msgspec.structs.replace(ECC, **({"suspects": named} | changes))


def said(actions: Sequence[Action]) -> list[tuple[str, tuple[str, ...], str]]:
    return [(action.kind, action.nodes, action.mode) for action in actions]


def found(node: str, standing: Any = "healthy", fault: str = "", worlds: tuple[int, ...] = (1,)) -> Finding:
    return Finding(node, standing, "failed with gpu-1", worlds, ("gpu-1",), fault)


def past(fault: str, *boots: str, standing: Any = "faulty") -> tuple[PastFinding, ...]:
    return tuple(PastFinding(number, 1.0, standing, fault, "", boot) for number, boot in enumerate(boots))


def history(node: str, *findings: PastFinding, failures: int = 0, cordons: tuple[PastCordon, ...] = ()) -> NodeHistory:
    failed = tuple(PastFailure(number, f"job-{number}", 1, 1.0, "ECC Error") for number in range(failures))
    return NodeHistory(node, failed, findings, cordons)


# after a verdict


def test_a_fault_of_machines_is_tested_suspects_first() -> None:
    histories = {"gpu-4": history("gpu-4", failures=2), "gpu-2": history("gpu-2", failures=1)}
    (action,) = after_verdict(verdict("gpu-3"), 7, NODES, histories, Modes())
    assert (action.kind, action.nodes, action.mode) == ("test_nodes", ("gpu-3", "gpu-4", "gpu-1", "gpu-2"), "ask")
    assert action.verdict == 7 and "ECC Error" in action.why and "gpu-3, gpu-4" in action.why
    assert said(after_verdict(verdict(), 7, NODES, NONE, AUTO)) == [("test_nodes", NODES, "auto")]


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, ["test_nodes"]),
        ({"fault": "unknown"}, ["test_nodes"]),  # isolate_and_restart is enough
        ({"recovery": "ask_human"}, ["test_nodes"]),
        ({"recovery": "restart"}, ["test_nodes", "restart"]),
        ({"fault": "nobody", "recovery": "restart"}, ["restart"]),
        ({"fault": "nobody", "recovery": "rollback_and_skip"}, ["rollback_and_skip"]),
        ({"fault": "user", "recovery": "fix_first"}, []),
        ({"fault": "unknown", "recovery": "ask_human", "reason": "Unknown"}, []),
        ({"fault": "unknown", "recovery": "restart", "reason": "Unknown"}, []),
    ],
)
def test_what_follows_from_a_failure(changes: dict[str, Any], kinds: list[str]) -> None:
    assert [one.kind for one in after_verdict(verdict("gpu-3", **changes), 7, NODES, NONE, Modes())] == kinds


@pytest.mark.parametrize("outcome", [outcome for outcome in OUTCOMES if outcome != "failed"])
def test_a_job_that_did_not_fail_needs_nothing(outcome: str) -> None:
    assert after_verdict(verdict("gpu-3", outcome=outcome), 7, NODES, NONE, AUTO) == ()


def test_without_tests_a_named_node_is_asked_about() -> None:
    untested = AUTO._replace(test="never")
    actions = after_verdict(verdict("gpu-3", "gpu-9"), 7, NODES, NONE, untested)
    assert said(actions) == [("cordon", ("gpu-3",), "ask")]
    assert after_verdict(verdict("gpu-3"), 7, NODES, NONE, untested._replace(cordon="never")) == ()
    many = tuple(f"gpu-{number}" for number in range(NAMED + 1))
    assert after_verdict(verdict(*many), 7, many, NONE, untested) == ()


def test_a_node_by_itself_is_not_tested_because_it_would_stay_undecided() -> None:
    assert said(after_verdict(verdict("gpu-3"), 7, ["gpu-3"], NONE, AUTO)) == [("cordon", ("gpu-3",), "ask")]


def test_without_nodes_there_is_nothing_to_test() -> None:
    assert after_verdict(ECC, 7, (), NONE, AUTO) == () == after_verdict(ECC, 7, ("a b", "-x", ""), NONE, AUTO)


modes = st.builds(Modes, *[st.sampled_from(["auto", "ask", "never"])] * 5)
names = st.sampled_from([*NODES, "gpu-9", "gpu-1.site", "10.0.0.1", "10", "a;reboot", "$(x)", "x\n", ""]) | st.text(
    max_size=20
)
suspects = st.builds(Suspect, names | st.none(), st.none(), st.none(), st.text(max_size=50))
verdicts = st.builds(
    Verdict,
    reason=st.sampled_from(sorted(REASONS)),
    category=st.sampled_from(["Infrastructure", "Framework", "Script", "Anomaly", "None"]),
    fault=st.sampled_from(sorted(FAULTS)),
    recovery=st.sampled_from(sorted(RECOVERIES)),
    outcome=st.sampled_from(sorted(OUTCOMES)),
    confidence=st.floats(0, 1),
    suggestion=st.text(max_size=50),
    evidence=st.just(()),
    suspects=st.lists(suspects, max_size=8).map(tuple),
    first_rank=st.none(),
    symptoms=st.just(()),
    decided_by=st.just(DecidedBy("agent")),
    fingerprint=st.just(""),
    progress=st.just(Progress()),
    compression=st.just(Compression()),
    why=st.text(max_size=50),
)
offenders = st.integers(0, 9).map(lambda count: history("x", *past("f", "a", "b"), failures=count))
histories = st.dictionaries(names, offenders)


@given(verdicts, st.lists(names, max_size=8), histories, modes)
def test_no_text_of_a_log_causes_more_than_a_test(
    verdict: Verdict, nodes: list[str], histories: dict[str, NodeHistory], modes: Modes
) -> None:
    """Law 4: whatever a verdict says, a cordon waits for a person, and only nodes of the job are named."""
    for action in after_verdict(verdict, 7, nodes, histories, modes):
        assert action.mode == "ask" or (action.kind, action.mode, modes.test) == ("test_nodes", "auto", "auto")
        assert set(action.nodes) <= set(nodes) and all(NAME.fullmatch(name) for name in action.nodes)
        assert len(set(action.nodes)) == len(action.nodes)
        assert action.why.strip() and action.verdict == 7
        assert verdict.outcome == "failed"


# after a test


def test_a_faulty_node_is_cordoned_by_the_setting() -> None:
    conclusion = Conclusion((found("gpu-1"), found("gpu-2", "faulty", "wrong data"), found("gpu-3")))
    actions = after_test(conclusion, 3, 7, NONE, AUTO, JOB)
    assert said(actions) == [("cordon", ("gpu-2",), "auto"), ("reboot", ("gpu-2",), "ask"), ("restart", (), "ask")]
    assert {(one.verdict, one.test) for one in actions} == {(7, 3)} and "gpu-2" in actions[2].why
    assert said(after_test(conclusion, 3, None, NONE, Modes(), JobNodes())) == [
        ("cordon", ("gpu-2",), "ask"),
        ("reboot", ("gpu-2",), "ask"),
    ]
    assert after_test(conclusion, 3, 7, NONE, Modes(*["never"] * 5), JOB) == ()


@pytest.mark.parametrize(
    ("finding", "wanted"),
    [
        (found("gpu-2", "slow"), [("cordon", ("gpu-2",), "ask")]),
        (found("gpu-2", "faulty", "x", ()), [("cordon", ("gpu-2",), "ask"), ("reboot", ("gpu-2",), "ask")]),
        (found("gpu-2", "indeterminate"), []),
        (found("gpu-2"), []),
    ],
)
def test_what_is_not_proven_waits_for_a_person(finding: Finding, wanted: list[Any]) -> None:
    assert said(after_test(Conclusion((found("gpu-1"), finding)), 3, None, NONE, AUTO, JobNodes())) == wanted


@pytest.mark.parametrize(
    ("how", "state", "again"),
    [("file", "standing", False), ("slurm", "wanted", False), ("file", "undone", True), ("dry-run", "standing", True)],
)
def test_a_node_that_is_out_is_not_cordoned_again(how: str, state: Any, again: bool) -> None:
    cordon = PastCordon(1, "gpu-2", how, state, "user-17", 1.0, "")
    actions = after_test(
        Conclusion((found("gpu-2", "faulty", "x"),)),
        3,
        None,
        {"gpu-2": history("gpu-2", cordons=(cordon,))},
        AUTO,
        JobNodes(),
    )
    assert ("cordon" in [one.kind for one in actions]) == again


@pytest.mark.parametrize(
    ("boots", "kind"),
    [
        (("a",), "reboot"),
        (("a", "a", "a"), "reboot"),  # tested thrice, never rebooted
        (("a", "b"), "reboot"),
        (("a", "", "b", ""), "reboot"),
        (("c", "b", "a"), "inspect_hardware"),
        (("c", "b", "b", "a", "a"), "inspect_hardware"),
    ],
)
def test_two_reboots_with_the_same_fault_are_enough(boots: tuple[str, ...], kind: str) -> None:
    """The newest finding is that of the test itself."""
    others = past("other", "x", "y", "z") + past("wrong data", "p", "q", standing="slow")
    known = {"gpu-2": history("gpu-2", *past("wrong data", *boots), *others)}
    actions = after_test(Conclusion((found("gpu-2", "faulty", "wrong data"),)), 3, None, known, AUTO, JobNodes())
    assert said(actions) == [("cordon", ("gpu-2",), "auto"), (kind, ("gpu-2",), "ask")]
    assert reboots(known["gpu-2"], "wrong data") == len({boot for boot in boots if boot}) - 1


def test_a_link_is_inspected_and_no_node_taken_out() -> None:
    links = (LinkFault(("gpu-1", "gpu-2"), "nodes", "x", (1,)), LinkFault(("rack-1", "rack-2"), "groups", "x", (2,)))
    actions = after_test(Conclusion(tuple(map(found, NODES)), links), 3, 7, NONE, AUTO, JOB)
    assert said(actions) == [("inspect_hardware", ("gpu-1", "gpu-2"), "ask"), ("inspect_hardware", (), "ask")]
    assert "rack-1 and rack-2" in actions[1].why


def test_a_clean_test_says_restart_after_a_verdict_alone() -> None:
    conclusion = Conclusion(tuple(map(found, NODES)))
    assert said(after_test(conclusion, 3, 7, NONE, AUTO, JOB)) == [("restart", (), "ask")]
    assert after_test(conclusion, 3, None, NONE, AUTO, JobNodes()) == ()
    for doubtful in (
        msgspec.structs.replace(conclusion, open="gpu-3 is open"),
        Conclusion((*conclusion.findings, found("gpu-5", "indeterminate"))),
        Conclusion(()),
    ):
        assert after_test(doubtful, 3, 7, NONE, AUTO, JOB) == ()


@pytest.mark.parametrize(
    ("tested", "job", "said"),
    [
        (NODES, JOB, ""),
        ((*NODES, "gpu-9"), JOB, ""),
        (("gpu-1.site", *NODES[1:]), JOB, ""),
        (NODES, JobNodes(("gpu-1.site", "gpu-2.site"), 2), ""),
        (NODES[:2], JOB, "found no fault, but tested only 2 of the job's 4 nodes"),
        (NODES, JobNodes(NODES, 64), "found no fault, but tested only 4 of the job's 64 nodes"),
        (("gpu-8", "gpu-9"), JOB, "found no fault in 2 nodes, none of which the job had"),
        (NODES, JobNodes(), "found no fault in 4 nodes, and it is not known which nodes the job had"),
        (NODES[:1], JobNodes((), 64), "found no fault in 1 node, and it is not known which 64 nodes the job had"),
    ],
)
def test_only_a_test_of_all_nodes_of_the_job_proves_them_good(tested: Any, job: JobNodes, said: str) -> None:
    clean = Conclusion(tuple(map(found, tested)))
    assert unproven(clean, job) == said and not trouble(clean)
    kinds = [one.kind for one in after_test(clean, 3, 7, NONE, AUTO, job)]
    assert kinds == ([] if said else ["restart"])


@pytest.mark.parametrize(
    ("findings", "links", "left_open", "said"),
    [
        ((found("gpu-2", "faulty"), found("gpu-3", "slow")), (), "x", "found gpu-2 faulty"),
        ((found("gpu-3", "slow"),), (), "", "found gpu-3 slow"),
        ((found("gpu-3", "indeterminate"),), (), "", "could not decide: gpu-3"),
        ((), (), "The network looks parted.", "could not decide: The network looks parted."),
        (
            (),
            (LinkFault(("gpu-1", "gpu-2"), "nodes", "x", (1,)), LinkFault(("gpu-3", "gpu-4"), "nodes", "x", (1,))),
            "",
            "found the connection between gpu-1 and gpu-2 faulty, and both nodes healthy, and 1 more such link",
        ),
    ],
)
def test_what_a_test_found_is_told_as_what_it_is(findings: Any, links: Any, left_open: str, said: str) -> None:
    named = {one.node for one in findings}
    conclusion = Conclusion((*findings, *(found(name) for name in NODES if name not in named)), links, 2, left_open)
    assert trouble(conclusion) == unproven(conclusion, JOB) == said
    restarts = [one for one in after_test(conclusion, 3, 7, NONE, AUTO, JOB) if one.kind == "restart"]
    assert len(restarts) == ("gpu-2" in named)


def test_no_restart_leaves_out_a_node_that_the_job_did_not_have() -> None:
    strange = Conclusion((*map(found, NODES), found("gpu-9", "faulty")))
    assert [one.kind for one in after_test(strange, 3, 7, NONE, AUTO, JOB)] == ["cordon", "reboot"]
    assert of_job(("gpu-9", "gpu-2"), JOB) == ("gpu-2",)
    assert of_job(("gpu-9",), JobNodes(NODES, 64)) == of_job(("gpu-9",), JobNodes()) == ("gpu-9",)


findings = st.builds(
    Finding,
    node=names,
    standing=st.sampled_from(["healthy", "faulty", "slow", "indeterminate"]),
    why=st.text(max_size=20),
    worlds=st.lists(st.integers(1, 9), max_size=3).map(tuple),
    fault=st.text(max_size=5),
)


@given(st.lists(findings, max_size=6).map(tuple), st.none() | st.integers(1, 9), histories, modes)
def test_only_a_conviction_takes_a_node_out_at_once(
    findings: tuple[Finding, ...], verdict: int | None, histories: dict[str, NodeHistory], modes: Modes
) -> None:
    convicted = {finding.node for finding in findings if finding.standing == "faulty" and finding.worlds}
    for action in after_test(Conclusion(findings), 3, verdict, histories, modes, JOB):
        assert all(NAME.fullmatch(name) for name in action.nodes)
        if action.mode == "auto":
            assert action.kind == "cordon" in PERFORMED and modes.cordon == "auto" and set(action.nodes) <= convicted


# which node first


def test_suspects_come_before_repeat_offenders() -> None:
    known = {
        "gpu-1": history("gpu-1", failures=2),
        "gpu-2": history("gpu-2", *past("x", "a"), failures=4),
        "gpu-4": history("gpu-4", failures=1),
    }
    assert first_to_test(["gpu-9", "gpu-3", "gpu-3"], known, NODES) == ("gpu-3", "gpu-2", "gpu-1")


@pytest.mark.parametrize(
    ("suspect", "nodes", "first"),
    [
        ("gpu-1.site.example", ("gpu-1", "gpu-2"), ("gpu-1",)),
        ("gpu-1", ("gpu-1.site", "gpu-2.site"), ("gpu-1.site",)),
        ("gpu-1", ("gpu-1.east", "gpu-1.west"), ()),
        ("gpu-1.east", ("gpu-1.west",), ()),
        ("10.0.0.7", ("10.0.0.8",), ()),
        ("10", ("10.0.0.8",), ()),
    ],
)
def test_a_host_is_known_with_and_without_its_domain(suspect: str, nodes: tuple[str, ...], first: Any) -> None:
    assert first_to_test([suspect], NONE, nodes) == first
