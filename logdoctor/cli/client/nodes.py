"""The nodes of a service: their records, and actions on them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from logdoctor.cli.client.connection import Connection, path
from logdoctor.cli.client.refusing import refused_as
from logdoctor.errors import ActionRefused, CordonError, InputError
from logdoctor.store.keeping.audit import AuditPage
from logdoctor.store.nodes.actions import ActionPage
from logdoctor.store.nodes.history import NodeSummary
from logdoctor.store.nodes.records import StoredAction, StoredTest
from logdoctor.store.nodes.tests import TestPage
from logdoctor.types.nodes import NodeHistory, NodeState, PastCordon, Result
from logdoctor.web.nodes.answers import ApprovedAction, NodeList, NodeTest

_MOST_NODES = 1000
_NO_WORLDS = (1 << 63) - 1


class ServedNodeRecords:
    """The calls of `store.nodes.records.NodeRecords`, over HTTP."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def tests(self, cursor: str | None = None, limit: int = 50, node: str | None = None) -> TestPage:
        """Return a page of tests, newest first."""
        return self._connection.get(TestPage, path("node-tests"), cursor=cursor, limit=limit, node=node)

    def test(self, id: int) -> StoredTest | None:
        """Return the test with this id."""
        found = self._connection.get_if_any(NodeTest, path("node-tests", id), after=_NO_WORLDS)
        return None if found is None else found.test

    def results(self, test: int, after: int = 0) -> list[Result]:
        """Return the results of a test's worlds in order of end, without the first `after`."""
        return self._connection.get(NodeTest, path("node-tests", test), after=after).worlds

    def nodes(self) -> list[NodeSummary]:
        """Return the nodes on record, repeat offenders first."""
        return self._connection.get(NodeList, path("nodes"), limit=_MOST_NODES).items

    def fleet(self) -> list[NodeState]:
        """Return the nodes as the cluster knows them."""
        with refused_as(CordonError):
            return self._connection.get(NodeList, path("nodes"), limit=1, cluster=True).cluster

    def history(self, node: str, limit: int = 50) -> NodeHistory:
        """Return the history of a node, newest first."""
        return self._connection.get(NodeHistory, path("nodes", node), limit=limit)

    def actions(self, state: str | None = None, cursor: str | None = None, limit: int = 50) -> ActionPage:
        """Return a page of actions, newest first."""
        return self._connection.get(ActionPage, path("actions"), state=state, cursor=cursor, limit=limit)

    def audit(
        self, cursor: str | None = None, limit: int = 50, node: str | None = None, test: int | None = None
    ) -> AuditPage:
        """Return a page of the audit log, newest first."""
        return self._connection.get(AuditPage, path("audit"), cursor=cursor, limit=limit, node=node, test=test)


class ServedActor:
    """The calls of `service.acting.Actor`, over HTTP; the token says who acts. `listeners` are never called: a test
    runs in the service, whether or not anybody watches."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.records = ServedNodeRecords(connection)
        self.listeners: list[Callable[[int], None]] = []
        self.begun: dict[int, int] = {}
        """The tests that approved actions started, by the action's number."""

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
    ) -> int:
        """Start a test, and return its number."""
        if topology is not None:
            cause, step = "is a file of this machine, not of the service", "Set LOGDOCTOR_TEST_TOPOLOGY at the service."
            raise InputError(str(topology), cause, step)
        wanted = {"launcher": launcher, "verdict": verdict, "repeats": repeats, "seconds": seconds}
        body = {"nodes": list(nodes), "all": not nodes and verdict is None, "regroups": regroups, **wanted}
        with refused_as(ActionRefused):
            return self._connection.post(StoredTest, path("node-tests"), body).id

    def cancel(self, test: int, by: str) -> None:
        """Stop a test, whoever runs it."""
        with refused_as(ActionRefused, "List the tests."):
            self._connection.post(StoredTest, path("node-tests", test, "cancel"))

    def wait(self, test: int) -> None:
        """Return at once: the service does what follows from a test."""

    def cordon(
        self, node: str, by: str, reason: str, verdict: int | None = None, test: int | None = None
    ) -> PastCordon:
        """Cordon a node, within the caps."""
        body = {"reason": reason, "verdict": verdict, "test": test}
        with refused_as(CordonError):
            return self._connection.post(PastCordon, path("nodes", node, "cordon"), body)

    def uncordon(self, node: str, by: str, why: str) -> PastCordon:
        """Undo our cordon of a node."""
        with refused_as(CordonError):
            return self._connection.post(PastCordon, path("nodes", node, "uncordon"), {"why": why})

    def approve(self, action: int, by: str, why: str) -> StoredAction:
        """Approve a waiting action."""
        with refused_as(ActionRefused, "List the actions."):
            approved = self._connection.post(ApprovedAction, path("actions", action, "approve"), {"why": why})
        if approved.test is not None:
            self.begun[action] = approved.test
        return approved

    def refuse(self, action: int, by: str, why: str) -> StoredAction:
        """Refuse a waiting action."""
        with refused_as(ActionRefused, "List the actions."):
            return self._connection.post(StoredAction, path("actions", action, "refuse"), {"why": why})
