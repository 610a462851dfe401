"""All records of nodes: tests, cordons, actions, histories, and the audit."""

from logdoctor.store.keeping.audit import Audit, AuditEvent, AuditPage
from logdoctor.store.nodes.actions import ActionPage, Actions, StoredAction
from logdoctor.store.nodes.cordons import Cordons, OpenCordons
from logdoctor.store.nodes.history import NodeHistories, NodeSummary
from logdoctor.store.nodes.tests import NodeTests, StoredTest, TestPage

__all__ = [
    "ActionPage",
    "AuditEvent",
    "AuditPage",
    "NodeRecords",
    "NodeSummary",
    "OpenCordons",
    "StoredAction",
    "StoredTest",
    "TestPage",
]


class NodeRecords(NodeTests, Cordons, Actions, NodeHistories, Audit):
    """The records of nodes of one database; see each part. Usable from any thread and process."""
