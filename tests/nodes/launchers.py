"""The contract of launchers: what every kind does, whatever its cluster. Each has a class of these tests."""

import asyncio
import sys
from pathlib import Path
from typing import get_args

import pytest

from logdoctor.errors import LaunchError
from logdoctor.nodes.launching import Launcher, LaunchTask, ProbeOptions, result
from logdoctor.types.launchers import LauncherName
from logdoctor.types.nodes import Result, World

_PROBE = """#!{python} -S
import json, os, sys
words = sys.argv
node = words[words.index("--node") + 1]
node = os.environ["SLURMD_NODENAME"] if node == "slurm" else node
print("logdoctor-probe started", node, file=sys.stderr, flush=True)
why = "error: broken" if "BROKEN=1" in words else ""
print(json.dumps({{"node": node, "ok": not why, "stage": "done", "why": why}}))
sys.exit(1 if why else 0)
"""
"""Answers as the probe does, without torch."""


class LauncherContract:
    """A subclass gives the fixture `launcher` and two nodes of its cluster, the second of which comes first by name."""

    nodes: tuple[str, str]

    @pytest.fixture
    def launcher(self) -> Launcher:
        raise NotImplementedError

    @pytest.fixture
    def python(self, tmp_path: Path) -> str:
        """The path of a program that answers as the probe does."""
        path = tmp_path / "python"
        path.write_text(_PROBE.format(python=sys.executable))
        path.chmod(0o755)
        return str(path)

    def test_its_name_can_be_set(self, launcher: Launcher) -> None:
        assert launcher.name in get_args(LauncherName)

    def test_inventory_keeps_the_order_of_the_names(self, launcher: Launcher) -> None:
        assert tuple(node.name for node in asyncio.run(launcher.inventory(self.nodes))) == self.nodes

    def test_inventory_without_names_has_them_all(self, launcher: Launcher) -> None:
        assert {node.name for node in asyncio.run(launcher.inventory([]))} >= set(self.nodes)

    def test_inventory_refuses_unknown_nodes(self, launcher: Launcher) -> None:
        with pytest.raises(LaunchError, match="stranger"):
            asyncio.run(launcher.inventory([self.nodes[0], "stranger"]))

    def test_answers_come_in_the_order_of_ranks(self, launcher: Launcher, python: str) -> None:
        ended = asyncio.run(self._run(launcher, ProbeOptions(300.0, python=python)))
        assert (ended.ended, ended.why) == ("passed", "")
        assert tuple(reading.node for reading in ended.readings) == self.nodes

    def test_a_node_that_fails_is_reached(self, launcher: Launcher, python: str) -> None:
        ended = asyncio.run(self._run(launcher, ProbeOptions(300.0, python=python, env=("BROKEN=1",))))
        assert (ended.ended, ended.unreached) == ("failed", ())
        assert "error: broken" in ended.why

    def test_sweep_ends_nothing_where_nothing_is_left(self, launcher: Launcher, python: str) -> None:
        async def swept() -> int:
            await self._run(launcher, ProbeOptions(300.0, python=python), close=False)
            try:
                return await launcher.sweep("contract")
            finally:
                await launcher.close()

        assert asyncio.run(swept()) == 0

    async def _run(self, launcher: Launcher, options: ProbeOptions, close: bool = True) -> Result:
        """How a world of the two nodes ends."""
        try:
            known = tuple(await launcher.inventory(self.nodes))
            task = LaunchTask("contract", World(1, 1, self.nodes, "a pair"), known, 1, options)
            return result(task, await launcher.run(task), 1.0)
        finally:
            if close:
                await launcher.close()
