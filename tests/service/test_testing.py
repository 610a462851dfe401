"""Tests of nodes begin and end in time whatever a launcher does, and none is left on record as running for ever."""

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import pytest

from logdoctor.errors import ActionRefused, LaunchError
from logdoctor.nodes.policy import Modes
from logdoctor.service import testing
from logdoctor.service.acting import Actor
from logdoctor.types.nodes import Node
from tests import waiting
from tests.at_once import at_once
from tests.nodes.clusters import cluster, ending
from tests.service.sites import AUTO, Site, over

NAMES = [f"n{number}" for number in range(8)]


def broken_off(site: Site) -> int:
    """A test whose process is gone."""
    site.cluster(ending(), hanging=("n6",))
    actor = site.actor(Modes())
    test = actor.test([], "u1")
    waiting.until(lambda: len(site.nodes.results(test)) == 3)
    actor.stop()
    site.cluster(ending())
    return test


def of_another_host(site: Site, silent: float) -> int:
    """A test of a process over another folder, of which nothing was heard for so many seconds."""
    broken_off(site)
    return silence(site, silent)


def silence(site: Site, seconds: float) -> int:
    """The last test, as that of a process over another folder, of which nothing was heard for so many seconds."""
    (site.folder / "node-tests" / "keeper").unlink()
    unheard(site, seconds)
    return site.nodes.tests().items[0].id


def unheard(site: Site, seconds: float) -> None:
    """As if tests had begun so many seconds ago, and nothing was heard of them since."""
    past = time.time() - seconds
    with site.nodes._database.writing() as connection:
        connection.exec_driver_sql(f"UPDATE node_tests SET at = {past}, seen = {past}")


def states(site: Site) -> list[str]:
    return [test.state for test in site.nodes.tests().items]


# whose tests they are


def test_a_test_is_known_again_when_the_machine_is_called_otherwise(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = broken_off(site)
    monkeypatch.setattr("socket.gethostname", lambda: "logdoctor-7d9c-xyz")
    site.actor(Modes())
    assert over(site, test).state == "finished"
    assert "taken up" in {event.step for event in site.nodes.audit(test=test).items}


def test_a_test_of_another_host_is_dead_when_nothing_is_heard_of_it(site: Site) -> None:
    test = of_another_host(site, 3600.0)
    assert over(site, site.actor(Modes(), taking_up=False).test(["n1", "n2"], "u1")).state == "finished"
    assert over(site, test).state == "aborted"


def test_what_a_dead_process_of_another_host_left_on_nodes_is_ended(site: Site) -> None:
    name = f"t{broken_off(site)}x{(site.folder / 'node-tests' / 'keeper').read_text()[:8]}"
    test = silence(site, 3600.0)
    site.launcher.swept.clear()
    site.actor(Modes())
    kept = over(site, test)
    assert kept.state == "aborted" and "no longer responds" in kept.why
    assert site.launcher.swept == [name]


def test_a_database_that_was_away_lost_no_test(site: Site) -> None:
    test = of_another_host(site, 600.0)
    actor = site.actor(Modes())
    with pytest.raises(ActionRefused, match="nodes cancel 1"):
        actor.test(["n1"], "u1")  # nobody could have said anything
    site.clock.leap(testing._LISTEN_SECONDS)
    actor.test(["n1"], "u1")
    assert over(site, test).state == "aborted"


def test_anybody_may_cancel_a_test_of_another_host(site: Site) -> None:
    test = of_another_host(site, 60.0)
    actor = site.actor(Modes(), taking_up=False)
    actor.cancel(test, "u2")
    kept = over(site, test)
    assert (kept.state, kept.why) == ("aborted", "cancelled by u2")
    assert ("aborted", "u2") in {(event.step, event.by) for event in site.nodes.audit(test=test).items}
    assert over(site, actor.test(["n1", "n2"], "u1")).state == "finished"
    for number in (test, 99):
        with pytest.raises(ActionRefused, match=f"test {number}"):
            actor.cancel(number, "u2")


def test_a_process_says_of_its_tests_that_they_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOOK_SECONDS", "_KEEP_SECONDS"):
        monkeypatch.setattr(testing, name, 0.01)
    site.cluster(ending(), hanging=("n6",))
    service = site.actor(Modes())
    test = service.test([], "u1")
    for _ in range(2):
        unheard(site, 3600.0)
        waiting.until(lambda: site.nodes.silent(600.0) == {})
    service.stop()
    unheard(site, 3600.0)
    assert site.nodes.silent(600.0).keys() == {test}


def test_what_is_cancelled_on_record_ends_where_it_runs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "_LOOK_SECONDS", 0.01)
    launcher = site.cluster(ending(), hanging=("n6",))
    service = site.actor(Modes())
    test = service.test([], "u1")
    waiting.until(lambda: len(site.nodes.results(test)) == 3)
    site.actor(taking_up=False).cancel(test, "u2")
    assert service.wait(test) and launcher.ended == 1
    assert over(site, test).why == "cancelled by u2"


# commands


def test_a_command_leaves_alone_what_broke_off(site: Site) -> None:
    test = broken_off(site)
    actor = site.actor(AUTO, taking_up=False)
    actor.cordon("n1", "u1", "so")
    actor.uncordon("n1", "u1", "so")
    actor.stop()
    assert states(site) == ["running"] and not site.launcher.swept
    site.actor(Modes())
    assert over(site, test).state == "finished"


def test_a_command_that_tests_the_same_nodes_ends_what_broke_off(site: Site) -> None:
    test = broken_off(site)
    over(site, site.actor(Modes(), taking_up=False).test(["n1", "n2"], "u1"))
    kept = over(site, test)
    assert (kept.state, kept.why) == ("aborted", "logdoctor was stopped in the middle of it")
    assert len(site.launcher.swept) == 1


def test_of_two_that_begin_a_test_of_a_node_one_does(site: Site) -> None:
    site.cluster(ending(), hanging=("n0",))

    def begins(actor: Actor) -> bool:
        try:
            actor.test(["n0", "n1"], "u1")
        except ActionRefused:
            return False
        return True

    actors = [site.actor(Modes(), taking_up=False) for _ in range(4)]
    assert sum(at_once(begins, actors)) == 1 == len(site.nodes.running())


# launchers that hang


class Slow:
    """Nodes that a launcher lists when a test says so; it stops when it is told to if it `obeys`, or goes on."""

    def __init__(self, obeys: bool = True) -> None:
        self._answers, self._over = threading.Event(), threading.Event()
        self._obeys = obeys

    async def inventory(self, names: Sequence[str]) -> list[Node]:
        while not self._answers.is_set():
            try:
                await asyncio.to_thread(self._answers.wait)
            except asyncio.CancelledError:
                if self._obeys:
                    self._over.set()
                    raise
        self._over.set()
        return [Node(name) for name in names or NAMES]

    def answer(self) -> None:
        """List them, unless the end came before."""
        self._answers.set()
        self._over.wait()


@pytest.mark.parametrize("obeys", [True, False])
def test_a_test_that_is_refused_does_not_begin_after_all(
    site: Site, monkeypatch: pytest.MonkeyPatch, obeys: bool
) -> None:
    launcher, slow = site.cluster(ending()), Slow(obeys)
    launcher.inventory = slow.inventory  # type: ignore[method-assign]
    actor = site.actor(Modes())
    with monkeypatch.context() as patched:
        patched.setattr(testing, "_BEGIN_SECONDS", 0.01)
        with pytest.raises(LaunchError, match="has not listed its nodes"):
            actor.test([], "u1")
    slow.answer()
    waiting.until(lambda: not actor._tester._beginning)
    assert states(site) == [] and not launcher.asked
    site.cluster(ending())
    assert over(site, actor.test([], "u1")).state == "finished"


def test_not_too_many_tests_are_begun_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "_BEGINNING", 1)
    launcher = site.cluster(ending())
    launcher.known.clear()
    actor = site.actor(Modes())
    first = threading.Thread(target=lambda: actor.test(["n0", "n1"], "u1"))
    first.start()
    waiting.until(lambda: actor._tester._beginning)
    with pytest.raises(ActionRefused, match="are being started"):
        actor.test(["n2", "n3"], "u1")
    launcher.known.set()
    first.join()


def test_a_sweep_that_hangs_holds_up_neither_start_nor_stop(site: Site) -> None:
    broken_off(site)

    async def never(test: str) -> int:
        await asyncio.Event().wait()
        return 0

    site.launcher.sweep = never  # type: ignore[method-assign]
    actor = site.actor(Modes())
    with pytest.raises(ActionRefused):
        actor.test(["n1"], "u1")
    actor.stop()
    assert states(site) == ["running"]


@pytest.mark.parametrize("what", ["inventory", "sweep", "close"])
def test_a_launcher_that_fails_oddly_fails_no_start(site: Site, what: str) -> None:
    test = broken_off(site)

    async def odd(*words: object) -> object:
        raise OSError("too many open files")

    setattr(site.launcher, what, odd)
    actor = site.actor(Modes())
    kept = over(site, test)
    assert kept.state == "finished" if what == "close" else "too many open files" in kept.why
    with pytest.raises(ActionRefused, match="already"):
        actor.cancel(test, "u1")


def test_worlds_that_do_not_end_do_not_hold_up_the_stop(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "_STOP_SECONDS", 0.01)
    launcher = site.cluster(ending())
    ended = threading.Event()

    async def deaf(task: object) -> object:
        while not ended.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.to_thread(ended.wait)
        return []

    launcher.run = deaf  # type: ignore[method-assign, assignment]
    actor = site.actor(Modes())
    actor.test([], "u1")
    actor.stop()  # which comes back although the worlds still run
    assert not ended.is_set() and states(site) == ["running"]
    ended.set()


def test_nothing_is_left_in_the_folder(site: Site) -> None:
    actor = site.actor(Modes())
    over(site, actor.test([], "u1"))
    actor.stop()
    assert os.listdir(site.folder / "node-tests") == ["keeper"]


def test_what_is_left_is_ended_though_a_node_has_gone(site: Site) -> None:
    test = broken_off(site)
    site.cluster(ending(), nodes=cluster(7))  # without n7
    site.actor(Modes())
    assert over(site, test).state == "finished"
    assert len(site.launcher.swept) == 1
