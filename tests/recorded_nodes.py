"""What tests of nodes came to, as if it had been run: for those who show it."""

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path

from logdoctor.errors import LaunchError
from logdoctor.nodes.launching import STARTED, LaunchTask, ProbeAnswer
from logdoctor.store.jobs.records import Records
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.types.nodes import Action, Conclusion, Finding, LinkFault, Node, Reading, Result, World
from tests.databases import url_in

NOW = 1_795_250_000.0
NODES = tuple(Node(f"gpu-0{number}", f"10.0.0.{number}", "leaf-1") for number in range(1, 5))


def reading(node: str, ok: bool = True, why: str = "", speed: float = 40.0) -> Reading:
    """What the probe said on a node."""
    stage = "done" if ok else "gather"
    sizes = {"1048576": speed / 2, "16777216": speed}
    return Reading(node, ok, stage, why, "torch/gloo", bandwidth=sizes if ok else {}, boot="8c1f")


WORLDS = (
    Result(
        World(2, 1, ("gpu-03", "gpu-04"), "first round"),
        "passed",
        readings=(reading("gpu-03"), reading("gpu-04", speed=38.0)),
        seconds=4.1,
    ),
    Result(
        World(1, 1, ("gpu-01", "gpu-02"), "first round"),
        "failed",
        "gpu-02: wrong data: 3 values",
        readings=(reading("gpu-01"), reading("gpu-02", False, "wrong data: 3 values")),
        seconds=60.0,
    ),
    Result(
        World(3, 2, ("gpu-01", "gpu-03"), "gpu-01, accused, with proven-good gpu-03"),
        "passed",
        readings=(reading("gpu-01"), reading("gpu-03")),
        seconds=4.0,
    ),
    Result(
        World(4, 2, ("gpu-02", "gpu-04"), "gpu-02, accused, with proven-good gpu-04"),
        "failed",
        "gpu-02: wrong data: 1 value",
        readings=(reading("gpu-04"), reading("gpu-02", False, "wrong data: 1 value")),
        seconds=59.0,
    ),
)
"""How the worlds of a test of `NODES` ended, in that order."""
FAULTY = Conclusion(
    (
        Finding("gpu-01", "healthy", "passed with gpu-03", (3,), ("gpu-03",)),
        Finding("gpu-02", "faulty", "wrong data: failed with gpu-04", (1, 4), ("gpu-01", "gpu-04"), "wrong data"),
        Finding("gpu-03", "healthy", "passed with gpu-04", (2, 3), ("gpu-04", "gpu-01"), warnings=("GPU 3: 85 C",)),
        Finding("gpu-04", "healthy", "passed with gpu-03", (2,), ("gpu-03",)),
    ),
    rounds=2,
)
LINK = Conclusion(
    tuple(Finding(node.name, "healthy", "passed", (1,)) for node in NODES),
    (LinkFault(("gpu-01", "gpu-02"), "nodes", "they fail together (2 worlds), and both work with others", (1, 4)),),
    rounds=3,
)
OPEN = Conclusion(
    tuple(Finding(node.name, "indeterminate", "no world has passed", (1,)) for node in NODES),
    rounds=1,
    open="No world has passed. Test these nodes together with some that are known to work.",
)
CORDON = Action("cordon", ("gpu-02",), "ask", "test 1 found gpu-02 faulty", None, 1)


def opened(folder: Path) -> NodeRecords:
    """The records of nodes of a data folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return NodeRecords(Records(url_in(folder / "logdoctor.db")).database)


def kept_test(records: NodeRecords, conclusion: Conclusion | None = FAULTY, worlds: int = 4, at: float = NOW) -> int:
    """A test of `NODES` on record; it runs still without a conclusion."""
    test = records.begin_test("slurm", NODES, {"repeats": 1}, "ops", None, at)
    for result in WORLDS[:worlds]:
        records.add_result(test, result)
    if conclusion is not None:
        records.finish_test(test, conclusion, at + 64)
        records.follow_test(test)
    return test


class RecordedLauncher:
    """Nodes whose probes answer at once, or when `going` is set, as nodes with these faults do."""

    name = "local"

    def __init__(self, names: Sequence[str], faulty: Sequence[str] = ()) -> None:
        self.names, self.faulty = tuple(names), frozenset(faulty)
        self.going = threading.Event()
        self.going.set()
        self.runs, self.ended = 0, 0

    async def inventory(self, names: Sequence[str]) -> list[Node]:
        """The nodes of these names."""
        if unknown := [name for name in names if name not in self.names]:
            raise LaunchError(f"node {unknown[0]}", "is not known here", "Check its name.")
        return [Node(name, "127.0.0.1") for name in names or self.names]

    async def run(self, task: LaunchTask) -> list[ProbeAnswer]:
        """What the probes printed."""
        self.runs += 1
        try:
            while not self.going.is_set():
                await asyncio.sleep(0.005)
        finally:
            self.ended += 1
        bad = self.faulty & set(task.world.nodes)
        return [self._answer(name, bad) for name in task.world.nodes]

    async def sweep(self, test: str) -> int:
        """Nothing runs."""
        return 0

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _answer(self, name: str, bad: frozenset[str]) -> ProbeAnswer:
        line: dict[str, object] = {"node": name, "ok": not bad, "stage": "gather" if bad else "done"}
        if bad:
            line["why"] = "wrong data: 3 values" if name in bad else "no answer: of a partner"
        else:
            line["bandwidth"] = {"1048576": 20.0, "16777216": 40.0}
        return ProbeAnswer(name, True, json.dumps(line).encode() + b"\n", STARTED + name.encode() + b"\n", 0)
