"""Caps and records of cordons hold for several processes, and for one that is killed at any step."""

import multiprocessing
import os
import signal
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from logdoctor.errors import CordonRefused
from logdoctor.nodes.cordon.caps import Caps
from logdoctor.nodes.cordon.file import FileCordoner
from logdoctor.store.jobs.records import Records
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.types.nodes import Mark, NodeState
from tests.at_once import at_once
from tests.nodes.test_cordoning import FLEET, cordon, database, fleet, over, path, records, steps

__all__ = ["path", "records"]  # fixtures
SPAWN = multiprocessing.get_context("spawn")


def cordon_many(folder: Path, barrier: Barrier, nodes: list[str], caps: Caps) -> None:
    """A process that cordons all of these, each in a thread of its own."""

    def try_one(node: str) -> None:
        barrier.wait()
        try:
            cordon(over(records, FileCordoner(folder / "cordoned", fleet), caps), node)
        except CordonRefused:
            pass

    opened = Records(database(folder))
    records = NodeRecords(opened.database)
    at_once(try_one, nodes)
    opened.close()


@pytest.mark.parametrize("caps", [Caps(0.5, 3, 20), Caps(0.075, 20, 20)], ids=["at once", "share"])
def test_caps_hold_for_two_processes(records: NodeRecords, path: Path, tmp_path: Path, caps: Caps) -> None:
    """Two processes of eight threads each, half of the nodes wanted by both: three get out, no node twice."""
    barrier = SPAWN.Barrier(16)
    workers = [
        SPAWN.Process(target=cordon_many, args=(tmp_path, barrier, FLEET[start : start + 8], caps)) for start in (0, 4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    standing = {one.node for one in records.cordons(state="standing")}
    assert len(standing) == 3 == len(path.read_text().splitlines())
    assert {line.split()[0] for line in path.read_text().splitlines()} == standing
    assert len(records.cordons(state="refused")) == 13 and records.cordons(state="wanted") == []


DEATHS = ("looking", "before cordon", "after cordon", "before uncordon", "after uncordon")


class Dying(FileCordoner):
    """A file cordoner whose process is killed at a step."""

    def __init__(self, path: Path, death: str) -> None:
        super().__init__(path, fleet)
        self._death = death

    def _die(self, step: str) -> None:
        if step == self._death:
            os.kill(os.getpid(), signal.SIGKILL)

    def nodes(self) -> list[NodeState]:
        self._die("looking")
        return super().nodes()

    def cordon(self, name: str, mark: Mark) -> None:
        self._die("before cordon")
        super().cordon(name, mark)
        self._die("after cordon")

    def uncordon(self, name: str, mark: Mark) -> None:
        self._die("before uncordon")
        super().uncordon(name, mark)
        self._die("after uncordon")


def live_until(folder: Path, death: str) -> None:
    """A process that cordons and uncordons a node, and dies meanwhile."""
    records = NodeRecords(Records(database(folder)).database)
    cordoning = over(records, Dying(folder / "cordoned", death))
    cordon(cordoning, "gpu-1")
    cordoning.uncordon("gpu-1", "user-18", "repaired", 20.0)


def test_a_kill_at_any_step_is_put_right(tmp_path: Path) -> None:
    folders = {death: tmp_path / death.replace(" ", "-") for death in DEATHS}
    for folder in folders.values():
        folder.mkdir()
        Records(database(folder)).close()
    workers = [SPAWN.Process(target=live_until, args=(folder, death)) for death, folder in folders.items()]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == -signal.SIGKILL
    left = {death: reconciled(folder) for death, folder in folders.items()}
    assert left == {
        "looking": ([], []),
        "before cordon": (["wanted", "failed"], []),
        "after cordon": (["wanted", "standing"], ["gpu-1"]),
        "before uncordon": (["wanted", "standing", "undo wanted"], ["gpu-1"]),
        "after uncordon": (["wanted", "standing", "undo wanted", "undone"], []),
    }


def reconciled(folder: Path) -> tuple[list[str], list[str]]:
    """What is on record of the node, and which nodes are out, after a restart; the same after a second one, and the
    node can be cordoned or given back then."""
    opened = Records(database(folder))
    records = NodeRecords(opened.database)
    cordoning = over(records, FileCordoner(folder / "cordoned", fleet))
    assert all(one.state != "failed" for one in cordoning.reconcile(30.0))  # the other process may be alive
    cordoning.reconcile(30.0, grace=0.0)
    assert cordoning.reconcile(31.0, grace=0.0) == []
    left = [step for step, _ in steps(records, "gpu-1")]
    out = [state.name for state in FileCordoner(folder / "cordoned", fleet).nodes() if state.cordoned]
    assert [one.node for one in records.cordons(state="standing")] == out and records.cordons(state="wanted") == []
    if out:
        assert cordoning.uncordon("gpu-1", "user-17", "", 40.0).state == "undone"
    else:
        assert cordon(cordoning, "gpu-1", 40.0).state == "standing"
    opened.close()
    return left, out
