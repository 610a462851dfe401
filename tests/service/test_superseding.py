"""What follows from a verdict or a test is done only as long as these are the last word."""

import time

import msgspec
import pytest

from logdoctor.errors import ActionRefused
from logdoctor.nodes.policy import Modes
from logdoctor.service import acting
from logdoctor.service.acting import Actor
from logdoctor.store.jobs.records import JobFacts, StoredVerdict
from logdoctor.store.nodes.records import StoredAction
from logdoctor.types import Verdict
from logdoctor.types.nodes import Action
from tests import waiting
from tests.nodes.clusters import ending
from tests.service.sites import VERDICT, Site, looked, over

CORRECTED = msgspec.structs.replace(
    VERDICT, fault="user", reason="Import Error", category="Script", recovery="fix_first", suspects=()
)


def correct(site: Site, stored: StoredVerdict) -> StoredVerdict:
    again = site.records.publish(stored.job, stored.attempt, CORRECTED, True, time.time())
    assert again is not None
    return again


def asked_for(site: Site, kind: str) -> StoredAction:
    """The action of a kind that waits, as soon as one does."""
    waiting.until(lambda: any(one.action.kind == kind for one in site.nodes.actions("waiting").items))
    return next(one for one in site.nodes.actions("waiting").items if one.action.kind == kind)


def found(site: Site, actor: Actor, *bad: str) -> int:
    """A test that finds these nodes faulty, and what followed from it is on record."""
    site.cluster(ending(bad=bad))
    test = actor.test([], "u1")
    over(site, test)
    waiting.until(lambda: not site.nodes.unfollowed())
    return test


def test_a_superseded_verdict_sends_nothing_to_nodes(site: Site) -> None:
    actor = site.actor(Modes())
    stored = site.verdict("n[0-7]")
    actor.handle(stored)
    action = asked_for(site, "test_nodes")
    again = correct(site, stored)
    with pytest.raises(ActionRefused, match=f"verdict {stored.id} was superseded by verdict {again.id}"):
        actor.approve(action.id, "u1", "go")
    kept = site.nodes.action(action.id)
    assert kept is not None and kept.state == "superseded" and not site.launcher.asked


def test_a_correction_settles_what_waits(site: Site) -> None:
    actor = site.actor(Modes())
    stored, other = site.verdict("n[0-7]"), site.verdict("n[0-3]")
    actor.handle(stored)
    actor.handle(other)
    waiting.until(lambda: len(site.nodes.actions("waiting").items) == 2)
    actor.handle(correct(site, stored))
    waiting.until(lambda: bool(site.nodes.actions("superseded").items))
    assert [one.action.verdict for one in site.nodes.actions("superseded").items] == [stored.id]
    assert [one.action.verdict for one in site.nodes.actions("waiting").items] == [other.id]


def test_a_verdict_corrected_in_the_queue_is_not_acted_upon(site: Site) -> None:
    stored = site.verdict("n[0-7]")
    correct(site, stored)
    actor = site.actor()
    actor.handle(stored)
    looked(actor)
    assert site.nodes.actions().items == []


def test_a_correction_during_the_test_leaves_the_cordon_to_people(site: Site) -> None:
    launcher = site.cluster(ending(bad=["n3"]))
    launcher.known.clear()
    actor = site.actor()
    stored = site.verdict("n[0-7]")
    actor.handle(stored)
    waiting.until(lambda: bool(site.nodes.actions("approved").items))
    correct(site, stored)
    launcher.known.set()
    cordon = asked_for(site, "cordon")
    waiting.until(lambda: not site.nodes.unfollowed())
    assert not site.cordons.exists()
    assert {one.action.kind for one in site.nodes.actions("waiting").items} == {"cordon", "reboot"}, "no restart"
    assert cordon.action.verdict is None and "done" in {one.state for one in site.nodes.actions().items}
    assert actor.approve(cordon.id, "u1", "the test proves it").state == "done"


def test_a_cordon_is_superseded_by_a_test_that_found_the_node_healthy(site: Site) -> None:
    actor = site.actor(Modes())
    found(site, actor, "n3")
    cordon = asked_for(site, "cordon")
    second = found(site, actor)
    kept = site.nodes.action(cordon.id)
    assert kept is not None and kept.state == "superseded" and f"test {second} found n3 healthy" in kept.why
    with pytest.raises(ActionRefused):
        actor.approve(cordon.id, "u1", "go")
    assert not site.cordons.exists()


def test_a_cordon_takes_the_newer_proof(site: Site) -> None:
    actor = site.actor(Modes())
    found(site, actor, "n3")
    cordon = asked_for(site, "cordon")
    second = found(site, actor, "n3")
    renewed = asked_for(site, "cordon")
    assert (renewed.id, renewed.action.test) == (cordon.id, second)
    assert any(one.step == "cordon renewed" for one in site.nodes.audit(test=second).items)
    assert actor.approve(renewed.id, "u1", "").state == "done"
    assert site.nodes.cordons()[0].test == second


def test_a_waiting_cordon_is_done_at_once_when_the_settings_say_so_now(site: Site) -> None:
    actor = site.actor(Modes())
    found(site, actor, "n3")
    cordon = asked_for(site, "cordon")
    actor.stop()
    found(site, site.actor(Modes(cordon="auto")), "n3")
    kept = site.nodes.action(cordon.id)
    assert kept is not None and (kept.state, kept.by) == ("done", "policy")


def again(site: Site, job: str, attempt: int, verdict: Verdict = VERDICT, nodelist: str = "n[0-7]") -> StoredVerdict:
    """A final verdict on an attempt of a job, of whose nodes its scheduler told these."""
    now = time.time()
    site.records.put_job(job, JobFacts(nodelist=nodelist), now)
    stored = site.records.publish(job, attempt, verdict, True, now)
    assert stored is not None
    return stored


def asked(site: Site) -> list[tuple[str | None, int | None]]:
    """The attempts because of which a person is asked, the newest first."""
    return [(one.job, one.attempt) for one in site.nodes.actions("waiting").items]


def settled(site: Site, actor: Actor, stored: StoredVerdict) -> None:
    """Policy has looked at a verdict, and at all before it."""
    last = site.verdict("n[0-1]", msgspec.structs.replace(VERDICT, fingerprint=str(stored.id), suspects=()))
    actor.handle(stored)
    actor.handle(last)
    waiting.until(lambda: bool(site.nodes.acted_on([last.id])))
    waiting.until(lambda: any(one.action.verdict == last.id for one in site.nodes.actions("waiting").items))

    def refused() -> bool:
        try:  # what a test of nodes has proposed meanwhile may be superseded at this very moment
            site.nodes.decide(site.nodes.actions("waiting").items[0].id, False, "u1", "", time.time())
        except ActionRefused:
            return False
        return True

    waiting.until(refused)


def test_a_newer_proposal_of_an_incident_takes_the_place_of_the_older_ones(site: Site) -> None:
    actor = site.actor(Modes())
    for attempt in (1, 2, 3):
        settled(site, actor, again(site, "run", attempt))
    assert asked(site) == [("run", 3)]
    (newest,) = site.nodes.actions("waiting").items
    older = site.nodes.actions("superseded").items
    assert [(one.attempt, one.why) for one in older] == [
        (2, f"action {newest.id} asks for the same after run / 3"),
        (1, f"action {older[0].id} asks for the same after run / 2"),
    ]
    with pytest.raises(ActionRefused, match="is superseded"):
        actor.approve(older[0].id, "u1", "go")
    assert not site.launcher.asked and actor.approve(newest.id, "u1", "go").state == "approved"


def test_another_job_of_the_incident_with_the_same_nodes_is_one_question(site: Site) -> None:
    actor = site.actor(Modes())
    settled(site, actor, again(site, "run-a", 1))
    settled(site, actor, again(site, "run-b", 1))
    assert asked(site) == [("run-b", 1)]


def test_jobs_that_fail_on_other_nodes_or_for_another_cause_are_questions_of_their_own(site: Site) -> None:
    actor = site.actor(Modes())
    settled(site, actor, again(site, "run-a", 1, nodelist="n[0-3]"))
    settled(site, actor, again(site, "run-b", 1, nodelist="n[4-7]"))
    settled(site, actor, again(site, "run-a", 2, msgspec.structs.replace(VERDICT, fingerprint="g"), "n[0-3]"))
    assert asked(site) == [("run-a", 2), ("run-b", 1), ("run-a", 1)]


def test_restarts_of_two_jobs_are_two_questions(site: Site) -> None:
    passes = msgspec.structs.replace(VERDICT, recovery="restart", fault="nobody", suspects=())
    actor = site.actor(Modes())
    for job, attempt in (("run-a", 1), ("run-b", 1), ("run-a", 2)):
        settled(site, actor, again(site, job, attempt, passes))
    assert asked(site) == [("run-a", 2), ("run-b", 1)]


def test_what_was_approved_or_decided_is_not_superseded(site: Site) -> None:
    site.cluster(ending(), hanging=("n6",))
    actor = site.actor(Modes())
    settled(site, actor, again(site, "run", 1))
    first = actor.approve(asked_for(site, "test_nodes").id, "u1", "go")
    settled(site, actor, again(site, "run", 2))
    kept = site.nodes.action(first.id)
    assert kept is not None and kept.state == "approved" and asked(site)[-1] == ("run", 2)


def test_an_older_question_waits_again_when_the_newer_one_is_superseded_itself(site: Site) -> None:
    actor = site.actor(Modes())
    settled(site, actor, again(site, "run", 1))
    settled(site, actor, again(site, "run", 2))
    third = again(site, "run", 3)
    settled(site, actor, third)
    settled(site, actor, correct(site, third))
    waiting.until(lambda: asked(site) == [("run", 2)])
    (open_again,) = site.nodes.actions("waiting").items
    assert not open_again.why and "test_nodes waiting" in [one.step for one in site.nodes.audit(limit=10).items]
    refused = actor.refuse(open_again.id, "u1", "no")
    settled(site, actor, again(site, "other", 1, nodelist="n[0-2]"))
    assert refused.state == "refused" and asked(site) == [("other", 1)], "a refusal is an answer to all of them"


def test_what_a_crash_left_between_two_proposals_is_settled_by_the_next_process(site: Site) -> None:
    action = Action("test_nodes", ("n0", "n1"), "ask", "why")
    for attempt in (1, 2):
        stored = again(site, "run", attempt)
        assert site.nodes.propose(msgspec.structs.replace(action, verdict=stored.id), "run", attempt, time.time())
    with pytest.raises(ActionRefused, match="asks for the same after run / 2"):
        site.actor(Modes(), taking_up=False).approve(1, "u1", "go")
    assert not site.launcher.asked and asked(site) == [("run", 2)]
    site.nodes.reopen(1, "as if it had crashed before", time.time())
    site.actor(Modes())
    waiting.until(lambda: asked(site) == [("run", 2)])


def test_of_a_decision_and_a_newer_proposal_one_comes_first(site: Site) -> None:
    site.nodes.propose(Action("test_nodes", ("n0", "n1"), "ask", "why"), "run", 1, 1.0)
    site.nodes.decide(1, True, "u1", "go", 2.0)
    with pytest.raises(ActionRefused, match="is approved"):
        site.nodes.supersede(1, "a newer one", 3.0)
    with pytest.raises(ActionRefused, match="is approved"):
        site.nodes.reopen(1, "why", 3.0)


PASSES = msgspec.structs.replace(VERDICT, recovery="restart", fault="nobody", suspects=())


def test_a_restart_is_needed_no_more_once_the_job_runs_again(site: Site) -> None:
    actor = site.actor(Modes())
    for job in ("run", "other"):
        settled(site, actor, again(site, job, 1, PASSES))
    run, other = sorted(site.nodes.actions("waiting").items, key=lambda one: one.id)
    assert (run.action.kind, run.job, other.job) == ("restart", "run", "other")
    site.records.open_attempt("run", 2, time.time())  # it has no verdict yet
    looked(actor)
    assert len(asked(site)) == 2, "it was looked at a moment ago"
    site.clock.leap(acting._PEEK)
    looked(actor)
    assert asked(site) == [("other", 1)]
    kept = site.nodes.action(run.id)
    assert kept is not None and (kept.state, kept.why) == ("superseded", "attempt 2 of run started after it")
    settled(site, actor, again(site, "run", 3, CORRECTED))
    actor.stop()
    looked(site.actor(Modes()))  # which looks at all there is
    assert asked(site) == [("other", 1)], "it does not come back"


def test_a_restart_is_not_approved_when_the_job_runs_again(site: Site) -> None:
    actor = site.actor(Modes(), taking_up=False)
    settled(site, actor, again(site, "run", 1, PASSES))
    action = asked_for(site, "restart")
    site.records.open_attempt("run", 2, time.time())
    with pytest.raises(ActionRefused, match="attempt 2 of run started after it"):
        actor.approve(action.id, "u1", "go")


def test_a_restart_that_was_approved_stays_so(site: Site) -> None:
    actor = site.actor(Modes())
    settled(site, actor, again(site, "run", 1, PASSES))
    action = actor.approve(asked_for(site, "restart").id, "u1", "go")
    site.records.open_attempt("run", 2, time.time())
    site.nodes.propose(Action("restart", (), "ask", "why", 1), "gone", 1, time.time())
    site.records.open_attempt("gone", 2, time.time())
    site.clock.leap(acting._PEEK)
    looked(actor)
    assert asked(site) == []
    kept = site.nodes.action(action.id)
    assert kept is not None and (kept.state, kept.by) == (action.state, "u1")


def test_a_test_of_some_nodes_is_no_reason_to_restart(site: Site) -> None:
    actor = site.actor(Modes(test="never", cordon="never"))
    stored = again(site, "run", 1)
    over(site, actor.test(["n0", "n1"], "u1", verdict=stored.id))
    waiting.until(lambda: not site.nodes.unfollowed())
    assert site.nodes.actions().items == []
    over(site, actor.test([], "u1", verdict=stored.id))
    waiting.until(lambda: not site.nodes.unfollowed())
    assert [one.action.kind for one in site.nodes.actions().items] == ["restart"]
