"""The actor: tests nodes, cordons them, and does what policy proposes, at once or when a person says yes."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from logdoctor import tracing
from logdoctor.errors import ActionRefused, InputError, LogdoctorError
from logdoctor.nodes.cordon.cordoning import Cordoning, Prospect
from logdoctor.nodes.policy import JobNodes, Modes, after_test, after_verdict
from logdoctor.service.keeping import Keeper
from logdoctor.service.leading import alone
from logdoctor.service.outcomes import result_of
from logdoctor.service.superseding import displaced, is_restart, resumed, superseded, verdict_superseded
from logdoctor.service.testing import Bench, NodeTestOptions, Tester
from logdoctor.service.turns import Turns, shielded
from logdoctor.store.jobs.records import Job, Records, StoredVerdict, Wanted
from logdoctor.store.nodes.actions import POLICY
from logdoctor.store.nodes.records import NodeRecords, StoredAction, StoredTest
from logdoctor.types import Verdict
from logdoctor.types.nodes import NAME, Action, Node, NodeHistory, NodeState, PastCordon, World

log = structlog.get_logger()

_HISTORIES = 2000  # nodes of a job whose histories are looked at
_SUSPECTS = 200  # nodes that a verdict names and that are tested first
_LOOK = 300.0  # seconds between two looks at what is not as it should be
_PEEK = 15.0  # seconds between two looks at whether jobs that wait to be restarted run again
_RECENT = 3600.0  # seconds for which verdicts and tests that nobody acted upon are still acted upon as if just made
_GRACE = 600.0  # seconds after which nobody is at work any more on an action that was decided
_STOP_SECONDS = 5.0  # for the policy to come to an end
_NOT_DONE = "logdoctor was stopped before it was done"


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
    """What is done about nodes. All methods are for any thread. `taking_up` is for a service, which goes on with what
    the last one left; while it `leads`, it acts upon verdicts.

    They raise `ActionRefused`, `LaunchError`, `CordonError`, `InputError` for names that no node has, `StoreError`.
    """

    def __init__(
        self,
        means: Means,
        records: Records,
        nodes: NodeRecords,
        folder: Path,
        taking_up: bool,
        leads: Callable[[], bool] = alone,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._means, self._verdicts, self.records = means, records, nodes
        self._tester = Tester(means.bench, nodes, Keeper(folder), taking_up, self._concluded, clock)
        self.listeners, self.cancel, self.wait = self._tester.listeners, self._tester.cancel, self._tester.wait
        self._leads, self._clock = leads, clock
        self._news: deque[StoredVerdict] = deque()
        self._turns = Turns("policy", self._turn, may=leads)
        self._is_new = taking_up
        self._look_at = self._peek_at = 0.0 if taking_up else math.inf
        self.begun: dict[int, int] = {}
        """The test that an approved action began, by the action's number."""

    def start(self) -> None:
        """Begin; what the last process left is taken up in the background."""
        self._tester.start()
        self._turns.start()

    def stop(self) -> None:
        """End what runs on nodes and stop; tests stay as running, for the next process to take up."""
        self._turns.stop()
        self._tester.stop()
        self._turns.join(_STOP_SECONDS)

    def take_up(self) -> None:
        """Look at all that another process may have left undone, which led until now."""
        self._is_new, self._look_at, self._peek_at = True, 0.0, 0.0
        self._turns.wake()

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
        nodes, options = self.plan(nodes, launcher, verdict, repeats, seconds, regroups)
        options = msgspec.structs.replace(options, topology=str(topology) if topology else "", action=action)
        return self._tester.begin(nodes, by, options, verdict)

    def plan(
        self,
        nodes: Sequence[str],
        launcher: str | None = None,
        verdict: int | None = None,
        repeats: int | None = None,
        seconds: float | None = None,
        regroups: int | None = None,
    ) -> tuple[Sequence[str], NodeTestOptions]:
        """The nodes that a test would be of, and how it would be made; nothing is begun. As for `test`."""
        name = launcher or self._means.launcher
        if not name:
            cause = "no launcher is set"
            raise ActionRefused("a test of nodes", cause, "Set LOGDOCTOR_LAUNCHER, or name a launcher.")
        suspected: tuple[str, ...] = ()
        after_steps = False
        if verdict is not None:
            stored = self._verdict(verdict)
            said = [suspect.node for suspect in stored.verdict.suspects if suspect.node]
            suspected = tuple(name for name in said if NAME.fullmatch(name))[:_SUSPECTS]
            progress = stored.verdict.progress
            after_steps = progress.step is not None and not progress.learned
            if not nodes and not (nodes := self.nodes_of(stored)):
                cause = "the nodes of its job are not known"
                raise ActionRefused(f"verdict {verdict}", cause, "Name the nodes to test.")
        terms, probe = self._means.bench.terms, self._means.bench.probe
        options = NodeTestOptions(
            name,
            repeats or (self._means.repeats_after_steps if after_steps else terms.repeats),
            seconds or probe.seconds,
            terms.regroups if regroups is None else regroups,
            suspected=suspected,
            minutes=self._means.bench.minutes,
        )
        return nodes, options

    def look(self, nodes: Sequence[str], launcher: str) -> list[Node]:
        """The nodes of these names as a launcher has them; `LaunchError` when it does not have them or takes too long
        to say so. Nothing is begun."""
        return self._tester.look(nodes, launcher)

    def worlds(self, test: int) -> tuple[World, ...]:
        """The worlds of the round that a test is in, ended ones among them; none when another process runs it."""
        return self._tester.rounds.get(test, ())

    @property
    def launcher(self) -> str:
        """The name of the usual launcher, "" when none is set."""
        return self._means.launcher

    @property
    def cordons_with(self) -> str:
        """What cordons: slurm, kubernetes, file, dry-run."""
        return self._means.cordoning.how

    def prospect(self, node: str, fleet: Sequence[NodeState]) -> Prospect:
        """What would come of a cordon of a node now, the fleet being so; nothing is done."""
        return self._means.cordoning.prospect(node, fleet, time.time())

    def expand(self, text: str) -> list[str]:
        """The nodes that a list of schedulers names, as `gpu-[01-08],gpu-11`; `InputError` when it cannot be read."""
        return self._means.expand(text)

    def nodes_of(self, stored: StoredVerdict) -> list[str]:
        """The nodes of a verdict's job: as was told of it, else as far as its log tells."""
        return self._told_nodes(stored) or named_by_log(stored.verdict)

    def job_nodes(self, stored: StoredVerdict) -> JobNodes:
        """The nodes of a verdict's job, and how many it had: those that its scheduler told are all of them."""
        told = self._told_nodes(stored)
        return JobNodes(tuple(told), len(told)) if told else logged_nodes(stored, self._verdicts.job(stored.job))

    def nodes(self) -> list[NodeState]:
        """The fleet, as the cluster knows it now."""
        return self._means.fleet()

    def cordon(
        self, node: str, by: str, reason: str, verdict: int | None = None, test: int | None = None
    ) -> PastCordon:
        """Cordon a node, within the caps; `ActionRefused` for a proof that is not on record."""
        if verdict is not None:
            self._verdict(verdict)
        if test is not None and self.records.test(test) is None:
            raise ActionRefused(f"test {test}", "does not exist", "List the tests.")
        return self._means.cordoning.cordon(node, by, reason, verdict, test, time.time())

    def uncordon(self, node: str, by: str, why: str) -> PastCordon:
        """Undo our cordon of a node."""
        return self._means.cordoning.uncordon(node, by, why, time.time())

    def approve(self, action: int, by: str, why: str) -> StoredAction:
        """Do what waits for a person; of advice it says that the person carries it out. What cannot be done now waits
        again, with the reason."""
        stored = self.records.action(action)
        if stored is not None and stored.state == "waiting" and (cause := self._superseded(stored)):
            raise ActionRefused(f"action {action}", f"is superseded: {cause}", "Check the current state.")
        return self._perform(self.records.decide(action, True, by, why, time.time()))

    def refuse(self, action: int, by: str, why: str) -> StoredAction:
        """Leave undone what waits for a person."""
        return self.records.decide(action, False, by, why, time.time())

    def handle(self, stored: StoredVerdict) -> None:
        """Let policy look at a new verdict, in the background."""
        if stored.final and stored.current and self._leads():  # who leads next finds it on record
            self._news.append(stored)
            self._turns.wake()

    def _turn(self) -> float:
        """Act upon the verdicts that have come, and now and then see that all is as it is on record."""
        if self._is_new:
            self._is_new = False
            with shielded("tests not followed"):
                self._follow_all()
            with shielded("verdicts not caught up with"):
                self._catch_up()
        if self._clock() >= self._look_at:
            self._look()
            self._look_at = self._clock() + _LOOK
        if self._clock() >= self._peek_at:
            with shielded("restarts not looked after"):
                self._supersede(is_restart)  # an attempt that begins has no verdict that would tell of it
            self._peek_at = self._clock() + _PEEK
        while self._news and not self._stops:
            stored = self._news.popleft()
            acting = tracing.span("act", stored.job, stored.attempt, verdict=stored.id)
            with shielded("verdict not acted upon", verdict=stored.id), acting:
                settled = self._supersede(partial(_is_for, stored.job, stored.attempt))
                self._react(stored)
                if settled:
                    self._reopen()
        return _PEEK

    @property
    def _stops(self) -> bool:
        return self._turns.stopping.is_set() or not self._leads()

    def _look(self) -> None:
        """See after cordons, tests and actions that are not as they should be."""
        now = time.time()
        self._tester.end_lost()
        with shielded("cordons not looked after"):
            self._means.cordoning.reconcile(now)
        with shielded("tests not followed"):
            self._follow_all()
        with shielded("actions not looked after"):
            for stored in self.records.every_action("approved"):
                if not self._stops:
                    self._pick_up(stored, now)
            self._supersede(lambda _: True)
            self._reopen()

    def _catch_up(self) -> None:
        """React to the verdicts that the last process had no time for."""
        failed = list(self._verdicts.every(Wanted(outcomes=("failed",), since=time.time() - _RECENT)))
        acted_on = self.records.acted_on([stored.id for stored in failed])
        for stored in reversed([stored for stored in failed if stored.id not in acted_on]):
            if self._stops:
                return
            with shielded("verdict not acted upon", verdict=stored.id):
                self._react(stored)

    def _react(self, stored: StoredVerdict) -> None:
        """Propose what follows from a verdict that still counts, and do what may be done at once."""
        now = self._verdicts.verdict(stored.id)
        if now is None or not now.current or not now.final or now.verdict.outcome != "failed":
            return
        attempt = self._verdicts.attempt(stored.job, stored.attempt)
        if attempt is None or attempt.deleted is not None:
            return  # a past attempt, or one whose log is gone: nobody could look at the proof before they approve
        job = self._verdicts.job(stored.job)
        placed = job is not None and job.facts.placed
        nodes = self.nodes_of(stored)
        modes = self._means.modes
        if not placed and modes.test == "auto":
            modes = modes._replace(test="ask")  # words of a log, and of who may only send it, send nothing to nodes
        proposed = after_verdict(stored.verdict, stored.id, nodes, self._histories(nodes), modes)
        self._propose(proposed, stored.job, stored.attempt)

    def _concluded(self, test: int) -> None:
        with shielded("test not followed", test=test):
            self._follow(test)

    def _follow_all(self) -> None:
        """Do what follows from tests that ended when nobody had the time to see to it."""
        for test in self.records.unfollowed():
            if not self._stops:
                self._concluded(test)

    def _follow(self, test: int) -> None:
        """Settle the action that wanted a test that has ended, and propose what follows from what was found.

        Done twice it comes to the same. Where that comes late, or the verdict that led to the test counts no more,
        nothing is done at once; what was found of nodes is proposed all the same, for its proof is the test.
        """
        kept = self.records.test(test)
        if kept is None or kept.state == "running":
            return
        if isinstance(action := kept.options.get("action"), int):
            self._settle_by(action, kept)
        if kept.conclusion is not None:
            found, verdict = kept.conclusion, kept.verdict
            modes = self._means.modes
            if verdict_superseded(verdict, self._verdicts):
                verdict, modes = None, _asking(modes)
            elif time.time() - (kept.ended or 0.0) > _RECENT:
                modes = _asking(modes)
            stored = None if verdict is None else self._verdicts.verdict(verdict)
            histories = self._histories([finding.node for finding in found.findings])
            nodes = self.job_nodes(stored) if stored else JobNodes()
            proposed = after_test(found, test, verdict, histories, modes, nodes)
            self._propose(proposed, stored.job if stored else None, stored.attempt if stored else None)
            tested = {node.name for node in kept.nodes}
            self._supersede(lambda one: not tested.isdisjoint(one.action.nodes))
        self.records.follow_test(test)

    def _propose(self, actions: Sequence[Action], job: str | None, attempt: int | None) -> None:
        """Put actions on record, settle the older ones whose place they take, and do what may be done at once."""
        for action in actions:
            try:
                stored = self.records.propose(action, job, attempt, time.time())
            except (ActionRefused, InputError) as error:  # too many nodes: the others are proposed all the same
                log.warning("action not proposed", kind=action.kind, cause=str(error))
                continue
            if stored is None:
                continue
            self._supersede(partial(_asks_alike, action))
            if stored.state == "approved":
                self._perform(stored)

    def _supersede(self, concerned: Callable[[StoredAction], bool]) -> bool:
        """Settle the waiting actions concerned that follow no more from what is known; whether there were any."""
        return any([self._superseded(one) for one in self.records.every_action("waiting") if concerned(one)])

    def _superseded(self, stored: StoredAction) -> str:
        """Why a waiting action follows no more, and is settled so; "" when it does."""
        why = self._needless(stored)
        if why:
            with suppress(ActionRefused):  # somebody has just decided on it
                self.records.supersede(stored.id, why, time.time())
        return why

    def _needless(self, stored: StoredAction) -> str:
        """Why an action that waits follows no more; "" when it does."""
        why = superseded(stored.action, self._verdicts, self.records) or resumed(stored, self._verdicts)
        return why or displaced(stored, self.records)

    def _reopen(self) -> None:
        """Let those wait again whose place an action took that has been superseded itself: nobody else asks for what
        they ask."""
        for stored in self.records.displaced():
            if not self._needless(stored):
                with suppress(ActionRefused):  # it was proposed again meanwhile
                    self.records.reopen(stored.id, "the action that replaced it was superseded itself", time.time())

    def _perform(self, stored: StoredAction) -> StoredAction:
        """Carry out an approved action. What cannot or may not be done now, or not without being asked any more, waits
        for a person with the reason: a cap, a test that runs, a cluster that does not answer."""
        action, now = stored.action, time.time()
        if why := superseded(action, self._verdicts, self.records):
            return self.records.supersede(stored.id, why, now, approved=True)
        stale = verdict_superseded(action.verdict, self._verdicts)
        if stale and stored.by == POLICY:
            return self.records.put_back(stored.id, stale, now)
        try:
            if action.kind == "test_nodes":
                self.begun[stored.id] = self.test(action.nodes, stored.by, verdict=action.verdict, action=stored.id)
                return stored  # it is done when the test is over
            if action.kind == "cordon":
                verdict = None if stale else action.verdict
                for node in action.nodes:
                    self._means.cordoning.cordon(node, stored.by, action.why, verdict, action.test, now)
        except Exception as error:  # the edge: an action never ends the loop
            known = isinstance(error, LogdoctorError)
            if not known:
                log.exception("action failed", action=stored.id)
            if self._turns.stopping.is_set() or (came := result_of(stored, self.records)) == "open":
                return stored  # to be looked at later, by the next process perhaps
            if known and came != "done":
                return self.records.put_back(stored.id, str(error), time.time())
            return self.records.settle_action(stored.id, came or "failed", str(error), time.time())
        return self.records.settle_action(stored.id, "done", "", time.time())

    def _pick_up(self, stored: StoredAction, now: float) -> None:
        """Settle an approved action that nobody is at work on by what came of it; what policy decided on a short while
        ago, and nobody began, is done now."""
        by_policy = stored.by == POLICY
        at_work = stored.changed > now - _GRACE and not (by_policy and stored.action.kind == "test_nodes")
        if at_work or (came := result_of(stored, self.records)) == "open":
            return
        with shielded("action not picked up", action=stored.id):
            if came is None and by_policy and stored.changed > now - _RECENT:
                self._perform(stored)
            else:
                self.records.settle_action(stored.id, came or "failed", "" if came == "done" else _NOT_DONE, now)

    def _settle_by(self, action: int, test: StoredTest) -> None:
        """Say what came of the action that wanted a test, where that is not said yet."""
        why = f"test {test.id}{test.why and f': {test.why}'}"
        with suppress(ActionRefused):
            self.records.settle_action(action, "done" if test.conclusion else "failed", why, time.time())

    def _histories(self, nodes: Sequence[str]) -> dict[str, NodeHistory]:
        return self.records.histories([node for node in nodes[:_HISTORIES] if NAME.fullmatch(node)])

    def _told_nodes(self, stored: StoredVerdict) -> list[str]:
        """The nodes that were told of a job, with the right to or as a claim."""
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


def named_by_log(verdict: Verdict) -> list[str]:
    """The nodes that the log of a verdict's job names, those that can be called so."""
    return [name for name in verdict.nodes if NAME.fullmatch(name)]


def logged_nodes(stored: StoredVerdict, job: Job | None) -> JobNodes:
    """The nodes of a verdict's job as far as its log names them, and how many it was told to have."""
    names = named_by_log(stored.verdict)
    told = job.facts.nodes if job and job.facts.nodes else 0
    return JobNodes(tuple(names), max(told, len(names)))


def _asking(modes: Modes) -> Modes:
    """The modes, but nothing is done at once."""
    return Modes(*("ask" if mode == "auto" else mode for mode in modes))


def _is_for(job: str, attempt: int, stored: StoredAction) -> bool:
    return (stored.job, stored.attempt) == (job, attempt)


def _asks_alike(action: Action, stored: StoredAction) -> bool:
    return stored.action.kind == action.kind and set(stored.action.nodes) == set(action.nodes)
