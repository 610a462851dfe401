"""Runs a node test from its first round to its conclusion: plans, launches, stores and judges its worlds."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from logdoctor.errors import InputError, LaunchError
from logdoctor.nodes.board import Board
from logdoctor.nodes.judge import judge
from logdoctor.nodes.launching import Launcher, LaunchTask, ProbeOptions
from logdoctor.nodes.launching import result as result_of
from logdoctor.nodes.plan import next_round
from logdoctor.text import harmless
from logdoctor.types.nodes import Conclusion, Result, World

PORTS = 2000
"""The number of ports: each world listens on the first one plus its number, modulo this."""
_PAUSES = (5.0, 15.0, 45.0)  # seconds to wait when the launcher cannot launch anything
_PER_REPEAT = 0.05  # share of the time-out that a repeat adds; most of a world's time is spent starting it


class Conducting:
    """One test. `name` labels everything launched, `port` is the first port for worlds.

    `keep` is called with each result as it ends, before the next round is planned; worlds with results stored by an
    `earlier` process are not launched again. No round begins later than `seconds` after the start; the conclusion then
    says what is open. `begun` is called with the worlds of each round before it begins.
    """

    def __init__(
        self,
        name: str,
        launcher: Launcher,
        board: Board,
        probe: ProbeOptions,
        keep: Callable[[Result], None],
        port: int = 20_000,
        seconds: float = 3600.0,
        earlier: Mapping[int, Result] | None = None,
        begun: Callable[[tuple[World, ...]], None] = lambda worlds: None,
    ) -> None:
        self._name, self._launcher, self._board, self._probe = name, launcher, board, probe
        self._keep, self._port, self._seconds, self._earlier = keep, port, seconds, earlier or {}
        self._begun = begun

    async def run(self) -> Conclusion:
        """Run the test and return its conclusion. When cancelled, first end everything that was launched."""
        begin, pauses = time.monotonic(), list(_PAUSES)
        while time.monotonic() - begin < self._seconds and (worlds := next_round(self._board)):
            self._require_same_plan(worlds)
            self._begun(worlds)
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._world(world)) for world in worlds]
            results = [task.result() for task in running]
            for result in results:
                self._board.add(result)
            if all(result.ended == "void" and not result.unreached for result in results):
                if not pauses:
                    break
                await asyncio.sleep(pauses.pop(0))  # the launcher itself fails: it may recover
            else:
                pauses = list(_PAUSES)
        return judge(self._board)

    def _require_same_plan(self, worlds: Iterable[World]) -> None:
        """Raise `InputError` if stored results belong to another plan: settings or logdoctor itself may have
        changed."""
        for world in worlds:
            if (known := self._earlier.get(world.number)) is not None and known.world != world:
                cause = f"world {world.number} on record belongs to another plan"
                raise InputError(f"test {self._name}", cause, "Start another test.")

    async def _world(self, world: World) -> Result:
        if (known := self._earlier.get(world.number)) is not None:
            return known
        ended = await self._launched(world)
        self._keep(ended)
        return ended

    async def _launched(self, world: World) -> Result:
        """Launch a world and return its result; void when the launcher failed."""
        nodes = tuple(self._board.nodes[self._board.place[name]] for name in world.nodes)
        seconds = self._probe.seconds * (1 + _PER_REPEAT * (world.repeats - 1))
        probe = self._probe._replace(seconds=seconds)
        task = LaunchTask(self._name, world, nodes, self._port + world.number % PORTS, probe)
        begin = time.monotonic()
        try:
            answers = await self._launcher.run(task)
        except LaunchError as error:
            return Result(world, "void", harmless(str(error), 600), (), (), round(time.monotonic() - begin, 3))
        return result_of(task, answers, round(time.monotonic() - begin, 3))
