"""What people do to nodes themselves: the commands to paste, and what is entered when they say that they did it."""

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
"""What cordons the nodes that people cordon themselves."""

_LONGEST = 120  # characters of a reason on a node
_MOST_NODES = 200


class Command(NamedTuple):
    """A line to paste, and where it is for."""

    cluster: str
    line: str


def to_cordon(node: str, reason: str) -> list[Command]:
    """Return what keeps new jobs off a node."""
    said = shlex.quote(plain_reason(reason)[:_LONGEST])
    return [
        Command("Slurm", f"scontrol update nodename={shlex.quote(node)} state=drain reason={said}"),
        Command("Kubernetes", f"kubectl cordon {shlex.quote(node)}"),
    ]


def to_uncordon(node: str) -> list[Command]:
    """Return what lets jobs onto a node again."""
    return [
        Command("Slurm", f"scontrol update nodename={shlex.quote(node)} state=resume"),
        Command("Kubernetes", f"kubectl uncordon {shlex.quote(node)}"),
    ]


def to_test(nodes: Sequence[str], verdict: int | None = None) -> list[Command]:
    """Return what tests nodes, from a machine that reaches them; without nodes, those of the verdict's job."""
    options = [f"--nodes={','.join(nodes[:_MOST_NODES])}"] if nodes else []
    options += [] if verdict is None else [f"--verdict={verdict}"]
    return [
        Command(name, shlex.join(("logdoctor", "nodes", "test", f"--launcher={launcher}", *options)))
        for name, launcher in (("Slurm", "slurm"), ("SSH", "ssh"), ("Kubernetes", "kubernetes"))
    ]


def reason_for(service: Service, verdict: int | None, reason: str) -> str:
    """Return what is written on a node: its incident with what was wrong, else the reason that is known."""
    stored = None if verdict is None else service.records.verdict(verdict)
    number = None if stored is None else service.incidents.of(stored.job, stored.attempt)
    if stored is not None and number is not None:
        return f"logdoctor incident {number}: {stored.verdict.reason}"
    return f"logdoctor: {reason}" if reason else "logdoctor"


def cordoned(
    kept: NodeRecords, node: str, by: str, reason: str, verdict: int | None = None, test: int | None = None
) -> PastCordon:
    """Return the cordon that somebody says they made, on record from now on; `RequestRefused` when one is."""

    def enter() -> PastCordon:
        now = time.time()
        wanted = kept.want_cordon(node, HOW, by, now, plain_reason(reason), verdict, test)
        return kept.step_cordon(wanted.id, "standing", by, "done by hand", now)

    return performed(enter)


def uncordoned(kept: NodeRecords, node: str, by: str, why: str) -> PastCordon:
    """Return the cordon that somebody says they removed; `RequestRefused` when none is on record."""

    def enter() -> PastCordon:
        held = standing(kept, node)
        if held is None:
            raise CordonRefused(f"node {node}", "has no cordon that was made by hand", "Look at its history.")
        return kept.step_cordon(held.id, "undone", by, f"done by hand: {why}" if why else "done by hand", time.time())

    return performed(enter)


def standing(kept: NodeRecords, node: str) -> PastCordon | None:
    """Return the cordon of a node that was made by hand, if one stands."""
    return next(iter(kept.cordons("standing", node, HOW, 1)), None)


def performed_action(kept: NodeRecords, stored: StoredAction, by: str, why: str) -> StoredAction:
    """Return an action that somebody says they did themselves, done; a cordon is on record of its nodes, too."""
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
