"""The actor: tests begin, go on after a crash, and what follows from them is done as far as it may be."""

import time
from collections.abc import Sequence

import msgspec
import pytest

from logdoctor.errors import ActionRefused, LaunchError
from logdoctor.nodes.cordon.file import FileCordoner
from logdoctor.nodes.policy import Modes
from logdoctor.store.jobs.past import PastAttempt, PastRecords
from logdoctor.store.jobs.records import JobFacts
from logdoctor.types import Suspect
from logdoctor.types.nodes import Action, Conclusion, Finding, Mark, Node
from tests import waiting
from tests.nodes.clusters import ending
from tests.service.sites import NODES, VERDICT, Site, looked, over


def test_a_test_is_kept_as_it_goes(site: Site) -> None:
    site.cluster(ending(bad=["n3"]))
    actor, told = site.actor(), list[int]()
    actor.listeners.append(told.append)
    test = actor.test([], "u1")
    kept = over(site, test)
    assert kept.conclusion is not None and kept.conclusion.named("faulty") == ("n3",)
    assert (kept.by, kept.launcher, kept.state) == ("u1", "paper", "finished")
    assert len(site.nodes.results(test)) == len(site.launcher.asked)
    waiting.until(lambda: len(told) >= len(site.launcher.asked) + 2)
    assert [finding.standing for finding in site.nodes.history("n3").findings] == ["faulty"]
    assert actor.wait(test)


def test_nodes_are_named_or_refused(site: Site) -> None:
    actor = site.actor()
    with pytest.raises(LaunchError, match="n99"):
        actor.test(["n1", "n99"], "u1")
    with pytest.raises(LaunchError, match="there is none"):
        actor.test(["n1"], "u1", launcher="pigeon")
    with pytest.raises(ActionRefused, match="verdict 7"):
        actor.test([], "u1", verdict=7)
    with pytest.raises(ActionRefused, match="no launcher"):
        site.actor(launcher="").test(["n1"], "u1")
    assert site.nodes.tests().items == []


def test_two_tests_share_no_node(site: Site) -> None:
    site.cluster(ending(), hanging=("n0",))
    actor = site.actor()
    first = actor.test(["n0", "n1"], "u1")
    with pytest.raises(ActionRefused, match=f"test {first} is running on n1"):
        actor.test(["n1", "n2"], "u1")
    with pytest.raises(ActionRefused, match=f"test {first} is running on n1"):
        site.actor(taking_up=False).test(["n1", "n2"], "u2")  # as another process would
    assert over(site, actor.test(["n2", "n3"], "u1")).state == "finished"
    actor.cancel(first, "u2")
    assert "u2" in over(site, first).why
    waiting.until(lambda: site.launcher.ended == 1)
    with pytest.raises(ActionRefused):
        actor.cancel(first, "u2")


def test_a_test_goes_on_in_the_next_process(site: Site) -> None:
    before = site.cluster(ending(bad=["n3"]), hanging=("n6",))
    actor = site.actor()
    test = actor.test([], "u1")
    waiting.until(lambda: len(site.nodes.results(test)) == 3)
    actor.stop()
    assert before.ended == 1 and site.nodes.running()[0].id == test
    after = site.cluster(ending(bad=["n3"]))
    site.actor()
    kept = over(site, test)
    assert kept.conclusion is not None and kept.conclusion.named("faulty") == ("n3",)
    assert after.swept == sorted(before.tests) and after.tests == before.tests
    assert {world.number for world in after.asked if world.round == 1} == {4}  # the other three had ended


def test_a_launcher_that_is_gone_ends_the_test(site: Site) -> None:
    site.cluster(ending(), hanging=("n6",))
    actor = site.actor()
    test = actor.test([], "u1")
    actor.stop()
    site._launcher = lambda name: (_ for _ in ()).throw(LaunchError("srun", "is not installed", "x"))  # type: ignore
    site.actor()
    assert "not installed" in over(site, test).why


def test_from_a_verdict_to_a_cordon(site: Site) -> None:
    site.cluster(ending(bad=["n3"]))
    actor = site.actor()
    stored = site.verdict("n[0-7]")
    actor.handle(stored)
    waiting.until(lambda: any(one.action.kind == "restart" for one in site.nodes.actions().items))
    (test,) = site.nodes.tests().items
    assert (test.by, test.verdict, test.options["repeats"]) == ("policy", stored.id, 20)  # the job had made steps
    (entry,) = site.cordons.read_text().splitlines()
    assert entry.startswith("n3 ") and f"verdict {stored.id}" in entry
    states = {one.action.kind: one.state for one in site.nodes.actions().items}
    assert states == {"test_nodes": "done", "cordon": "done", "reboot": "waiting", "restart": "waiting"}
    first = [world for world in site.launcher.asked if world.round == 1]
    assert all(len(world.nodes) == 2 for world in first)
    actor.handle(stored)  # the same verdict again, after a restart perhaps
    actor.handle(site.verdict("n[0-7]", msgspec.structs.replace(VERDICT, outcome="completed")))
    looked(actor)
    assert len(site.nodes.tests().items) == 1


def test_without_a_launcher_nobody_is_asked_to_approve_a_test(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = site.actor(Modes(), launcher="")
    actor.handle(site.verdict("n[0-7]"))
    looked(actor)
    assert {one.action.kind for one in site.nodes.actions().items} == {"cordon"}, "a real cordoner can do that"
    monkeypatch.setattr(type(actor), "cordons_with", "dry-run")
    actor.handle(site.verdict("n[0-7]"))
    looked(actor)
    assert len(site.nodes.actions().items) == 1


@pytest.mark.parametrize("claimed", [None, "n[0-7]"])
def test_words_of_a_log_and_claims_send_nothing_to_nodes(site: Site, claimed: str | None) -> None:
    actor = site.actor()
    actor.handle(site.verdict(claimed, placed=False))
    waiting.until(lambda: bool(site.nodes.actions().items))
    (asking,) = site.nodes.actions().items
    assert (asking.action.kind, asking.state) == ("test_nodes", "waiting") and not site.launcher.asked
    approved = actor.approve(asking.id, "u1", "go")
    assert approved.state == "approved"
    over(site, actor.begun[asking.id])
    waiting.until(lambda: (one := site.nodes.action(asking.id)) is not None and one.state == "done")


def test_caps_hold_whatever_policy_says(site: Site) -> None:
    site.cluster(ending(bad=["n3", "n4"]))
    actor = site.actor(share=0.13)  # one of eight
    actor.handle(site.verdict("n[0-7]"))
    waiting.until(lambda: any(one.action.kind == "restart" for one in site.nodes.actions().items))
    states = sorted(one.state for one in site.nodes.actions().items if one.action.kind == "cordon")
    assert states == ["done", "waiting"] and len(site.cordons.read_text().splitlines()) == 1


def test_an_action_that_nobody_carried_out_has_failed(site: Site) -> None:
    actor = site.actor(Modes())
    actor.handle(site.verdict("n[0-7]"))
    waiting.until(lambda: bool(site.nodes.actions().items))
    (asking,) = site.nodes.actions().items
    site.nodes.decide(asking.id, True, "u1", "", time.time() - 700)  # and the process died
    actor.stop()
    site.actor(taking_up=False)
    assert site.nodes.actions().items[0].state == "approved"  # a command leaves that to the service
    site.actor()
    waiting.until(lambda: site.nodes.actions().items[0].state == "failed")
    assert "stopped" in site.nodes.actions().items[0].why


def test_what_was_just_decided_is_left_to_who_decided(site: Site) -> None:
    site.cluster(ending(bad=["n3"]))
    command = site.actor(Modes(), taking_up=False)
    over(site, command.test([], "u1"))
    waiting.until(lambda: len(asked_for(site)) == 2)
    site.nodes.decide(asked_for(site)["cordon"], True, "u1", "", time.time())  # the command is at it
    looked(site.actor(Modes()))
    assert sorted(one.state for one in site.nodes.actions().items) == ["approved", "waiting"]


def test_a_test_that_a_command_runs_is_left_to_it(site: Site) -> None:
    site.cluster(ending(bad=["n3"]), hanging=("n6",))
    command = site.actor(Modes(), taking_up=False)
    command.handle(site.verdict("n[0-7]"))
    waiting.until(lambda: "test_nodes" in asked_for(site))
    approved = command.approve(asked_for(site)["test_nodes"], "u1", "go")
    looked(site.actor())
    kept = site.nodes.action(approved.id)
    assert kept is not None and kept.state == "approved" and site.nodes.running()


def test_what_follows_from_a_test_is_done_by_the_next_process(site: Site) -> None:
    site.cluster(ending(bad=["n3"]))
    actor = site.actor()
    actor._concluded = lambda test: None  # type: ignore[method-assign] # as if killed there
    actor._tester._concluded = actor._concluded
    actor.handle(site.verdict("n[0-7]"))
    waiting.until(lambda: bool(site.nodes.tests().items) and not site.nodes.running())
    actor.stop()
    assert [one.state for one in site.nodes.actions().items] == ["approved"] and not site.cordons.exists()
    site.actor()
    waiting.until(lambda: not site.nodes.unfollowed())
    assert site.cordons.read_text().startswith("n3 ")
    states = {one.action.kind: one.state for one in site.nodes.actions().items}
    assert states == {"test_nodes": "done", "cordon": "done", "reboot": "waiting", "restart": "waiting"}


def test_what_follows_late_is_asked_for(site: Site) -> None:
    nodes = list(NODES)
    test = site.nodes.begin_test("paper", nodes, {}, "u1", None, 1000.0)
    site.nodes.finish_test(test, Conclusion((Finding("n3", "faulty", "wrong data", (1,), ("n1",)),)), 1001.0)
    site.actor()
    waiting.until(lambda: not site.nodes.unfollowed())
    assert "cordon" in asked_for(site) and not site.cordons.exists()


def test_a_verdict_that_nobody_acted_upon_is_acted_upon(site: Site) -> None:
    site.cluster(ending(bad=["n3"]))
    stored = site.verdict("n[0-7]")  # and the process died
    completed = site.verdict("n[0-7]", msgspec.structs.replace(VERDICT, outcome="completed"))
    site.actor()
    waiting.until(lambda: any(one.action.kind == "restart" for one in site.nodes.actions().items))
    (test,) = site.nodes.tests().items
    assert (test.by, test.verdict) == ("policy", stored.id) and test.verdict != completed.id
    looked(site.actor())
    assert len(site.nodes.tests().items) == 1


def test_nothing_is_done_about_a_failure_that_was_entered_afterwards(site: Site) -> None:
    facts = JobFacts(nodelist="n[0-7]", placed=True)
    past = PastAttempt(job="old", key="a.log", facts=facts, ended=time.time() - 60, verdict=VERDICT)
    PastRecords(site.records.database).enter_past([past], time.time())
    entered = site.records.current("old", 1)
    assert entered is not None
    actor = site.actor()  # which looks at the failures of the last hour
    actor.handle(entered)
    actor.handle(site.verdict("n[0-7]"))
    waiting.until(lambda: bool(site.nodes.actions().items))
    assert all(one.job != "old" for one in site.nodes.actions().items)


def test_what_policy_decided_and_nobody_began_is_done(site: Site) -> None:
    stored = site.verdict("n[0-7]")
    names = tuple(node.name for node in NODES)
    action = site.nodes.propose(Action("test_nodes", names, "auto", "so", stored.id), stored.job, 1, time.time())
    assert action is not None and action.state == "approved"  # and the process died
    site.actor()
    waiting.until(lambda: (one := site.nodes.action(action.id)) is not None and one.state == "done")
    assert [test.verdict for test in site.nodes.tests().items] == [stored.id]


def test_a_cap_makes_an_action_wait_again(site: Site) -> None:
    site.cluster(ending(bad=["n3", "n4"]))
    actor = site.actor(Modes(), share=0.13)  # one of eight
    over(site, actor.test([], "u1"))
    waiting.until(lambda: len(site.nodes.actions("waiting").items) == 4)
    first, second = [one.id for one in site.nodes.actions().items if one.action.kind == "cordon"]
    assert actor.approve(first, "u1", "").state == "done"
    refused = actor.approve(second, "u1", "")
    assert refused.state == "waiting" and "LOGDOCTOR_CORDON_SHARE" in refused.why
    (held,) = [state.name for state in actor.nodes() if state.cordoned]
    actor.uncordon(held, "u1", "board replaced")
    assert actor.approve(second, "u1", "").state == "done"


@pytest.mark.parametrize("after", [True, False])
def test_an_action_is_settled_by_what_came_of_it(site: Site, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = site.actor(Modes())
    site.cluster(ending(bad=["n3"]))
    over(site, actor.test([], "u1"))
    waiting.until(lambda: "cordon" in asked_for(site))
    deed = FileCordoner.cordon

    def odd(cordoner: FileCordoner, name: str, mark: Mark) -> None:
        if after:
            deed(cordoner, name, mark)
        raise UnicodeDecodeError("utf-8", b"x", 0, 1, "odd")

    monkeypatch.setattr(FileCordoner, "cordon", odd)
    settled = actor.approve(asked_for(site)["cordon"], "u1", "go")
    assert settled.state == ("done" if after else "failed")
    assert [one.state for one in site.nodes.cordons()] == ["standing" if after else "failed"]


def test_a_cluster_that_does_not_answer_burns_no_approval(site: Site) -> None:
    actor = site.actor(Modes())
    actor.handle(site.verdict("n[0-7]"))
    waiting.until(lambda: "test_nodes" in asked_for(site))
    action = asked_for(site)["test_nodes"]

    async def away(names: Sequence[str]) -> list[Node]:
        raise LaunchError("srun", "is away", "Wait.")

    site.launcher.inventory = away  # type: ignore[method-assign]
    refused = actor.approve(action, "u1", "go")
    assert refused.state == "waiting" and "is away" in refused.why
    site.cluster(ending())
    assert actor.approve(action, "u1", "go").state == "approved"
    over(site, actor.begun[action])


def test_one_action_that_cannot_be_proposed_takes_no_other_with_it(site: Site) -> None:
    actor = site.actor(Modes())
    restart = msgspec.structs.replace(VERDICT, recovery="restart", reason="NCCL Error")
    actor.handle(site.verdict("n[0-24999]", restart))
    waiting.until(lambda: "restart" in asked_for(site))
    assert "test_nodes" not in asked_for(site)


def test_a_proof_must_be_on_record(site: Site) -> None:
    actor = site.actor()
    with pytest.raises(ActionRefused, match="verdict 99"):
        actor.cordon("n1", "u1", "so", verdict=99)
    with pytest.raises(ActionRefused, match="test 77"):
        actor.cordon("n1", "u1", "so", test=77)
    assert site.nodes.cordons() == []


def test_a_log_cannot_forbid_the_test_of_its_job(site: Site) -> None:
    suspects = tuple(Suspect(name, None, None, "") for name in ("x\0", "n3", *("y" * 200 + str(n) for n in range(400))))
    stored = site.verdict("n[0-7]", msgspec.structs.replace(VERDICT, suspects=suspects))
    assert over(site, site.actor().test([], "u1", verdict=stored.id)).state == "finished"


def test_verdicts_that_wait_do_not_hold_up_the_end(site: Site) -> None:
    actor = site.actor()
    site.cluster(ending()).known.clear()
    for pair in ("n[0-1]", "n[2-3]", "n[4-5]", "n[6-7]"):
        actor.handle(site.verdict(pair))
    waiting.until(lambda: bool(site.nodes.actions("approved").items))
    actor.stop()
    assert [one.state for one in site.nodes.actions().items] == ["approved"]
    site.cluster(ending())
    site.actor()
    waiting.until(lambda: len(site.nodes.actions("done").items) == 4)


def asked_for(site: Site) -> dict[str, int]:
    """The actions that wait, by their kinds."""
    return {one.action.kind: one.id for one in site.nodes.actions("waiting").items}
