"""Safe cordons: the intent is recorded before the change, caps are kept, and every step is audited.

After a crash between intent and change, `reconcile` looks at the node and corrects the record.
"""

from collections.abc import Sequence
from typing import NamedTuple

import structlog

from logdoctor.errors import CordonRefused
from logdoctor.nodes.cordon.caps import Caps, check
from logdoctor.nodes.cordon.cordoner import Cordoner, carries, checked_owner, plain_reason, unknown
from logdoctor.nodes.cordon.dry_run import HOW as DRY_RUN
from logdoctor.store.nodes.cordons import Cordons, OpenCordons
from logdoctor.types.nodes import Mark, NodeState, PastCordon, checked_name

GRACE = 600.0
"""Seconds after which a `wanted` cordon counts as interrupted: longer than any cordoner blocks, so that cordons in
progress in other processes are left alone."""
BY = "logdoctor"
"""Recorded as the author of corrections to interrupted cordons."""

log = structlog.get_logger()


class Prospect(NamedTuple):
    """What a cordon would meet now. `how` is the cordoner, `state` the node as the cluster knows it; `fleet` counts all
    nodes, `out` those out of service (ours and others'), `ours` our cordons, `last_hour` those of the last hour; then
    the caps, and what would forbid the cordon."""

    how: str
    state: NodeState | None
    fleet: int
    out: int
    ours: int
    last_hour: int
    caps: Caps
    refusal: CordonRefused | None


class Cordoning:
    """Cordons and uncordons nodes of one cluster. All calls block; any thread and any process may call.

    Cordons by different cordoners (`how`) are separate: a dry run neither holds a node nor counts towards the caps of
    another cordoner. `CordonError` for an owner that a mark cannot hold.
    """

    def __init__(self, records: Cordons, cordoner: Cordoner, owner: str, caps: Caps) -> None:
        self._records = records
        self._cordoner = cordoner
        self._owner = checked_owner(owner)
        self._caps = caps

    @property
    def how(self) -> str:
        """Return the cordoner: slurm, kubernetes, file, dry-run."""
        return self._cordoner.how

    def prospect(self, node: str, states: Sequence[NodeState], at: float) -> Prospect:
        """Return what a cordon of the node would meet, given the fleet's states; nothing is changed."""
        fleet = {state.name: state for state in states}
        held = self._records.open_cordons(self._cordoner.how, at)
        state, count = fleet.get(node), self._counted(fleet, held)
        refusal = None
        try:
            if state is not None and node not in held.nodes:
                _check_state(state)
            check(self._caps, *count)
        except CordonRefused as error:
            refusal = error
        return Prospect(self._cordoner.how, state, *count, self._caps, refusal)

    def cordon(self, node: str, by: str, reason: str, verdict: int | None, test: int | None, at: float) -> PastCordon:
        """Cordon the node, and return the cordon.

        `CordonRefused` when a cap is reached or the node is already cordoned, by us or by others; the refusal is
        recorded. `CordonError` when the cluster does not know the node or fails to cordon it: then the cordon has
        failed, or stays `wanted`, counting as made, while the node cannot be inspected.
        """
        states = self._fleet()
        if checked_name(node) not in states:
            raise unknown(node, self._cordoner.how)

        def allowed(held: OpenCordons) -> None:
            _check_state(states[node])
            check(self._caps, *self._counted(states, held))

        reason = plain_reason(reason)
        wanted = self._records.want_cordon(
            node, self._cordoner.how, by, at, reason, verdict, test, self._owner, allowed
        )
        try:
            self._cordoner.cordon(node, _mark(wanted))
        except CordonRefused as error:
            self._records.step_cordon(wanted.id, "refused", BY, str(error), at)
            raise
        except Exception as error:  # whatever it was: what the node carries decides
            if self._settled(wanted, str(error), at).state != "standing":
                raise
        log.info("cordoned", node=node, cordon=wanted.id, how=wanted.how, by=by)
        return self._step(wanted.id, "standing", by, reason, at)

    def uncordon(self, node: str, by: str, why: str, at: float) -> PastCordon:
        """Undo the cordon of a node, restoring its former state, and return it.

        `CordonRefused` when the node has no cordon of ours, or others have changed it; `CordonError` when the cluster
        fails to uncordon it. Who asked is audited before the change.
        """
        standing = self._records.cordons("standing", checked_name(node), self._cordoner.how, 1)
        if not standing:
            cause = f"has no cordon by logdoctor ({self._cordoner.how})"
            raise CordonRefused(
                f"node {node}", cause, "Ask whoever cordoned it, or wait: logdoctor removes only its own cordons."
            )
        (cordon,) = standing
        self._records.note_cordon(cordon.id, "undo wanted", by, why, at)
        try:
            self._cordoner.uncordon(node, _mark(cordon))
        except Exception as error:  # whatever it was, the record says that the undo failed
            step = "undo refused" if isinstance(error, CordonRefused) else "undo failed"
            self._records.note_cordon(cordon.id, step, BY, str(error), at)
            raise
        log.info("uncordoned", node=node, cordon=cordon.id, how=cordon.how, by=by)
        return self._step(cordon.id, "undone", by, why, at)

    def reconcile(self, at: float, grace: float = GRACE) -> list[PastCordon]:
        """Correct cordons whose recorded state differs from the nodes, and return them; `CordonError` when the nodes
        cannot be read.

        A cordon that is `wanted` for over `grace` seconds becomes standing or failed (0 only if no other process
        cordons); a standing one that is gone from its node was undone by others; a failed one that is on its node after
        all stands.
        """
        how = self._cordoner.how
        wanted = self._records.cordons("wanted", how=how)
        standing = self._records.cordons("standing", how=how) if how != DRY_RUN else []
        states = self._fleet()  # read after the rows: a cordon recorded as standing was on its node before
        late = self._late(states, {one.node for one in wanted + standing})
        settled = [
            self._compared(one, states.get(one.node), "after an interruption", at)
            for one in wanted
            if one.at <= at - grace
        ]
        for one in standing:
            if one.node in states and not carries(states[one.node], _mark(one)):
                why = f"others changed the node: {states[one.node].raw} {states[one.node].reason}"
                settled.append(self._step(one.id, "undone", BY, why, at))
        settled += [self._step(one.id, "standing", BY, "it took effect late", at) for one in late]
        for one in settled:
            log.warning("cordon settled", node=one.node, cordon=one.id, state=one.state, why=one.why[:200])
        return settled

    def _late(self, states: dict[str, NodeState], held: set[str]) -> list[PastCordon]:
        """Return failed cordons whose mark is on the node, and no other cordon's."""
        marks = {
            state.mark.cordon: state
            for state in states.values()
            if state.cordoned and state.mark and state.name not in held
        }
        found = [one for id in marks if (one := self._records.cordon(id)) and one.how == self._cordoner.how]
        return [one for one in found if one.state == "failed" and carries(marks[one.id], _mark(one))]

    def _settled(self, wanted: PastCordon, why: str, at: float) -> PastCordon:
        """Return a cordon whose change failed, settled by inspecting the node; still wanted when that fails, too."""
        try:
            state = self._cordoner.node(wanted.node)
        except Exception as error:  # whatever it was, the record says that the state is unknown
            log.exception("cordon unclear", node=wanted.node, cordon=wanted.id)
            self._records.note_cordon(wanted.id, "unclear", BY, f"{why}; {error}", at)
            return wanted
        return self._compared(wanted, state, why, at)

    def _compared(self, wanted: PastCordon, state: NodeState | None, why: str, at: float) -> PastCordon:
        stands = carries(state, _mark(wanted))
        said = "the node has it" if stands else "the node does not have it"
        return self._step(wanted.id, "standing" if stands else "failed", BY, f"{said}: {why}", at)

    def _step(self, id: int, state: str, by: str, why: str, at: float) -> PastCordon:
        """Record a cordon's new state and return it; accept that another process has already done so."""
        try:
            return self._records.step_cordon(id, state, by, why, at)
        except CordonRefused:
            now = self._records.cordon(id)
            if now is None or now.state != state:
                raise
            return now

    def _fleet(self) -> dict[str, NodeState]:
        return {state.name: state for state in self._cordoner.nodes()}

    def _counted(self, states: dict[str, NodeState], held: OpenCordons) -> tuple[int, int, int, int]:
        """Return four counts: nodes of the fleet, those that are out, ours among these, and our cordons of the last
        hour."""
        out = {name for name, state in states.items() if state.cordoned} | held.nodes
        ours = {name for name, state in states.items() if self._is_ours(state)} | held.nodes
        return len(states), len(out), len(ours), held.last_hour

    def _is_ours(self, state: NodeState) -> bool:
        return state.cordoned and state.mark is not None and state.mark.owner == self._owner


def _mark(cordon: PastCordon) -> Mark:
    """Return the mark of a cordon, with the owner that made it, whatever today's settings."""
    return Mark(cordon.owner, cordon.id, cordon.verdict, cordon.reason)


def _check_state(state: NodeState) -> None:
    """Raise `CordonRefused` for a node that is out without a cordon on record."""
    if state.cordoned:
        cause = f"is already cordoned by others: {plain_reason(state.reason or state.raw)[:200]}"
        raise CordonRefused(f"node {state.name}", cause, "Leave it, or ask whoever cordoned it.")
