"""Cordons of Slurm nodes: `scontrol update` drains them, with the mark as the reason."""

from collections.abc import Mapping

from logdoctor.errors import CordonError, CordonRefused
from logdoctor.nodes.cordon.cordoner import carries, mark_of, reason_text
from logdoctor.nodes.slurm import SlurmNode, environment, nodes_in, run, words
from logdoctor.types.nodes import Mark, NodeState, checked_name

_TAKEN_OUT = {"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"}
_UNDONE = "down, undone"
_OF_SLURM = ("not responding", "node unexpectedly rebooted", "reboot timed out", "resumetimeout reached", _UNDONE)
"""Beginnings of Slurm's own reasons for a node that is down; any other reason was given by a person."""


class SlurmCordoner:
    """Drains and undrains nodes. A node that is down stays down, drained or not.

    Slurm cannot update a node on condition that it is unchanged: if two drain a node within the same few milliseconds,
    the later one's reason is kept. `env` is inherited by the commands; the user must be a Slurm administrator.
    """

    how = "slurm"

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = environment(env)

    def nodes(self) -> list[NodeState]:
        """Return the whole fleet."""
        return [_state(node) for node in self._shown()]

    def node(self, name: str) -> NodeState | None:
        """Return one node's current state; None when Slurm does not know it."""
        return next((_state(node) for node in self._shown(checked_name(name)) if node.name == name), None)

    def cordon(self, name: str, mark: Mark) -> None:
        """Drain the node, with the mark as the reason; `CordonRefused` when others drained it."""
        reason = reason_text(mark)
        before = self._known(name)
        if carries(before, mark):
            return
        if before.cordoned:
            cause = f"was drained by others: {before.raw}, {before.reason or 'without a reason'}"
            raise CordonRefused(f"node {name}", cause, "Ask them, or leave it as it is.")
        self._update(name, "State=DRAIN", f"Reason={reason}")
        after = self._known(name)
        if not carries(after, mark):
            cause = f"was set to drain, but is {after.raw}, {after.reason or 'without a reason'}"
            raise CordonError(f"node {name}", cause, "Look at it with `scontrol show node`.")

    def uncordon(self, name: str, mark: Mark) -> None:
        """Undrain the node; `CordonRefused` unless it carries exactly this mark."""
        before = self._known(name)
        if not carries(before, mark):
            cause = f"does not have cordon {mark.cordon} of {mark.owner}: {before.raw}, {before.reason or 'no reason'}"
            raise CordonRefused(f"node {name}", cause, "Undrain it with `scontrol` if it is to be used.")
        # A node that is down keeps its reason when it is undrained, and the mark must not remain as one.
        down = "DOWN" in words(before.raw)
        self._update(name, "State=UNDRAIN", *((f"Reason={_UNDONE}: {reason_text(mark)}",) if down else ()))
        after = self._known(name)
        if carries(after, mark) or words(after.raw) & _TAKEN_OUT:
            cause = f"was set to undrain, but is {after.raw}, {after.reason or 'without a reason'}"
            raise CordonError(f"node {name}", cause, "Look at it with `scontrol show node`.")

    def _known(self, name: str) -> NodeState:
        if (state := self.node(name)) is None:
            raise CordonError(f"node {name}", "is unknown to Slurm", "Check the name with `sinfo -N`.")
        return state

    def _shown(self, *name: str) -> list[SlurmNode]:
        ran = run(("scontrol", "show", "node", *name), self._env)
        if ran.status != 0 and not (ran.status == 1 and name and f"Node {name[0]} not found" in ran.output):
            raise CordonError("Slurm", f"does not list its nodes ({ran.complaint})", "Check `scontrol show node` here.")
        return nodes_in(ran.output)

    def _update(self, name: str, *changes: str) -> None:
        ran = run(("scontrol", "update", f"NodeName={checked_name(name)}", *changes), self._env)
        if ran.status != 0:
            step = "Run logdoctor as a Slurm administrator, and check `scontrol` here."
            raise CordonError(f"node {name}", f"Slurm does not change it ({ran.complaint})", step)


def _state(node: SlurmNode) -> NodeState:
    by_person = "DOWN" in node.states and node.reason != "" and not node.reason.lower().startswith(_OF_SLURM)
    drained = bool(node.states & _TAKEN_OUT)
    mark = mark_of(node.reason) if "DRAIN" in node.states else None
    return NodeState(node.name, drained or by_person, mark, node.reason, node.raw)
