"""The ledger of model calls: the cost of each, by job and purpose, for budgets and metrics."""

import msgspec
import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.fit import finite, fit
from logdoctor.store.learning.rule_rows import MAX_COUNT, MAX_NAME, add_to
from logdoctor.store.schema import model_calls, model_totals
from logdoctor.types.models import Spent


class ModelTotal(msgspec.Struct, frozen=True):
    """All calls ever of a model for a purpose with the same result: `result` is "ok" or the kind of failure."""

    model: str
    purpose: str
    result: str
    calls: int
    tokens_in: int
    tokens_out: int
    dollars: float


class ModelCalls:
    """The model calls of one database; usable from any thread and process. Changes are durable on return.

    All calls raise `StoreError` when the database fails. Times (`at`) are seconds since the epoch.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def enter(
        self,
        job: str,
        model: str,
        purpose: str,
        tokens_in: int,
        tokens_out: int,
        dollars: float,
        failure: str,
        at: float,
    ) -> None:
        """Record a call of a model for a job ("" for none); `failure` is its kind, "" for a good answer.

        Spending must count, so nothing is refused: texts are cut, and impossible numbers are brought into range.
        """
        names = {"model": fit(model, MAX_NAME), "purpose": fit(purpose, MAX_NAME)}
        spent = {
            "tokens_in": min(max(tokens_in, 0), MAX_COUNT),
            "tokens_out": min(max(tokens_out, 0), MAX_COUNT),
            "dollars": max(finite(dollars), 0.0),
        }
        failure = fit(failure, MAX_NAME)
        with self._database.writing() as connection:
            call = names | spent | {"job": fit(job, MAX_NAME), "failure": failure, "at": at}
            connection.execute(sa.insert(model_calls).values(call))
            add_to(connection, model_totals, names | {"result": failure or "ok"}, {"calls": 1} | spent)

    def spent(self, job: str | None, since: float) -> Spent:
        """Return the sums of calls since a time: those of a job, or all for None."""
        columns = model_calls.c
        query = sa.select(
            sa.func.count(), sa.func.sum(columns.tokens_in + columns.tokens_out), sa.func.sum(columns.dollars)
        ).where(columns.at >= since)
        if job is not None:
            query = query.where(columns.job == fit(job, MAX_NAME))
        with self._database.reading() as connection:
            calls, tokens, dollars = connection.execute(query).one()
        return Spent(int(calls), int(tokens or 0), float(dollars or 0.0))

    def totals(self) -> list[ModelTotal]:
        """Return the sums of all calls ever, by model, purpose and result."""
        columns = model_totals.c
        query = sa.select(model_totals).order_by(columns.model, columns.purpose, columns.result)
        with self._database.reading() as connection:
            return [ModelTotal(**row._mapping) for row in connection.execute(query)]
