"""The actor: tests begin, go on after a crash, and what follows from them is done as far as it may be."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from logdoctor.act.board import Terms
from logdoctor.act.cordon.caps import Caps
from logdoctor.act.cordon.cordoning import Cordoning
from logdoctor.act.cordon.file import FileCordoner
from logdoctor.act.launching import Launcher, ProbeOptions
from logdoctor.act.policy import Modes
from logdoctor.act.slurm import expanded
from logdoctor.errors import ActionRefused, LaunchError
from logdoctor.live.acting import Actor, Means
from logdoctor.live.testing import Bench
from logdoctor.nodes import Node
from logdoctor.store.node_records import NodeRecords, StoredTest
from logdoctor.store.records import JobFacts, Records, StoredVerdict
from logdoctor.types import Compression, DecidedBy, Progress, Suspect, Verdict
from tests.act.clusters import Ends, PaperLauncher, cluster, ending

NODES = cluster(8)
AUTO = Modes(test="auto", cordon="auto")
VERDICT = Verdict(
    reason="NVLink Error",
    category="Infrastructure",
    fault="infrastructure",
    recovery="isolate_and_restart",
    outcome="failed",
    confidence=0.9,
    suggestion="",
    evidence=(),
    suspects=(Suspect("n3", None, None, "its log says so"),),
    first_rank=None,
    symptoms=(),
    decided_by=DecidedBy("rule", "r"),
    fingerprint="f",
    progress=Progress(step=100),
    compression=Compression(),
    nodes=tuple(node.name for node in NODES),
)


class Site:
    """A data folder with a cluster on paper; `actor` begins a process over it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cordons = folder, folder / "cordoned"
        self.records = Records(f"sqlite:///{folder / 'records'}")
        self.nodes = NodeRecords(self.records.database)
        self.launcher = PaperLauncher(NODES, ending())
        self._actors: list[Actor] = []

    def actor(self, modes: Modes = AUTO, taking_up: bool = True, launcher: str = "paper", share: float = 0.5) -> Actor:
        cordoner = FileCordoner(self.cordons, lambda: [node.name for node in NODES])
        means = Means(
            Bench(self._launcher, lambda nodes, _: list(nodes), Terms(), ProbeOptions()),
            launcher,
            Cordoning(self.nodes, cordoner, "logdoctor", Caps(share)),
            cordoner.nodes,
            expanded,
            modes,
        )
        actor = Actor(means, self.records, self.nodes, self.folder, taking_up)
        actor.start()
        self._actors.append(actor)
        return actor

    def cluster(self, end: Ends, hanging: tuple[str, ...] = (), nodes: list[Node] = NODES) -> PaperLauncher:
        """Another cluster from now on."""
        self.launcher = PaperLauncher(nodes, end, hanging)
        return self.launcher

    def verdict(self, nodelist: str | None, verdict: Verdict = VERDICT) -> StoredVerdict:
        """A final verdict on a job, of whose nodes its scheduler told these."""
        now = time.time()
        job = f"job-{now}"
        self.records.put_job(job, JobFacts(nodelist=nodelist), now)
        stored = self.records.publish(job, 1, verdict, True, now)
        assert stored is not None
        return stored

    def close(self) -> None:
        for actor in self._actors:
            actor.stop()
        self.records.close()

    def _launcher(self, name: str) -> Launcher:
        if name != "paper":
            raise LaunchError(f"launcher {name}", "there is none", "Use paper.")
        return self.launcher


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def eventually(holds: Callable[[], bool]) -> None:
    """Waits until something holds; a machine may be slow."""
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def over(site: Site, test: int) -> StoredTest:
    eventually(lambda: (kept := site.nodes.test(test)) is not None and kept.state != "running")
    kept = site.nodes.test(test)
    assert kept is not None
    return kept


def test_a_test_is_kept_as_it_goes(site: Site) -> None:
    site.cluster(ending(bad=["n3"]))
    actor, told = site.actor(), list[int]()
    actor.listeners.append(told.append)
    test = actor.test([], "u1")
    kept = over(site, test)
    assert kept.conclusion is not None and kept.conclusion.named("faulty") == ("n3",)
    assert (kept.by, kept.launcher, kept.state) == ("u1", "paper", "finished")
    assert len(site.nodes.results(test)) == len(site.launcher.asked)
    eventually(lambda: len(told) >= len(site.launcher.asked) + 2)
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
    with pytest.raises(ActionRefused, match=f"test {first} runs on n1"):
        actor.test(["n1", "n2"], "u1")
    with pytest.raises(ActionRefused, match=f"test {first} runs on n1"):
        site.actor(taking_up=False).test(["n1", "n2"], "u2")  # as another process would
    assert over(site, actor.test(["n2", "n3"], "u1")).state == "finished"
    actor.cancel(first, "u2")
    assert "u2" in over(site, first).why
    eventually(lambda: site.launcher.ended == 1)
    with pytest.raises(ActionRefused):
        actor.cancel(first, "u2")


def test_a_test_goes_on_in_the_next_process(site: Site) -> None:
    before = site.cluster(ending(bad=["n3"]), hanging=("n6",))
    actor = site.actor()
    test = actor.test([], "u1")
    eventually(lambda: len(site.nodes.results(test)) == 3)
    actor.stop()
    assert before.ended == 1 and site.nodes.running()[0].id == test
    after = site.cluster(ending(bad=["n3"]))
    site.actor()
    kept = over(site, test)
    assert kept.conclusion is not None and kept.conclusion.named("faulty") == ("n3",)
    assert after.swept == sorted(before.tests) and after.tests == before.tests
    assert {world.number for world in after.asked if world.round == 1} == {4}  # the other three had ended


def test_a_command_ends_what_another_one_left(site: Site) -> None:
    site.cluster(ending(), hanging=("n6",))
    actor = site.actor()
    test = actor.test([], "u1")
    eventually(lambda: len(site.nodes.results(test)) == 3)
    actor.stop()
    site.actor(taking_up=False)
    kept = over(site, test)
    assert (kept.state, kept.why) == ("aborted", "logdoctor was stopped in the middle of it")


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
    actor.heed(stored)
    eventually(lambda: any(one.action.kind == "restart" for one in site.nodes.actions().items))
    (test,) = site.nodes.tests().items
    assert (test.by, test.verdict, test.options["repeats"]) == ("policy", stored.id, 20)  # the job had made steps
    (entry,) = site.cordons.read_text().splitlines()
    assert entry.startswith("n3 ") and f"verdict {stored.id}" in entry
    states = {one.action.kind: one.state for one in site.nodes.actions().items}
    assert states == {"test_nodes": "done", "cordon": "done", "reboot": "waiting", "restart": "waiting"}
    first = [world for world in site.launcher.asked if world.round == 1]
    assert all(len(world.nodes) == 2 for world in first)
    actor.heed(stored)  # the same verdict again, after a restart perhaps
    actor.heed(site.verdict("n[0-7]", msgspec.structs.replace(VERDICT, outcome="completed")))
    time.sleep(0.2)
    assert len(site.nodes.tests().items) == 1


def test_the_words_of_a_log_alone_send_nothing_to_nodes(site: Site) -> None:
    actor = site.actor()
    actor.heed(site.verdict(None))
    eventually(lambda: bool(site.nodes.actions().items))
    (waiting,) = site.nodes.actions().items
    assert (waiting.action.kind, waiting.state) == ("test_nodes", "waiting") and not site.launcher.asked
    approved = actor.approve(waiting.id, "u1", "go")
    assert approved.state == "approved"
    over(site, actor.begun[waiting.id])
    eventually(lambda: (one := site.nodes.action(waiting.id)) is not None and one.state == "done")


def test_what_waits_is_refused(site: Site) -> None:
    actor = site.actor(Modes())
    actor.heed(site.verdict("n[0-7]"))
    eventually(lambda: bool(site.nodes.actions().items))
    (waiting,) = site.nodes.actions().items
    assert actor.refuse(waiting.id, "u1", "it was the switch").state == "refused"
    with pytest.raises(ActionRefused):
        actor.approve(waiting.id, "u1", "")
    assert not site.launcher.asked


def test_caps_hold_whatever_policy_says(site: Site) -> None:
    site.cluster(ending(bad=["n3", "n4"]))
    actor = site.actor(share=0.13)  # one of eight
    actor.heed(site.verdict("n[0-7]"))
    eventually(lambda: any(one.action.kind == "restart" for one in site.nodes.actions().items))
    states = sorted(one.state for one in site.nodes.actions().items if one.action.kind == "cordon")
    assert states == ["done", "failed"] and len(site.cordons.read_text().splitlines()) == 1


def test_cordons_by_hand(site: Site) -> None:
    actor = site.actor()
    assert actor.cordon("n1", "u1", "it smells").state == "standing"
    assert [state.name for state in actor.nodes() if state.cordoned] == ["n1"]
    assert actor.uncordon("n1", "u2", "aired").state == "undone"
    assert not any(state.cordoned for state in actor.nodes())


def test_an_action_that_nobody_carried_out_has_failed(site: Site) -> None:
    actor = site.actor(Modes())
    actor.heed(site.verdict("n[0-7]"))
    eventually(lambda: bool(site.nodes.actions().items))
    (waiting,) = site.nodes.actions().items
    site.nodes.decide(waiting.id, True, "u1", "", time.time())  # and the process died
    actor.stop()
    site.actor(taking_up=False)
    assert site.nodes.actions().items[0].state == "approved"  # a command leaves that to the service
    site.actor()
    assert "stopped" in site.nodes.actions().items[0].why
