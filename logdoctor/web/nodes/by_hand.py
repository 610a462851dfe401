"""Node actions that people take themselves: commands to paste, and records of the actions."""

import shlex
import time
from collections.abc import Sequence
from typing import NamedTuple

from logdoctor.errors import CordonRefused, RequestRefused
from logdoctor.nodes.cordon.cordoner import plain_reason
from logdoctor.service.service import Service
from logdoctor.store.nodes.records import NodeRecords, StoredAction
from logdoctor.types.nodes import PastCordon
from logdoctor.web.nodes.acting import performed

HOW = "by-hand"
"""The `how` of cordons that people make themselves."""

_LONGEST = 120  # characters of a reason on a node
_MOST_NODES = 200


class Command(NamedTuple):
    """A line to paste, and the cluster it is for."""

    cluster: str
    line: str


def to_cordon(node: str, reason: str) -> list[Command]:
    """Return the commands that cordon a node."""
    said = shlex.quote(plain_reason(reason)[:_LONGEST])
    return [
        Command("Slurm", f"scontrol update nodename={shlex.quote(node)} state=drain reason={said}"),
        Command("Kubernetes", f"kubectl cordon {shlex.quote(node)}"),
    ]


def to_uncordon(node: str) -> list[Command]:
    """Return the commands that uncordon a node."""
    return [
        Command("Slurm", f"scontrol update nodename={shlex.quote(node)} state=resume"),
        Command("Kubernetes", f"kubectl uncordon {shlex.quote(node)}"),
    ]


def to_test(nodes: Sequence[str], verdict: int | None = None) -> list[Command]:
    """Return the commands that test nodes, from a machine that reaches them. Without nodes, they test those of the
    verdict's job."""
    options = [f"--nodes={','.join(nodes[:_MOST_NODES])}"] if nodes else []
    options += [] if verdict is None else [f"--verdict={verdict}"]
    return [
        Command(name, shlex.join(("logdoctor", "nodes", "test", f"--launcher={launcher}", *options)))
        for name, launcher in (("Slurm", "slurm"), ("SSH", "ssh"), ("Kubernetes", "kubernetes"))
    ]


def reason_for(service: Service, verdict: int | None, reason: str) -> str:
    """Return the reason to write on a node: its incident and failure, else `reason`."""
    stored = None if verdict is None else service.records.verdict(verdict)
    number = None if stored is None else service.incidents.of(stored.job, stored.attempt)
    if stored is not None and number is not None:
        return f"logdoctor incident {number}: {stored.verdict.reason}"
    return f"logdoctor: {reason}" if reason else "logdoctor"


def cordoned(
    kept: NodeRecords, node: str, by: str, reason: str, verdict: int | None = None, test: int | None = None
) -> PastCordon:
    """Record a cordon made by hand, and return it; `RequestRefused` when there is one."""

    def enter() -> PastCordon:
        now = time.time()
        wanted = kept.want_cordon(node, HOW, by, now, plain_reason(reason), verdict, test)
        return kept.step_cordon(wanted.id, "standing", by, "done by hand", now)

    return performed(enter)


def uncordoned(kept: NodeRecords, node: str, by: str, why: str) -> PastCordon:
    """Record that a cordon was removed by hand, and return it; `RequestRefused` without one."""

    def enter() -> PastCordon:
        held = standing(kept, node)
        if held is None:
            raise CordonRefused(f"node {node}", "has no cordon that was made by hand", "Look at its history.")
        return kept.step_cordon(held.id, "undone", by, f"done by hand: {why}" if why else "done by hand", time.time())

    return performed(enter)


def standing(kept: NodeRecords, node: str) -> PastCordon | None:
    """Return the standing cordon of a node that was made by hand."""
    return next(iter(kept.cordons("standing", node, HOW, 1)), None)


def performed_action(kept: NodeRecords, stored: StoredAction, by: str, why: str) -> StoredAction:
    """Record an action as done by hand, with its cordon, and return it."""
    action = stored.action
    if action.kind not in ("cordon", "test_nodes"):
        raise RequestRefused(409, "refused", f"action {stored.id}", "is not done by logdoctor", "Approve it.")
    said = f"done by hand: {why}" if why else "done by hand"

    def enter() -> StoredAction:
        now = time.time()
        decided = kept.decide(stored.id, True, by, said, now)
        for node in action.nodes if action.kind == "cordon" else ():
            if standing(kept, node) is None:
                cordoned(kept, node, by, action.why, action.verdict, action.test)
        return kept.settle_action(decided.id, "done", said, now)

    return performed(enter)
