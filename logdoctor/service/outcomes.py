"""The result of an approved action, from the tests and cordons on record."""

from typing import Literal

from logdoctor.store.nodes.records import NodeRecords, StoredAction

Outcome = Literal["done", "failed", "open"]

_OF_STATES: dict[str, Outcome] = {
    "running": "open",
    "finished": "done",
    "aborted": "failed",
    "wanted": "open",
    "standing": "done",
    "undone": "done",
    "refused": "failed",
    "failed": "failed",
}
"""The result of an action, by the state of its test or cordon."""


def result_of(stored: StoredAction, records: NodeRecords) -> Outcome | None:
    """Return the result of an approved action; None if not begun. Advice is done: people carry it out."""
    nodes = stored.action.nodes
    if stored.action.kind == "test_nodes" and nodes:
        tests = records.tests(node=nodes[0], limit=500).items
        states = [test.state for test in tests if test.options.get("action") == stored.id]
        return _OF_STATES[states[0]] if states else None
    if stored.action.kind == "cordon":
        outcomes = {_of_cordon(node, stored.changed, records) for node in nodes}
        return next((one for one in ("open", "failed", None) if one in outcomes), "done")
    return "done"


def _of_cordon(node: str, since: float, records: NodeRecords) -> Outcome | None:
    """Return the result of a node's last cordon, if requested since `since`, else None."""
    last = next(iter(records.cordons(node=node, limit=1)), None)
    return _OF_STATES[last.state] if last is not None and last.at >= since else None
