"""Cordoning with care: the intent is on record before the deed, within caps, and every step is audited.

What a crash leaves between intent and deed, `reconcile` settles by a look at the node.
"""

from collections.abc import Sequence
from typing import NamedTuple

import structlog

from logdoctor.errors import CordonError, CordonRefused
from logdoctor.node_types import Mark, NodeState, PastCordon, checked_name
from logdoctor.nodes.cordon.caps import Caps, check
from logdoctor.nodes.cordon.cordoner import Cordoner, carries, checked_owner, plain_reason
from logdoctor.nodes.cordon.dry_run import HOW as DRY_RUN
from logdoctor.store.cordons import Cordons, OpenCordons

GRACE = 600.0
"""Seconds after which a cordon that was wanted and not heard of again is taken for interrupted: longer than any
cordoner blocks, so that one that another process is making is left to it."""
BY = "logdoctor"
"""Who settles what was interrupted."""

log = structlog.get_logger()


class Prospect(NamedTuple):
    """What would come of a cordon now: by which cordoner (`how`), the node as the cluster knows it, the `fleet` and how
    many of it are `out` (ours and others'), how many are `ours`, how many cordons of ours the last hour saw, the caps,
    and what would forbid it."""

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

    Cordons of different cordoners (`how`) are apart: what was done in a dry run neither holds a node nor counts
    towards the caps of another cordoner. `CordonError` for an owner that no mark can bear.
    """

    def __init__(self, records: Cordons, cordoner: Cordoner, owner: str, caps: Caps) -> None:
        self._records = records
        self._cordoner = cordoner
        self._owner = checked_owner(owner)
        self._caps = caps

    @property
    def how(self) -> str:
        """The cordoner: slurm, kubernetes, file, dry-run."""
        return self._cordoner.how

    def prospect(self, node: str, states: Sequence[NodeState], at: float) -> Prospect:
        """What would come of a cordon of the node, the fleet being in these states; nothing is done."""
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
        """The cordon, which now stands on the node.

        `CordonRefused` when a cap is reached or the node is cordoned already, by us or by others; that is on record.
        `CordonError` when the cluster does not know the node or does not do it: then the cordon has failed, or is
        still `wanted` where the node cannot be looked at, and counts as made until it can.
        """
        states = self._fleet()
        if checked_name(node) not in states:
            raise CordonError(f"node {node}", "is unknown to the cluster", "Check the name.")

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
        except Exception as error:  # whatever it was: what counts is what the node carries
            if self._settled(wanted, str(error), at).state != "standing":
                raise
        log.info("cordoned", node=node, cordon=wanted.id, how=wanted.how, by=by)
        return self._step(wanted.id, "standing", by, reason, at)

    def uncordon(self, node: str, by: str, why: str, at: float) -> PastCordon:
        """The cordon, undone: the node is as it was before.

        `CordonRefused` when no cordon of ours stands on the node, or others have changed it; `CordonError` when the
        cluster does not do it. Who asked is audited before the deed.
        """
        standing = self._records.cordons("standing", checked_name(node), self._cordoner.how, 1)
        if not standing:
            cause = f"has no cordon by logdoctor ({self._cordoner.how})"
            raise CordonRefused(
                f"node {node}", cause, "logdoctor removes only its own cordons: ask whoever cordoned it, or wait."
            )
        (cordon,) = standing
        self._records.note_cordon(cordon.id, "undo wanted", by, why, at)
        try:
            self._cordoner.uncordon(node, _mark(cordon))
        except Exception as error:
            step = "undo refused" if isinstance(error, CordonRefused) else "undo failed"
            self._records.note_cordon(cordon.id, step, BY, str(error), at)
            raise
        log.info("uncordoned", node=node, cordon=cordon.id, how=cordon.how, by=by)
        return self._step(cordon.id, "undone", by, why, at)

    def reconcile(self, at: float, grace: float = GRACE) -> list[PastCordon]:
        """The cordons whose state was wrong, put right by what the nodes carry. `CordonError` when they cannot be
        looked at.

        One that is wanted since over `grace` seconds stands or has failed (0 only where no other process cordons); one
        that stands and is gone from its node was undone by others; one that failed and stands after all stands.
        """
        how = self._cordoner.how
        wanted = self._records.cordons("wanted", how=how)
        standing = self._records.cordons("standing", how=how) if how != DRY_RUN else []
        states = self._fleet()  # after the rows: what stands in them was on its node before
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
        """The cordons that failed, and yet their mark is on the node, which no other cordon holds."""
        marks = {
            state.mark.cordon: state
            for state in states.values()
            if state.cordoned and state.mark and state.name not in held
        }
        found = [one for id in marks if (one := self._records.cordon(id)) and one.how == self._cordoner.how]
        return [one for one in found if one.state == "failed" and carries(marks[one.id], _mark(one))]

    def _settled(self, wanted: PastCordon, why: str, at: float) -> PastCordon:
        """What became of a cordon whose deed went wrong, by a look at the node; still wanted when that fails too."""
        try:
            state = self._cordoner.node(wanted.node)
        except Exception as error:
            log.exception("cordon unclear", node=wanted.node, cordon=wanted.id)
            self._records.note_cordon(wanted.id, "unclear", BY, f"{why}; {error}", at)
            return wanted
        return self._compared(wanted, state, why, at)

    def _compared(self, wanted: PastCordon, state: NodeState | None, why: str, at: float) -> PastCordon:
        stands = carries(state, _mark(wanted))
        said = "the node has it" if stands else "the node does not have it"
        return self._step(wanted.id, "standing" if stands else "failed", BY, f"{said}: {why}", at)

    def _step(self, id: int, state: str, by: str, why: str, at: float) -> PastCordon:
        """The cordon in this state, which another process may have brought it to."""
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
        """The nodes of the fleet, those that are out, those of them that are ours, and our cordons of the last hour."""
        out = {name for name, state in states.items() if state.cordoned} | held.nodes
        ours = {name for name, state in states.items() if self._is_ours(state)} | held.nodes
        return len(states), len(out), len(ours), held.last_hour

    def _is_ours(self, state: NodeState) -> bool:
        return state.cordoned and state.mark is not None and state.mark.owner == self._owner


def _mark(cordon: PastCordon) -> Mark:
    """What stands on the node of a cordon: with the owner that it was made by, whatever the settings say today."""
    return Mark(cordon.owner, cordon.id, cordon.verdict, cordon.reason)


def _check_state(state: NodeState) -> None:
    """`CordonRefused` for a node that is out already and not by a cordon on record."""
    if state.cordoned:
        cause = f"is already cordoned by others: {plain_reason(state.reason or state.raw)[:200]}"
        raise CordonRefused(f"node {state.name}", cause, "Leave it, or ask whoever cordoned it.")
