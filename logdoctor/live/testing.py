"""Tests of nodes as they run: in a thread with an event loop, over the records of one data folder.

A test that a process did not end is taken up by the next one over the same folder, or ended cleanly: what it launched
stops by itself, and is looked for again.
"""

import asyncio
import fcntl
import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import structlog

from logdoctor.act.board import Board, Terms
from logdoctor.act.conduct import Conducting
from logdoctor.act.launching import Launcher, ProbeOptions
from logdoctor.errors import ActionRefused, LaunchError, LogdoctorError
from logdoctor.nodes import Conclusion, Node, Result
from logdoctor.store.node_records import NodeRecords, StoredTest

log = structlog.get_logger()

_RESUMED = 3600.0  # seconds after its beginning for which a test is taken up again
_BEGIN_SECONDS = 120.0  # in which a launcher must say which nodes there are
T = TypeVar("T")


class Bench(NamedTuple):
    """What tests are made with. `launchers` makes a launcher by its name, `groups` gives nodes their groups out of a
    file. No round begins after `minutes`; worlds listen on ports from `port` on."""

    launchers: Callable[[str], Launcher]
    groups: Callable[[Sequence[Node], str], list[Node]]
    terms: Terms
    probe: ProbeOptions
    minutes: float = 30.0
    port: int = 20_000


class Options(msgspec.Struct, frozen=True):
    """How one test is made, as it is kept with it. `keeper` is the host and folder that run it, `action` the approved
    action that wanted it."""

    launcher: str
    repeats: int
    seconds: float
    regroups: int
    topology: str = ""
    suspected: tuple[str, ...] = ()
    keeper: str = ""
    action: int | None = None


Concluded = Callable[[int, Options, Conclusion | None, str], None]
"""Called when a test has ended: its number, its options, what it found, or None and why not."""


class Tester:
    """Runs tests. All methods are for any thread.

    `taking_up` says whether tests that broke off with an earlier process go on (a service), or are ended (a command).
    """

    def __init__(self, bench: Bench, records: NodeRecords, folder: Path, taking_up: bool, concluded: Concluded) -> None:
        self._bench, self._records, self._concluded = bench, records, concluded
        self._folder, self._taking_up = folder / "node-tests", taking_up
        self._keeper = f"{socket.gethostname()}:{folder}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="node-tests", daemon=True)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._cancelled: dict[int, str] = {}
        self._stopping = False
        self.listeners: list[Callable[[int], None]] = []
        """Called, from any thread, with a test's number when it begins, after each world, and when it ends."""

    def start(self) -> list[Options]:
        """Take up what the last process left, then begin; the options of the tests that go on."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._thread.start()
        going = []
        for test in self._records.running():
            options = msgspec.convert(test.options, Options)
            if options.keeper == self._keeper and (lock := self._locked(test.id)) is not None:
                if self._schedule(self._take_up(test, options, lock)).result():
                    going.append(options)
        return going

    def stop(self) -> None:
        """End what runs on nodes and stop; tests stay as running, for the next process to take up."""
        self._stopping = True
        if self._thread.is_alive():
            self._schedule(self._end_all()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def begin(self, names: Sequence[str], by: str, options: Options, verdict: int | None) -> int:
        """The number of a test that runs now, of the nodes named, else of all that the launcher knows.

        `LaunchError` for nodes it does not know, `ActionRefused` when one is being tested already.
        """
        if self._stopping or not self._thread.is_alive():
            raise ActionRefused("a test of nodes", "logdoctor is stopping", "Try again in a moment.")
        try:
            options = msgspec.structs.replace(options, keeper=self._keeper)
            return self._schedule(self._begin(names, by, options, verdict)).result(_BEGIN_SECONDS)
        except TimeoutError as error:
            cause = f"the launcher has not said within {_BEGIN_SECONDS:.0f} s which nodes there are"
            raise LaunchError("a test of nodes", cause, "Look at the cluster.") from error

    def cancel(self, test: int, by: str) -> None:
        """End a test of this process; `ActionRefused` when it does not run here."""
        running = self._running.get(test)
        if running is None:
            raise ActionRefused(f"test {test}", "does not run here", "List the tests.")
        self._cancelled[test] = f"cancelled by {by}"
        self._loop.call_soon_threadsafe(running.cancel)

    def wait(self, test: int, seconds: float | None = None) -> bool:
        """Whether a test of this process has ended, waited for so long."""
        running = self._running.get(test)
        if running is None:
            return True

        async def ended() -> bool:
            done, _ = await asyncio.wait([running], timeout=seconds)
            return bool(done)

        return self._schedule(ended()).result()

    async def _begin(self, names: Sequence[str], by: str, options: Options, verdict: int | None) -> int:
        launcher = self._bench.launchers(options.launcher)
        try:
            nodes = self._bench.groups(await launcher.inventory(names), options.topology)
            self._require_free({node.name for node in nodes})
            kept = msgspec.to_builtins(options)
            test = self._records.begin_test(options.launcher, nodes, kept, by, verdict, time.time())
        except BaseException:
            await launcher.close()
            raise
        self._launch(test, nodes, options, launcher, self._locked(test), {})
        return test

    def _require_free(self, names: set[str]) -> None:
        """Two tests at once on a node, of whichever process, would find each other's load."""
        for test in self._records.running():
            if (shared := sorted(names & {node.name for node in test.nodes})) and self._lives(test):
                cause = f"test {test.id} runs on {shared[0]} now"
                raise ActionRefused("a test of nodes", cause, "Wait for it, or cancel it.")

    def _lives(self, test: StoredTest) -> bool:
        """Whether some process runs a test; of those over other folders that is taken for granted."""
        if test.id in self._running or test.options.get("keeper") != self._keeper:
            return True
        if (lock := self._locked(test.id)) is None:
            return True
        os.close(lock)
        return False

    def _launch(
        self,
        test: int,
        nodes: Sequence[Node],
        options: Options,
        launcher: Launcher,
        lock: int | None,
        earlier: Mapping[int, Result],
    ) -> None:

        def keep(result: Result) -> None:
            self._records.add_result(test, result)
            self._tell(test)

        bench = self._bench
        terms = bench.terms._replace(repeats=options.repeats, regroups=options.regroups)
        board = Board(nodes, terms, options.suspected)
        probe = bench.probe._replace(seconds=options.seconds)
        conducting = Conducting(self._name(test), launcher, board, probe, keep, bench.port, bench.minutes * 60, earlier)
        self._running[test] = self._loop.create_task(self._run(test, options, conducting, launcher, lock))
        self._tell(test)

    async def _take_up(self, test: StoredTest, options: Options, lock: int) -> bool:
        """Whether a test that an earlier process began goes on; what still runs of it on nodes is ended first."""
        why = "logdoctor was stopped in the middle of it"
        try:
            launcher = self._bench.launchers(test.launcher)
            await launcher.inventory([node.name for node in test.nodes])  # some look only at nodes that were named
            swept = await launcher.sweep(self._name(test.id))
        except LogdoctorError as error:
            await self._end(test.id, options, f"{why}, and what it launched could not be looked for: {error}", lock)
            return False
        log.info("test taken up", test=test.id, swept=swept)
        if self._taking_up and time.time() - test.at < _RESUMED:
            earlier = {result.world.number: result for result in self._records.results(test.id)}
            self._launch(test.id, test.nodes, options, launcher, lock, earlier)
            return True
        await launcher.close()
        await self._end(test.id, options, why, lock)
        return False

    async def _run(
        self, test: int, options: Options, conducting: Conducting, launcher: Launcher, lock: int | None
    ) -> None:
        """A test from its first round to the end, whatever that is."""
        try:
            conclusion = await conducting.run()
        except asyncio.CancelledError:
            if test in self._cancelled or not self._stopping:
                await self._end(test, options, self._cancelled.pop(test, "cancelled"), lock)
            elif lock is not None:
                os.close(lock)  # the next process takes it up
        except Exception as error:
            log.exception("test of nodes failed", test=test)
            await self._end(test, options, f"it could not go on: {error}", lock)
        else:
            await self._end(test, options, conclusion, lock)
        finally:
            await launcher.close()
            del self._running[test]
            self._tell(test)

    async def _end(self, test: int, options: Options, found: Conclusion | str, lock: int | None) -> None:
        """Keep what a test found, or why it found nothing, and tell; what follows may take its time."""
        await asyncio.to_thread(self._conclude, test, options, found)
        with suppress(OSError):
            (self._folder / str(test)).unlink()
        if lock is not None:
            os.close(lock)

    def _conclude(self, test: int, options: Options, found: Conclusion | str) -> None:
        conclusion, why = (found, "") if isinstance(found, Conclusion) else (None, found)
        try:
            if conclusion is None:
                self._records.abort_test(test, why, time.time())
            else:
                self._records.finish_test(test, conclusion, time.time())
            self._concluded(test, options, conclusion, why)
        except Exception:
            log.exception("test not concluded", test=test)

    async def _end_all(self) -> None:
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _tell(self, test: int) -> None:
        for listener in list(self.listeners):
            listener(test)

    def _schedule(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _name(self, test: int) -> str:
        """What a test is called wherever something of it is launched; no test of another logdoctor is called so, and
        letters and digits alone fit every launcher."""
        return f"t{test}x{hashlib.sha256(self._keeper.encode()).hexdigest()[:8]}"

    def _locked(self, test: int) -> int | None:
        """A lock that says that this process runs a test; None when another one holds it."""
        descriptor = os.open(self._folder / str(test), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor
