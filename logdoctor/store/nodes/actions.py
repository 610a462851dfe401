"""Proposed actions, the decisions on them, and their results."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from logdoctor.errors import ActionRefused
from logdoctor.store.database import Database
from logdoctor.store.fit import below, fit, fit_id, fit_limit
from logdoctor.store.keeping.audit import MAX_WHO, MAX_WORDS, enter
from logdoctor.store.schema import CURRENT, OPEN_ACTION, incident_attempts, node_actions, verdicts
from logdoctor.types.nodes import PERFORMED, Action, checked_name

POLICY = "policy"
"""The approver of actions that are done at once."""
MAX_NODES = 20_000

ActionState = Literal["waiting", "approved", "refused", "done", "failed", "superseded"]

_OF_NODES = ("cordon", "reboot", "inspect_hardware")
"""Kinds that are the same for whichever job they are proposed."""
_AT_ONCE = "the settings approve it automatically"
_BESIDE = 200  # newest attempts of an incident that are considered
_c, _a = node_actions.c, incident_attempts.c


class StoredAction(msgspec.Struct, frozen=True):
    """A stored action, for an attempt of a job if one needs it. `by` decided on it and said `why`; `changed` is when it
    entered its state, in seconds since the epoch. It is superseded when it no longer follows: its verdict was
    superseded, a later test found the node healthy, or a newer one asks for the same."""

    id: int
    at: float
    action: Action
    job: str | None
    attempt: int | None
    state: ActionState
    by: str
    why: str
    changed: float


class ActionPage(msgspec.Struct, frozen=True):
    """A page of actions, newest first, and the cursor of the next page, if any."""

    items: list[StoredAction]
    next: str | None


_encode = msgspec.json.Encoder().encode
_action = msgspec.json.Decoder(Action)


class Actions:
    """The actions of one database; usable from any thread and process. Changes are durable when the call returns.

    All calls raise `StoreError` when the database fails. Each change is audited in its own transaction.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def propose(self, action: Action, job: str | None, attempt: int | None, at: float) -> StoredAction | None:
        """Record an action and return it: waiting, or approved by `POLICY` if its mode is `auto`.

        None when it is not needed: the same one is open, was proposed for the same verdict and test before (whatever
        its result), or was done for the same attempt. A waiting one about nodes takes over the finding of a newer test,
        and is returned if it is now to be done at once. `ActionRefused` for one that is never done, and for one to be
        done at once that cannot be; `InputError` for an invalid node name.
        """
        action = _sound(action)
        at_once = action.mode == "auto"
        values = {
            "at": at,
            "verdict": action.verdict,
            "test": action.test,
            "job": None if job is None else fit(job, MAX_WHO),
            "attempt": attempt,
            "body": _encode(action).decode(),
            "subject": _subject(action, job, attempt),
            "state": "approved" if at_once else "waiting",
            "by": POLICY if at_once else "",
            "why": "",
            "changed": at,
        }
        with self._database.writing() as connection:
            if (former := connection.execute(_same(action, values["subject"])).first()) is not None:
                return _renewed(connection, _read(_found(connection, former.id)), action, values)
            id = int(connection.execute(sa.insert(node_actions).values(values).returning(_c.id)).scalar_one())
            _audit(connection, id, action, "proposed", POLICY, action.why, at)
            if at_once:
                _audit(connection, id, action, "approved", POLICY, _AT_ONCE, at)
            return _read(_found(connection, id))

    def decide(self, id: int, approved: bool, by: str, why: str, at: float) -> StoredAction:
        """Approve or refuse an action and return it; `ActionRefused` when it is not waiting or nobody is named."""
        if by.strip() in ("", POLICY):
            raise ActionRefused(f"action {id}", "names nobody who decides it", "Say who you are.")
        return self._step(id, ("waiting",), "approved" if approved else "refused", by, why, at)

    def settle_action(self, id: int, state: Literal["done", "failed"], why: str, at: float) -> StoredAction:
        """Record the result of an approved action and return it; `ActionRefused` when it was not approved, or settled
        before."""
        return self._step(id, ("approved",), state, None, why, at)

    def supersede(self, id: int, why: str, at: float, approved: bool = False) -> StoredAction:
        """Supersede a waiting action, with `approved` also an approved one, and return it; `ActionRefused` when
        somebody has decided on it meanwhile."""
        return self._step(id, ("waiting", "approved") if approved else ("waiting",), "superseded", POLICY, why, at)

    def put_back(self, id: int, why: str, at: float) -> StoredAction:
        """Put an approved action that cannot be done now back to waiting, and return it; `ActionRefused` when it is not
        approved."""
        return self._step(id, ("approved",), "waiting", "", why, at)

    def reopen(self, id: int, why: str, at: float) -> StoredAction:
        """Put a superseded action back to waiting and return it; `ActionRefused` when it is not superseded, or the same
        one is open."""
        with self._database.writing() as connection:
            row = _found(connection, id)
            same = sa.select(_c.id).where(_c.subject == row.subject, OPEN_ACTION)
            if row.state != "superseded" or connection.scalar(same) is not None:
                cause = f"is {row.state}" if row.state != "superseded" else "is already proposed again"
                raise ActionRefused(f"action {id}", cause, "List the waiting actions.")
            values = {"state": "waiting", "by": "", "why": "", "changed": at}
            connection.execute(sa.update(node_actions).where(_c.id == id).values(values))
            _audit(connection, id, _read(row).action, "waiting", POLICY, why, at)
            return _read(_found(connection, id))

    def newer(self, stored: StoredAction) -> StoredAction | None:
        """Return the newest action that replaces this one: proposed later for another attempt of the same incident, to
        do the same with the same nodes (of the same job when it names none), and not superseded itself."""
        if stored.job is None or stored.attempt is None or stored.action.kind in _OF_NODES:
            return None
        with self._database.reading() as connection:
            beside = connection.execute(_beside(stored.job, stored.attempt, bool(stored.action.nodes))).all()
            if not beside:
                return None
            same = _c.subject.in_([_subject(stored.action, job, attempt) for job, attempt in beside])
            query = sa.select(node_actions).where(same, _c.id > stored.id, _c.state != "superseded")
            row = connection.execute(query.order_by(_c.id.desc()).limit(1)).first()
        return None if row is None else _read(row)

    def displaced(self, limit: int = 200) -> list[StoredAction]:
        """Return superseded actions whose verdicts are current, which a newer action therefore replaced; newest
        first."""
        query = sa.select(node_actions).join(verdicts, verdicts.c.id == _c.verdict)
        query = query.where(_c.state == "superseded", _c.job.is_not(None), CURRENT)
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(_c.id.desc()).limit(fit_limit(limit))).all()
        return [one for one in map(_read, rows) if one.action.kind not in _OF_NODES]

    def acted_on(self, verdicts: Sequence[int]) -> set[int]:
        """Return which of the verdicts had an action proposed."""
        with self._database.reading() as connection:
            return set(connection.scalars(sa.select(_c.verdict).where(_c.verdict.in_(verdicts)).distinct()))

    def every_action(self, state: ActionState) -> Iterator[StoredAction]:
        """Yield all actions in a state, newest first."""
        cursor = None
        while True:
            page = self.actions(state, cursor, 500)
            yield from page.items
            if (cursor := page.next) is None:
                return

    def action(self, id: int) -> StoredAction | None:
        """Return the action with this id."""
        with self._database.reading() as connection:
            row = connection.execute(sa.select(node_actions).where(_c.id == fit_id(id))).first()
        return None if row is None else _read(row)

    def actions(
        self, state: str | None = None, cursor: str | None = None, limit: int = 50, node: str | None = None
    ) -> ActionPage:
        """Return a page of actions, newest first, by state and node if given; `CursorError` for a bad cursor."""
        query = sa.select(node_actions).where(_c.id < below(cursor)).order_by(_c.id.desc())
        if state is not None:
            query = query.where(_c.state == fit(state, MAX_WHO))
        if node is not None:  # names have no quotes, so a quoted match is a whole name
            named = sa.func.replace(_c.body, f'"{fit(node, MAX_WHO)}"', "") != _c.body  # SQLite's LIKE ignores case
            query = query.where(named)
        limit = fit_limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(query.limit(limit + 1)).all()
        items = [_read(row) for row in rows[:limit]]
        return ActionPage(items, str(items[-1].id) if len(rows) > limit else None)

    def actions_after(self, verdicts: Sequence[int], limit: int = 50) -> list[StoredAction]:
        """Return the actions proposed because of these verdicts (at most 500), newest first."""
        mine = sa.select(node_actions).where(_c.verdict.in_(list(verdicts)[:500])).order_by(_c.id.desc())
        with self._database.reading() as connection:
            return [_read(row) for row in connection.execute(mine.limit(fit_limit(limit)))]

    def counted(self) -> dict[str, int]:
        """Return the number of actions by state."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(_c.state, sa.func.count()).group_by(_c.state))
            return {state: int(count) for state, count in rows}

    def waiting(self) -> int:
        """Return how many actions wait for a person."""
        mine = sa.select(sa.func.count()).select_from(node_actions).where(_c.state == "waiting")
        with self._database.reading() as connection:
            return int(connection.scalar(mine) or 0)

    def _step(self, id: int, former: Sequence[str], state: str, by: str | None, why: str, at: float) -> StoredAction:
        """Move an action to its next state and return it; `by` None keeps who decided."""
        with self._database.writing() as connection:
            found = _read(_found(connection, id))
            if found.state not in former:
                cause = f"is {found.state}, and cannot become {state}"
                raise ActionRefused(f"action {id}", cause, "List the waiting actions.")
            by = found.by if by is None else fit(by, MAX_WHO)
            values = {"state": state, "by": by, "why": fit(why, MAX_WORDS), "changed": at}
            connection.execute(sa.update(node_actions).where(_c.id == id).values(values))
            _audit(connection, id, found.action, state, by or POLICY, why, at)
            return _read(_found(connection, id))


def _sound(action: Action) -> Action:
    """Return the action as it will be stored; `ActionRefused` when it is invalid."""
    if action.mode == "never" or (action.mode == "auto" and action.kind not in PERFORMED):
        cause = f"has the mode {action.mode}"
        raise ActionRefused(f"an action to {action.kind}", cause, "Propose what is done, or what people can do.")
    if len(action.nodes) > MAX_NODES:
        raise ActionRefused(f"an action to {action.kind}", "has too many nodes", f"Name up to {MAX_NODES}.")
    nodes = tuple(checked_name(name) for name in action.nodes)
    return msgspec.structs.replace(action, nodes=nodes, why=fit(action.why, MAX_WORDS))


def _subject(action: Action, job: str | None, attempt: int | None) -> str:
    """Return a digest of what the action does."""
    what: list[object] = [action.kind, sorted(set(action.nodes))]
    if action.kind not in _OF_NODES:
        what += [job, attempt]
    elif not action.nodes:
        what.append(action.why)
    return hashlib.sha256(_encode(what)).hexdigest()


def _beside(job: str, attempt: int, other_jobs: bool) -> sa.Select[Any]:
    """Return the query for the other attempts of an attempt's incident."""
    mine = sa.select(_a.incident).where(_a.job == job, _a.attempt == attempt).scalar_subquery()
    query = sa.select(_a.job, _a.attempt).where(_a.incident == mine)
    others = _a.attempt != attempt
    query = query.where(sa.or_(_a.job != job, others) if other_jobs else sa.and_(_a.job == job, others))
    return query.order_by(_a.at.desc()).limit(_BESIDE)


def _same(action: Action, subject: object) -> sa.Select[Any]:
    """Return the query for actions that make this one unnecessary."""
    cases: list[sa.ColumnElement[bool]] = [OPEN_ACTION]
    if action.verdict is not None or action.test is not None:
        cases.append(sa.and_(_is(_c.verdict, action.verdict), _is(_c.test, action.test)))
    if action.kind not in _OF_NODES:
        cases.append(_c.state == "done")
    open_first = sa.case((OPEN_ACTION, 0), else_=1)
    return sa.select(_c.id).where(_c.subject == subject, sa.or_(*cases)).order_by(open_first).limit(1)


def _renewed(
    connection: sa.Connection, former: StoredAction, action: Action, values: dict[str, Any]
) -> StoredAction | None:
    """Update a waiting action with a newer test's finding; return it if it is now to be done at once."""
    newer = action.test is not None and action.test > (former.action.test or 0)
    if former.state != "waiting" or action.kind not in _OF_NODES or not newer:
        return None
    fresh = {name: value for name, value in values.items() if name != "at"}
    connection.execute(sa.update(node_actions).where(_c.id == former.id).values(fresh))
    _audit(connection, former.id, action, "renewed", POLICY, action.why, values["changed"])
    if values["state"] == "waiting":
        return None
    _audit(connection, former.id, action, "approved", POLICY, _AT_ONCE, values["changed"])
    return _read(_found(connection, former.id))


def _is(column: sa.ColumnElement[Any], value: int | None) -> sa.ColumnElement[bool]:
    return column.is_(None) if value is None else column == value


def _audit(connection: sa.Connection, id: int, action: Action, step: str, by: str, why: str, at: float) -> None:
    node = action.nodes[0] if len(action.nodes) == 1 else ""
    enter(connection, "action", id, f"{action.kind} {step}", by, why, at, node)


def _found(connection: sa.Connection, id: int) -> sa.Row[Any]:
    row = connection.execute(sa.select(node_actions).where(_c.id == fit_id(id))).first()
    if row is None:
        raise ActionRefused(f"action {id}", "does not exist", "List the actions.")
    return row


def _read(row: sa.Row[Any]) -> StoredAction:
    values = {name: getattr(row, name) for name in StoredAction.__struct_fields__ if name != "action"}
    return StoredAction(action=_action.decode(row.body), **values)
