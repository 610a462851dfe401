"""Runs tests of nodes, in a thread with an event loop, over the records of one data folder.

A test that outlives its process is resumed by the next service of the folder, or ended cleanly: what it launched stops
by itself, and is looked for. No launcher delays the start or stop of a process for long.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec
import structlog

from logdoctor.errors import ActionRefused, LaunchError, NodeTestRefused
from logdoctor.nodes.board import Board, NodeTestTerms
from logdoctor.nodes.conduct import Conducting
from logdoctor.nodes.launching import Launcher, ProbeOptions
from logdoctor.service.keeping import Keeper, name_of
from logdoctor.store.nodes.records import NodeRecords, StoredTest
from logdoctor.types.nodes import Conclusion, Node, Result, World

log = structlog.get_logger()

_BEGIN_SECONDS = 25.0  # for a launcher to list its nodes
_BEGINNING = 8  # tests that may wait for their launcher's nodes at once
_SWEEP_SECONDS = 60.0  # for finding leftovers of a test
_CLOSE_SECONDS = 10.0  # for a launcher to close its connections
_STOP_SECONDS = 15.0  # for all worlds to end when a process stops
_LOOK_SECONDS = 2.0  # between checks whether a running test was ended on record
_KEEP_SECONDS = 15.0  # between two signs of life for the tests of this process
_SILENT_SECONDS = 120.0  # without a sign of life before a test is dead, if this process has also listened
_LISTEN_SECONDS = 45.0  # for this long: a database that was away shows no signs
_LONG_SILENT_SECONDS = 1800.0  # without a sign of life before a test is dead in any case
_YOUNG = 60.0  # seconds for which a test that nobody seems to run is left alone
_STOPPED = "logdoctor was stopped in the middle of it"
_LOST = "the logdoctor that ran it no longer responds"
T = TypeVar("T")


class Bench(NamedTuple):
    """The equipment of tests. `launchers` returns a launcher by name, `groups` assigns nodes to groups from a file. No
    round begins after `minutes`; worlds listen on ports from `port` up."""

    launchers: Callable[[str], Launcher]
    groups: Callable[[Sequence[Node], str], list[Node]]
    terms: NodeTestTerms
    probe: ProbeOptions
    minutes: float = 30.0
    port: int = 20_000


class NodeTestOptions(msgspec.Struct, frozen=True):
    """The options of one test, stored with it. `keeper` is the id of the data folder whose process runs it, for
    `minutes` and the last round; `action` is the approved action that asked for it."""

    launcher: str
    repeats: int
    seconds: float
    regroups: int
    topology: str = ""
    suspected: tuple[str, ...] = ()
    keeper: str = ""
    action: int | None = None
    minutes: float = 30.0


class Tester:
    """Runs tests; thread-safe.

    With `taking_up`, as in a service, it resumes interrupted tests of an earlier process; a command leaves them alone,
    unless it is to test the same nodes. Calls `concluded` with the number of each test that has ended on record.
    """

    def __init__(
        self,
        bench: Bench,
        records: NodeRecords,
        keeper: Keeper,
        taking_up: bool,
        concluded: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bench, self._records, self._keeper, self._clock = bench, records, keeper, clock
        self._taking_up, self._concluded = taking_up, concluded
        self._loop: asyncio.AbstractEventLoop  # set by `start`: a loop that never runs complains when it is discarded
        self._thread = threading.Thread(target=lambda: self._loop.run_forever(), name="node-tests", daemon=True)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._beginning: set[asyncio.Task[Any]] = set()
        self._ending: set[int] = set()
        self._cancelled: dict[int, str] = {}
        self._silent_since: dict[int, float] = {}
        self._watching: asyncio.Task[None] | None = None
        self._stopping = False
        self.rounds: dict[int, tuple[World, ...]] = {}
        """The worlds of the current round of each test of this process, ended ones included."""
        self.listeners: list[Callable[[int], None]] = []
        """Called, from any thread, with a test's number when it begins, after each world, and when it ends."""

    def start(self) -> None:
        """Start, and resume in the background what the last process left. `StoreError` when the records cannot be
        read."""
        self._keeper.open()
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        self._schedule(self._begin_again()).result()

    def stop(self) -> None:
        """End what runs on nodes and stop; tests keep the state `running` for the next process to resume."""
        self._stopping = True
        if self._thread.is_alive():
            self._schedule(self._end_all()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def begin(self, names: Sequence[str], by: str, options: NodeTestOptions, verdict: int | None) -> int:
        """Start a test of the named or else all nodes, and return its number.

        `LaunchError` for unknown nodes and for a timeout, `ActionRefused` when one is being tested already.
        """
        if self._stopping or not self._thread.is_alive():
            raise _is_stopping()
        if len(self._beginning) >= _BEGINNING:
            raise ActionRefused("a test of nodes", f"{_BEGINNING} are being started", "Try again in a moment.")
        options = msgspec.structs.replace(options, keeper=self._keeper.id, minutes=self._bench.minutes)
        begun: Future[int] = Future()
        work = self._schedule(self._begin(names, by, options, verdict, begun))
        try:
            return begun.result(_BEGIN_SECONDS)
        except TimeoutError as error:
            if not begun.cancel():  # it has just begun
                return begun.result()
            work.cancel()
            raise _is_silent() from error

    def look(self, names: Sequence[str], launcher: str) -> list[Node]:
        """Return the launcher's nodes of these names; `LaunchError` for unknown nodes and for a timeout. Starts
        nothing."""
        if self._stopping or not self._thread.is_alive():
            raise _is_stopping()
        work = self._schedule(self._looked(names, launcher))
        try:
            return work.result(_BEGIN_SECONDS)
        except TimeoutError as error:
            work.cancel()
            raise _is_silent() from error

    def cancel(self, test: int, by: str) -> None:
        """Cancel a test of any process; another process sees it on record within seconds. `ActionRefused` when it is
        not running."""
        if (running := self._running.get(test)) is not None and test not in self._ending:
            self._cancelled[test] = by
            self._loop.call_soon_threadsafe(self._end_early, test, running)
            return
        kept = self._records.test(test)
        if kept is None or kept.state != "running":
            cause = "does not exist" if kept is None else f"is {kept.state} already"
            raise ActionRefused(f"test {test}", cause, "List the tests.")
        self._conclude(test, f"cancelled by {by}", by)
        self._tell(test)

    def wait(self, test: int, seconds: float | None = None) -> bool:
        """Wait up to `seconds`; return whether a test of this process has ended."""
        running = self._running.get(test)
        if running is None:
            return True

        async def ended() -> bool:
            done, _ = await asyncio.wait([running], timeout=seconds)
            return bool(done)

        return self._schedule(ended()).result()

    def end_lost(self) -> None:
        """End on record, in the background, the tests that no process runs any longer."""
        if not self._stopping:
            self._schedule(self._end_dead(lambda test: time.time() - test.at > _YOUNG))

    async def _begin_again(self) -> None:
        """Resume interrupted tests, and begin to watch running ones."""
        self._watching = self._loop.create_task(self._watch())
        for test in self._records.running() if self._taking_up else []:
            if self._keeper.is_ours(test) and (lock := self._keeper.lock(test.id)) is not None:
                self._launch(test.id, self._resumed(test), lock)

    async def _begin(
        self, names: Sequence[str], by: str, options: NodeTestOptions, verdict: int | None, begun: "Future[int]"
    ) -> None:
        """Start a test, unless `begun` is cancelled before."""
        task = asyncio.current_task()
        assert task is not None
        self._beginning.add(task)
        try:
            begun.set_result(await self._first_steps(names, by, options, verdict, begun))
        except asyncio.CancelledError:
            if not begun.done():
                begun.set_exception(_is_stopping())
        except Exception as error:  # noqa: BLE001 -- it is raised where the test is waited for, if anybody waits
            if not begun.cancelled():
                begun.set_exception(error)
        finally:
            self._beginning.discard(task)

    async def _first_steps(
        self, names: Sequence[str], by: str, options: NodeTestOptions, verdict: int | None, begun: "Future[int]"
    ) -> int:
        launcher = self._bench.launchers(options.launcher)
        claimed: tuple[int, int] | None = None

        def claim(test: int, running: list[StoredTest]) -> None:
            """Claim the test while no other can begin: two at once on a node would measure each other's load."""
            nonlocal claimed
            self._require_free(tested, running)
            if not begun.set_running_or_notify_cancel():
                raise ActionRefused("a test of nodes", "nobody is waiting for it any more", "Start it again.")
            if (lock := self._keeper.lock(test)) is not None:
                claimed = (test, lock)

        try:
            nodes = self._bench.groups(await launcher.inventory(names), options.topology)
            tested = {node.name for node in nodes}
            await self._end_dead(lambda test: not tested.isdisjoint(node.name for node in test.nodes))
            kept = msgspec.to_builtins(options)
            test = self._records.begin_test(options.launcher, nodes, kept, by, verdict, time.time(), claim)
        except BaseException:
            if claimed is not None:
                self._keeper.release(*claimed, ended=True)
            await self._close(launcher)
            raise
        work = self._conducted(test, nodes, options, launcher, {})
        self._launch(test, work, claimed[1] if claimed is not None else None)
        return test

    def _require_free(self, names: Collection[str], running: Sequence[StoredTest]) -> None:
        """Raise `ActionRefused` when one of the nodes is in a running test of any process."""
        silent = self._silent()
        for test in running:
            shared = sorted(node.name for node in test.nodes if node.name in names)
            if shared and (test.id in self._running or not self._keeper.is_dead(test, silent)):
                cause = f"test {test.id} is running on {shared[0]}"
                raise ActionRefused("a test of nodes", cause, f"Wait for it, or `logdoctor nodes cancel {test.id}`.")

    async def _end_dead(self, concerned: Callable[[StoredTest], bool]) -> None:
        """End on record those of the `concerned` tests that no process runs any longer."""
        silent = self._silent()
        for test in self._records.running():
            if test.id in self._running or not concerned(test) or not self._keeper.is_dead(test, silent):
                continue
            if not self._keeper.is_ours(test):
                await asyncio.to_thread(self._conclude, test.id, f"{_LOST}{await self._swept(test)}")
            elif (lock := self._keeper.lock(test.id)) is not None:
                try:
                    await asyncio.to_thread(self._conclude, test.id, f"{_STOPPED}{await self._swept(test)}")
                finally:
                    self._keeper.release(test.id, lock, ended=True)

    def _silent(self) -> set[int]:
        """Return the tests whose process shows no sign of life."""
        now, ages = self._clock(), self._records.silent(_SILENT_SECONDS)
        self._silent_since = {test: self._silent_since.get(test, now) for test in ages}
        return {
            test
            for test, age in ages.items()
            if age > _LONG_SILENT_SECONDS or now - self._silent_since[test] > _LISTEN_SECONDS
        }

    def _launch(self, test: int, work: Coroutine[Any, Any, Conclusion | str], lock: int | None) -> None:
        self._running[test] = self._loop.create_task(self._run(test, work, lock))
        self._tell(test)

    async def _run(self, test: int, work: Coroutine[Any, Any, Conclusion | str], lock: int | None) -> None:
        """Run a test to its end, and record it."""
        ended = True
        try:
            await self._end(test, await work)
        except asyncio.CancelledError:
            ended = test in self._cancelled or not self._stopping
            if ended:
                await self._end(test, f"cancelled by {self._cancelled.get(test, 'nobody here')}")
        except Exception as error:  # whatever it was, the test has ended, and its record says why
            log.exception("test of nodes failed", test=test)
            await self._end(test, f"it could not continue: {error}")
        finally:
            if lock is not None:
                self._keeper.release(test, lock, ended)
            del self._running[test]
            self.rounds.pop(test, None)
            self._cancelled.pop(test, None)
            self._ending.discard(test)
            self._tell(test)

    async def _conducted(
        self,
        test: int,
        nodes: Sequence[Node],
        options: NodeTestOptions,
        launcher: Launcher,
        earlier: Mapping[int, Result],
    ) -> Conclusion:
        """Run a test and return its conclusion; the worlds that ended `earlier` are not run again."""

        def keep(result: Result) -> None:
            self._records.add_result(test, result)
            self._tell(test)

        def begun(worlds: tuple[World, ...]) -> None:
            self.rounds[test] = worlds
            self._tell(test)

        bench = self._bench
        terms = bench.terms._replace(repeats=options.repeats, regroups=options.regroups)
        board = Board(nodes, terms, options.suspected)
        probe = bench.probe._replace(seconds=options.seconds)
        name, seconds = name_of(test, options.keeper), options.minutes * 60
        try:
            return await Conducting(name, launcher, board, probe, keep, bench.port, seconds, earlier, begun).run()
        finally:
            await self._close(launcher)

    async def _resumed(self, test: StoredTest) -> Conclusion | str:
        """End leftovers of an earlier process's test on nodes, then resume it; return its conclusion, or why it is
        ended."""
        trouble = await self._swept(test)
        if trouble or not self._keeper.may_go_on(test):
            return f"{_STOPPED}{trouble}"
        options = msgspec.convert(test.options, NodeTestOptions)
        self._records.note_test(test.id, "taken up", "logdoctor", _STOPPED, time.time())
        earlier = {result.world.number: result for result in self._records.results(test.id)}
        launcher = self._bench.launchers(test.launcher)
        return await self._conducted(test.id, test.nodes, options, launcher, earlier)

    async def _swept(self, test: StoredTest) -> str:
        """End leftovers of a test on nodes; return why that failed, "" if it did not."""
        try:
            launcher = self._bench.launchers(test.launcher)
            try:
                async with asyncio.timeout(_SWEEP_SECONDS):
                    with suppress(LaunchError):  # some launchers check only named nodes; one may have left the cluster
                        await launcher.inventory([node.name for node in test.nodes])
                    swept = await launcher.sweep(name_of(test.id, str(test.options.get("keeper", ""))))
            finally:
                await self._close(launcher)
        except TimeoutError:
            return f", and its leftover processes could not be checked within {_SWEEP_SECONDS:.0f} s"
        except Exception as error:  # launchers raise anything; the record says so
            log.exception("test not swept", test=test.id)
            return f", and its leftover processes could not be checked: {error}"
        log.info("test swept", test=test.id, ended=swept)
        return ""

    async def _looked(self, names: Sequence[str], name: str) -> list[Node]:
        launcher = self._bench.launchers(name)
        try:
            return await launcher.inventory(names)
        finally:
            await self._close(launcher)

    async def _close(self, launcher: Launcher) -> None:
        """Close a launcher, with a timeout."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await launcher.close()
        except Exception:  # launchers raise anything; nothing more can be done with this one
            log.exception("launcher not closed", launcher=launcher.name)

    async def _watch(self) -> None:
        """Cancel tests that were ended on record, and record signs of life of the others."""
        kept = 0.0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if not self._running:
                continue
            try:
                running = {test.id for test in self._records.running()}
                if self._clock() - kept > _KEEP_SECONDS:
                    await asyncio.to_thread(self._records.keep, list(self._running))
                    kept = self._clock()
            except Exception:  # the edge of the loop: it tries again
                log.exception("tests not looked after")
                continue
            for test in self._running.keys() - running:
                self._end_early(test, self._running[test])

    def _end_early(self, test: int, running: "asyncio.Task[None]") -> None:
        """Cancel a running test, unless it is ending already."""
        if test not in self._ending:
            running.cancel()

    async def _end(self, test: int, found: Conclusion | str) -> None:
        """Record the conclusion of a test, or why there is none, in another thread: follow-ups may take time."""
        self._ending.add(test)
        await asyncio.to_thread(self._conclude, test, found, self._cancelled.get(test))

    def _conclude(self, test: int, found: Conclusion | str, by: str | None = None) -> None:
        try:
            if isinstance(found, Conclusion):
                self._records.finish_test(test, found, time.time())
            else:
                self._records.abort_test(test, found, time.time(), by)
        except NodeTestRefused as error:
            log.warning("test was ended on record", test=test, cause=str(error))
        except Exception:  # the edge: an unrecorded test is concluded when the service starts again
            log.exception("test not concluded", test=test)
            return
        self._concluded(test)

    async def _end_all(self) -> None:
        """Cancel all tests; what does not end in time is left to its own deadlines."""
        if self._watching is not None:
            self._watching.cancel()
        for task in self._beginning:
            task.cancel()
        for test, task in self._running.items():
            self._end_early(test, task)
        if tasks := [*self._beginning, *self._running.values()]:
            _, late = await asyncio.wait(tasks, timeout=_STOP_SECONDS)
            if late:
                log.warning("tests of nodes do not end", count=len(late))

    def _tell(self, test: int) -> None:
        for listener in list(self.listeners):
            listener(test)

    def _schedule(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)


def _is_silent() -> LaunchError:
    cause = f"the launcher has not listed its nodes within {_BEGIN_SECONDS:.0f} s"
    return LaunchError("a test of nodes", cause, "Check the cluster.")


def _is_stopping() -> ActionRefused:
    return ActionRefused("a test of nodes", "logdoctor is stopping", "Try again in a moment.")
