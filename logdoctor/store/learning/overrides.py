"""Overrides of diagnosis rules: which rule, for which jobs, what it says instead, until when, by whom.

An override applies at once, unlike what is learned: a person saw what it changes. It expires at the end of its last
day, and withdrawing it restores the rule. None is ever changed or deleted.
"""

import datetime
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from logdoctor import taxonomy
from logdoctor.errors import RuleRefused
from logdoctor.store.database import Database
from logdoctor.store.fit import MAX_ID, fit, plain
from logdoctor.store.schema import count_up, counter, rule_overrides

Scope = Literal["job", "kind", "fleet"]

PREFIX = "override/"
"""Prefix of the ids of overrides among rules."""
MOST = 1000
"""Overrides that are not withdrawn, at most."""

_MAX_NAME = 300
_MAX_WORDS = 4000
_ALIVE = rule_overrides.c.withdrawn.is_(False)


class NewOverride(msgspec.Struct, frozen=True):
    """What replaces a rule: another reason, or with "" nothing (a mute).

    `whose` is the job or kind of the scope, "" for all. "" for fault or recovery means the taxonomy's default for the
    reason. It applies to the end of the day `expires` (UTC); None: until it is withdrawn. `verdict` is the id of the
    verdict that the person saw, `quote` the line that the rule was wrong about.
    """

    rule: str
    scope: Scope
    whose: str = ""
    reason: str = ""
    fault: str = ""
    recovery: str = ""
    suggestion: str = ""
    why: str = ""
    expires: datetime.date | None = None
    verdict: int | None = None
    quote: str = ""


class StoredOverride(NewOverride, frozen=True, kw_only=True):
    """A stored override; `at` is when it was entered, in seconds since the epoch."""

    id: int
    by: str
    at: float
    withdrawn: bool = False
    withdrawn_by: str = ""
    withdrawn_why: str = ""
    withdrawn_at: float | None = None

    def holds(self, day: datetime.date) -> bool:
        """Return whether it applies on a day."""
        return not self.withdrawn and (self.expires is None or day <= self.expires)


_encode = msgspec.json.Encoder().encode
_body = msgspec.json.Decoder(NewOverride)


class Overrides:
    """The overrides of one database; thread-safe. Changes are durable on return. All calls raise `StoreError` when the
    database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, new: NewOverride, by: str, at: float) -> StoredOverride:
        """Enter an override and return it; the rule's former one for these jobs is withdrawn.

        `RuleRefused` when it names nobody, no jobs, or a word outside the taxonomy, and when there are too many.
        """
        with self._database.writing() as connection:
            return enter(connection, new, by, at)

    def withdraw(self, id: int, by: str, why: str, at: float) -> StoredOverride:
        """Withdraw an override and return it; `RuleRefused` when there is none, or it was withdrawn already."""
        who = _who(by)
        with self._database.writing() as connection:
            if _find(connection, id).withdrawn:
                raise RuleRefused(f"override {id}", "was already withdrawn", "There is nothing to do.")
            _withdraw(connection, id, who, fit(why, _MAX_WORDS), at)
            count_up(connection, "learned")
            return _read(_find(connection, id))

    def one(self, id: int) -> StoredOverride:
        """Return the override with this id, in force or not; `RuleRefused` when there is none."""
        with self._database.reading() as connection:
            return _read(_find(connection, id))

    def list(self, rule: str | None = None, withdrawn: bool = False, limit: int = 2 * MOST) -> list[StoredOverride]:
        """Return the overrides of a rule, or all, newest first; withdrawn ones only if requested."""
        query = sa.select(rule_overrides).order_by(rule_overrides.c.id.desc()).limit(max(limit, 1))
        if rule is not None:
            query = query.where(rule_overrides.c.rule == plain(rule))
        if not withdrawn:
            query = query.where(_ALIVE)
        with self._database.reading() as connection:
            return [_read(row) for row in connection.execute(query)]

    def version(self) -> int:
        """Return a number that grows with every change."""
        with self._database.reading() as connection:
            return counter(connection, "learned")


def enter(connection: sa.Connection, new: NewOverride, by: str, at: float) -> StoredOverride:
    """Enter an override in the caller's transaction and return it; see `Overrides.add`."""
    new, who = _sound(new), _who(by)
    c = rule_overrides.c
    same = (c.rule == new.rule, c.scope == new.scope, c.whose == new.whose, _ALIVE)
    for former in connection.scalars(sa.select(c.id).where(*same)).all():
        _withdraw(connection, former, who, "replaced by a later one", at)
    if int(connection.scalar(sa.select(sa.func.count()).select_from(rule_overrides).where(_ALIVE)) or 0) >= MOST:
        raise RuleRefused("the override", f"there are {MOST} already", "Withdraw those that ended.")
    values = {"rule": new.rule, "scope": new.scope, "whose": new.whose, "by": who, "at": at}
    values |= {"withdrawn": False, "withdrawn_by": "", "withdrawn_why": "", "body": _encode(new).decode()}
    id = int(connection.execute(sa.insert(rule_overrides).values(values).returning(c.id)).scalar_one())
    count_up(connection, "learned")
    return StoredOverride(**msgspec.structs.asdict(new), id=id, by=who, at=at)


def _who(by: str) -> str:
    if not by.strip():
        raise RuleRefused("an override", "names nobody who said it", "Say who you are.")
    return fit(by, _MAX_NAME)


def _sound(new: NewOverride) -> NewOverride:
    """Return the override as it will be stored; `RuleRefused` when it is invalid."""
    whose = "" if new.scope == "fleet" else fit(new.whose.strip(), _MAX_NAME)
    if new.scope != "fleet" and not whose:
        raise _unfit(new, f"it names no {new.scope}", "Name it, or let it hold for all jobs.")
    if new.reason and (new.reason not in taxonomy.REASONS or new.reason == "Unknown"):
        raise _unfit(new, f"{ascii(new.reason)[:80]} is not a reason", "Use a reason of the taxonomy.")
    if new.fault and new.fault not in taxonomy.FAULTS:
        raise _unfit(new, f"its fault {ascii(new.fault)[:80]} is not in the taxonomy", "Use a word of it.")
    if new.recovery and (new.recovery not in taxonomy.RECOVERIES or new.recovery == "none"):
        raise _unfit(new, f"its recovery {ascii(new.recovery)[:80]} is not in the taxonomy", "Use a word of it.")
    return msgspec.structs.replace(
        new,
        rule=fit(new.rule, _MAX_NAME),
        whose=whose,
        suggestion=fit(new.suggestion, _MAX_WORDS),
        why=fit(new.why, _MAX_WORDS),
        quote=fit(new.quote, _MAX_WORDS),
    )


def _unfit(new: NewOverride, cause: str, next_step: str) -> RuleRefused:
    return RuleRefused(f"the override of {ascii(new.rule)[:200]}", cause, next_step)


def _find(connection: sa.Connection, id: int) -> sa.Row[Any]:
    query = sa.select(rule_overrides).where(rule_overrides.c.id == min(max(id, 0), MAX_ID))
    row = connection.execute(query).first()
    if row is None:
        raise RuleRefused(f"override {id}", "does not exist", "List them: logdoctor rules overrides.")
    return row


def _withdraw(connection: sa.Connection, id: int, by: str, why: str, at: float) -> None:
    values = {"withdrawn": True, "withdrawn_by": by, "withdrawn_why": why, "withdrawn_at": at}
    connection.execute(sa.update(rule_overrides).where(rule_overrides.c.id == id).values(values))


def _read(row: sa.Row[Any]) -> StoredOverride:
    return StoredOverride(
        **msgspec.structs.asdict(_body.decode(row.body)),
        id=row.id,
        by=row.by,
        at=row.at,
        withdrawn=row.withdrawn,
        withdrawn_by=row.withdrawn_by,
        withdrawn_why=row.withdrawn_why,
        withdrawn_at=row.withdrawn_at,
    )
