"""`logdoctor nodes` through a service."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from logdoctor.cli import following
from logdoctor.store.jobs.records import Records
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.types.nodes import Action
from tests import waiting
from tests.client.conftest import ENGINEER, Twins, plain
from tests.recorded_nodes import CORDON, NODES, NOW, OPEN, RecordedLauncher, kept_test
from tests.test_cli import Ran, assert_refused

ALL = "gpu-[01-04]"


def fill(folder: Path) -> None:
    """1 found gpu-02 faulty, 2 nothing; gpu-03 has a cordon; three actions wait for a person."""
    kept = Records(f"sqlite:///{folder / 'logdoctor.db'}")
    records = NodeRecords(kept.database)
    kept_test(records)
    kept_test(records, OPEN, at=NOW + 100)
    records.want_cordon("gpu-03", "dry-run", "ops", NOW, "wrong data", None, 1)
    records.step_cordon(1, "standing", "ops", "", NOW)
    records.propose(CORDON, "j", 1, NOW)
    records.propose(Action("reboot", ("gpu-02",), "ask", "it hangs"), "j", 1, NOW)
    records.propose(Action("test_nodes", tuple(node.name for node in NODES), "ask", "it hangs"), "j", 1, NOW)
    kept.close()


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> RecordedLauncher:
    """The launcher that every name stands for: four nodes, of which gpu-02 is faulty."""
    launcher = RecordedLauncher([node.name for node in NODES], ["gpu-02"])
    monkeypatch.setattr("logdoctor.wiring.nodes.launcher", lambda settings, name: launcher)
    monkeypatch.setenv("LOGDOCTOR_FLEET", "gpu-[01-40]")
    return launcher


@pytest.fixture
def pair(twins: Callable[..., Twins], launcher: RecordedLauncher) -> Twins:
    return twins(fill)


def said(ran: Ran) -> list[str]:
    """What was said while a test went on: worlds end in any order."""
    return sorted(line.partition("  ")[0] for line in plain(ran.err).splitlines())


def test_the_same_is_on_record(pair: Twins) -> None:
    for command in (
        ["tests"],
        ["tests", "--node", "gpu-09"],
        ["tests", "--limit", "1"],
        ["show-test", "1"],
        ["show-test", "2"],
        ["list"],
        ["list", "--cluster"],
        ["history", "gpu-02"],
        ["history", "gpu-99"],
        ["actions", "--state", "waiting"],
        ["actions", "--limit", "1"],
        ["audit"],
        ["audit", "--node", "gpu-02", "--test", "1"],
    ):
        pair.same("nodes", *command)
        pair.same("nodes", *command, "--json")


def test_what_is_not_on_record(pair: Twins) -> None:
    for command in (["show-test", "9"], ["history", "gpu 99"]):
        found = pair.both("nodes", *command)
        assert_refused(found.there)
        assert found.here.err == found.there.err
    for command in (["cancel", "9"], ["cancel", "1"], ["approve", "9"], ["refuse", "9"]):
        found = pair.both("nodes", *command)
        assert_refused(found.here)
        assert found.here.err.partition(". ")[0] == found.there.err.partition(". ")[0]


def test_the_service_tests_nodes(pair: Twins, launcher: RecordedLauncher) -> None:
    test = ["nodes", "test", "--launcher", "local"]
    found = pair.both(*test, "--nodes", ALL)
    assert found.same().code == 1 and "gpu-02" in found.there.out
    assert said(found.here) == said(found.there)
    assert "test 3: 4 nodes through local; a world takes at most 75 s" in found.there.err
    kept = pair.service.nodes.test(3)
    assert kept is not None and kept.by == ENGINEER
    assert pair.same(*test, "--nodes", "gpu-03,gpu-04").code == 0
    assert pair.same(*test, "--nodes", "gpu-01,gpu-02", "--regroup", 0, "--repeats", 2).code == 3
    everything = pair.there(*test, "--json", "--seconds", 7)
    told = json.loads(everything.out)
    assert everything.code == 1 and len(told["test"]["nodes"]) == 4 and told["test"]["options"]["seconds"] == 7
    assert told == json.loads(pair.there("nodes", "show-test", told["test"]["id"], "--json").out)


def test_what_cannot_be_tested(pair: Twins, tmp_path: Path) -> None:
    test = ["nodes", "test", "--launcher", "local"]
    for words in (["--nodes", "gpu-99"], ["--nodes", "gpu-01", "--verdict", 99]):
        found = pair.both(*test, *words)
        assert_refused(found.there)
        assert found.here.err == found.there.err
    assert pair.same(*test, "--nodes", ",").code == 2
    no_launcher = pair.both("nodes", "test", "--nodes", ALL)
    assert no_launcher.here.err == no_launcher.there.err
    topology = tmp_path / "topology.conf"
    topology.write_text("SwitchName=leaf-1 Nodes=gpu-[01-04]\n")
    assert_refused(pair.there(*test, "--topology", topology), "of this machine", "LOGDOCTOR_TEST_TOPOLOGY")


def test_a_test_goes_on_without_its_terminal(
    pair: Twins, launcher: RecordedLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What breaks off is the following: the service runs the test to its end."""
    launcher.going.clear()

    def leave(number: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("logdoctor.words.node_tables.world_line", leave)

    def go_on() -> None:
        waiting.until(lambda: launcher.runs)
        launcher.going.set()

    threading.Thread(target=go_on).start()
    ran = pair.there("nodes", "test", "--launcher", "local", "--nodes", ALL)
    assert ran.code == 130 and "Interrupted." in ran.err
    waiting.until(lambda: (found := pair.service.nodes.test(3)) and found.state == "finished")


def test_a_test_is_stopped_from_elsewhere(pair: Twins, launcher: RecordedLauncher) -> None:
    launcher.going.clear()

    def stop() -> None:
        waiting.until(lambda: launcher.runs)
        actor = pair.service.actor
        assert actor is not None
        actor.cancel(3, "ops")

    threading.Thread(target=stop).start()
    ran = pair.there("nodes", "test", "--launcher", "local", "--nodes", ALL)
    assert ran.code == 2 and "test 3 was stopped (cancelled by ops)" in ran.err
    launcher.going.set()


def test_a_running_test_is_cancelled(pair: Twins, launcher: RecordedLauncher) -> None:
    launcher.going.clear()
    actor = pair.service.actor
    assert actor is not None
    number = actor.test([node.name for node in NODES], "ops", launcher="local")
    assert pair.there("nodes", "cancel", number).out == f"test {number}: cancelled\n"
    kept = waiting.until(lambda: (found := pair.service.nodes.test(number)) and found.state == "aborted" and found)
    assert kept.why == f"cancelled by {ENGINEER}"
    launcher.going.set()


def test_a_service_that_went_away_for_good_is_not_waited_for(
    pair: Twins, launcher: RecordedLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    from logdoctor.cli.client.nodes import ServedNodeRecords
    from logdoctor.errors import ServiceAway

    launcher.going.clear()
    monkeypatch.setattr(following, "_LOOKED_EVERY", 0.01)
    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: 25.0 * max(0, len(asked) - 2)))
    results, asked = ServedNodeRecords.results, list[int]()

    def away(self: ServedNodeRecords, test: int, after: int = 0) -> object:
        asked.append(test)
        if len(asked) > 2:
            raise ServiceAway("the service", "cannot be reached", "Try again.")
        return results(self, test, after)

    monkeypatch.setattr(ServedNodeRecords, "results", away)
    ran = pair.there("nodes", "test", "--launcher", "local", "--nodes", ALL)
    assert ran.code == 2 and ran.out == ""
    assert "is not followed any more (cannot be reached). It goes on there." in ran.err
    assert len(asked) == 5, "it was asked for 60 seconds"
    launcher.going.set()
    waiting.until(lambda: (found := pair.service.nodes.test(3)) and found.state == "finished")


def test_the_same_is_cordoned(pair: Twins) -> None:
    cordon = ["nodes", "cordon", "gpu-02"]
    assert "gpu-02: " in pair.same(*cordon, "--test", 1, "--yes").out
    assert pair.same(*cordon, "--reason", "x", stdin=b"n\n").code == 2
    assert pair.same("nodes", "cordon", "gpu-01", "--test", 1, "--yes").code == 2, "it was found healthy"
    pair.same("nodes", "history", "gpu-02")
    pair.same("nodes", "uncordon", "gpu-02", "--why", "board replaced")
    pair.same("nodes", "audit")
    for words in (["uncordon", "gpu-02"], ["cordon", "gpu-03", "--test", 9, "--yes"]):
        found = pair.both("nodes", *words)
        assert_refused(found.here)
        assert found.here.err.partition(". ")[0] == found.there.err.partition(". ")[0]


def test_the_same_is_approved(pair: Twins) -> None:
    assert pair.same("nodes", "approve", 1, "--why", "so it is").code == 0
    assert pair.same("nodes", "refuse", 2, "--why", "not now").code == 0
    pair.same("nodes", "actions", "--state", "refused")
    assert pair.same("nodes", "approve", 3).code == 2, "no launcher is set: it waits again"
    again = pair.both("nodes", "approve", 1)
    assert again.here.err == again.there.err and again.there.code == 2


def test_a_test_that_is_approved_is_followed(
    twins: Callable[..., Twins], launcher: RecordedLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGDOCTOR_LAUNCHER", "local")
    found = twins(fill).both("nodes", "approve", 3)
    assert found.same().code == 1 and "gpu-02" in found.there.out and "gpu-01" in found.there.err
    assert said(found.here) == said(found.there)
