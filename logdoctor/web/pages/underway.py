"""What is proposed, running or done with nodes because of a failure."""

from collections.abc import Sequence
from typing import NamedTuple

from logdoctor.live.service import Service
from logdoctor.nodes import PERFORMED, PastCordon
from logdoctor.store.actions import StoredAction
from logdoctor.store.node_records import NodeRecords
from logdoctor.store.node_tests import StoredTest
from logdoctor.types import Verdict
from logdoctor.web import wording
from logdoctor.web.gate import Caller
from logdoctor.web.node_wording import few

_MOST = 20  # actions, tests and cordons, the newest of each


class Underway(NamedTuple):
    """The actions that wait for a person and those that were decided on, the tests, and the cordons that stand; each
    the newest first."""

    waiting: Sequence[StoredAction] = ()
    decided: Sequence[StoredAction] = ()
    tests: Sequence[StoredTest] = ()
    cordons: Sequence[PastCordon] = ()

    @property
    def wanted_test(self) -> StoredAction | None:
        """The test of nodes that waits for a person, or was approved just now."""
        tests = (one for one in (*self.waiting, *self.decided) if one.action.kind == "test_nodes")
        return next((one for one in tests if one.state in ("waiting", "approved")), None)

    @property
    def running(self) -> StoredTest | None:
        """The newest test that runs."""
        return next((one for one in self.tests if one.state == "running"), None)

    @property
    def finished(self) -> StoredTest | None:
        """The newest test that was finished."""
        return next((one for one in self.tests if one.conclusion is not None), None)

    @property
    def faulty(self) -> tuple[str, ...] | None:
        """The nodes that the newest finished test found faulty; None when it left open who is, or there was none."""
        found = self.finished.conclusion if self.finished else None
        if found is None or not found.findings:
            return None
        faulty = found.named("faulty")
        return faulty if faulty or len(found.named("healthy")) == len(found.findings) else None


def underway(service: Service, caller: Caller, verdicts: Sequence[int]) -> Underway:
    """What follows from these verdicts; nothing for a token that is bound to jobs, for nodes are shared."""
    if caller.prefixes or not verdicts:
        return Underway()
    kept = NodeRecords(service.records.database)
    actions = kept.actions_after(verdicts, 3 * _MOST)
    tests = kept.tests_after(verdicts, _MOST)
    waiting = [one for one in actions if one.state == "waiting"][:_MOST]
    decided = [one for one in actions if _is_news(one, bool(tests))][:_MOST]
    return Underway(waiting, decided, tests, kept.cordons_after(verdicts, _MOST))


def _is_news(action: StoredAction, tested: bool) -> bool:
    """Whether a decided action tells more than the tests and cordons that came of it."""
    if action.state in ("waiting", "overtaken"):
        return False
    if action.state == "done":
        return action.action.kind not in PERFORMED
    return not (action.state == "approved" and action.action.kind == "test_nodes" and tested)


def headline(verdict: Verdict, known: Underway) -> str:
    """What to do now, with what a test found where the verdict itself names no node."""
    if not wording.wants_node(verdict):
        return wording.advice(verdict)
    if known.running:
        return f"Wait for test {known.running.id}: it looks for the faulty node"
    if known.faulty:
        return f"Take out {few(known.faulty)}, then restart"
    if known.faulty is not None and known.finished:
        return f"Restart: test {known.finished.id} found no faulty node"
    return wording.advice(verdict)


def outcome(test: StoredTest) -> str:
    """What a test found, in a line: "all 3 nodes are healthy"."""
    count = wording.count(len(test.nodes), "node")
    if test.state == "running":
        return f"{count} are being tested" if len(test.nodes) != 1 else "1 node is being tested"
    if test.conclusion is None:
        return f"aborted before it found anything{f': {test.why}' if test.why else ''}"
    named = {standing: test.conclusion.named(standing) for standing in ("faulty", "slow", "indeterminate")}
    parts = [f"{len(names)} {standing}: {few(names)}" for standing, names in named.items() if names]
    if links := test.conclusion.links:
        ends = f"{links[0].ends[0]} to {links[0].ends[1]}"
        parts.append(f"{wording.count(len(links), 'faulty link')}: {ends}{' and more' if len(links) > 1 else ''}")
    healthy = len(test.conclusion.named("healthy"))
    if not parts:
        return f"all {count} are healthy" if len(test.nodes) != 1 else "the node is healthy"
    return "; ".join([*parts, f"{healthy:,} healthy"] if healthy else parts)
