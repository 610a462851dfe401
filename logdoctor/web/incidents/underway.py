"""Node actions because of a failure: proposed, running or done."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from logdoctor.nodes.policy import JobNodes, of_job, trouble, unproven
from logdoctor.service.acting import logged_nodes
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.store.nodes.actions import StoredAction
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.store.nodes.tests import StoredTest
from logdoctor.types import Verdict
from logdoctor.types.nodes import PERFORMED, RESTARTS, Conclusion, PastCordon
from logdoctor.web.gate import Caller
from logdoctor.web.incidents.later import Later
from logdoctor.web.nodes.words import few
from logdoctor.words import phrases

_MOST = 20  # actions, tests and cordons, the newest of each
_THEN = ", then restart"  # the end of advice that has another first step
_RESTARTING = ("restart", "isolate_and_restart", "rollback_and_skip")


class Underway(NamedTuple):
    """The actions that follow from the verdicts on one attempt, each kind newest first. They are the actions that wait
    for a person and those decided on, the tests that began after it failed, and the standing cordons. `nodes` are those
    of its job, `held` the nodes to cordon that already are cordoned, for any reason."""

    waiting: Sequence[StoredAction] = ()
    decided: Sequence[StoredAction] = ()
    tests: Sequence[StoredTest] = ()
    cordons: Sequence[PastCordon] = ()
    nodes: JobNodes = JobNodes()
    held: frozenset[str] = frozenset()

    @property
    def wanted_test(self) -> StoredAction | None:
        """Return the node test that waits for a person, or was just approved."""
        tests = (one for one in (*self.waiting, *self.decided) if one.action.kind == "test_nodes")
        return next((one for one in tests if one.state in ("waiting", "approved")), None)

    @property
    def running(self) -> StoredTest | None:
        """Return the newest running test."""
        return next((one for one in self.tests if one.state == "running"), None)

    @property
    def finished(self) -> Iterator[tuple[StoredTest, Conclusion]]:
        """Return the finished tests and their conclusions, newest first."""
        return ((one, one.conclusion) for one in self.tests if one.conclusion is not None)

    @property
    def all_faulty(self) -> tuple[str, ...]:
        """Return the nodes that a test found faulty and no later one healthy."""
        healthy: set[str] = set()
        faulty: dict[str, None] = {}
        for _, found in self.finished:
            faulty |= dict.fromkeys(name for name in found.named("faulty") if name not in healthy)
            healthy |= set(found.named("healthy"))
        return tuple(faulty)

    @property
    def culprits(self) -> tuple[str, ...]:
        """Return the faulty nodes that the job had."""
        return of_job(self.all_faulty, self.nodes)

    @property
    def proof(self) -> StoredTest | None:
        """Return the newest test that proves all nodes of the job good."""
        return next((test for test, found in self.finished if not unproven(found, self.nodes)), None)

    @property
    def left_open(self) -> tuple[StoredTest, Conclusion] | None:
        """Return the test that leaves it open. It is the newest that found trouble since the nodes were proven good,
        else the newest if they never were; None without one."""
        proof = self.proof
        since = [(test, found) for test, found in _healed(self.finished) if proof is None or test.id > proof.id]
        newest = since[0] if since and proof is None else None
        return next(((test, found) for test, found in since if trouble(found)), newest)

    @property
    def faulty(self) -> tuple[str, ...] | None:
        """Return the nodes to exclude; None while it is open which are faulty. When a test proved all good, there are
        none to exclude."""
        if self.culprits:
            return self.all_faulty
        return () if self.proof is not None and self.left_open is None else None

    @property
    def is_decided(self) -> bool:
        """Return whether a test has found or will find which nodes are faulty, if any."""
        return self.running is not None or self.wanted_test is not None or self.faulty is not None


class Beside(NamedTuple):
    """The actions from verdicts on an incident's other attempts, and each verdict's job and attempt."""

    known: Underway
    whose: Mapping[int, tuple[str, int]]


def underway(service: Service, caller: Caller, stored: StoredVerdict, failed: float | None) -> Underway:
    """Return the actions that follow from the verdicts on an attempt. Tests before it `failed` are left out: they
    looked at another failure. Empty for a token that is bound to jobs, because nodes are shared."""
    if caller.prefixes:
        return Underway()
    mine = sorted(service.records.whose([(stored.job, stored.attempt)]), reverse=True)
    found = _after(service, mine)
    nodes = service.actor.job_nodes(stored) if service.actor else logged_nodes(stored, service.records.job(stored.job))
    found = found._replace(tests=[one for one in found.tests if one.at >= (failed or 0.0)], nodes=nodes)
    held = NodeRecords(service.records.database).held(_to_cordon(stored.verdict, found))
    return found._replace(held=frozenset(held))


def beside(service: Service, caller: Caller, stored: StoredVerdict, others: Sequence[StoredVerdict]) -> Beside:
    """Return the actions from the verdicts on other attempts. A token that is bound to jobs gets none."""
    mine = (stored.job, stored.attempt)
    attempts = [place for one in others if (place := (one.job, one.attempt)) != mine]
    if caller.prefixes or not attempts:
        return Beside(Underway(), {})
    whose = service.records.whose(attempts)
    return Beside(_after(service, sorted(whose, reverse=True)), whose)


def without_restarts(known: Underway) -> Underway:
    """Return the same without waiting restarts: the job has been started again since."""
    return known._replace(waiting=[one for one in known.waiting if one.action.kind not in RESTARTS])


def _healed(finished: Iterable[tuple[StoredTest, Conclusion]]) -> Iterator[tuple[StoredTest, Conclusion]]:
    """Yield tests with their conclusions, newest first. A node that a later one found healthy counts as healthy."""
    healthy: set[str] = set()
    for test, found in finished:
        findings = tuple(
            msgspec.structs.replace(one, standing="healthy") if one.node in healthy else one for one in found.findings
        )
        yield test, msgspec.structs.replace(found, findings=findings)
        healthy |= set(found.named("healthy"))


def _after(service: Service, verdicts: Sequence[int]) -> Underway:
    kept = NodeRecords(service.records.database)
    actions = kept.actions_after(verdicts, 3 * _MOST)
    tests = kept.tests_after(verdicts, _MOST)
    waiting = [one for one in actions if one.state == "waiting"][:_MOST]
    decided = [one for one in actions if _is_news(one, bool(tests))][:_MOST]
    return Underway(waiting, decided, tests, kept.cordons_after(verdicts, _MOST))


def _is_news(action: StoredAction, tested: bool) -> bool:
    """Return whether a decided action says more than its tests and cordons."""
    if action.state in ("waiting", "superseded"):
        return False
    if action.state == "done":
        return action.action.kind not in PERFORMED
    return not (action.state == "approved" and action.action.kind == "test_nodes" and tested)


def headline(stored: StoredVerdict, known: Underway, later: Later | None = None) -> str:
    """Return what to do now; test results count where the verdict names no node. Where a later attempt of the job runs
    or has ended, this one is not restarted; one that has not ended is looked at first."""
    said, restarts = _advised(stored.verdict, known)
    if not restarts:
        return said
    if later is None:
        return said if stored.final else f"See whether it still makes steps; if not, {said[:1].lower()}{said[1:]}"
    first = said.removesuffix(_THEN) if said.endswith(_THEN) else ""
    return f"{first}; no restart: {later.said}" if first else f"No restart: {later.said}"


def listed(service: Service, caller: Caller, verdicts: Iterable[StoredVerdict]) -> Callable[[StoredVerdict], str]:
    """Return a function that says what to do now for each listed verdict. Standing cordons count, but not for a token
    that is bound to jobs."""
    known = Underway()
    if not caller.prefixes:
        wanted = dict.fromkeys(node for one in verdicts for node in _to_cordon(one.verdict, known))
        known = known._replace(held=frozenset(NodeRecords(service.records.database).held(list(wanted))))
    return lambda stored: headline(stored, known)


def _advised(verdict: Verdict, known: Underway) -> tuple[str, bool]:
    """Return what to do, and whether that ends with a restart."""
    named = _to_cordon(verdict, known)
    left = [node for node in named if node not in known.held]
    if named and not left:
        return f"Restart: {few(named)} {'is' if len(named) == 1 else 'are'} cordoned", True
    if len(left) < len(named):
        return f"Cordon {few(left)}{_THEN}", True
    if not phrases.wants_node(verdict):
        return phrases.advice(verdict), verdict.recovery in _RESTARTING
    if known.culprits:
        return f"Cordon {few(known.culprits)}{_THEN}", True
    if known.running:
        return f"Wait for test {known.running.id}: it is looking for the faulty node", False
    if known.left_open:
        test, found = known.left_open
        first = "Inspect the network" if found.links and not found.named("faulty") else "Find the faulty node"
        return f"{first}: test {test.id} {unproven(found, known.nodes)}", False
    if known.proof:
        return f"Restart: test {known.proof.id} found no faulty node", True
    return phrases.advice(verdict), True


def _to_cordon(verdict: Verdict, known: Underway) -> tuple[str, ...]:
    """Return the nodes to cordon: the suspects of the verdict, else those found faulty."""
    if verdict.outcome != "failed" or verdict.recovery != "isolate_and_restart":
        return ()
    return tuple(dict.fromkeys(one.node for one in verdict.suspects if one.node)) or known.culprits


def outcome(test: StoredTest) -> str:
    """Return the conclusion of a test in a line: "all 3 nodes are healthy"."""
    count = phrases.count(len(test.nodes), "node")
    if test.state == "running":
        return f"{count} are being tested" if len(test.nodes) != 1 else "1 node is being tested"
    if test.conclusion is None:
        return f"ended without a result{f': {test.why}' if test.why else ''}"
    named = {standing: test.conclusion.named(standing) for standing in ("faulty", "slow", "indeterminate")}
    parts = [f"{len(names)} {standing}: {few(names)}" for standing, names in named.items() if names]
    if links := test.conclusion.links:
        ends = f"{links[0].ends[0]} to {links[0].ends[1]}"
        parts.append(f"{phrases.count(len(links), 'faulty link')}: {ends}{' and more' if len(links) > 1 else ''}")
    healthy, left_open = len(test.conclusion.named("healthy")), test.conclusion.open[:300]
    if not parts and not left_open:
        return f"all {count} are healthy" if len(test.nodes) != 1 else "the node is healthy"
    if healthy:
        parts.append(f"{healthy:,} healthy")
    return "; ".join([*parts, f"open: {left_open}"] if left_open else parts)
