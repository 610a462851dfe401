"""Refused proposals of rules: by which guard, and why."""

import builtins
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.fit import MAX_ID, fit, fit_limit, plain
from logdoctor.store.learning.rule_rows import MAX_NAME, MAX_TEXTS, add_to, bounded, checked_kind
from logdoctor.store.names import checked, checked_attempt
from logdoctor.store.schema import refusal_counts, rule_refusals

MAX_REFUSALS = 2000
"""Refusals of a kind that are kept; older ones are only counted."""


class Votes(msgspec.Struct, frozen=True):
    """The number of runs that answered, the numbers of those that agreed, and the judge's answer."""

    runs: int
    agreed: tuple[int, ...]
    judge: str

    def cut(self) -> "Votes":
        """Return the votes as columns hold them."""
        return msgspec.structs.replace(self, agreed=self.agreed[:MAX_TEXTS], judge=bounded(self.judge))


class Refused(msgspec.Struct, frozen=True):
    """A refused proposal: by which guard, and why."""

    pattern: str
    guard: str
    cause: str
    votes: Votes | None = None


class StoredRefusal(msgspec.Struct, frozen=True):
    """A refused proposal with its kind, source attempt, agent and time."""

    id: int
    kind: str
    job: str
    attempt: int
    agent: str
    at: float
    pattern: str
    guard: str
    cause: str
    votes: Votes | None


_votes = msgspec.json.Decoder(Votes)


class Refusals:
    """The refused proposals of one database, kept as `LearnedRules` keeps the rules."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, kind: str, job: str, attempt: int, agent: str, refusals: Sequence[Refused], at: float) -> None:
        """Store refused proposals for an attempt, keeping the last 2,000 of a kind. Texts are cut to 2,000
        characters."""
        kind, attempt = checked_kind(kind), checked_attempt(attempt)
        checked("job", job)
        if not refusals:
            return
        whose = {"kind": kind, "job": job, "attempt": attempt, "agent": fit(agent, MAX_NAME), "at": at}
        counts: dict[str, int] = {}
        for refusal in refusals:
            guard = fit(refusal.guard, MAX_NAME)
            counts[guard] = counts.get(guard, 0) + 1
        with self._database.writing() as connection:
            kept = refusals[-MAX_REFUSALS:]
            connection.execute(sa.insert(rule_refusals), [whose | _refusal_values(refusal) for refusal in kept])
            for guard, count in sorted(counts.items()):
                add_to(connection, refusal_counts, {"guard": guard}, {"refused": count})
            mine = rule_refusals.c.kind == kind
            newest = sa.select(rule_refusals.c.id).where(mine).order_by(rule_refusals.c.id.desc())
            if (last := connection.scalar(newest.offset(MAX_REFUSALS).limit(1))) is not None:
                connection.execute(sa.delete(rule_refusals).where(mine, rule_refusals.c.id <= last))

    def list(
        self, kind: str | None = None, guard: str | None = None, limit: int = 100, before: int | None = None
    ) -> builtins.list[StoredRefusal]:
        """Return the kept refusals that match all given conditions, newest first, with ids below `before`."""
        query = sa.select(rule_refusals).order_by(rule_refusals.c.id.desc())
        if kind is not None:
            query = query.where(rule_refusals.c.kind == plain(kind))
        if guard is not None:
            query = query.where(rule_refusals.c.guard == plain(guard))
        if before is not None:
            query = query.where(rule_refusals.c.id < min(max(before, 0), MAX_ID))
        with self._database.reading() as connection:
            return [_refusal(row) for row in connection.execute(query.limit(fit_limit(limit)))]

    def counts(self) -> dict[str, int]:
        """Return how many proposals each guard has ever refused."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(refusal_counts).order_by(refusal_counts.c.guard))
            return {row.guard: row.refused for row in rows}


def _refusal_values(refusal: Refused) -> dict[str, Any]:
    return {
        "pattern": bounded(refusal.pattern),
        "guard": fit(refusal.guard, MAX_NAME),
        "cause": bounded(refusal.cause),
        "votes": None if refusal.votes is None else msgspec.json.encode(refusal.votes.cut()).decode(),
    }


def _refusal(row: sa.Row[Any]) -> StoredRefusal:
    votes = None if row.votes is None else _votes.decode(row.votes)
    return StoredRefusal(**{**row._mapping, "votes": votes})
