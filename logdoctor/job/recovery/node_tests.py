"""What the service's policy did about the nodes of an attempt: tests, cordons, and steps that wait for a person."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from logdoctor.errors import NotTaken
from logdoctor.job.recovery.deciding import NodesSaid
from logdoctor.job.recovery.judged import NODE
from logdoctor.job.send.client import Client
from logdoctor.job.send.target import ShippingTarget

_LATEST = 200  # newest actions that are examined
_SHOWN = 5
_NO_WORLDS = (1 << 63) - 1

Action = Mapping[str, Any]
FaultyNodes = Callable[[int], Sequence[str]]
"""Returns the nodes that a test, given by number, found faulty."""

NOBODY = NodesSaid(
    "person",
    "Nobody tests the nodes of this job: test them (logdoctor nodes test), and start it again without the faulty ones.",
)
AWAY = NodesSaid("pending", "The service does not say what it knows about the nodes.")


class NodeTests:
    """Asks the service for the results of a job's node tests."""

    def __init__(self, target: ShippingTarget, patience: float) -> None:
        """A result that needs a person must stand for `patience` seconds: the policy acts in the background."""
        self._target, self._patience = target, patience
        self._since: tuple[NodesSaid, float] | None = None

    def __call__(self, key: str) -> NodesSaid:
        """Return what is known about the nodes of an attempt."""
        said, now = self._asked(key), time.monotonic()
        if self._since is None or self._since[0] != said:
            self._since = said, now
        early = said.state == "person" and now - self._since[1] < self._patience
        return said._replace(state="pending") if early else said

    def _asked(self, key: str) -> NodesSaid:
        client = Client(self._target)
        try:
            number = client.number_attempt(key).body.get("attempt")
            answer = client.look_up(f"/actions?limit={_LATEST}")
            if answer.status in (401, 403):
                return NOBODY._replace(why=f"The token may not see what is done about nodes. {NOBODY.why}")
            if answer.status != 200:
                return AWAY
            return nodes_said(_of_attempt(answer.body, self._target.job, number), lambda test: _faulty(client, test))
        except (NotTaken, ValueError):
            return AWAY
        finally:
            client.close()


def nodes_said(actions: Iterable[Action], faulty_nodes: FaultyNodes) -> NodesSaid:
    """Return what an attempt's actions say about its nodes."""
    found = [one for one in actions if one["state"] != "superseded"]
    if (unmade := _undecided(found)) is not None:
        return unmade
    tested = [one for one in found if one["kind"] == "restart" and one["test"] is not None]
    if tested:
        return _tested(tested[0], found, faulty_nodes)
    done = [one for one in found if one["kind"] == "test_nodes"]
    if any(one["state"] == "approved" for one in done):
        return NodesSaid("pending", "Its nodes are being tested.")
    if done:
        why = "The test of its nodes does not prove that they are good. Look at it: logdoctor nodes tests"
        return NodesSaid("person", why)
    return NOBODY


def _undecided(actions: Sequence[Action]) -> NodesSaid | None:
    """Return what must still happen before the nodes are known; None when nothing must."""
    for one in actions:
        if one["kind"] not in ("test_nodes", "cordon"):
            continue
        what = f"action {one['id']} ({_words(one['kind'])} {_listed(one['nodes'])})"
        if one["state"] == "waiting":
            return NodesSaid("pending", f"A person has to decide: {what}. Run: logdoctor nodes approve {one['id']}")
        if one["state"] in ("refused", "failed"):
            return NodesSaid("person", f"It was not done: {what}. Look: logdoctor nodes actions")
        if one["kind"] == "cordon" and one["state"] == "approved":
            return NodesSaid("pending", f"It is being done: {what}.")
    return None


def _tested(restart: Action, actions: Sequence[Action], faulty_nodes: FaultyNodes) -> NodesSaid:
    """Return the result of a finished test after which a restart was proposed."""
    faulty = tuple(faulty_nodes(restart["test"]))
    if not faulty:
        return NodesSaid("healthy", f"Test {restart['test']} found all of its nodes healthy.")
    out = {node for one in actions if one["kind"] == "cordon" and one["state"] == "done" for node in one["nodes"]}
    kept = [node for node in faulty if node not in out]
    if kept:
        why = f"Test {restart['test']} found {_listed(kept)} faulty, and no cordon keeps jobs away. Cordon it first."
        return NodesSaid("person", why, faulty)
    return NodesSaid(
        "out", f"Test {restart['test']} found {_listed(faulty)} faulty; no job is placed there now.", faulty
    )


def _of_attempt(body: Mapping[str, Any], job: str, attempt: object) -> list[dict[str, Any]]:
    """Return the actions of one attempt, the newest first; `ValueError` when they cannot be read."""
    items = body.get("items")
    if not isinstance(items, list) or not isinstance(attempt, int):
        raise ValueError("the answer holds no actions")
    found = []
    for one in items:
        if not (isinstance(one, dict) and isinstance(action := one.get("action"), dict)):
            raise ValueError("the answer holds something else than actions")
        if one.get("job") == job and one.get("attempt") == attempt:
            nodes = tuple(name for name in action.get("nodes") or () if NODE.fullmatch(str(name)))
            test = number if isinstance(number := action.get("test"), int) else None
            kind, state = str(action.get("kind")), str(one.get("state"))
            id = int(one.get("id") or 0)
            found.append({"id": id, "kind": kind, "state": state, "nodes": nodes, "test": test})
    return found


def _faulty(client: Client, test: int) -> Sequence[str]:
    """Return the nodes that a test found faulty; `ValueError` for an invalid answer."""
    answer = client.look_up(f"/node-tests/{test}?after={_NO_WORLDS}")
    try:
        findings = answer.body["test"]["conclusion"]["findings"]
        return [one["node"] for one in findings if one["standing"] == "faulty" and NODE.fullmatch(one["node"])]
    except (KeyError, TypeError) as error:
        raise ValueError("the answer holds no test") from error


def _words(kind: str) -> str:
    return {"test_nodes": "test", "cordon": "cordon"}[kind]


def _listed(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return ", ".join(nodes[:_SHOWN]) + more
