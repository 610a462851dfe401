"""The actor: tests nodes, cordons them, and does what policy proposes, at once or when a person says yes."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import structlog

from logdoctor.act.cordon.cordoning import Cordoning
from logdoctor.act.policy import Modes, after_test, after_verdict
from logdoctor.errors import ActionRefused, LogdoctorError
from logdoctor.live.testing import Bench, Options, Tester
from logdoctor.nodes import NAME, Action, Conclusion, NodeHistory, NodeState, PastCordon
from logdoctor.store.node_records import NodeRecords, StoredAction
from logdoctor.store.records import Records, StoredVerdict

log = structlog.get_logger()

_HISTORIES = 2000  # nodes of a job whose histories are looked at
_LOOK = 300.0  # seconds between two looks at the cordons


class Means(NamedTuple):
    """What an actor works with. `launcher` is the name of the usual one, `expand` reads a list of nodes as schedulers
    write it; after the failure of a job that had made steps, gathers are repeated `repeats_after_steps` times."""

    bench: Bench
    launcher: str
    cordoning: Cordoning
    fleet: Callable[[], list[NodeState]]
    expand: Callable[[str], list[str]]
    modes: Modes
    repeats_after_steps: int = 20


class Actor:
    """What is done about nodes. All methods are for any thread.

    They raise `ActionRefused`, `LaunchError`, `CordonError`, `InputError` for names that no node has, `StoreError`.
    """

    def __init__(self, means: Means, records: Records, nodes: NodeRecords, folder: Path, taking_up: bool) -> None:
        self._means, self._verdicts, self.records = means, records, nodes
        self._tester = Tester(means.bench, nodes, folder, taking_up, self._concluded)
        self.listeners, self.cancel, self.wait = self._tester.listeners, self._tester.cancel, self._tester.wait
        self._taking_up = taking_up
        self._news: queue.Queue[StoredVerdict | None] = queue.Queue()
        self._thread = threading.Thread(target=self._heed_all, name="policy", daemon=True)
        self.begun: dict[int, int] = {}
        """The test that an approved action began, by the action's number."""

    def start(self) -> None:
        """Take up what the last process left, then begin."""
        going = {options.action for options in self._tester.start()}
        if self._taking_up:
            for stored in self.records.actions("approved", limit=500).items:
                if stored.id not in going:
                    self._settle(stored.id, "failed", "logdoctor was stopped before it was done")
        self._thread.start()

    def stop(self) -> None:
        """End what runs on nodes and stop; tests stay as running, for the next process to take up."""
        self._news.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._tester.stop()

    def test(
        self,
        nodes: Sequence[str],
        by: str,
        *,
        launcher: str | None = None,
        verdict: int | None = None,
        repeats: int | None = None,
        seconds: float | None = None,
        regroups: int | None = None,
        topology: Path | None = None,
        action: int | None = None,
    ) -> int:
        """The number of a test of nodes that begins now: of those named, else of those of the verdict's job, else of
        all that the launcher knows. What is None is as the settings have it."""
        name = launcher or self._means.launcher
        if not name:
            cause = "no launcher is set"
            raise ActionRefused("a test of nodes", cause, "Set LOGDOCTOR_LAUNCHER, or name a launcher.")
        suspected: tuple[str, ...] = ()
        after_steps = False
        if verdict is not None:
            stored = self._verdict(verdict)
            suspected = tuple(suspect.node for suspect in stored.verdict.suspects if suspect.node)
            after_steps = stored.verdict.progress.step is not None
            if not nodes and not (nodes := self.nodes_of(stored)):
                cause = "nobody told which nodes its job had"
                raise ActionRefused(f"verdict {verdict}", cause, "Name the nodes to test.")
        terms, probe = self._means.bench.terms, self._means.bench.probe
        options = Options(
            name,
            repeats or (self._means.repeats_after_steps if after_steps else terms.repeats),
            seconds or probe.seconds,
            terms.regroups if regroups is None else regroups,
            str(topology) if topology else "",
            suspected,
            action=action,
        )
        return self._tester.begin(nodes, by, options, verdict)

    def nodes_of(self, stored: StoredVerdict) -> list[str]:
        """The nodes of a verdict's job: as its scheduler told, else as far as its log tells."""
        return self._told_nodes(stored) or [name for name in stored.verdict.nodes if NAME.fullmatch(name)]

    def nodes(self) -> list[NodeState]:
        """The fleet, as the cluster knows it now."""
        return self._means.fleet()

    def cordon(
        self, node: str, by: str, reason: str, verdict: int | None = None, test: int | None = None
    ) -> PastCordon:
        """Cordon a node, within the caps."""
        return self._means.cordoning.cordon(node, by, reason, verdict, test, time.time())

    def uncordon(self, node: str, by: str, why: str) -> PastCordon:
        """Undo our cordon of a node."""
        return self._means.cordoning.uncordon(node, by, why, time.time())

    def approve(self, action: int, by: str, why: str) -> StoredAction:
        """Do what waits for a person; of advice it says that the person carries it out."""
        return self._perform(self.records.decide(action, True, by, why, time.time()))

    def refuse(self, action: int, by: str, why: str) -> StoredAction:
        """Leave undone what waits for a person."""
        return self.records.decide(action, False, by, why, time.time())

    def heed(self, stored: StoredVerdict) -> None:
        """Let policy look at a new verdict, in the background."""
        if stored.final and stored.current and stored.verdict.outcome == "failed":
            self._news.put(stored)

    def _heed_all(self) -> None:
        """Act upon verdicts as they come; now and then see whether cordons are as they are on record."""
        look_at = 0.0
        while True:
            if self._taking_up and time.monotonic() >= look_at:
                with _logged("cordons not looked after"):
                    self._means.cordoning.reconcile(time.time())
                look_at = time.monotonic() + _LOOK
            try:
                stored = self._news.get(timeout=_LOOK)
            except queue.Empty:
                continue
            if stored is None:
                return
            with _logged("verdict not acted upon", verdict=stored.id):
                self._react(stored)

    def _react(self, stored: StoredVerdict) -> None:
        """Propose what follows from a verdict, and do what may be done at once."""
        told = self._told_nodes(stored)
        nodes = told or self.nodes_of(stored)
        modes = self._means.modes
        if not told and modes.test == "auto":
            modes = modes._replace(test="ask")  # the words of a log alone send nothing to nodes (law 4)
        proposed = after_verdict(stored.verdict, stored.id, nodes, self._histories(nodes), modes)
        self._propose(proposed, stored.job, stored.attempt)

    def _concluded(self, test: int, options: Options, found: Conclusion | None, why: str) -> None:
        """Settle the action that wanted a test, and propose what follows from what was found."""
        if options.action is not None:
            self._settle(options.action, "done" if found else "failed", f"test {test}{why and f': {why}'}")
        kept = self.records.test(test)
        if found is None or kept is None:
            return
        stored = None if kept.verdict is None else self._verdicts.verdict(kept.verdict)
        histories = self._histories([finding.node for finding in found.findings])
        proposed = after_test(found, test, kept.verdict, histories, self._means.modes)
        self._propose(proposed, stored.job if stored else None, stored.attempt if stored else None)

    def _propose(self, actions: Sequence[Action], job: str | None, attempt: int | None) -> None:
        for action in actions:
            if action.mode != "never" and (stored := self.records.propose(action, job, attempt, time.time())):
                if stored.state == "approved":
                    self._perform(stored)

    def _perform(self, stored: StoredAction) -> StoredAction:
        """Carry out an approved action; what cannot be done is on record as failed."""
        action = stored.action
        try:
            if action.kind == "test_nodes":
                self.begun[stored.id] = self.test(action.nodes, stored.by, verdict=action.verdict, action=stored.id)
                return stored  # it is done when the test is over
            if action.kind == "cordon":
                for node in action.nodes:
                    self.cordon(node, stored.by, action.why, action.verdict, action.test)
        except LogdoctorError as error:
            return self.records.settle_action(stored.id, "failed", str(error), time.time())
        return self.records.settle_action(stored.id, "done", "", time.time())

    def _settle(self, action: int, state: Literal["done", "failed"], why: str) -> None:
        """Say what came of an action, in the background."""
        with _logged("action not settled", action=action):
            self.records.settle_action(action, state, why, time.time())

    def _histories(self, nodes: Sequence[str]) -> dict[str, NodeHistory]:
        return self.records.histories([node for node in nodes[:_HISTORIES] if NAME.fullmatch(node)])

    def _told_nodes(self, stored: StoredVerdict) -> list[str]:
        """The nodes that the scheduler of a job named."""
        job = self._verdicts.job(stored.job)
        if job is None or not job.facts.nodelist:
            return []
        try:
            return self._means.expand(job.facts.nodelist)
        except LogdoctorError as error:
            log.warning("list of nodes not read", job=stored.job, cause=str(error))
            return []

    def _verdict(self, id: int) -> StoredVerdict:
        stored = self._verdicts.verdict(id)
        if stored is None:
            raise ActionRefused(f"verdict {id}", "does not exist", "List the verdicts.")
        return stored


@contextmanager
def _logged(event: str, **values: object) -> Iterator[None]:
    """Writes down what goes wrong in the background; the next thing has its turn."""
    try:
        yield
    except Exception:
        log.exception(event, **values)
