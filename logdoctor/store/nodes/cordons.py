"""Our own cordons, from intent to uncordoning."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from logdoctor.errors import CordonRefused
from logdoctor.store.database import Database
from logdoctor.store.fit import fit, fit_id
from logdoctor.store.incidents.grouping import enter_step
from logdoctor.store.keeping.audit import MAX_WHO, MAX_WORDS, enter
from logdoctor.store.nodes.places import DRY_RUN
from logdoctor.store.schema import OPEN_CORDON, incident_attempts, incidents, next_event, node_cordons, verdicts
from logdoctor.types.nodes import PastCordon, checked_name

HOUR = 3600.0

_STEPS = {"wanted": ("standing", "refused", "failed"), "failed": ("standing",), "standing": ("undone",)}
"""Which state may follow which. A failed cordon may turn out to stand: it took effect late."""
_TOLD = {"standing": "cordoned", "undone": "uncordoned"}
"""Events in an incident's history for a cordon made for it."""
_COUNTED = ("wanted", "standing", "undone")  # states of cordons that took effect, or may have
_c = node_cordons.c


class OpenCordons(NamedTuple):
    """Our open cordons: the nodes of those that stand or are being made, and how many were begun in the last hour,
    including undone ones."""

    nodes: frozenset[str]
    last_hour: int


class Cordons:
    """The cordons of one database; usable from any thread and process. Changes are durable when the call returns.

    All calls raise `StoreError` when the database fails. Each change is audited in its own transaction.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def want_cordon(
        self,
        node: str,
        how: str,
        by: str,
        at: float,
        reason: str,
        verdict: int | None = None,
        test: int | None = None,
        owner: str = "",
        check: Callable[[OpenCordons], None] = lambda _: None,
    ) -> PastCordon:
        """Record the intent (`wanted`) to cordon a node for `owner`, before acting.

        `check` sees the open cordons while nobody else can request one, and raises `CordonRefused` when a cap is
        reached. A refusal is recorded and raised, also if the node is cordoned by us already. `InputError` for an
        invalid node name.
        """
        values = {
            "node": checked_name(node),
            "how": fit(how, MAX_WHO),
            "by": _who(by),
            "at": at,
            "owner": fit(owner, MAX_WHO),
            "reason": fit(reason, MAX_WORDS),
            "verdict": verdict,
            "test": test,
            "changed": at,
        }
        with self._database.writing() as connection:
            refusal = _refusal(connection, node, how, at, check)
            state, why = ("wanted", "") if refusal is None else ("refused", fit(str(refusal), MAX_WORDS))
            adding = sa.insert(node_cordons).values(**values, state=state, why=why).returning(_c.id)
            id = int(connection.execute(adding).scalar_one())
            enter(connection, "cordon", id, state, by, reason if refusal is None else why, at, node)
            wanted = _found(connection, id)
        if refusal is not None:
            raise refusal
        return wanted

    def step_cordon(self, id: int, state: str, by: str, why: str, at: float) -> PastCordon:
        """Move a cordon to its next state and return it; `CordonRefused` when that cannot follow its present one."""
        with self._database.writing() as connection:
            former = _found(connection, id)
            if state not in _STEPS.get(former.state, ()):
                cause = f"is {former.state}, and cannot become {state}"
                raise CordonRefused(f"cordon {id} of {former.node}", cause, "Check its audit log.")
            values = {"state": state, "why": fit(why, MAX_WORDS), "changed": at}
            connection.execute(sa.update(node_cordons).where(_c.id == id).values(values))
            enter(connection, "cordon", id, state, _who(by), why, at, former.node)
            _tell(connection, former, state, _who(by), at)
            return _found(connection, id)

    def note_cordon(self, id: int, step: str, by: str, why: str, at: float) -> None:
        """Audit an event of a cordon that leaves its state; `CordonRefused` when there is none."""
        with self._database.writing() as connection:
            enter(connection, "cordon", id, fit(step, MAX_WHO), _who(by), why, at, _found(connection, id).node)

    def cordon(self, id: int) -> PastCordon | None:
        """Return the cordon with this id."""
        with self._database.reading() as connection:
            row = connection.execute(sa.select(node_cordons).where(_c.id == fit_id(id))).first()
        return None if row is None else read_cordon(row)

    def made_by(self, how: str, ids: Sequence[int]) -> set[int]:
        """Return which of the cordons (at most 500) were made in this way."""
        mine = sa.select(_c.id).where(_c.how == how, _c.id.in_(list(ids)[:500]))
        with self._database.reading() as connection:
            return set(connection.scalars(mine))

    def open_cordons(self, how: str, at: float) -> OpenCordons:
        """Return our open cordons of this kind (`how`), and those begun within the last hour."""
        with self._database.reading() as connection:
            return _open(connection, how, at)

    def cordons_after(self, verdicts: Sequence[int], limit: int = 50) -> list[PastCordon]:
        """Return the open cordons because of these verdicts (at most 500), newest first."""
        mine = sa.select(node_cordons).where(_c.verdict.in_(list(verdicts)[:500]), OPEN_CORDON)
        with self._database.reading() as connection:
            rows = connection.execute(mine.order_by(_c.id.desc()).limit(max(limit, 1)))
            return [read_cordon(row) for row in rows]

    def held(self, nodes: Sequence[str]) -> set[str]:
        """Return the nodes (of at most 500) on which a cordon of ours stands; dry runs do not count."""
        mine = (_c.node.in_(list(nodes)[:500]), _c.state == "standing", _c.how != DRY_RUN)
        with self._database.reading() as connection:
            return set(connection.scalars(sa.select(_c.node).where(*mine)))

    def cordons(
        self, state: str | None = None, node: str | None = None, how: str | None = None, limit: int = 1000
    ) -> list[PastCordon]:
        """Return the last cordons that match all given conditions, newest first."""
        wanted = {"state": state, "node": node, "how": how}
        where = [_c[name] == fit(value, MAX_WORDS) for name, value in wanted.items() if value is not None]
        query = sa.select(node_cordons).where(*where).order_by(_c.id.desc()).limit(max(limit, 1))
        with self._database.reading() as connection:
            return [read_cordon(row) for row in connection.execute(query)]


def read_cordon(row: sa.Row[Any]) -> PastCordon:
    """Return the cordon of a row."""
    return PastCordon(**{name: getattr(row, name) for name in PastCordon.__struct_fields__})


def _tell(connection: sa.Connection, cordon: PastCordon, state: str, by: str, at: float) -> None:
    """Record a cordon or uncordon in its incident's history, unless it is a dry run."""
    if state not in _TOLD or cordon.verdict is None or cordon.how == DRY_RUN:
        return
    a, v = incident_attempts.c, verdicts.c
    of = sa.select(a.incident).join(verdicts, sa.and_(v.job == a.job, v.attempt == a.attempt))
    incident = connection.scalar(of.where(v.id == cordon.verdict))
    if incident is not None:
        enter_step(connection, incident, _TOLD[state], by, f"{cordon.node} ({cordon.how})", at)
        values = {"event": next_event(connection)}
        connection.execute(sa.update(incidents).where(incidents.c.id == incident).values(values))


def _refusal(
    connection: sa.Connection, node: str, how: str, at: float, check: Callable[[OpenCordons], None]
) -> CordonRefused | None:
    """Return why the node may not be cordoned; None if it may."""
    mine = sa.select(_c.id).where(_c.how == how, _c.node == node, OPEN_CORDON)
    try:
        if former := connection.scalar(mine):
            cause = f"is already cordoned, or about to be (cordon {former})"
            raise CordonRefused(f"node {node}", cause, "Uncordon it first, or leave it.")
        check(_open(connection, how, at))
    except CordonRefused as refusal:
        return refusal
    return None


def _open(connection: sa.Connection, how: str, at: float) -> OpenCordons:
    held = connection.scalars(sa.select(_c.node).where(_c.how == how, OPEN_CORDON))
    since = sa.select(sa.func.count()).where(_c.how == how, _c.at > at - HOUR, _c.state.in_(_COUNTED))
    return OpenCordons(frozenset(held), int(connection.scalar(since) or 0))


def _found(connection: sa.Connection, id: int) -> PastCordon:
    row = connection.execute(sa.select(node_cordons).where(_c.id == fit_id(id))).first()
    if row is None:
        raise CordonRefused(f"cordon {id}", "does not exist", "List the cordons.")
    return read_cordon(row)


def _who(by: str) -> str:
    if not by.strip():
        raise CordonRefused("a cordon", "names nobody who requests it", "Say who you are.")
    return fit(by, MAX_WHO)
