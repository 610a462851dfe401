"""What came of an action that was approved, as far as tests and cordons on record say."""

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
"""What the state of a test or a cordon says of the action that wanted it."""


def result_of(stored: StoredAction, records: NodeRecords) -> Outcome | None:
    """What came of an approved action; None when it was not begun. Advice is done: people carry it out."""
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
    """What came of the last cordon of a node, if it was wanted after that time."""
    last = next(iter(records.cordons(node=node, limit=1)), None)
    return _OF_STATES[last.state] if last is not None and last.at >= since else None
