"""The actor: tests and cordons nodes, and carries out proposed actions, at once or after approval."""

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
from logdoctor.store.nodes.places import DRY_RUN
from logdoctor.store.nodes.records import NodeRecords, StoredAction, StoredTest
from logdoctor.types import Verdict
from logdoctor.types.nodes import NAME, Action, Node, NodeHistory, NodeState, PastCordon, World

log = structlog.get_logger()

_HISTORIES = 2000  # nodes of a job whose histories are read
_SUSPECTS = 200  # suspects of a verdict that are tested first, at most
_LOOK = 300.0  # seconds between consistency checks
_PEEK = 15.0  # seconds between checks whether jobs with a pending restart are running again
_RECENT = 3600.0  # seconds after which missed verdicts and tests are no longer acted upon automatically
_GRACE = 600.0  # seconds after which an approved action counts as abandoned
_STOP_SECONDS = 5.0  # for the policy thread to finish
_NOT_DONE = "logdoctor was stopped before it was done"


class Means(NamedTuple):
    """The parts an actor uses: `launcher` is the default one, `expand` expands a scheduler's node list. After failures
    of jobs that had made steps, each gather is repeated `repeats_after_steps` times."""

    bench: Bench
    launcher: str
    cordoning: Cordoning
    fleet: Callable[[], list[NodeState]]
    expand: Callable[[str], list[str]]
    modes: Modes
    repeats_after_steps: int = 20


class Actor:
    """Tests and cordons nodes and carries out actions; thread-safe. With `taking_up` (in a service) it resumes what the
    last process left; it acts on verdicts only while it `leads`.

    Methods raise `ActionRefused`, `LaunchError`, `CordonError`, `StoreError`, and `InputError` for invalid node names.
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
        """Action number -> the test that it started."""

    def start(self) -> None:
        """Start; resume what the last process left, in the background."""
        self._tester.start()
        self._turns.start()

    def stop(self) -> None:
        """End what runs on nodes and stop; tests keep the state `running` for the next process to resume."""
        self._turns.stop()
        self._tester.stop()
        self._turns.join(_STOP_SECONDS)

    def take_up(self) -> None:
        """Check everything that the previous leader may have left undone."""
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
        """Start a test and return its number: of the named nodes, else those of the verdict's job, else all nodes of
        the launcher. None means the setting's value."""
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
        """Return the nodes and options with which `test` would start. Starts nothing."""
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
        """Return the launcher's nodes of these names; `LaunchError` for unknown nodes or a timeout. Starts nothing."""
        return self._tester.look(nodes, launcher)

    def worlds(self, test: int) -> tuple[World, ...]:
        """Return the worlds of a test's current round, ended ones included; empty when another process runs it."""
        return self._tester.rounds.get(test, ())

    @property
    def launcher(self) -> str:
        """The name of the default launcher; "" when none is set."""
        return self._means.launcher

    @property
    def cordons_with(self) -> str:
        """How nodes are cordoned: slurm, kubernetes, file, dry-run."""
        return self._means.cordoning.how

    def prospect(self, node: str, fleet: Sequence[NodeState]) -> Prospect:
        """Return what a cordon of this node would do to the fleet. Does nothing."""
        return self._means.cordoning.prospect(node, fleet, time.time())

    def expand(self, text: str) -> list[str]:
        """Expand a scheduler's node list, such as `gpu-[01-08],gpu-11`; `InputError` when it is malformed."""
        return self._means.expand(text)

    def nodes_of(self, stored: StoredVerdict) -> list[str]:
        """Return the nodes of a verdict's job: as reported, else those its log names."""
        return self._told_nodes(stored) or named_by_log(stored.verdict)

    def job_nodes(self, stored: StoredVerdict) -> JobNodes:
        """Return the nodes of a verdict's job and their number; a reported list is complete."""
        told = self._told_nodes(stored)
        return JobNodes(tuple(told), len(told)) if told else logged_nodes(stored, self._verdicts.job(stored.job))

    def nodes(self) -> list[NodeState]:
        """Return the fleet as the cluster reports it now."""
        return self._means.fleet()

    def cordon(
        self, node: str, by: str, reason: str, verdict: int | None = None, test: int | None = None
    ) -> PastCordon:
        """Cordon a node, within the caps; `ActionRefused` when the verdict or test does not exist."""
        if verdict is not None:
            self._verdict(verdict)
        if test is not None and self.records.test(test) is None:
            raise ActionRefused(f"test {test}", "does not exist", "List the tests.")
        return self._means.cordoning.cordon(node, by, reason, verdict, test, time.time())

    def uncordon(self, node: str, by: str, why: str) -> PastCordon:
        """Undo our own cordon of a node."""
        return self._means.cordoning.uncordon(node, by, why, time.time())

    def approve(self, action: int, by: str, why: str) -> StoredAction:
        """Approve a waiting action and carry it out; advice is left to the person. What cannot be done now waits again,
        with the reason."""
        stored = self.records.action(action)
        if stored is not None and stored.state == "waiting" and (cause := self._superseded(stored)):
            raise ActionRefused(f"action {action}", f"is superseded: {cause}", "Check the current state.")
        return self._perform(self.records.decide(action, True, by, why, time.time()))

    def refuse(self, action: int, by: str, why: str) -> StoredAction:
        """Refuse an action that waits for a person."""
        return self.records.decide(action, False, by, why, time.time())

    def handle(self, stored: StoredVerdict) -> None:
        """Hand a new final verdict to policy, in the background."""
        if stored.final and stored.current and self._leads():  # a later leader finds it in the database
            self._news.append(stored)
            self._turns.wake()

    def _turn(self) -> float:
        """Act on new verdicts, and run the periodic checks; return the seconds until the next turn."""
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
                self._supersede(is_restart)  # a new attempt has no verdict that would trigger this
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
        """Check cordons, tests and actions against their records, and fix what is off."""
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
        """React to recent verdicts that the last process did not get to."""
        failed = list(self._verdicts.every(Wanted(outcomes=("failed",), since=time.time() - _RECENT)))
        acted_on = self.records.acted_on([stored.id for stored in failed])
        for stored in reversed([stored for stored in failed if stored.id not in acted_on]):
            if self._stops:
                return
            with shielded("verdict not acted upon", verdict=stored.id):
                self._react(stored)

    def _react(self, stored: StoredVerdict) -> None:
        """Propose actions for a verdict that is still current; do those that may be done at once."""
        now = self._verdicts.verdict(stored.id)
        if now is None or not now.current or not now.final or now.verdict.outcome != "failed":
            return
        attempt = self._verdicts.attempt(stored.job, stored.attempt)
        if attempt is None or attempt.deleted is not None:
            return  # a past attempt, or its log is gone: an approver could not check the evidence
        job = self._verdicts.job(stored.job)
        placed = job is not None and job.facts.placed
        nodes = self.nodes_of(stored)
        modes = self._means.modes
        if not self._means.launcher:  # nobody is asked to approve what cannot be done
            modes = modes._replace(test="never", cordon="never" if self.cordons_with == DRY_RUN else modes.cordon)
        if not placed and modes.test == "auto":
            modes = modes._replace(test="ask")  # neither text of a log nor its mere sender may start tests on nodes
        proposed = after_verdict(stored.verdict, stored.id, nodes, self._histories(nodes), modes)
        self._propose(proposed, stored.job, stored.attempt)

    def _concluded(self, test: int) -> None:
        with shielded("test not followed", test=test):
            self._follow(test)

    def _follow_all(self) -> None:
        """Follow up tests that ended while no process did."""
        for test in self.records.unfollowed():
            if not self._stops:
                self._concluded(test)

    def _follow(self, test: int) -> None:
        """Settle the action that asked for a test, and propose what its findings call for.

        Idempotent. If this comes late, or the verdict behind the test is superseded, nothing is done at once; findings
        about nodes are proposed all the same, as the test itself is their proof.
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
        """Record actions, supersede those they replace, and do those that may be done at once."""
        for action in actions:
            try:
                stored = self.records.propose(action, job, attempt, time.time())
            except (ActionRefused, InputError) as error:  # too many nodes: the others are still proposed
                log.warning("action not proposed", kind=action.kind, cause=str(error))
                continue
            if stored is None:
                continue
            self._supersede(partial(_asks_alike, action))
            if stored.state == "approved":
                self._perform(stored)

    def _supersede(self, concerned: Callable[[StoredAction], bool]) -> bool:
        """Supersede the waiting actions among `concerned` that are obsolete; return whether there were any."""
        return any([self._superseded(one) for one in self.records.every_action("waiting") if concerned(one)])

    def _superseded(self, stored: StoredAction) -> str:
        """Supersede a waiting action if it is obsolete; return why, "" if it is not."""
        why = self._needless(stored)
        if why:
            with suppress(ActionRefused):  # somebody has just decided it
                self.records.supersede(stored.id, why, time.time())
        return why

    def _needless(self, stored: StoredAction) -> str:
        """Return why a waiting action is obsolete; "" when it is not."""
        why = superseded(stored.action, self._verdicts, self.records) or resumed(stored, self._verdicts)
        return why or displaced(stored, self.records)

    def _reopen(self) -> None:
        """Reopen actions whose replacement was itself superseded: no other action asks for the same."""
        for stored in self.records.displaced():
            if not self._needless(stored):
                with suppress(ActionRefused):  # it has been proposed again meanwhile
                    self.records.reopen(stored.id, "the action that replaced it was superseded itself", time.time())

    def _perform(self, stored: StoredAction) -> StoredAction:
        """Carry out an approved action. If it is impossible or no longer allowed without asking (caps, a running test,
        an unreachable cluster), it waits for a person, with the reason."""
        action, now = stored.action, time.time()
        if why := superseded(action, self._verdicts, self.records):
            return self.records.supersede(stored.id, why, now, approved=True)
        stale = verdict_superseded(action.verdict, self._verdicts)
        if stale and stored.by == POLICY:
            return self.records.put_back(stored.id, stale, now)
        try:
            if action.kind == "test_nodes":
                self.begun[stored.id] = self.test(action.nodes, stored.by, verdict=action.verdict, action=stored.id)
                return stored  # settled when the test ends
            if action.kind == "cordon":
                verdict = None if stale else action.verdict
                for node in action.nodes:
                    self._means.cordoning.cordon(node, stored.by, action.why, verdict, action.test, now)
        except Exception as error:  # the edge: a failed action never ends the loop
            known = isinstance(error, LogdoctorError)
            if not known:
                log.exception("action failed", action=stored.id)
            if self._turns.stopping.is_set() or (came := result_of(stored, self.records)) == "open":
                return stored  # to be checked later, perhaps by the next process
            if known and came != "done":
                return self.records.put_back(stored.id, str(error), time.time())
            return self.records.settle_action(stored.id, came or "failed", str(error), time.time())
        return self.records.settle_action(stored.id, "done", "", time.time())

    def _pick_up(self, stored: StoredAction, now: float) -> None:
        """Settle an abandoned approved action by its result; carry out recent policy decisions that nobody began."""
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
        """Record the result of the action that asked for a test, if not yet recorded."""
        why = f"test {test.id}{test.why and f': {test.why}'}"
        with suppress(ActionRefused):
            self.records.settle_action(action, "done" if test.conclusion else "failed", why, time.time())

    def _histories(self, nodes: Sequence[str]) -> dict[str, NodeHistory]:
        return self.records.histories([node for node in nodes[:_HISTORIES] if NAME.fullmatch(node)])

    def _told_nodes(self, stored: StoredVerdict) -> list[str]:
        """Return the reported nodes of a job, by an authorised sender or as a claim."""
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
    """Return the nodes that the log of a verdict's job names, valid names only."""
    return [name for name in verdict.nodes if NAME.fullmatch(name)]


def logged_nodes(stored: StoredVerdict, job: Job | None) -> JobNodes:
    """Return the nodes that a verdict's log names, and the reported number of nodes."""
    names = named_by_log(stored.verdict)
    told = job.facts.nodes if job and job.facts.nodes else 0
    return JobNodes(tuple(names), max(told, len(names)))


def _asking(modes: Modes) -> Modes:
    """Return the modes with every `auto` replaced by `ask`."""
    return Modes(*("ask" if mode == "auto" else mode for mode in modes))


def _is_for(job: str, attempt: int, stored: StoredAction) -> bool:
    return (stored.job, stored.attempt) == (job, attempt)


def _asks_alike(action: Action, stored: StoredAction) -> bool:
    return stored.action.kind == action.kind and set(stored.action.nodes) == set(action.nodes)
