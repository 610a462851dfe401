"""What follows from a verdict or a test is done only as long as these are the last word."""

import time

import msgspec
import pytest

from logdoctor.act.policy import Modes
from logdoctor.errors import ActionRefused
from logdoctor.live.acting import Actor
from logdoctor.store.node_records import StoredAction
from logdoctor.store.records import StoredVerdict
from tests.act.clusters import ending
from tests.live.sites import VERDICT, Site, eventually, over

CORRECTED = msgspec.structs.replace(
    VERDICT, fault="user", reason="Import Error", category="Script", recovery="fix_first", suspects=()
)


def correct(site: Site, stored: StoredVerdict) -> StoredVerdict:
    again = site.records.publish(stored.job, stored.attempt, CORRECTED, True, time.time())
    assert again is not None
    return again


def waiting(site: Site, kind: str) -> StoredAction:
    """The action of a kind that waits, as soon as one does."""
    eventually(lambda: any(one.action.kind == kind for one in site.nodes.actions("waiting").items))
    return next(one for one in site.nodes.actions("waiting").items if one.action.kind == kind)


def found(site: Site, actor: Actor, *bad: str) -> int:
    """A test that finds these nodes faulty, and what followed from it is on record."""
    site.cluster(ending(bad=bad))
    test = actor.test([], "u1")
    over(site, test)
    eventually(lambda: not site.nodes.unfollowed())
    return test


def test_a_superseded_verdict_sends_nothing_to_nodes(site: Site) -> None:
    actor = site.actor(Modes())
    stored = site.verdict("n[0-7]")
    actor.heed(stored)
    action = waiting(site, "test_nodes")
    again = correct(site, stored)
    with pytest.raises(ActionRefused, match=f"verdict {stored.id} was superseded by verdict {again.id}"):
        actor.approve(action.id, "u1", "go")
    kept = site.nodes.action(action.id)
    assert kept is not None and kept.state == "overtaken" and not site.launcher.asked


def test_a_correction_settles_what_waits(site: Site) -> None:
    actor = site.actor(Modes())
    stored, other = site.verdict("n[0-7]"), site.verdict("n[0-3]")
    actor.heed(stored)
    actor.heed(other)
    eventually(lambda: len(site.nodes.actions("waiting").items) == 2)
    actor.heed(correct(site, stored))
    eventually(lambda: bool(site.nodes.actions("overtaken").items))
    assert [one.action.verdict for one in site.nodes.actions("overtaken").items] == [stored.id]
    assert [one.action.verdict for one in site.nodes.actions("waiting").items] == [other.id]


def test_a_verdict_corrected_in_the_queue_is_not_acted_upon(site: Site) -> None:
    stored = site.verdict("n[0-7]")
    correct(site, stored)
    actor = site.actor()
    actor.heed(stored)
    time.sleep(0.3)
    assert site.nodes.actions().items == []


def test_a_correction_during_the_test_leaves_the_cordon_to_people(site: Site) -> None:
    launcher = site.cluster(ending(bad=["n3"]))
    launcher.slow = 0.5
    actor = site.actor()
    stored = site.verdict("n[0-7]")
    actor.heed(stored)
    eventually(lambda: bool(site.nodes.actions("approved").items))
    correct(site, stored)
    cordon = waiting(site, "cordon")
    eventually(lambda: not site.nodes.unfollowed())
    assert not site.cordons.exists()
    assert {one.action.kind for one in site.nodes.actions("waiting").items} == {"cordon", "reboot"}, "no restart"
    assert cordon.action.verdict is None and "done" in {one.state for one in site.nodes.actions().items}
    assert actor.approve(cordon.id, "u1", "the test proves it").state == "done"


def test_a_cordon_is_overtaken_by_a_test_that_found_the_node_healthy(site: Site) -> None:
    actor = site.actor(Modes())
    found(site, actor, "n3")
    cordon = waiting(site, "cordon")
    second = found(site, actor)
    kept = site.nodes.action(cordon.id)
    assert kept is not None and kept.state == "overtaken" and f"test {second} found n3 healthy" in kept.why
    with pytest.raises(ActionRefused):
        actor.approve(cordon.id, "u1", "go")
    assert not site.cordons.exists()


def test_a_cordon_takes_the_newer_proof(site: Site) -> None:
    actor = site.actor(Modes())
    found(site, actor, "n3")
    cordon = waiting(site, "cordon")
    second = found(site, actor, "n3")
    renewed = waiting(site, "cordon")
    assert (renewed.id, renewed.action.test) == (cordon.id, second)
    assert any(one.step == "cordon renewed" for one in site.nodes.audit(test=second).items)
    assert actor.approve(renewed.id, "u1", "").state == "done"
    assert site.nodes.cordons()[0].test == second


def test_a_waiting_cordon_is_done_at_once_when_the_settings_say_so_now(site: Site) -> None:
    actor = site.actor(Modes())
    found(site, actor, "n3")
    cordon = waiting(site, "cordon")
    actor.stop()
    found(site, site.actor(Modes(cordon="auto")), "n3")
    kept = site.nodes.action(cordon.id)
    assert kept is not None and (kept.state, kept.by) == ("done", "policy")
